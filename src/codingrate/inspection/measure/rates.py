"""Measure every layer against the objective, as in the paper's section 4.2."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ... import objective
from ...errors import CrateError, unknown_name
from ...models.base import CratePreTrainedModel, eval_mode
from ...models.layers import EncoderLayer
from ...operators import MHSA
from .tracing import ForwardTrace, layer_indices, trace

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
    ignored.
    """
    if measure not in PRECISION:
        raise unknown_name("measure", measure, PRECISION)
    eps = PRECISION[measure] if eps is None else eps
    chosen = sorted(layer_indices(layers, model.config.num_hidden_layers))
    values: dict[int, list[dict[str, Tensor]]] = {layer: [] for layer in chosen}
    with eval_mode(model):
        for batch in batches:
            passed = trace(model, batch, chosen)
            for layer in chosen:
                values[layer].append(layer_measures(passed, layer, eps, measure))
    if not chosen or not values[chosen[0]]:
        raise CrateError("layerwise got no batches or no layers; give at least one of each")
    rows = []
    for layer in chosen:
        row: dict[str, float] = {"layer": layer + 1}
        for name in values[layer][0]:
            samples = torch.cat([batch[name] for batch in values[layer]]).double()
            row[name] = float(samples.mean())
            row[f"{name}_std"] = float(samples.std(correction=0))
        rows.append({**row, "samples": len(samples)})
    return pd.DataFrame(rows)


def layer_measures(passed: ForwardTrace, layer: int, eps: float, measure: str = "paper") -> dict[str, Tensor]:
    """Measure one encoder layer for each sample of a traced batch; each measure is (batch,)."""
    module = passed.layers[layer]
    if not isinstance(module, EncoderLayer):
        raise CrateError(f"layer {layer} belongs to the decoder; the objective is defined for encoder layers")
    inputs = passed.attention_input(layer)
    start = inputs if module.normalized_skip else passed.tokens[layer]
    tokens = (inputs, start, passed.compressed[layer], passed.tokens[layer + 1])
    bases, mask = passed.bases[layer], passed.mask
    if bases is None:  # the value matrices V_1 … V_K of a black box's attention correspond to U, (K, d, p)
        attention = module.attention
        if not isinstance(attention, MHSA):
            raise CrateError(f"attention {type(attention).__name__} has neither subspaces nor values")
        weight = attention.project.weight.detach().chunk(3)[2]
        bases = weight.unflatten(0, (attention.spec.heads, attention.spec.head_dim)).mT
    if mask is None or bool(mask.all()):
        return _measures(tokens, bases, eps, measure)
    texts = ([z[None, index, real] for z in tokens] for index, real in enumerate(mask))  # lengths differ: one by one
    samples = [_measures(text, bases, eps, measure) for text in texts]
    return {name: torch.cat([sample[name] for sample in samples]) for name in samples[0]}


def _measures(tokens: Sequence[Tensor], bases: Tensor, eps: float, measure: str) -> dict[str, Tensor]:
    inputs, start, after, sparse = tokens
    if measure == "released":
        codes = torch.nn.functional.normalize(objective.project(inputs, bases), dim=-1)
        compression = objective.projected_coding_rate(codes, eps).sum(-1)
    else:
        compression = objective.subspace_coding_rate(after, bases, eps)
    K = len(bases)
    block_rate = after.new_full((len(after),), torch.nan)  # unless K divides d: Σ_k R of the k-th block of coordinates
    if after.shape[-1] % K == 0:
        blocks = after.unflatten(-1, (K, -1)).transpose(-3, -2)  # (batch, K, n, d/K)
        block_rate = objective.projected_coding_rate(blocks, eps).sum(-1)
    values = {
        "compression": compression,
        "before": objective.subspace_coding_rate(start, bases, eps),
        "same_size": objective.subspace_coding_rate(after * _norm(start) / _norm(after), bases, eps),
        "blocks": block_rate,
        "rate": objective.coding_rate(sparse, eps),
        "reduction": objective.rate_reduction(sparse, bases, eps),
        "effective_rank": objective.effective_rank(sparse),
        "nonzero": objective.l0_fraction(sparse),
    }
    for tau, share in zip(THRESHOLDS, objective.fraction_below(sparse, THRESHOLDS).unbind(-1), strict=True):
        values[f"below_{tau:g}"] = share
    return values


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
    layers = line["layers"] if line["kind"] == "layerwise" else []
    if type(line["step"]) is not int or (line["kind"] == "end" and line["train_runtime"] is None):
        raise ValueError
    for layer in layers:
        _ = layer["layer"], layer["compression"], layer["nonzero"]
    for entry in (line, *layers):
        for key, value in entry.items():
            if key not in ("kind", "first_unreadable", "layers"):
                _ = math.isfinite(0.0 if value is None else value)  # raises a TypeError for other than numbers
    return line


def across_training(metrics: Path) -> pd.DataFrame:
    """Return the layer-wise measures in a run's metrics.jsonl, with a row per epoch and layer."""
    rows = []
    for line in read_metrics(metrics):
        if line["kind"] == "layerwise":
            rows += [{"epoch": line["epoch"] or 0.0, "step": line["step"], **layer} for layer in line["layers"]]
    if not rows:
        raise CrateError(f"{metrics}: has no layer-wise measures; train with run.layerwise_epochs=1")
    return pd.DataFrame(rows)
