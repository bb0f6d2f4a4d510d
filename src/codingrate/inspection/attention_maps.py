"""Where the class token looks: attention maps on the grid of patches (paper 4.3, C)."""

from __future__ import annotations

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
    if model.config.modality == "vision" and not model.config.class_token:
        raise CrateError("the model has no class token whose attention could be shown; take one with class_token=True")
    with reaching(model, pixel_values, layer) as (attention, seen):
        if isinstance(attention, TSSA):
            raise CrateError("attention 'tssa' compares no two tokens, so there is no map; take a model with 'mssa'")
        weights: Tensor = attention(seen, None, True, 1)[1]  # (batch, K, 1, 1 + N)
    patches = weights[:, :, 0, 1:]
    grid = tuple(side // model.config.patch_size for side in pixel_values.shape[-2:])
    return (patches / patches.sum(-1, keepdim=True)).unflatten(-1, grid)
