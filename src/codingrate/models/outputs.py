"""What models hand out: transformers' outputs, and the tokens between the two halves of each layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers.utils.generic import ModelOutput


@dataclass
class CrateModelOutput(ModelOutput):
    """Output of the body. `hidden_states` are Z^1 … Z^{L+1}, `compressed_states` Z^{1+½} … Z^{L+½}.

    Both, and `attentions` (batch, K, n, n) per layer, are there only when asked for. `last_hidden_state` has
    passed the final norm where the model has one; `hidden_states` never have.
    """

    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    compressed_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class CrateTaskOutput(ModelOutput):
    """Output of a model with a head: `loss` when labels were given, `logits`, and the body's trace."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    compressed_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class CrateAutoencoderOutput(ModelOutput):
    """Output of the masked autoencoder.

    `reconstruction` (batch, N, channels·P²) in the order of `patchify`, `mask` (batch, N) with True = removed;
    the trace runs through the encoder's layers and then the decoder's.
    """

    loss: Tensor | None = None
    reconstruction: Tensor | None = None
    mask: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    compressed_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
