"""Mutants of the inspection: rates of layers, units, subspaces, lens, attention, MaskCut, CRF, verdicts."""

from .mutant import mutants

MUTANTS = [
    *mutants(
        "inspection/segment/cuts.py",
        "tests/inspection/test_cuts.py tests/inspection/test_protocols.py",
        {
            "SAME = 0.5": "SAME = 0.95",
            "SMALLEST = 0.01": "SMALLEST = 0.05",
            "WEAK = 1e-5": "WEAK = 1e-2",
            "THRESHOLD = 0.15": "THRESHOLD = 0.3",
            "(corners < 2 and rule": "(corners <= 2 and rule",
            "return corners < 2": "return corners > 2",
            "return bool(above.ravel()[np.abs(vector).argmax()])": "return bool(above.ravel()[vector.argmax()])",
            "new = kept & ~taken": "new = kept",
            "/ float(degrees[~side].sum())) / 2": "/ float(degrees[~side].sum()))",
            "masks: int = 3,": "masks: int = 5,",
        },
    ),
    *mutants(
        "inspection/segment/crf.py",
        "tests/inspection/test_crf.py tests/inspection/test_protocols.py",
        {
            "ITERATIONS = 10": "ITERATIONS = 5",
            "MIN_OVERLAP = 0.5": "MIN_OVERLAP = 0.3",
            "SMOOTH_WEIGHT, SMOOTH_SPREAD = 7.0, 3.0": "SMOOTH_WEIGHT, SMOOTH_SPREAD = 5.0, 3.0",
            "COLOR_WEIGHT, PLACE_SPREAD, COLOR_SPREAD = 10.0, 50.0, 5.0": (
                "COLOR_WEIGHT, PLACE_SPREAD, COLOR_SPREAD = 10.0, 50.0, 10.0"
            ),
            "binary_fill_holes(q > 0.5)": "q > 0.5",
            "for _ in range(iterations):": "for _ in range(1):",
            "overlap(old, new) >= MIN_OVERLAP": "overlap(old, new) > 0",
        },
    ),
    *mutants(
        "inspection/measure/logit_lens.py",
        "tests/inspection/test_logit_lens.py",
        {
            "(batch.real[:, 1:] & batch.real[:, :-1])": "batch.real[:, :-1]",
            "rank = 1 + (": "rank = (",
            "((logs == own) & before)": "(logs == own)",
            "z = model.crate.norm(z)": "pass",
            "z = model.transform(z)": "pass",
            "int(ids[t + 1]) if t + 1 < n": "int(ids[t]) if t + 1 < n",
            "entropy = -(logs.exp()": "entropy = (logs.exp()",
        },
    ),
    *mutants(
        "inspection/measure/sparse_units.py",
        "tests/inspection/test_sparse_units.py",
        {
            "1 - self.total.square() / (squares * self.tokens)": "1 - self.total / (squares * self.tokens)",
            "self.fired = self.fired + (rows != 0).sum(0)": "self.fired = self.fired + (rows > 0.1).sum(0)",
            "places = _LAST - (start + torch.arange(len(rows)))": "places = start + torch.arange(len(rows))",
            "minimum: float = 0.01": "minimum: float = 0.1",
            "return self.total / self.fired.clamp(min=1)": "return self.total / self.tokens",
            "module.sparsifier_norm(half) if module.norm_first else half": "half",
        },
    ),
    *mutants(
        "inspection/measure/subspaces.py",
        "tests/inspection/test_subspaces.py",
        {
            "unit = torch.nn.functional.normalize(columns, dim=0)": "unit = columns",
            "math.lgamma(d / 2) - math.lgamma((d + 1) / 2)": "math.lgamma(d / 2) - math.lgamma(d / 2)",
            "/ math.sqrt(dictionary.shape[1])": "/ dictionary.shape[1]",
            "DIRECTIONS = 4": "DIRECTIONS = 3",
            "math.degrees(math.acos(cosines.max()))": "math.acos(cosines.max())",
            "torch.triu_indices(K * p, K * p, 1": "torch.triu_indices(K * p, K * p, 0",
        },
    ),
    *mutants(
        "inspection/measure/rates.py",
        "tests/inspection/test_rates.py",
        {
            '"released": 0.1}': '"released": 0.5}',
            "start = inputs if module.normalized_skip else passed.layer_input(layer)": "start = inputs",
            "samples.std(correction=0)": "samples.std(correction=1)",
            "torch.nn.functional.normalize(step.raw_codes(codes), dim=-1)": ("step.raw_codes(codes)"),
        },
    ),
    *mutants(
        "inspection/measure/steps.py",
        "tests/inspection/test_controls.py tests/inspection/test_rates.py",
        {
            "THRESHOLDS = (1.0, 0.5, 0.1)": "THRESHOLDS = (1.0, 0.5, 0.2)",
            "codes / norms(z).unsqueeze(-3)": "codes",
            "return self.after - self.start": "return self.after",
            "return objective.tangential(self.descent_velocity, self.start)": "return self.descent_velocity",
            "return self.tangential_velocity * self.lengths": "return self.tangential_velocity",
            "self.descent_velocity if whole else": "self.tangential_velocity if whole else",
            "along = 0.0 if whole else": "along = 0.0 if not whole else",
            "(self.start.shape[-2] / update.shape[-2]) ** 0.5": "1.0",
            "self.after_normalized - after\n": "after - self.after_normalized\n",
            "rolled = permuted(self.after_codes - self.start_codes)": "rolled = self.after_codes - self.start_codes",
            "- weight * objective.l1_norm(self.sparse)": "+ weight * objective.l1_norm(self.sparse)",
            "mean = value.cumsum(-2) / count": "mean = value.cumsum(-2)",
            "mean = value.mean(-2, keepdim=True)": "mean = value[:, :, :1]",
            "torch.randn(1, 1, step.start": "torch.randn(len(step.start), 1, step.start",
            "z.roll(max(1, z.shape[-2] // 2), dims=-2)": "z",
            "lambda step: step.start.mean(-2, keepdim=True)": "lambda step: step.start",
            '"incoherent", generator(seed)': '"incoherent", None',
            '{"dictionary": atoms[:, order]}': '{"dictionary": atoms}',
            "step.lasso_start - step.ista.step_size * step.ista.sparsity": "step.lasso_start",
            "own - after\n        return columns": "after - own\n        return columns",
        },
    ),
    *mutants(
        "objective/normalized.py",
        "tests/inspection/test_controls.py tests/models/test_objective.py",
        {
            "mask.shape[-1] / real.sum(-1, keepdim=True)": "real.sum(-1, keepdim=True) / mask.shape[-1]",
            "direction - (direction * unit).sum(-1, keepdim=True) * unit": "direction",
        },
    ),
    *mutants(
        "models/layers.py",
        "tests/models/test_objective.py",
        {
            "ratio = (after / before": "ratio = (before / after",
            "(ratio + (end / start).mean()) / 2": "ratio + (end / start).mean()",
            "x, code) * real).sum((-2, -1)) for code in (x, sparse.to(work))": (
                "x, code) * real).sum((-2, -1)) for code in (sparse.to(work), x)"
            ),
            "self.objective_sparsity) / z.shape[-2]": "self.objective_sparsity)",
        },
    ),
    *mutants(
        "models/outputs.py",
        "tests/models/test_objective.py",
        {
            "or index in self.measured or index": "or index",
            "torch.stack(self.terms).mean()": "torch.stack(self.terms).sum()",
        },
    ),
    *mutants(
        "models/base.py",
        "tests/models/test_objective.py",
        {
            "self.training and self.config.objective_weight": "self.config.objective_weight",
            "self.config.objective_weight * share * objective": "self.config.objective_weight * objective",
        },
    ),
    *mutants(
        "inspection/measure/interventions.py",
        "tests/inspection/test_interventions.py",
        {
            "mask[[head - 1 for head in off]] = 0": "mask[[head - 2 for head in off]] = 0",
            "device=code.device) - 1": "device=code.device) - 2",
            "scale_step(intervention.step_size)": "scale_step(1)",
            "layers[: intervention.layers]": "layers[: intervention.layers + 1]",
            'table["before"] - table["after"]': 'table["after"] - table["before"]',
        },
    ),
    *mutants(
        "inspection/measure/predictions.py",
        "tests/inspection/test_predictions.py",
        {
            "2 * sum(counted) > len(counted)": "2 * sum(counted) >= len(counted)",
            "depth = len(values) - int(self.except_last and len(values) > 2)": "depth = len(values)",
            "0 < error >= abs(change)": "0 < error >= 2 * abs(change)",
            "/ np.sqrt(samples)": "/ samples",
            "np.hypot(errors[:-1], errors[1:])": "np.asarray(errors[:-1])",
            "beaten = [sign == self.sign for sign": "beaten = [sign != -self.sign for sign",
            "2 * sum(beaten) > len(beaten)": "2 * sum(beaten) >= len(beaten)",
            "return last / first - 1,": "return last / first,",
            "float(np.linalg.norm(errors)) / max(len(errors), 1)": "float(np.mean(errors))",
        },
    ),
    *mutants(
        "inspection/report/layers.py",
        "tests/inspection/test_layers.py",
        {'config.sparsifier not in ("mlp", "none")': 'config.sparsifier != "mlp"'},
    ),
    *mutants(
        "inspection/report/summary.py",
        "tests/inspection/test_report.py",
        {"== self.higher_is_better and gain else": "== self.higher_is_better else"},
    ),
    *mutants(
        "inspection/measure/attention.py",
        "tests/inspection/test_attention_maps.py tests/inspection/test_heads.py tests/inspection/test_segment.py",
        {
            "TOP_SHARE = 0.1": "TOP_SHARE = 0.2",
            "maps.append(patches / patches.sum(-1, keepdim=True))": "maps.append(patches)",
            ".chunk(3, dim=-1)[1]": ".chunk(3, dim=-1)[0]",
            "sum(-1) / math.log(patches)": "sum(-1)",
            "others.mean(0) / (K - 1)": "others.mean(0) / K",
        },
    ),
]
