"""From an image to its objects: features of one layer, MaskCut, refined edges, masks and boxes at the image's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from ...data import Augment, BatchAugment, crop_for_evaluation
from ...errors import CrateError
from ...models.base import CratePreTrainedModel
from ...models.config import CrateConfig
from ..measure.attention import projections
from ..measure.tracing import default_layer
from .crf import refine as refine_masks
from .cuts import Box, bounding_box, maskcut

SIDE = 480  # default side in pixels of the square to which an image is resized, as in MaskCut
GRID = 60  # largest default number of patches along a side: 3,600 patches, whose graph takes 100 MB
COLORS = ((230, 159, 0), (0, 114, 178), (0, 158, 115), (204, 121, 167), (213, 94, 0), (86, 180, 233))
"""Colors that most people can tell apart, including the color-blind (Okabe and Ito)."""


@dataclass(frozen=True, eq=False)
class Segment:
    """One object of an image."""

    mask: NDArray[np.bool_]  # (height, width) of the image
    box: Box  # bounding box of the mask: x, y, width, height in pixels
    score: float  # quality of its cut, in [0, 1]


def find_objects(
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
    """Find at most `masks` objects in an image, in the order of the cuts.

    The image is resized to a square of `side` pixels and normalized as `augment` says. The masks on its grid of patches
    are refined there (`refine`, which drops masks that follow nothing in the image) and resized to the image. `layer`
    defaults to -2 for CRATE and -1 for a ViT, as in the paper.
    """
    square, pixels = square_input(model, image, augment, side)
    patch = model.config.patch_size
    grid = (square.height // patch, square.width // patch)
    features = projections(model, pixels, default_layer(model.config) if layer is None else layer)[0]
    cuts = maskcut(features, grid, masks, threshold)
    large = [cut.mask.repeat(patch, axis=0).repeat(patch, axis=1) for cut in cuts]
    refined = refine_masks(np.asarray(square), large) if refine else large
    segments = []
    for coarse, cut in zip(refined, cuts, strict=True):
        if coarse is None:
            continue
        picture = Image.fromarray(coarse.astype(np.uint8) * 255).resize(image.size, Image.Resampling.BICUBIC)
        mask = np.asarray(picture) >= 128
        if mask.any():
            segments.append(Segment(mask, bounding_box(mask), cut.score))
    return segments


def square_input(
    model: CratePreTrainedModel, image: Image.Image, augment: Augment, side: int | None = None
) -> tuple[Image.Image, Tensor]:
    """Resize an image to a square; return it and the pixel values (1, channels, side, side) that the model reads."""
    side = default_side(model.config) if side is None else side
    patch = model.config.patch_size
    if side < patch or side % patch:
        raise CrateError(f"side {side} is not divisible by the model's patch_size {patch}; use {_nearest(side, patch)}")
    augment = replace(augment, image_size=side, evaluation="resize", interpolation="lanczos")
    square = crop_for_evaluation(image, augment)
    values = torch.from_numpy(np.array(square))
    values = values[None] if augment.channels == 1 else values.permute(2, 0, 1)
    return square, BatchAugment(augment).eval()(values[None]).to(model.device, model.dtype)


def overlay(image: Image.Image, segments: Sequence[Segment]) -> Image.Image:
    """Draw objects over an image: tinted masks and boxes with a number and a score in the corner."""
    pixels = np.array(image.convert("RGB"), dtype=np.float32)
    for number, part in enumerate(segments):
        pixels[part.mask] = 0.5 * pixels[part.mask] + 0.5 * np.array(COLORS[number % len(COLORS)], dtype=np.float32)
    picture = Image.fromarray(pixels.round().astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    line = max(1, round(max(picture.size) / 320))
    for number, part in enumerate(segments):
        x, y, width, height = part.box
        color = COLORS[number % len(COLORS)]
        draw.rectangle((x, y, x + width - 1, y + height - 1), outline=color, width=line)
        text, size = f" {number + 1}: {part.score:.2f} ", max(8, 4 * line + 6)
        draw.rectangle(draw.textbbox((x, y), text, font_size=size), fill=color)
        draw.text((x, y), text, fill="white", font_size=size)
    return picture


def default_side(config: CrateConfig) -> int:
    """Return the multiple of the patch size nearest to 480 pixels, or to 60 patches if these are fewer pixels."""
    return _nearest(min(SIDE, GRID * config.patch_size), config.patch_size)


def _nearest(side: int, patch: int) -> int:
    return max(round(side / patch), 1) * patch
