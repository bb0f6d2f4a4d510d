"""Run a model, keep Z^ℓ, Z^{ℓ+½}, bases, dictionaries and attention of its layers by name, and make tokens visible."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import CrateError
from ...models.base import CrateModel, CratePreTrainedModel
from ...models.config import CrateConfig
from ...models.distillation import CrateForSelfDistillation
from ...models.layers import DecoderLayer, EncoderLayer
from ...operators import MHSA, DictionarySparsifier, OvercompleteDictionary, SubspaceAttention
from ...operators.attention import rotate

SIZE = 50  # number of rows and columns of the part that is drawn, as in the paper
TAIL = 1.0  # percentage of values at each end that share the extreme color, so that outliers do not dominate the scale

TextBatch = Mapping[str, Tensor]
"""`input_ids` (batch, n), `attention_mask` if the texts differ in length, and other arguments of the model."""


class UnavailableError(CrateError):
    """The model does not have the part that is to be measured."""


@dataclass(frozen=True)
class ForwardTrace:
    """The intermediate values of one forward pass by layer; the layers of a decoder follow those of the encoder.

    Tokens are None for layers that were not traced.
    """

    tokens: tuple[Tensor, ...]  # Z^1 … Z^{L+1}, each (batch, n, d)
    compressed: tuple[Tensor, ...]
    """Z^{1+½} … Z^{L+½}, each (batch, n, d): after attention, before the sparsifier. In a decoder: after synthesis."""
    bases: tuple[Tensor | None, ...]  # U^1 … U^L, each (K, d, p); None if the attention has no subspaces (`mhsa`)
    dictionaries: tuple[Tensor | None, ...]
    """D^1 … D^L, each (d, m), or E in a decoder; None if the layer has no dictionary (`mlp`)."""
    layers: tuple[EncoderLayer | DecoderLayer, ...]  # the layer modules
    encoder_depth: int  # number of encoder layers; the remaining layers belong to the decoder
    mask: Tensor | None = None  # True for real tokens and False for padding, (batch, n)
    decoder_input: Tensor | None = None  # input of the first decoder layer of an autoencoder
    logits: Tensor | None = None  # output of the model's head; None if it has none

    def attention_input(self, layer: int) -> Tensor:
        """Return the input of a layer's attention, (batch, n, d): its norm of Z^ℓ, or of Z^{ℓ+½} in a decoder."""
        module = self.layers[layer]
        z = self.compressed[layer] if isinstance(module, DecoderLayer) else self.layer_input(layer)
        with torch.no_grad():
            return module.attention_input(self._traced(layer, z))

    def layer_input(self, layer: int) -> Tensor:
        """Return the tokens that a layer reads, (batch, n, d): Z^ℓ, extrapolated from Z^{ℓ−1} if it has momentum."""
        index = range(len(self.layers))[layer]
        first_of_decoder = index == self.encoder_depth and self.decoder_input is not None
        module = self.layers[index]
        z = self._traced(layer, self.decoder_input if first_of_decoder else self.tokens[index])
        if isinstance(module, DecoderLayer) or module.momentum is None:
            return z
        with torch.no_grad():
            return module.extrapolated(z, self._traced(layer, self.tokens[max(index - 1, 0)]))

    def _traced(self, layer: int, z: Tensor | None) -> Tensor:
        """Return tokens that a layer needs; raise an error if they were not kept."""
        if z is None:
            raise CrateError(f"layer {layer} was not traced; add it to `layers`")
        return z

    @torch.no_grad()
    def attention(self, layer: int) -> Tensor:
        """Compute the attention weights of one layer from the tokens that it read, (batch, K, n, n)."""
        return cast(Tensor, self.layers[layer].attention(self.attention_input(layer), self.mask, True)[1])

    @torch.no_grad()
    def attention_of(self, layer: int, token: int) -> Tensor:
        """Compute the attention of one token in one layer, (batch, K, n): a row of `attention`, without the others."""
        attention: Any = self.layers[layer].attention
        if not isinstance(attention, (SubspaceAttention, MHSA)) or not attention.weighs_pairs:
            name = getattr(attention, "name", type(attention).__name__)
            raise UnavailableError(
                f"attention {name!r} has no weights between pairs of tokens; use a model with 'mssa'"
            )
        query, key, value = attention.project_heads(self.attention_input(layer))
        if attention.rotary:
            query, key = rotate(query), rotate(key)
        _, weights = attention.attend(query[:, :, token : token + 1], key, value, self.mask, True, token)
        return cast(Tensor, weights)[:, :, 0]


@torch.no_grad()
def trace(
    model: CratePreTrainedModel, inputs: Tensor | Mapping[str, Any], layers: Collection[int] | None = None
) -> ForwardTrace:
    """Run `model` on pixel values, ids or a mapping of arguments, and return the intermediate values by layer.

    The forward pass returns its own intermediates, so no hook is set. Memory: 2L + 1 copies of the tokens
    (batch, n, d) for all L layers, or at most 3 for each of the chosen `layers`. Layers count from 0, or from the end
    if negative; decoder layers come after encoder layers. Attention weights (batch, K, n, n) are computed on request.
    """
    if isinstance(inputs, Tensor):
        inputs = {"pixel_values" if model.config.modality == "vision" else "input_ids": inputs}
    body = model.teacher if isinstance(model, CrateForSelfDistillation) else model  # the part that reads the tokens
    modules = tuple(m for m in body.modules() if isinstance(m, (EncoderLayer, DecoderLayer)))
    chosen: bool | list[int] = True if layers is None else layer_indices(layers, len(modules))
    if isinstance(chosen, list) and model.config.momentum:
        chosen = sorted({*chosen, *(max(layer - 1, 0) for layer in chosen)})  # those that a layer extrapolates from
    output = model(**inputs, output_hidden_states=chosen, return_dict=True)
    mask, last = inputs.get("attention_mask"), getattr(output, "unnormalized_state", None)
    return ForwardTrace(
        tokens=output.hidden_states if last is None else (*output.hidden_states[:-1], last),
        compressed=output.compressed_states,
        bases=tuple(bases_of(module) for module in modules),
        dictionaries=tuple(dictionary_of(module) for module in modules),
        layers=modules,
        encoder_depth=model.config.num_hidden_layers,
        mask=None if mask is None else mask.bool(),
        decoder_input=getattr(output, "decoder_input", None),
        logits=getattr(output, "logits", None),
    )


@dataclass(frozen=True)
class TextPass:
    """One batch of text and the trace of the model's body on it."""

    ids: Tensor  # (batch, n)
    real: Tensor  # True where a token is not padding, (batch, n)
    labels: Tensor | None  # ids to predict, −100 at other positions, (batch, n); None if the batch has no labels
    trace: ForwardTrace  # Z^ℓ and Z^{ℓ+½}, on the model's device


def text_passes(
    model: CratePreTrainedModel, batches: Iterable[TextBatch], layers: Collection[int] | None = None
) -> Iterator[TextPass]:
    """Trace batches of text one after another, in all layers or in some; the caller sets evaluation mode.

    Only the body of the model runs. The head is expensive for a large vocabulary, so callers apply it to the tokens
    that they need.
    """
    if model.config.modality != "text":
        raise CrateError(f"this {type(model).__name__} reads images; use a text model")
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
        raise CrateError("there are no batches of text; give at least one")


def layer_index(layer: int, depth: int) -> int:
    """Return the index from 0 of a layer that counts from 0, or from the end if negative, among `depth` layers."""
    if not -depth <= layer < depth:
        raise CrateError(f"layer index {layer} is out of range; the indices are {-depth} to {depth - 1}")
    return layer % depth


def layer_indices(layers: Iterable[int | str] | None, depth: int) -> list[int]:
    """Return the indices of layers, each once, in the given order; None or an entry "all" stands for every layer."""
    chosen = ["all"] if layers is None else list(layers)
    if "all" in chosen:
        return list(range(depth))
    try:
        numbers = [int(layer) for layer in chosen]
    except ValueError:
        names = ", ".join(map(str, chosen))
        raise CrateError(f"layer index {names} is not a number; give {-depth} to {depth - 1}, or all") from None
    return list(dict.fromkeys(layer_index(number, depth) for number in numbers))


def layer_numbers(numbers: Iterable[int | str], depth: int) -> list[int]:
    """Return the indices of layers that a person numbered: 1 to `depth`, or -1 to -`depth` from the end, or "all".

    People count layers from 1: in options, tables, figures, file names and JSON. Python arguments are indices.
    """
    indices: list[int] = []
    for number in map(str, numbers):
        whole = int(number) if number.removeprefix("-").isdecimal() else 0
        if number != "all" and not 1 <= abs(whole) <= depth:
            layers = f"{depth} layer{'s' if depth > 1 else ''}"
            raise CrateError(
                f"`layer={number!r}`: layers are numbered from 1, and the model has {layers}; "
                f"give 1 to {depth}, -1 to -{depth} from the end, or all"
            )
        indices += range(depth) if number == "all" else [(whole - (whole > 0)) % depth]
    return list(dict.fromkeys(indices))


def default_layer(config: CrateConfig) -> int:
    """Return the index of the layer that the paper shows (C): -2 for CRATE, -1 for a ViT or a model of one layer."""
    return -1 if config.attention == "mhsa" or config.num_hidden_layers == 1 else -2


def encoder_layers(model: CratePreTrainedModel) -> list[EncoderLayer]:
    """Return the encoder layers of a model."""
    return [cast(EncoderLayer, layer) for layer in cast(CrateModel, model.base_model).layers]


def bases_of(layer: EncoderLayer | DecoderLayer) -> Tensor | None:
    """Return U_1 … U_K of a layer, (K, d, p), or None if its attention has no subspaces."""
    return layer.attention.bases.detach() if isinstance(layer.attention, SubspaceAttention) else None


def dictionary_of(layer: EncoderLayer | DecoderLayer) -> Tensor | None:
    """Return D of an encoder layer or E of a decoder layer, (d, m) with atoms as columns, or None if it has none."""
    if isinstance(layer, DecoderLayer):
        return layer.dictionary.detach()
    if isinstance(layer.sparsifier, OvercompleteDictionary):
        return layer.sparsifier.dictionary.detach()
    return layer.sparsifier.atoms().detach() if isinstance(layer.sparsifier, DictionarySparsifier) else None


def encoder_tokens(passed: ForwardTrace) -> dict[int, Tensor]:
    """Return Z^{ℓ+1} (batch, n, d) by layer ℓ from 1, for the encoder layers that were traced."""
    outputs: Sequence[Tensor | None] = passed.tokens[1 : passed.encoder_depth + 1]
    tokens = {layer: z for layer, z in enumerate(outputs, 1) if z is not None}
    if not tokens:
        raise CrateError("no encoder layer was traced; add one to `layers`")
    return tokens


def sample_tokens(passed: ForwardTrace, sample: int) -> dict[int, Tensor]:
    """Return Z^{ℓ+1} (n, d) of one sample by layer ℓ from 1, without padding."""
    real: Any = slice(None) if passed.mask is None else passed.mask[sample]
    return {layer: z[sample, real] for layer, z in encoder_tokens(passed).items()}


def token_heat(passed: ForwardTrace, sample: int = 0, size: int = SIZE, seed: int = 0) -> dict[int, Tensor]:
    """Return |Z^{ℓ+1}| of one sample at random tokens and coordinates, (size, size) by layer ℓ from 1 (paper 4.2).

    The tokens and coordinates are the same at every encoder layer, sorted, and fewer if the sample has fewer. Padding
    is left out. The paper draws a random 50 × 50 part of Z^ℓ, and does not say whether it is the same in all layers.
    """
    layers = sample_tokens(passed, sample)
    generator = torch.Generator().manual_seed(seed)
    count, d = next(iter(layers.values())).shape
    rows, columns = (torch.randperm(n, generator=generator)[:size].sort().values for n in (count, d))
    return {layer: z.cpu()[rows[:, None], columns].abs() for layer, z in layers.items()}


@dataclass(frozen=True, eq=False)
class ColorBasis:
    """Principal components of patches as red, green and blue; `pca_colors` describes them."""

    mean: Tensor  # (d,)
    vectors: Tensor  # a column per component with variance, (d, at most 3), signs fixed
    bounds: NDArray[np.float64]  # values of each component that become 0 and 1, (components, 2)
    shares: NDArray[np.float64]  # of the variance, (3,)

    @classmethod
    def fit(cls, patches: Tensor) -> ColorBasis:
        """Find the components of patches (n, d)."""
        patches, d = patches.double().cpu(), patches.shape[-1]
        mean = patches.mean(0)
        centered = patches - mean
        variances, vectors = torch.linalg.eigh(centered.mT @ centered)  # ascending
        total = variances.clamp(min=0).sum()
        rounding = d * torch.finfo(torch.float64).eps
        kept = [d - 1 - i for i in range(min(3, d)) if variances[d - 1 - i] > rounding * patches.square().sum()]
        chosen, shares = vectors[:, kept], np.zeros(3)
        chosen = chosen * chosen.gather(0, chosen.abs().argmax(0)[None]).sign()
        shares[: len(kept)] = (variances[kept] / total).numpy()
        bounds = np.percentile((centered @ chosen).numpy(), [TAIL, 100 - TAIL], axis=0).T
        return cls(mean, chosen, bounds, shares)

    def colors(self, patches: Tensor) -> NDArray[np.float64]:
        """Color patches (n, d), with values in [0, 1], (n, 3)."""
        values = ((patches.double().cpu() - self.mean) @ self.vectors).numpy()
        colors = np.full((len(values), 3), 0.5)
        for component, (low, high) in enumerate(self.bounds):
            if high > low:
                colors[:, component] = np.clip((values[:, component] - low) / (high - low), 0, 1)
        return colors


def pca_colors(tokens: Tensor, grid: tuple[int, int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Color patches by principal components: (batch, rows, columns, 3) in [0, 1], and three shares of variance.

    Tokens z_i (batch, n, d) without the class token are centered over all patches of all images. Red, green and blue
    are their coordinates along the first three eigenvectors of the covariance, so a color means the same in every
    image. The largest entry of an eigenvector is made positive, which fixes its sign. The middle 98 % of each
    coordinate fill [0, 1]. A component without variance is ½ everywhere.
    """
    rows, columns = grid
    batch, n, d = tokens.shape
    if n - rows * columns not in (0, 1):
        raise CrateError(f"{n} tokens do not fill the grid {rows} × {columns}, with or without a class token")
    patches = tokens[:, n - rows * columns :].reshape(-1, d)
    basis = ColorBasis.fit(patches)
    return basis.colors(patches).reshape(batch, rows, columns, 3), basis.shares
