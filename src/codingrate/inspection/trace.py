"""The inside of a forward pass by name: Z^ℓ, Z^{ℓ+½}, the bases and the attention of every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from ..models.distillation import CrateForSelfDistillation
from ..models.layers import DecoderLayer, EncoderLayer
from ..operators import SubspaceAttention


@dataclass(frozen=True)
class ForwardTrace:
    """What one forward pass went through, layer by layer; an autoencoder's decoder follows its encoder."""

    tokens: tuple[Tensor, ...]
    """Z^1 … Z^{L+1}, each (batch, n, d)."""
    compressed: tuple[Tensor, ...]
    """Z^{1+½} … Z^{L+½}, each (batch, n, d): after attention, before the sparsifier."""
    bases: tuple[Tensor | None, ...]
    """U^1 … U^L, each (K, d, p); None where attention has no subspaces (`mhsa`)."""
    layers: tuple[EncoderLayer | DecoderLayer, ...]
    """The layers themselves."""
    mask: Tensor | None = None
    """Which tokens are real, (batch, n), for texts of several lengths."""

    def attention(self, layer: int) -> Tensor:
        """The attention of one layer, (batch, K, n, n), computed anew from the tokens it saw."""
        module = self.layers[layer]
        seen = self.tokens[layer]
        if isinstance(module, DecoderLayer):
            seen = self.compressed[layer]
        with torch.no_grad():
            weights: Tensor = module.attention(module.attention_input(seen), self.mask, True)[1]
        return weights


@torch.no_grad()
def trace(model: CratePreTrainedModel, inputs: Tensor | Mapping[str, Any]) -> ForwardTrace:
    """Run `model` on pixel values, ids or a mapping of its arguments, and hand out what it went through.

    Nothing is hooked: the forward pass gives its own intermediates. It holds 2L + 1 copies of the tokens.
    """
    if isinstance(inputs, Tensor):
        inputs = {"pixel_values" if model.config.modality == "vision" else "input_ids": inputs}
    output = model(**inputs, output_hidden_states=True, return_dict=True)
    passed = model.teacher if isinstance(model, CrateForSelfDistillation) else model  # what `output` went through
    layers = tuple(m for m in passed.modules() if isinstance(m, (EncoderLayer, DecoderLayer)))
    if not layers:
        raise CrateError(f"{type(model).__name__} has no layers to look into")
    mask = inputs.get("attention_mask")
    return ForwardTrace(
        tokens=output.hidden_states,
        compressed=output.compressed_states,
        bases=tuple(m.attention.bases.detach() if isinstance(m.attention, SubspaceAttention) else None for m in layers),
        layers=layers,
        mask=None if mask is None else mask.bool(),
    )
