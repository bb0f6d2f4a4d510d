"""Measure every layer against the objective, as in the paper's section 4.2."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch
from torch import Tensor

from ... import objective
from ..._distributed import map_batches
from ...errors import CrateError, unknown_name
from ...models.base import CratePreTrainedModel, eval_mode
from ...models.layers import EncoderLayer
from .steps import LayerStep
from .tracing import ForwardTrace, layer_indices, trace

LAYERWISE = {"evaluation": "layerwise", "training": "layerwise-train"}
"""Kind of the lines with layer-wise measures in metrics.jsonl, by split."""
PRECISION = {"paper": 0.5, "released": 0.1}
"""Default ε of each measure. The released script writes p/(n · 0.01), which is ε² = 0.01."""


def layerwise(
    model: CratePreTrainedModel,
    batches: Iterable[Tensor | Mapping[str, Any]],
    eps: float | Sequence[float] | None = None,
    *,
    layers: Collection[int] | None = None,
    measure: str = "paper",
    controls: bool = False,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Measure rates, sparsity and steps of every encoder layer over samples, streamed batch by batch.

    The table has a row per ε of `eps` and layer ℓ, counted from 1, with the number of `samples` and, over samples, the
    mean and the standard deviation (`…_std`) of each measure. Where a measure has two forms, the printed one takes raw
    tokens and the learned U^ℓ as they are, and `…_normalized` unit tokens and orthonormal bases of the same
    subspaces, as the paper assumes; only the second does not follow the norms of tokens. A ViT's value matrices take
    the place of U.

    - `compression`: R^c(Z^{ℓ+½} | U^ℓ) after attention, and `before`: R^c of the start of the skip, LN(Z^ℓ) or Z^ℓ.
    - `rate` R(Z^{ℓ+1}), `reduction` ΔR(Z^{ℓ+1} | U^ℓ), and the `objective` ΔR − λ‖Z^{ℓ+1}‖₁.
    - `change`: the normalized R^c after attention minus that before it.
    - `alignment`: the cosine of the update of attention with the steepest descent of the normalized R^c, both without
      their part along each token, which changes its length only; `alignment_whole`: the cosine with that part.
    - `lasso`: ISTA's objective ½‖X − ZDᵀ‖² + λ‖Z‖₁ after its step, as a share of that of ReLU(X), and
      `lasso_alignment`: the cosine of the step with the descent of this objective.
    - `nonzero` ‖Z^{ℓ+1}‖₀/(dn), Hoyer's sparsity `hoyer`, `below_τ`: the share of entries |z| < τ, `token_norm` of
      Z^{ℓ+½}, `effective_rank` of Z^{ℓ+1}, and `blocks`: R^c with the K blocks of d/K coordinates as subspaces.

    `controls=True` adds what the same measures give without the layer's own step. `compression_NAME` is the normalized
    R^c after an update of the same size, `gap_NAME` that of the layer minus it, `alignment_NAME` its alignment:
    `uniform` attention with the same weights, one `random` vector for all tokens, the layer's updates `permuted` among
    tokens, the `mean` token; with the step of `steepest` descent beside them. `…_subspaces` is a measure on random
    orthonormal subspaces. `lasso_NAME` is that of a `permuted` dictionary, and of the `threshold` without a dictionary,
    `lasso_gap_NAME` the layer's minus it.

    `measure="released"` computes R^c as the authors' script does: from U^ℓᵀLN(Z^ℓ), the input of attention rather than
    its output, with every projected token scaled to length one and ε = 0.1. `eps` sets another ε. `layers` are the
    indices of layers to measure, from 0 or, if negative, from the end. Memory is that of one batch's trace. Padding is
    ignored. `progress` is called after each batch with its number of samples.
    """
    if measure not in PRECISION:
        raise unknown_name("measure", measure, PRECISION)
    precisions = [PRECISION[measure]] if eps is None else [eps] if isinstance(eps, (int, float)) else list(eps)
    chosen = sorted(layer_indices(layers, model.config.num_hidden_layers))
    keys = [(one, layer) for one in precisions for layer in chosen]

    def measured(batch: Tensor | Mapping[str, Any]) -> list[dict[str, Tensor]]:
        passed = trace(model, batch, chosen)
        values = [layer_measures(passed, layer, one, measure, controls=controls) for one, layer in keys]
        return [{name: value.cpu() for name, value in layer.items()} for layer in values]

    values: list[list[dict[str, Tensor]]] = []  # by batch, then by ε and layer
    with eval_mode(model):
        for layers_of_batch in map_batches(measured, batches) if keys else ():
            values.append(layers_of_batch)
            if progress is not None:
                progress(len(next(iter(layers_of_batch[0].values()))))
    if not values:
        raise CrateError("layerwise got no batches or no layers; give at least one of each")
    rows = []
    for index, (one, layer) in enumerate(keys):
        row: dict[str, float] = {"layer": layer + 1, "eps": one}
        for name in values[0][index]:
            samples = torch.cat([batch[index][name] for batch in values]).double()
            row |= {name: float(samples.mean()), f"{name}_std": float(samples.std(correction=0))}
        rows.append({**row, "samples": len(samples)})
    return pd.DataFrame(rows)


@torch.no_grad()
def layer_measures(
    passed: ForwardTrace,
    layer: int,
    eps: float,
    measure: str = "paper",
    only: Collection[str] | None = None,
    *,
    controls: bool = False,
) -> dict[str, Tensor]:
    """Measure one encoder layer for each sample of a traced batch; each measure is (batch,).

    `only` names the measures that are computed. Default: all. Random controls are drawn by layer, so that they depend
    neither on batches nor on processes.
    """
    module = passed.layers[layer]
    if not isinstance(module, EncoderLayer):
        raise CrateError(f"layer {layer} belongs to the decoder; the objective is defined for encoder layers")
    if not hasattr(module.attention, "bases"):
        raise CrateError(f"attention {type(module.attention).__name__} has neither subspaces nor values")
    inputs = passed.attention_input(layer)
    start = inputs if module.normalized_skip else passed.layer_input(layer)
    tokens = (inputs, start, passed.compressed[layer], passed.tokens[layer + 1])

    def measured(tokens: Sequence[Tensor]) -> dict[str, Tensor]:
        inputs, start, after, sparse = tokens
        step = LayerStep(module, inputs, start, after, sparse, eps, seed=layer)
        functions = step.measures()
        if measure == "released":
            functions["compression"] = lambda: released_rate(step)
        values = {name: compute() for name, compute in functions.items() if only is None or name in only}
        return values | step.controls() if controls else values

    mask = passed.mask
    if mask is None or bool(mask.all()):
        return measured(tokens)
    texts = ([z[None, index, real] for z in tokens] for index, real in enumerate(mask))
    samples = [measured(text) for text in texts]  # lengths differ: one by one
    return {name: torch.cat([sample[name] for sample in samples]) for name in samples[0]}


def released_rate(step: LayerStep) -> Tensor:
    """Compute R^c (batch,) as the released script does, from the input of attention with every code of length one."""
    codes = step.start_codes if step.inputs is step.start else step.codes(step.inputs)
    return step.rate(torch.nn.functional.normalize(step.raw_codes(codes), dim=-1))


def stacked_bases(passed: ForwardTrace) -> Tensor:
    """Return orthonormal bases of the subspaces of all encoder layers of a trace, (L, K, d, p)."""
    bases = torch.stack([cast(Any, layer.attention).bases.detach() for layer in passed.layers[: passed.encoder_depth]])
    return objective.orthonormal_columns(bases.to(torch.promote_types(bases.dtype, torch.float32)))


def curve_measures(passed: ForwardTrace, bases: Tensor, eps: float, first: int = 0) -> dict[str, Tensor]:
    """Measure `compression_normalized`, `reduction_normalized` and `nonzero` of a single sample, each (layers,).

    They are those of `layer_measures`, for all encoder layers from index `first` on in one batch, with one projection
    on the `stacked_bases` of the model.
    """
    depth = passed.encoder_depth
    after, sparse = torch.cat(passed.compressed[first:depth]), torch.cat(passed.tokens[first + 1 : depth + 1])
    both = objective.unit_tokens(torch.cat([after, sparse], dim=1))  # (layers, 2n, d)
    codes = objective.project(both, bases[first:depth]).unflatten(-2, (2, -1))  # (layers, K, 2, n, p)
    compression, coded = objective.projected_coding_rate(codes, eps).sum(1).unbind(-1)
    reduction = objective.coding_rate(both[:, sparse.shape[1] :], eps) - coded
    nonzero = objective.l0_fraction(sparse)
    return {"compression_normalized": compression, "reduction_normalized": reduction, "nonzero": nonzero}


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
    missing = [layer for layer in layers if not {"layer", "compression", "nonzero"} <= layer.keys()]
    ends = line["kind"] == "end" and line["train_runtime"] is None
    if type(line["step"]) is not int or ends or missing or not isinstance(line.get("version", ""), str):
        raise ValueError
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
