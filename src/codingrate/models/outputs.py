"""Outputs of the models: those of transformers, and the tokens between the two halves of each layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.utils import generic
from transformers.utils.generic import ModelOutput

from ..operators import KeyValueCache
from .layers import EncoderLayer

Forward = TypeVar("Forward", bound=Callable[..., Any])
can_return_tuple: Callable[[Forward], Forward] = generic.can_return_tuple
"""Decorator of transformers, with types: a forward pass called with `return_dict=False` returns a tuple."""


@dataclass
class CrateModelOutput(ModelOutput):
    """Output of the body. `hidden_states` are Z^1 … Z^{L+1}, `compressed_states` Z^{1+½} … Z^{L+½}.

    Both, and `attentions` (batch, K, n, n) per layer, are returned only on request. If only some layers were
    requested, the entries of the others are None. `last_hidden_state` has passed the final norm if the model has one.
    The last of the `hidden_states` is that of transformers: before the final norm for images, as in ViT, and after it
    for text, as in GPT-2; `unnormalized_state` is then Z^{L+1}. `pooler_output` (batch, d) of an image is the token
    that a head reads. `past_key_values` is the cache of a causal model, if one was passed or requested. `objective` ()
    is that of the layers, which a training step with `objective_weight` adds to the loss.
    """

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    compressed_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    past_key_values: Cache | None = None
    unnormalized_state: Tensor | None = None
    objective: Tensor | None = None


@dataclass
class CrateTaskOutput(ModelOutput):
    """Output of a model with a head: `loss` if labels were passed, `logits`, and the trace and cache of the body."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    compressed_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    past_key_values: Cache | None = None
    unnormalized_state: Tensor | None = None
    objective: Tensor | None = None

    @classmethod
    def from_body(cls, body: CrateModelOutput, logits: Tensor, loss: Tensor | None = None) -> CrateTaskOutput:
        """Combine logits and loss with the trace and cache of the body."""
        shared = {key: value for key, value in body.items() if key not in ("last_hidden_state", "pooler_output")}
        return cls(loss=loss, logits=logits, **shared)


@dataclass
class CrateAutoencoderOutput(ModelOutput):
    """Output of the masked autoencoder.

    `loss` of the batch and `losses` (batch,) of each image are taken over the patches that `loss_on` in the config
    selects. `reconstruction` (batch, N, channels·P²) has the order of `patchify`; `mask` (batch, N) is True for removed
    patches. The trace runs through the layers of the encoder and then of the decoder, which reads `decoder_input`.
    """

    loss: Tensor | None = None
    reconstruction: Tensor | None = None
    mask: Tensor | None = None
    losses: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    compressed_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    decoder_input: Tensor | None = None
    objective: Tensor | None = None


@dataclass
class CrateDistillationOutput(ModelOutput):
    """Output of self-distillation on views.

    `student_logits` (S, batch, P) of all views and `teacher_logits` (T, batch, P) of the first views are raw. `entropy`
    () is the mean entropy of the centered and sharpened distributions of the teacher, so that `loss − entropy` is the
    mean divergence of the student from the teacher.
    """

    loss: Tensor | None = None
    student_logits: Tensor | None = None
    teacher_logits: Tensor | None = None
    entropy: Tensor | None = None


@dataclass
class Trace:
    """Tokens and attention recorded along a forward pass; the lists stay empty unless they are requested."""

    states: bool | Collection[int] = False
    """Whether to record tokens, or the layers to record, counted from 0 and on through a decoder."""
    return_attention: bool = False
    eager: bool = False
    """Whether to compute attention without fused kernels (`attn_implementation="eager"`)."""
    hidden: list[Tensor | None] = field(default_factory=list)
    compressed: list[Tensor | None] = field(default_factory=list)
    attentions: list[Tensor] = field(default_factory=list)
    measured: Collection[int] = ()
    """Layers of the encoder whose own objective a training step measures, counted from 0."""
    terms: list[Tensor] = field(default_factory=list)

    def run(
        self,
        layers: nn.ModuleList,
        z: Tensor,
        mask: Tensor | None = None,
        num_queries: int | None = None,
        caches: Sequence[KeyValueCache] = (),
    ) -> Tensor:
        """Apply the layers to Z and record what was requested, in the first run Z^1 as well.

        If nothing is recorded, the last layer computes only the first `num_queries` tokens. `caches` hold the keys and
        values of earlier tokens, one per layer.
        """
        if self.states and not self.hidden:
            self.hidden.append(z if self.records(0) else None)
        previous: Tensor | None = None
        for index, layer in enumerate(layers):
            whole = bool(self.states) or self.return_attention or index in self.measured or index < len(layers) - 1
            queries, cache = None if whole else num_queries, caches[index] if caches else None
            tokens = layer.extrapolated(z, previous) if isinstance(layer, EncoderLayer) else z
            previous = z
            z, compressed, attention = layer(tokens, mask, self.return_attention or self.eager, queries, cache)
            if index in self.measured and isinstance(layer, EncoderLayer):
                self.terms.append(layer.objective(tokens, compressed, z, mask))
            if self.states:
                number = len(self.compressed)
                self.compressed.append(compressed if self.records(number) else None)
                self.hidden.append(z if self.records(number, number + 1) else None)
            if attention is not None and self.return_attention:
                self.attentions.append(attention)
        self.measured = ()  # a decoder that runs next is not measured
        return z

    def records(self, *layers: int) -> bool:
        """Return whether the tokens that one of these layers reads or returns are recorded."""
        return self.states is True or (not isinstance(self.states, bool) and any(n in self.states for n in layers))

    def outputs(self) -> dict[str, Any]:
        """Return the fields that all model outputs share."""
        return {
            "hidden_states": tuple(self.hidden) if self.states else None,
            "compressed_states": tuple(self.compressed) if self.states else None,
            "attentions": tuple(self.attentions) if self.return_attention else None,
            **({"objective": torch.stack(self.terms).mean()} if self.terms else {}),
        }
