"""Every layer against the objective, as the paper's section 4.2 measures it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import objective
from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from ..models.layers import EncoderLayer
from .trace import ForwardTrace, trace

if TYPE_CHECKING:
    import pandas as pd


def layerwise(
    model: CratePreTrainedModel, batches: Iterable[Tensor | Mapping[str, Any]], eps: float = 0.5
) -> pd.DataFrame:
    """Rates and sparsity of every encoder layer over samples, streamed batch by batch.

    A row per layer ℓ with mean and standard deviation over samples of `compression`, R^c(Z^{ℓ+½} | U^ℓ) after
    attention, `rate`, R(Z^{ℓ+1}), and `nonzero`, the share of non-zero entries of Z^{ℓ+1} (paper 4.2). Without
    subspaces (`mhsa`) compression is not a number.
    """
    import pandas as pd

    was_training = model.training
    model.eval()
    try:
        values = [measure(trace(model, batch), eps) for batch in batches]
    finally:
        model.train(was_training)
    if not values:
        raise CrateError("layerwise got no batches; give at least one")
    rows = []
    for layer in range(len(values[0])):
        row: dict[str, float] = {"layer": layer + 1}
        for name in values[0][layer]:
            samples = torch.cat([batch[layer][name] for batch in values]).double()
            row[name] = float(samples.mean())
            row[f"{name}_std"] = float(samples.std(correction=0))
        rows.append(row)
    return pd.DataFrame(rows)


def measure(passed: ForwardTrace, eps: float) -> list[dict[str, Tensor]]:
    """The measures of every encoder layer for each sample of one forward pass, each (batch,)."""
    measures = []
    for index, layer in enumerate(passed.layers):
        if not isinstance(layer, EncoderLayer):
            continue
        after, sparse, bases = passed.compressed[index], passed.tokens[index + 1], passed.bases[index]
        compression = torch.full((len(after),), torch.nan)
        if bases is not None:
            compression = objective.subspace_coding_rate(after, bases, eps)
        measures.append(
            {
                "compression": compression,
                "rate": objective.coding_rate(sparse, eps),
                "nonzero": objective.l0_fraction(sparse),
            }
        )
    return measures
