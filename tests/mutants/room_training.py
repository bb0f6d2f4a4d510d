"""Mutants of training: optimizers, schedules, seeds of batches, the losses and metrics of tasks."""

from .mutant import mutants

LOSSES = "tests/tasks/test_losses.py"
SCHEDULES = (
    "tests/tasks/test_distillation.py::test_the_teachers_temperature_is_the_table_of_the_released_code "
    "tests/tasks/test_distillation.py::test_the_teachers_momentum_follows_a_cosine"
)
MUTANTS = [
    *mutants(
        "runs/optimizers.py",
        "tests/runs/test_optimizers.py",
        {
            "first = 0 if section.warmup_from_zero else 1": "first = 1",
            "/ max(1, total - warmup))": "/ max(1, total))",
            "else 1 + (low - 1) * share": "else 1 - share",
            "get_ema_multi_avg_fn(decay)": "get_ema_multi_avg_fn(1 - decay)",
            "else [p for p in trainable if p.ndim >= 2]": "else [p for p in trainable if p.ndim >= 1]",
            "section.betas or (0.9, 0.99), weight_decay": "section.betas or (0.9, 0.999), weight_decay",
            'adjust_lr_fn="match_rms_adamw"': 'adjust_lr_fn="original"',
            "return cosine(start, end, min(step, steps) / max(steps, 1))": (
                "return cosine(end, start, min(step, steps) / max(steps, 1))"
            ),
            "betas=betas, eps=section.eps, weight_decay=": "betas=betas, weight_decay=",
            "warmup = section.warmup_steps or round(": "warmup = round(",
            "low = section.final_lr / peak": "low = section.final_lr",
            "for p in layer.parameters() if p.ndim == 2}": "for p in layer.parameters() if p.ndim >= 1}",
        },
    ),
    *mutants(
        "runs/trainer.py",
        "tests/runs/test_batch_seeds.py",
        {
            "self._micro_step, self.args.process_index)": "0, self.args.process_index)",
            "self._micro_step, self.args.process_index)\n": "self._micro_step, 0)\n",
            "indices = (self.recipe.run.seed, ": "indices = (0, ",
            "self.state.global_step, self._micro_step": "0, self._micro_step",
        },
    ),
    *mutants(
        "runs/training.py",
        "tests/runs/test_batch_seeds.py",
        {
            "gradient_accumulation_steps=share // device_batch": "gradient_accumulation_steps=1",
            "max(device_batch, task.evaluation_batch_size)": "device_batch",
        },
    ),
    *mutants(
        "tasks/base.py",
        LOSSES,
        {
            "end + 0.5 * (start - end) * (1 + math.cos(": "end + 0.5 * (start - end) * (1 - math.cos(",
            "float((column * weight).sum() / weight.sum())": "float(column.mean())",
        },
    ),
    *mutants(
        "tasks/language.py",
        LOSSES,
        {
            "ids[:, 1:].flatten(), label_smoothing=smoothing)": "ids[:, 1:].flatten())",
            'reduction="sum", label_smoothing=smoothing)': 'reduction="sum")',
            "inner.regularized(total / count, objective": "inner.regularized(total / masked.numel(), objective",
            "return Step(inner.regularized(loss, objective=output.objective), len(ids))": "return Step(loss, len(ids))",
            "UNLEARNED = 0.01": "UNLEARNED = 1.0",
            "bits_per_byte(1.0)": "bits_per_byte(2.0)",
            "RandomBlocks(train, block + 1, seed": "RandomBlocks(train, block, seed",
            '"accuracy": correct.sum(dim=1) / divisor': '"accuracy": correct.mean(dim=1)',
        },
    ),
    *mutants(
        "tasks/distillation.py",
        f"{SCHEDULES} {LOSSES}",
        {
            "COLLAPSED = 0.01": "COLLAPSED = 0.1",
            "* (1 - section.momentum) < 2": "* (1 - section.momentum) < 0",
            "epoch < max(1, section.temperature_epochs)": "epoch < 0",
            "self.last_layer_frozen = epoch < section.freeze_last_epochs": "self.last_layer_frozen = False",
            "epoch / max(warmup_epochs - 1, 1)": "epoch / max(warmup_epochs, 1)",
            "return cosine(start, 1.0, min(step": "return cosine(1.0, start, min(step",
            "entr(answers.mean(dim=0)).sum() - entropy": "entr(answers.mean(dim=0)).sum() + entropy",
            "((logits - center) / temperature).flatten": "(logits / temperature).flatten",
        },
    ),
    *mutants(
        "tasks/classification.py",
        LOSSES,
        {
            "label_smoothing=self.recipe.optimizer.label_smoothing)": "label_smoothing=0.0)",
            "top = logits.topk(min(5,": "top = logits.topk(min(4,",
            '"top1": correct[:, 0]': '"top1": correct.any(dim=1)',
            "if logits.shape[-1] > 5 else {}": "if logits.shape[-1] > 4 else {}",
        },
    ),
    *mutants(
        "tasks/autoencoding.py",
        "tests/tasks/test_autoencoding.py",
        {
            "[:kept]] = False": "[: kept + 1]] = False",
            "np.random.default_rng((seed, zlib.crc32(np.ascontiguousarray(image).tobytes())))": (
                "np.random.default_rng(seed)"
            ),
        },
    ),
    *mutants(
        "tasks/generation.py",
        LOSSES,
        {
            '"temperature": 0.8, "top_k": 50}\n    _check': '"temperature": 1.0, "top_k": 50}\n    _check',
            '"top_k": 50 if top_k is None else top_k': '"top_k": 40 if top_k is None else top_k',
            "ids[:, -max(1, context // 2) :]": "ids[:, -max(1, context - 1) :]",
        },
    ),
]
