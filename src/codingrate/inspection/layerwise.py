"""Every layer against the objective, as the paper's section 4.2 measures it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import objective
from ..errors import CrateError, unknown_name
from ..models import eval_mode
from ..models.base import CratePreTrainedModel
from ..models.layers import EncoderLayer
from ..operators import MHSA
from .trace import ForwardTrace, layer_index, trace

if TYPE_CHECKING:
    import pandas as pd

THRESHOLDS = (1.0, 0.5, 0.1)
"""The τ of the appendix: entries of a black box are never zero, but may be small."""
PRECISION = {"paper": 0.5, "released": 0.1}
"""ε by measure. The released script writes p/(n · 0.01), an ε² of 0.01."""


def layerwise(
    model: CratePreTrainedModel,
    batches: Iterable[Tensor | Mapping[str, Any]],
    eps: float | None = None,
    *,
    layers: Collection[int] | None = None,
    measure: str = "paper",
) -> pd.DataFrame:
    """Rates and sparsity of every encoder layer over samples, streamed batch by batch.

    A row per layer ℓ, for each measure its mean and standard deviation (`…_std`) over samples:

    - `compression`: R^c(Z^{ℓ+½} | U^ℓ) after attention (4.2). A ViT has its value maps in the place of U.
    - `before`: R^c of what the skip around attention starts from, LN(Z^ℓ) or Z^ℓ: attention is built to lower it.
    - `same_size`: R^c(cZ^{ℓ+½} | U^ℓ), c such that ‖cZ^{ℓ+½}‖_F is what it was before. A skip adds, so that tokens grow
      and any rate with them, unless the shrinkage that belongs to the gradient step is there too (2.3).
    - `blocks`: R^c(Z^{ℓ+½}) with the K blocks of d/K coordinates for subspaces, the same for every model, since the
      appendix gives a ViT's R^c without naming any subspaces.
    - `rate` R(Z^{ℓ+1}), `reduction` ΔR(Z^{ℓ+1} | U^ℓ), `effective_rank` of Z^{ℓ+1}.
    - `nonzero`, ‖Z^{ℓ+1}‖₀/(dn), and `below_τ`, the share of entries |z| < τ for τ of `THRESHOLDS`.

    `measure="released"` takes R^c as the authors' script does: of U^ℓᵀLN(Z^ℓ), what attention reads rather than what
    it gives, each projected token scaled to length one, with ε = 0.1. `eps` sets another ε, `layers` chooses.
    Memory is that of one batch's trace; of padded texts only real tokens count.
    """
    import pandas as pd

    if measure not in PRECISION:
        raise unknown_name("measure", measure, PRECISION)
    eps = PRECISION[measure] if eps is None else eps
    depth = model.config.num_hidden_layers
    chosen = sorted({layer_index(layer, depth) for layer in (range(depth) if layers is None else layers)})
    values: dict[int, list[dict[str, Tensor]]] = {layer: [] for layer in chosen}
    with eval_mode(model):
        for batch in batches:
            passed = trace(model, batch, chosen)
            for layer in chosen:
                values[layer].append(measures(passed, layer, eps, measure))
    if not chosen or not values[chosen[0]]:
        raise CrateError("layerwise got no batches or no layers; give at least one")
    rows = []
    for layer in chosen:
        row: dict[str, float] = {"layer": layer + 1}
        for name in values[layer][0]:
            samples = torch.cat([batch[name] for batch in values[layer]]).double()
            row[name] = float(samples.mean())
            row[f"{name}_std"] = float(samples.std(correction=0))
        rows.append(row)
    return pd.DataFrame(rows)


def measures(passed: ForwardTrace, layer: int, eps: float, measure: str = "paper") -> dict[str, Tensor]:
    """The measures of one encoder layer for each sample of a forward pass, each (batch,)."""
    module = passed.layers[layer]
    if not isinstance(module, EncoderLayer):
        raise CrateError(f"layer {layer} is a decoder's; the objective is the encoder's")
    seen = passed.seen(layer)
    tokens = (
        seen,
        seen if module.normalized_skip else passed.tokens[layer],
        passed.compressed[layer],
        passed.tokens[layer + 1],
    )
    own, mask = passed.bases[layer], passed.mask
    bases = _values(module) if own is None else own
    if mask is None or bool(mask.all()):
        return _measures(*tokens, bases, eps, measure)
    each = []  # texts of several lengths, one by one
    for index, real in enumerate(mask):
        seen, start, after, sparse = (z[None, index, real] for z in tokens)
        each.append(_measures(seen, start, after, sparse, bases, eps, measure))
    return {name: torch.cat([sample[name] for sample in each]) for name in each[0]}


def _measures(
    seen: Tensor, start: Tensor, after: Tensor, sparse: Tensor, bases: Tensor, eps: float, measure: str
) -> dict[str, Tensor]:
    if measure == "released":
        codes = torch.nn.functional.normalize(objective.project(seen, bases), dim=-1)
        compression = objective.projected_coding_rate(codes, eps).sum(-1)
    else:
        compression = objective.subspace_coding_rate(after, bases, eps)
    found = {
        "compression": compression,
        "before": objective.subspace_coding_rate(start, bases, eps),
        "same_size": objective.subspace_coding_rate(after * _size(start) / _size(after), bases, eps),
        "blocks": _blocks(after, len(bases), eps),
        "rate": objective.coding_rate(sparse, eps),
        "reduction": objective.rate_reduction(sparse, bases, eps),
        "effective_rank": objective.effective_rank(sparse),
        "nonzero": objective.l0_fraction(sparse),
    }
    for tau, share in zip(THRESHOLDS, objective.fraction_below(sparse, THRESHOLDS).unbind(-1), strict=True):
        found[f"below_{tau:g}"] = share
    return found


def _size(z: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(z, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)


def _values(layer: EncoderLayer) -> Tensor:
    """V_1 … V_K of a black box's attention, (K, d, p), which U stands for in CRATE."""
    attention = layer.attention
    if not isinstance(attention, MHSA):
        raise CrateError(f"attention {type(attention).__name__} has neither subspaces nor values")
    weight = attention.project.weight.detach().chunk(3)[2]
    return weight.unflatten(0, (attention.spec.heads, attention.spec.head_dim)).mT


def _blocks(after: Tensor, heads: int, eps: float) -> Tensor:
    """Σ_k R of the k-th block of coordinates, (batch,); not a number where the heads do not divide them."""
    if after.shape[-1] % heads:
        return after.new_full((len(after),), torch.nan)
    blocks = after.unflatten(-1, (heads, -1)).transpose(-3, -2)  # (batch, K, n, d/K)
    return objective.projected_coding_rate(blocks, eps).sum(-1)
