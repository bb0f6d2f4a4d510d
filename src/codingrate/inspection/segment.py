"""From an image to its objects: features of one layer, MaskCut, edges, masks and boxes at the image's own size."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..data import Augment, BatchAugment, crop_for_evaluation
from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from ..models.config import CrateConfig
from .maskcut import Box, maskcut, tight_box
from .projections import projections
from .refine import refine as refined

SIDE = 480
"""Side of the square an image is resized to, as in MaskCut."""
GRID = 60
"""The most patches along a side by default: 3,600 in all, whose graph takes 100 MB."""


@dataclass(frozen=True, eq=False)
class Segment:
    """One object of an image."""

    mask: NDArray[np.bool_]
    """(height, width) of the image."""
    box: Box
    """The rectangle that just holds the mask: x, y, width, height in pixels."""
    score: float
    """That of its cut, in [0, 1]."""


def segment(
    model: CratePreTrainedModel,
    image: Image.Image,
    augment: Augment,
    *,
    masks: int = 3,
    threshold: float = 0.15,
    layer: int | None = None,
    refine: bool = True,
    side: int | None = None,
) -> list[Segment]:
    """At most `masks` objects of an image, in the order found.

    The image is squeezed to a square of `side` pixels and normalised as `augment` says. Masks on its grid of patches
    are refined there (`refine`; those that follow nothing in the image are dropped), then brought back to the image's
    size. `layer` None is the last but one of CRATE and the last of a ViT, as in the paper.
    """
    square, pixels = square_input(model, image, augment, side)
    patch = model.config.patch_size
    grid = (square.height // patch, square.width // patch)
    features = projections(model, pixels, default_layer(model.config) if layer is None else layer)[0]
    found = maskcut(features, grid, masks, threshold)
    large: list[NDArray[np.bool_] | None] = [cut.mask.repeat(patch, axis=0).repeat(patch, axis=1) for cut in found]
    if refine:
        large = refined(np.asarray(square), [mask for mask in large if mask is not None])
    whole = [None if mask is None else _resized(mask, image.size) for mask in large]
    return [
        Segment(mask, tight_box(mask), cut.score)
        for mask, cut in zip(whole, found, strict=True)
        if mask is not None and mask.any()
    ]


def square_input(
    model: CratePreTrainedModel, image: Image.Image, augment: Augment, side: int | None = None
) -> tuple[Image.Image, Tensor]:
    """The square the model sees, and its pixel values (1, channels, side, side) in the model's place and precision."""
    side = default_side(model.config) if side is None else side
    patch = model.config.patch_size
    if side < patch or side % patch:
        raise CrateError(
            f"side {side} is not divisible by the model's patch_size {patch}; take {_nearest(side, patch)}"
        )
    augment = replace(augment, image_size=side, evaluation="resize", interpolation="lanczos")
    square = crop_for_evaluation(image, augment)
    values = torch.from_numpy(np.array(square))
    values = values[None] if augment.channels == 1 else values.permute(2, 0, 1)
    return square, BatchAugment(augment).eval()(values[None]).to(model.device, model.dtype)


def default_side(config: CrateConfig) -> int:
    """480 pixels or the multiple of the patch next to it, and no more than 60 patches."""
    return _nearest(min(SIDE, GRID * config.patch_size), config.patch_size)


def default_layer(config: CrateConfig) -> int:
    """The last but one of CRATE, the last of a ViT (paper, C), and of a model with a single layer that one."""
    return -1 if config.attention == "mhsa" or config.num_hidden_layers == 1 else -2


def _nearest(side: int, patch: int) -> int:
    return max(round(side / patch), 1) * patch


def _resized(mask: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    """A mask at (width, height): read bicubically and cut at the half."""
    large = Image.fromarray(mask.astype(np.uint8) * 255).resize(size, Image.Resampling.BICUBIC)
    return np.asarray(large) >= 128
