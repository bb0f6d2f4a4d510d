"""Attention of single layers: over the patches of an image, head by head, and between the tokens of a text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...errors import CrateError
from ...models.base import CrateModel, CratePreTrainedModel, eval_mode
from ...operators import MHSA, Attention, SubspaceAttention
from .tracing import UnavailableError, default_layer, encoder_layers, layer_index, text_passes

TOP_SHARE = 0.1  # share of patches, those with the most attention, over which the focus of a head is measured
BEST_IMAGES = 4  # number of images that are shown for a head
BATCH_SIZE = 32  # number of images in a forward pass of `head_catalogue`


def _require_pairs(attention: Attention) -> None:
    """Raise an error for an operator without weights between pairs of tokens."""
    if not attention.weighs_pairs:
        raise UnavailableError(
            f"attention {attention.name!r} compares no two tokens, so there are no maps; use a model with 'mssa'"
        )


@contextmanager
def attention_inputs(
    model: CratePreTrainedModel, pixel_values: Tensor, layers: Sequence[int]
) -> Iterator[list[tuple[SubspaceAttention | MHSA, Tensor]]]:
    """Yield the attention module of each layer and its input tokens (batch, n, d), with the model in evaluation mode.

    One forward pass, which ends at the deepest of the layers. The inputs of all the chosen layers are kept.
    """
    if model.config.modality != "vision":
        raise CrateError(f"a {type(model).__name__} reads text; use a vision model")
    modules = encoder_layers(model)
    chosen = [layer_index(layer, len(modules)) for layer in layers]
    with eval_mode(model), torch.no_grad():
        z, inputs = cast(CrateModel, model.base_model).embedding(pixel_values), {}
        previous: Tensor | None = None
        for number, module in enumerate(modules[: max(chosen) + 1]):
            tokens, previous = module.extrapolated(z, previous), z
            if number in chosen:
                attention = module.attention
                if not isinstance(attention, (SubspaceAttention, MHSA)):
                    raise CrateError(f"attention {type(attention).__name__} has neither subspaces nor keys")
                inputs[number] = (attention, module.attention_input(tokens))
            if number < max(chosen):
                z = module(tokens)[0]
        yield [inputs[number] for number in chosen]


def projections(model: CratePreTrainedModel, pixel_values: Tensor, layer: int = -2) -> Tensor:
    """Compute [U_1ᵀz_i … U_Kᵀz_i] of every patch i at one layer, (batch, N, K·p): the features of MaskCut (paper, C).

    z is the input of the layer's attention, LN(Z^ℓ). For a ViT the keys are returned. The class token is left out. The
    forward pass ends at `layer`, which counts from 0, or from the end if negative. No hook is set.
    """
    with attention_inputs(model, pixel_values, [layer]) as ((attention, tokens),):
        if isinstance(attention, SubspaceAttention):
            keys = attention.join(attention.codes(tokens))
        else:
            keys = cast(Tensor, attention.project(tokens)).chunk(3, dim=-1)[1]
        return keys[:, int(model.config.class_token) :]


def attention_maps(model: CratePreTrainedModel, pixel_values: Tensor, layer: int = -2) -> Tensor:
    """Compute A_{k,i} = exp⟨U_k*z_i, U_k*z_cls⟩ / Σ_j exp⟨U_k*z_j, U_k*z_cls⟩ of patches, (batch, K, rows, columns).

    A ViT has the key of patch i and the query of the class token in the product. The exponent is scaled as in the
    model's own softmax, by p^-½ by default, which the paper's equation leaves out. Images may have any size that the
    patch size divides. The forward pass ends at `layer`, which counts from 0, or from the end if negative.
    """
    return layer_attention_maps(model, pixel_values, [layer])[0]


def layer_attention_maps(model: CratePreTrainedModel, pixel_values: Tensor, layers: Sequence[int]) -> Tensor:
    """Compute the maps of several layers in one forward pass, (layers, batch, K, rows, columns)."""
    if model.config.modality == "vision" and not model.config.class_token:
        raise CrateError(
            "the model has no class token whose attention could be shown; use a model with class_token=True, "
            "or crate segment, which needs none"
        )
    maps = []
    with attention_inputs(model, pixel_values, layers) as inputs:
        for attention, tokens in inputs:
            _require_pairs(attention)
            weights: Tensor = attention(tokens, None, True, 1)[1]  # (batch, K, 1, 1 + N)
            patches = weights[:, :, 0, 1:]
            maps.append(patches / patches.sum(-1, keepdim=True))
    grid = tuple(side // model.config.patch_size for side in pixel_values.shape[-2:])
    return torch.stack(maps).unflatten(-1, grid)


def attention_entropy(maps: Tensor) -> Tensor:
    """Compute −Σ_i A_i log A_i / log N of maps (…, rows, columns) that sum to one.

    It is 1 for uniform attention and 0 for a single patch, and 1 if there is only N = 1 patch.
    """
    flat = maps.flatten(-2)
    patches = flat.shape[-1]
    return torch.special.entr(flat).sum(-1) / math.log(patches) if patches > 1 else torch.ones_like(flat[..., 0])


@dataclass(frozen=True, eq=False)
class HeadCatalogue:
    """The heads of one layer on a set of images."""

    layer: int  # index of the layer, from 0
    maps: Tensor  # A_k, the class token's attention over the patches, (images, K, rows, columns), each summing to one
    focus: Tensor  # share of A_k in its ⌈N/10⌉ largest patches, (images, K)
    best: Tensor  # images with the largest focus for each head, in descending order, (K, at most `shown`)
    table: pd.DataFrame  # a row per head; see `head_catalogue`

    @property
    def uniform_focus(self) -> float:
        """Focus of uniform attention."""
        patches = self.maps.shape[-2] * self.maps.shape[-1]
        return math.ceil(TOP_SHARE * patches) / patches


def head_catalogue(
    model: CratePreTrainedModel, pixel_values: Tensor, layer: int | None = None, shown: int = BEST_IMAGES
) -> HeadCatalogue:
    """Find the images on which each head is most focused, so that a person can name what it looks at (paper 4.3).

    The images are (batch, channels, height, width); the model needs a class token. The *focus* of a head is the sum of
    its map over the tenth of the patches where it is largest. An object that is attended to as a whole counts as much
    as a single patch, whereas entropy and maximum would prefer the patch. The table has a row per head, counted from
    1, with means over images: `focus`; `entropy` relative to uniform attention; `overlap`, the cosine
    ⟨A_k, A_l⟩/(‖A_k‖‖A_l‖) with the other heads l, NaN for one head; and `best`, the chosen images, counted from 0.
    `layer` defaults to -2 for CRATE and -1 for a ViT.
    """
    if not len(pixel_values):
        raise CrateError("the catalogue of heads needs images; give at least one")
    layer = default_layer(model.config) if layer is None else layer
    maps = torch.cat([attention_maps(model, part, layer).double().cpu() for part in pixel_values.split(BATCH_SIZE)])
    flat = maps.flatten(2)
    K, patches = flat.shape[1:]
    focus = flat.topk(math.ceil(TOP_SHARE * patches), dim=-1).values.sum(-1)
    best = focus.mT.argsort(dim=-1, descending=True, stable=True)[:, :shown]
    unit = torch.nn.functional.normalize(flat, dim=-1)
    cosines = unit @ unit.mT  # (images, K, K)
    others = cosines.sum(-1) - cosines.diagonal(dim1=-2, dim2=-1)
    table = pd.DataFrame(
        {
            "head": range(1, K + 1),
            "focus": focus.mean(0),
            "entropy": attention_entropy(maps).mean(0),
            "overlap": others.mean(0) / (K - 1) if K > 1 else [math.nan],
            "best": [" ".join(str(int(image)) for image in row) for row in best],
        }
    )
    return HeadCatalogue(layer_index(layer, model.config.num_hidden_layers), maps, focus, best, table)


def token_attention(model: CratePreTrainedModel, ids: Tensor, layer: int = -2) -> Tensor:
    """Compute the attention A_k of every head k of one layer on a text (n,), (K, n, n); row i is that of token i.

    Rows sum to one. The layer counts from 0, or from the end if negative.
    """
    _require_pairs(encoder_layers(model)[0].attention)
    layer = layer_index(layer, model.config.num_hidden_layers)
    with eval_mode(model):
        (batch,) = text_passes(model, [{"input_ids": ids[None]}], [layer])
        return batch.trace.attention(layer)[0].cpu()


def token_attention_table(weights: Tensor, causal: bool) -> pd.DataFrame:
    """Describe each head of token attention (K, n, n) by a row of means over its tokens i.

    `entropy` is −Σ_j A_ij log A_ij in nats, `distance` is Σ_j A_ij |i − j| in tokens, `itself` is A_ii and `first` is
    A_i1. In a causal model the first token can only attend to itself, so it is left out.
    """
    n = weights.shape[-1]
    if n < 2:
        raise CrateError(f"the text has {n} token; attention between tokens needs at least 2")
    rows = weights.double()
    position = torch.arange(n, dtype=torch.float64)
    measures = {
        "entropy": torch.special.entr(rows).sum(-1),
        "distance": (rows * (position[:, None] - position).abs()).sum(-1),
        "itself": rows.diagonal(dim1=-2, dim2=-1),
        "first": rows[..., 0],
    }
    means = {name: values[:, int(causal) :].mean(-1).numpy() for name, values in measures.items()}
    return pd.DataFrame({"head": np.arange(1, len(weights) + 1), **means})
