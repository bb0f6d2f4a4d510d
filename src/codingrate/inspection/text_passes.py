"""Forward passes over batches of text, one after another, for whatever looks into the layers of a text model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from .trace import ForwardTrace, trace

TextBatch = Mapping[str, Tensor]
"""`input_ids` (batch, n), where texts differ in length also `attention_mask`, and whatever else the model reads."""


@dataclass(frozen=True)
class TextPass:
    """One batch and what the model's body went through on it."""

    ids: Tensor
    """(batch, n)."""
    real: Tensor
    """True where a token is not padding, (batch, n)."""
    labels: Tensor | None
    """The ids to be predicted, −100 where none is, (batch, n), if the batch has them."""
    passed: ForwardTrace
    """Z^ℓ and Z^{ℓ+½}, on the model's device."""


def text_passes(
    model: CratePreTrainedModel, batches: Iterable[TextBatch], layers: Collection[int] | None = None
) -> Iterator[TextPass]:
    """The inside of every batch in turn, of all layers or some (`trace`); the body is run without the model's head.

    The head is what costs most where words are many, and who needs it applies it to the tokens that count. The caller
    has the model evaluating.
    """
    if model.config.modality != "text":
        raise CrateError(f"this {type(model).__name__} reads images; take a text model")
    body, count = cast(CratePreTrainedModel, model.base_model), 0
    for batch in batches:
        inputs = {name: value.to(model.device) for name, value in batch.items()}
        labels = inputs.pop("labels", None)
        ids = inputs["input_ids"]
        mask = inputs.get("attention_mask")
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        yield TextPass(ids, real, labels, trace(body, inputs, layers))
        count += 1
    if count == 0:
        raise CrateError("there are no batches of text to look at; give at least one")
