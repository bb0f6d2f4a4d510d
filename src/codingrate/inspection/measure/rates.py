"""Measure every layer against the objective, as in the paper's section 4.2."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ... import objective
from ..._distributed import map_batches
from ...errors import CrateError, unknown_name
from ...models.base import CratePreTrainedModel, eval_mode
from ...models.layers import EncoderLayer
from ...operators import MHSA
from .tracing import ForwardTrace, layer_indices, trace

LAYERWISE = {"evaluation": "layerwise", "training": "layerwise-train"}
"""Kind of the lines with layer-wise measures in metrics.jsonl, by split."""
THRESHOLDS = (1.0, 0.5, 0.1)  # the τ of the appendix: entries of a black box are never zero, but they can be small
PRECISION = {"paper": 0.5, "released": 0.1}
"""Default ε of each measure. The released script writes p/(n · 0.01), which is ε² = 0.01."""


def layerwise(
    model: CratePreTrainedModel,
    batches: Iterable[Tensor | Mapping[str, Any]],
    eps: float | None = None,
    *,
    layers: Collection[int] | None = None,
    measure: str = "paper",
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Measure rates and sparsity of every encoder layer over samples, streamed batch by batch.

    The table has a row per layer ℓ, counted from 1, with the number of `samples` and, over samples, the mean and the
    standard deviation (`…_std`) of:

    - `compression`: R^c(Z^{ℓ+½} | U^ℓ) after attention (4.2). For a ViT its value matrices take the place of U.
    - `before`: R^c of the input of the skip connection around attention, LN(Z^ℓ) or Z^ℓ, which attention should lower.
    - `same_size`: R^c(cZ^{ℓ+½} | U^ℓ) with c such that ‖cZ^{ℓ+½}‖_F is the norm before attention. A skip connection
      adds, so tokens and their rates grow unless the shrinkage that belongs to the gradient step is applied too (2.3).
    - `blocks`: R^c(Z^{ℓ+½}) with the K blocks of d/K coordinates as subspaces. They are the same for every model: the
      appendix states R^c of a ViT without naming its subspaces.
    - `rate` R(Z^{ℓ+1}), `reduction` ΔR(Z^{ℓ+1} | U^ℓ) and `effective_rank` of Z^{ℓ+1}.
    - `nonzero`, ‖Z^{ℓ+1}‖₀/(dn), and `below_τ`, the share of entries |z| < τ for each τ of `THRESHOLDS`.

    `measure="released"` computes R^c as the authors' script does: from U^ℓᵀLN(Z^ℓ), the input of attention rather than
    its output, with every projected token scaled to length one and ε = 0.1. `eps` sets another ε. `layers` are the
    indices of layers to measure, from 0 or, if negative, from the end. Memory is that of one batch's trace. Padding is
    ignored. `progress` is called after each batch with its number of samples.
    """
    if measure not in PRECISION:
        raise unknown_name("measure", measure, PRECISION)
    eps = PRECISION[measure] if eps is None else eps
    chosen = sorted(layer_indices(layers, model.config.num_hidden_layers))

    def measured(batch: Tensor | Mapping[str, Any]) -> list[dict[str, Tensor]]:
        passed = trace(model, batch, chosen)
        values = [layer_measures(passed, layer, eps, measure) for layer in chosen]
        return [{name: value.cpu() for name, value in layer.items()} for layer in values]

    values: list[list[dict[str, Tensor]]] = []  # by batch and layer
    with eval_mode(model):
        for layers_of_batch in map_batches(measured, batches) if chosen else ():
            values.append(layers_of_batch)
            if progress is not None:
                progress(len(next(iter(layers_of_batch[0].values()))))
    if not values:
        raise CrateError("layerwise got no batches or no layers; give at least one of each")
    rows = []
    for index, layer in enumerate(chosen):
        row: dict[str, float] = {"layer": layer + 1}
        for name in values[0][index]:
            samples = torch.cat([batch[index][name] for batch in values]).double()
            row[name] = float(samples.mean())
            row[f"{name}_std"] = float(samples.std(correction=0))
        rows.append({**row, "samples": len(samples)})
    return pd.DataFrame(rows)


def layer_measures(
    passed: ForwardTrace, layer: int, eps: float, measure: str = "paper", only: Collection[str] | None = None
) -> dict[str, Tensor]:
    """Measure one encoder layer for each sample of a traced batch; each measure is (batch,).

    `only` names the measures that are computed. Default: all.
    """
    module = passed.layers[layer]
    if not isinstance(module, EncoderLayer):
        raise CrateError(f"layer {layer} belongs to the decoder; the objective is defined for encoder layers")
    inputs = passed.attention_input(layer)
    start = inputs if module.normalized_skip else passed.layer_input(layer)
    tokens = (inputs, start, passed.compressed[layer], passed.tokens[layer + 1])
    bases, mask = _layer_bases(passed, layer), passed.mask
    if mask is None or bool(mask.all()):
        return _measures(tokens, bases, eps, measure, only)
    texts = ([z[None, index, real] for z in tokens] for index, real in enumerate(mask))  # lengths differ: one by one
    samples = [_measures(text, bases, eps, measure, only) for text in texts]
    return {name: torch.cat([sample[name] for sample in samples]) for name in samples[0]}


def stacked_bases(passed: ForwardTrace) -> Tensor:
    """Return the bases of all encoder layers of a trace, (L, K, d, p)."""
    return torch.stack([_layer_bases(passed, layer).mT for layer in range(passed.encoder_depth)]).mT


def curve_measures(passed: ForwardTrace, bases: Tensor, eps: float, first: int = 0) -> dict[str, Tensor]:
    """Measure `compression`, `reduction` and `nonzero` of a single sample without padding, each (layers,).

    They are those of `layer_measures`, for all encoder layers from index `first` on in one batch, with one projection
    on the `stacked_bases` of the model.
    """
    depth = passed.encoder_depth
    after, sparse = torch.cat(passed.compressed[first:depth]), torch.cat(passed.tokens[first + 1 : depth + 1])
    both = torch.cat([after, sparse], dim=1)  # (layers, 2n, d)
    codes = objective.project(both, bases[first:depth]).unflatten(-2, (2, -1))  # (layers, K, 2, n, p)
    compression, coded = objective.projected_coding_rate(codes, eps).sum(1).unbind(-1)
    reduction = objective.coding_rate(sparse, eps) - coded
    return {"compression": compression, "reduction": reduction, "nonzero": objective.l0_fraction(sparse)}


def _layer_bases(passed: ForwardTrace, layer: int) -> Tensor:
    """Return U_1 … U_K of a layer, (K, d, p); for a black box the value matrices V_1 … V_K of its attention."""
    bases = passed.bases[layer]
    if bases is not None:
        return bases
    attention = passed.layers[layer].attention
    if not isinstance(attention, MHSA):
        raise CrateError(f"attention {type(attention).__name__} has neither subspaces nor values")
    weight = attention.project.weight.detach().chunk(3)[2]
    return weight.unflatten(0, (attention.spec.heads, attention.spec.head_dim)).mT


def _measures(
    tokens: Sequence[Tensor], bases: Tensor, eps: float, measure: str, only: Collection[str] | None
) -> dict[str, Tensor]:
    inputs, start, after, sparse = tokens
    wanted = only or ()

    # What several measures need is computed once: codes, which cost a product with U^ℓ, and R(Z^{ℓ+1}).
    @cache
    def codes_before() -> Tensor:
        return objective.project(start, bases)  # (batch, K, n, p)

    @cache
    def codes_after() -> Tensor:
        return objective.project(after, bases)

    @cache
    def rate_and_rank() -> tuple[Tensor, Tensor]:
        if only is None or "effective_rank" in wanted:
            return objective.rate_and_rank(sparse, eps)
        return objective.coding_rate(sparse, eps), sparse.new_full((len(sparse),), torch.nan)

    def compression() -> Tensor:
        if measure == "released":
            codes = codes_before() if inputs is start else objective.project(inputs, bases)
            return _summed_rate(torch.nn.functional.normalize(codes, dim=-1), eps)
        return _summed_rate(codes_after(), eps)

    def same_size() -> Tensor:
        return _summed_rate(codes_after() * (_norm(start) / _norm(after)).unsqueeze(-3), eps)

    def blocks() -> Tensor:  # NaN unless K divides d: Σ_k R of the k-th block of coordinates
        if after.shape[-1] % len(bases):
            return after.new_full((len(after),), torch.nan)
        return _summed_rate(after.unflatten(-1, (len(bases), -1)).transpose(-3, -2), eps)  # (batch, K, n, d/K)

    measures: dict[str, Callable[[], Tensor]] = {
        "compression": compression,
        "before": lambda: _summed_rate(codes_before(), eps),
        "same_size": same_size,
        "blocks": blocks,
        "rate": lambda: rate_and_rank()[0],
        "reduction": lambda: rate_and_rank()[0] - _summed_rate(objective.project(sparse, bases), eps),
        "effective_rank": lambda: rate_and_rank()[1],
        "nonzero": lambda: objective.l0_fraction(sparse),
    }
    values = {name: compute() for name, compute in measures.items() if only is None or name in only}
    if only is None:
        shares = objective.fraction_below(sparse, THRESHOLDS).unbind(-1)
        values |= {f"below_{tau:g}": share for tau, share in zip(THRESHOLDS, shares, strict=True)}
    return values


def _summed_rate(codes: Tensor, eps: float) -> Tensor:
    """Compute R^c = Σ_k R of codes (batch, K, n, p) → (batch,)."""
    return objective.projected_coding_rate(codes, eps).sum(-1)


def _norm(z: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(z, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's metrics.jsonl; a last line that a killed process could not complete is skipped."""
    try:
        *texts, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise CrateError(f"{path}: cannot be read ({error.strerror}); give a run that was trained") from error
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            lines.append(_checked_line(json.loads(text)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CrateError(f"{path}: line {number} is damaged; restore the file, or remove the line") from None
    return lines


def _checked_line(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of metrics; raise an error if it has not the keys and types that a run writes."""
    layers = line["layers"] if line["kind"] in LAYERWISE.values() else []
    if type(line["step"]) is not int or (line["kind"] == "end" and line["train_runtime"] is None):
        raise ValueError
    if not isinstance(line.get("version", ""), str):
        raise ValueError
    for layer in layers:
        _ = layer["layer"], layer["compression"], layer["nonzero"]
    for entry in (line, *layers):
        for key, value in entry.items():
            if key not in ("kind", "first_unreadable", "layers", "version"):
                _ = math.isfinite(0.0 if value is None else value)  # raises a TypeError for other than numbers
    return line


def across_training(metrics: Path, split: str = "evaluation") -> pd.DataFrame:
    """Return the layer-wise measures in a run's metrics.jsonl, with a row per epoch and layer.

    `split` is "evaluation" or "training"; the latter is measured with `run.layerwise_protocol=paper` only.
    """
    if split not in LAYERWISE:
        raise unknown_name("split", split, LAYERWISE)
    rows = []
    for line in read_metrics(metrics):
        if line["kind"] == LAYERWISE[split]:
            rows += [{"epoch": line["epoch"] or 0.0, "step": line["step"], **layer} for layer in line["layers"]]
    if not rows:
        option = "run.layerwise_epochs=1" + (" run.layerwise_protocol=paper" if split == "training" else "")
        raise CrateError(f"{metrics}: has no layer-wise measures of this split; train with {option}")
    return pd.DataFrame(rows)
