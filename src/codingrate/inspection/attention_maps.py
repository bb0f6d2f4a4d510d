"""Where the class token looks: attention maps on the grid of patches (paper 4.3, C)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from ..operators import TSSA
from .projections import reaching


def attention_maps(model: CratePreTrainedModel, pixel_values: Tensor, layer: int = -2) -> Tensor:
    """A_{k,i} = exp⟨U_k*z_i, U_k*z_cls⟩ / Σ_j exp⟨U_k*z_j, U_k*z_cls⟩ over the N patches, (batch, K, rows, columns).

    A ViT has its key of patch i and its query of the class token in the product. The exponent has the factor of the
    model's own softmax, p^-½ by default, which the paper's equation leaves out. Images may be of any size that the
    patches divide; the forward pass ends at `layer`, counted from 0, or from the end if negative.
    """
    return layer_attention_maps(model, pixel_values, [layer])[0]


def layer_attention_maps(model: CratePreTrainedModel, pixel_values: Tensor, layers: Sequence[int]) -> Tensor:
    """The maps of several layers in one forward pass, (layers, batch, K, rows, columns)."""
    if model.config.modality == "vision" and not model.config.class_token:
        raise CrateError(
            "the model has no class token whose attention could be shown; take one with class_token=True, "
            "or crate segment, which needs none"
        )
    maps = []
    with reaching(model, pixel_values, layers) as reached:
        for attention, seen in reached:
            if isinstance(attention, TSSA):
                raise CrateError(
                    "attention 'tssa' compares no two tokens, so there is no map; take a model with 'mssa'"
                )
            weights: Tensor = attention(seen, None, True, 1)[1]  # (batch, K, 1, 1 + N)
            patches = weights[:, :, 0, 1:]
            maps.append(patches / patches.sum(-1, keepdim=True))
    grid = tuple(side // model.config.patch_size for side in pixel_values.shape[-2:])
    return torch.stack(maps).unflatten(-1, grid)


def attention_entropy(maps: Tensor) -> Tensor:
    """−Σ_i A_i log A_i / log N of maps (…, rows, columns) that sum to one: 1 for even attention, 0 for a single patch.

    Of N = 1 patch, where nothing else is possible, 1.
    """
    flat = maps.flatten(-2)
    if flat.shape[-1] == 1:
        return torch.ones_like(flat[..., 0])
    return torch.special.entr(flat).sum(-1) / math.log(flat.shape[-1])
