"""The inside of a forward pass by name: Z^ℓ, Z^{ℓ+½}, the bases, the dictionaries and the attention of every layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from ..models.distillation import CrateForSelfDistillation
from ..models.layers import DecoderLayer, EncoderLayer
from ..operators import DictionarySparsifier, OvercompleteDictionary, SubspaceAttention


@dataclass(frozen=True)
class ForwardTrace:
    """What one forward pass went through, layer by layer; an autoencoder's decoder follows its encoder.

    Of layers that were not asked for, tokens are None.
    """

    tokens: tuple[Tensor, ...]
    """Z^1 … Z^{L+1}, each (batch, n, d)."""
    compressed: tuple[Tensor, ...]
    """Z^{1+½} … Z^{L+½}, each (batch, n, d): after attention, before the sparsifier; a decoder's after synthesis."""
    bases: tuple[Tensor | None, ...]
    """U^1 … U^L, each (K, d, p); None where attention has no subspaces (`mhsa`)."""
    dictionaries: tuple[Tensor | None, ...]
    """D^1 … D^L, each (d, m), of a decoder E; None where there is no such dictionary (`mlp`)."""
    layers: tuple[EncoderLayer | DecoderLayer, ...]
    """The layers themselves."""
    encoder_depth: int
    """How many of them are the encoder's; the others are the decoder's."""
    mask: Tensor | None = None
    """Which tokens are real, (batch, n), for texts of several lengths."""
    decoder_input: Tensor | None = None
    """What the first layer of an autoencoder's decoder reads."""

    def seen(self, layer: int) -> Tensor:
        """What the attention of a layer reads, (batch, n, d): its norm of Z^ℓ, in a decoder of Z^{ℓ+½}."""
        index = range(len(self.layers))[layer]
        module, z = self.layers[index], self.tokens[index]
        if isinstance(module, DecoderLayer):
            z = self.compressed[index]
        elif index == self.encoder_depth and self.decoder_input is not None:
            z = self.decoder_input
        if z is None:
            raise CrateError(f"layer {layer} was not traced; name it in layers=")
        with torch.no_grad():
            return module.attention_input(z)

    def attention(self, layer: int) -> Tensor:
        """The attention of one layer, (batch, K, n, n), computed anew from the tokens it saw."""
        with torch.no_grad():
            weights: Tensor | None = self.layers[layer].attention(self.seen(layer), self.mask, True)[1]
        if weights is None:
            raise CrateError(
                "attention 'tssa' compares no two tokens, so there are no weights; take a model with 'mssa'"
            )
        return weights


@torch.no_grad()
def trace(
    model: CratePreTrainedModel, inputs: Tensor | Mapping[str, Any], layers: Collection[int] | None = None
) -> ForwardTrace:
    """Run `model` on pixel values, ids or a mapping of its arguments, and hand out what it went through.

    Nothing is hooked: the forward pass gives its own intermediates. Memory: 2L + 1 copies of the tokens (batch, n, d)
    for all L layers, at most 3 for each of the `layers` chosen (from 0, or from the end if negative; a decoder's come
    after the encoder's). Attention is not among them: it is computed when asked for, (batch, K, n, n) at a time.
    """
    if isinstance(inputs, Tensor):
        inputs = {"pixel_values" if model.config.modality == "vision" else "input_ids": inputs}
    passed = model.teacher if isinstance(model, CrateForSelfDistillation) else model  # what the tokens go through
    modules = tuple(m for m in passed.modules() if isinstance(m, (EncoderLayer, DecoderLayer)))
    chosen = True if layers is None else [layer_index(layer, len(modules)) for layer in layers]
    output = model(**inputs, output_hidden_states=chosen, return_dict=True)
    mask = inputs.get("attention_mask")
    return ForwardTrace(
        tokens=output.hidden_states,
        compressed=output.compressed_states,
        bases=tuple(bases_of(module) for module in modules),
        dictionaries=tuple(dictionary_of(module) for module in modules),
        layers=modules,
        encoder_depth=model.config.num_hidden_layers,
        mask=None if mask is None else mask.bool(),
        decoder_input=getattr(output, "decoder_input", None),
    )


def layer_index(layer: int, depth: int) -> int:
    """A layer counted from 0, or from the end if negative, as its index among `depth`."""
    if not -depth <= layer < depth:
        raise CrateError(f"layer {layer} is out of range; the model has {depth} layers, {-depth} to {depth - 1}")
    return layer % depth


def bases_of(layer: EncoderLayer | DecoderLayer) -> Tensor | None:
    """U_1 … U_K of a layer, (K, d, p), or None where attention has no subspaces."""
    return layer.attention.bases.detach() if isinstance(layer.attention, SubspaceAttention) else None


def dictionary_of(layer: EncoderLayer | DecoderLayer) -> Tensor | None:
    """D of a layer, E of a decoder's, (d, m) with the atoms for columns, or None where there is none."""
    if isinstance(layer, DecoderLayer):
        return layer.synthesis.dictionary.detach()
    if isinstance(layer.sparsifier, OvercompleteDictionary):
        return layer.sparsifier.dictionary.detach()
    return layer.sparsifier.atoms().detach() if isinstance(layer.sparsifier, DictionarySparsifier) else None
