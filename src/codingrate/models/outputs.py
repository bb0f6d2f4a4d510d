"""What models hand out: transformers' outputs, and the tokens between the two halves of each layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers.cache_utils import Cache
from transformers.utils.generic import ModelOutput


@dataclass
class CrateModelOutput(ModelOutput):
    """Output of the body. `hidden_states` are Z^1 … Z^{L+1}, `compressed_states` Z^{1+½} … Z^{L+½}.

    Both, and `attentions` (batch, K, n, n) per layer, are there only when asked for; where layers were chosen, the
    places of the others hold None. `last_hidden_state` has
    passed the final norm where the model has one; `hidden_states` never have. `past_key_values` is the cache of a
    causal model, where one was given or asked for.
    """

    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    compressed_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    past_key_values: Cache | None = None


@dataclass
class CrateTaskOutput(ModelOutput):
    """Output of a model with a head: `loss` when labels were given, `logits`, the body's trace and cache."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    compressed_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    past_key_values: Cache | None = None


@dataclass
class CrateAutoencoderOutput(ModelOutput):
    """Output of the masked autoencoder.

    `loss` over the batch and `losses` (batch,) of each image, over the patches the config's `loss_on` counts;
    `reconstruction` (batch, N, channels·P²) in the order of `patchify`, `mask` (batch, N) with True = removed;
    the trace runs through the encoder's layers and then the decoder's, whose first layer reads `decoder_input`.
    """

    loss: Tensor | None = None
    reconstruction: Tensor | None = None
    mask: Tensor | None = None
    losses: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    compressed_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    decoder_input: Tensor | None = None


@dataclass
class CrateDistillationOutput(ModelOutput):
    """Output of self-distillation on views.

    `student_logits` (S, batch, P) of all views, `teacher_logits` (T, batch, P) of the first of them, raw; `entropy` ()
    is the mean entropy of the teacher's centred and sharpened distributions, so that `loss − entropy` is the mean
    divergence of the student from the teacher.
    """

    loss: Tensor | None = None
    student_logits: Tensor | None = None
    teacher_logits: Tensor | None = None
    entropy: Tensor | None = None
