"""What a layer's attention compares patches by: U^ℓᵀz of CRATE, the keys of a ViT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from ..errors import CrateError
from ..models import eval_mode
from ..models.base import CrateModel, CratePreTrainedModel
from ..models.layers import EncoderLayer
from ..operators import MHSA, SubspaceAttention
from .trace import layer_index


def projections(model: CratePreTrainedModel, pixel_values: Tensor, layer: int = -2) -> Tensor:
    """[U_1ᵀz_i … U_Kᵀz_i] of every patch i at one layer, (batch, N, K·p): the features of MaskCut (paper, C).

    z is what the layer's attention reads, LN(Z^ℓ); a ViT has its keys in this place. The class token is left out. The
    forward pass ends at the layer, counted from 0, or from the end if negative; no hook is set and nothing else kept.
    """
    with reaching(model, pixel_values, [layer]) as ((module, seen),):
        return _keys(module, seen)[:, int(model.config.class_token) :]


@contextmanager
def reaching(
    model: CratePreTrainedModel, pixel_values: Tensor, layers: Sequence[int]
) -> Iterator[list[tuple[SubspaceAttention | MHSA, Tensor]]]:
    """The attention of layers and the tokens (batch, n, d) each reads of these images, the model not training.

    One pass, which ends at the deepest of them; the tokens of every layer asked for are held.
    """
    if model.config.modality != "vision":
        raise CrateError(f"a {type(model).__name__} reads text; take a vision model")
    body = cast(CrateModel, model.base_model)
    wanted = [layer_index(layer, len(body.layers)) for layer in layers]
    with eval_mode(model), torch.no_grad():
        z, seen = body.embedding(pixel_values), {}
        for number in range(max(wanted) + 1):
            module = cast(EncoderLayer, body.layers[number])
            if number in wanted:
                seen[number] = (_comparing(module.attention), module.attention_input(z))
            if number < max(wanted):
                z = module(z)[0]
        yield [seen[number] for number in wanted]


def _comparing(attention: nn.Module) -> SubspaceAttention | MHSA:
    if not isinstance(attention, (SubspaceAttention, MHSA)):
        raise CrateError(f"attention {type(attention).__name__} has neither subspaces nor keys")
    return attention


def _keys(attention: SubspaceAttention | MHSA, seen: Tensor) -> Tensor:
    """What an attention compares tokens with, (batch, n, K·p)."""
    if isinstance(attention, SubspaceAttention):
        return attention.join(attention.codes(seen))
    return cast(Tensor, attention.project(seen)).chunk(3, dim=-1)[1]
