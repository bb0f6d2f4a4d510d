"""Attention of the class token over images: maps by layer and head, and the patches that hold most of the attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...data import Augment
from ...errors import CrateError
from ...models.base import CratePreTrainedModel
from ...operators.attention_mass import MASS, at_size, check_mass, mass_masks
from ..measure.attention import attention_entropy, layer_attention_maps
from ..measure.tracing import default_layer, layer_indices
from .objects import square_input

COLORMAP = "inferno"  # perceptually uniform, also for the color-blind and in grayscale
OPACITY = 0.6  # opacity of the heat over the image
DIMMED = 0.25  # brightness of an image outside a mask
TILE = 240  # longest side of an image within a grid, in pixels

GAP, HEADER, NAME = 4, 18, 56
"""Layout of a grid in pixels: space between images, height of the names above them, width of a column at least."""


@dataclass(frozen=True, eq=False)
class ImageAttention:
    """The class token's attention at one layer over one image; maps are named `head 1` … `head K` and `mean`."""

    image: Image.Image  # the image as it was given
    square: Image.Image  # the square that the model read
    layer: int  # index of the layer, from 0
    mass: float  # share of the attention that a mask holds
    maps: dict[str, NDArray[Any]]  # attention over the patches, each (rows, columns), summing to one

    @property
    def entropies(self) -> dict[str, float]:
        """Entropy of each map relative to uniform attention."""
        return {name: float(attention_entropy(torch.from_numpy(own))) for name, own in self.maps.items()}

    @property
    def masks(self) -> dict[str, NDArray[np.bool_]]:
        """The fewest patches that hold the share `mass` of each map, each (rows, columns)."""
        return {name: mass_masks(own, self.mass) for name, own in self.maps.items()}

    def image_masks(self) -> dict[str, Image.Image]:
        """Return the masks at the size of the image."""
        size = self.image.height, self.image.width
        return {name: Image.fromarray(at_size(mask, *size)) for name, mask in self.masks.items()}

    def grid(self) -> Image.Image:
        """Draw the image, the heat of each map beside it, and the mask of each map below its heat."""
        small = tile(self.image).convert("RGB")
        width, height = small.size
        step = max(width, NAME) + GAP
        grid = Image.new("RGB", ((1 + len(self.maps)) * step - GAP, HEADER + 2 * height + GAP), "white")
        draw = ImageDraw.Draw(grid)
        below = HEADER + height + GAP
        draw.text((2, 2), "image", fill="black", font_size=12)
        draw.text((2, below + 2), f"patches\nholding\n{self.mass:.0%} of it", fill="black", font_size=12)
        grid.paste(small, (0, HEADER))
        for column, (name, mask) in enumerate(self.masks.items(), 1):
            draw.text((column * step + 2, 2), name, fill="black", font_size=12)
            grid.paste(heat_overlay(small, self.maps[name]), (column * step, HEADER))
            grid.paste(mask_overlay(small, mask), (column * step, below))
        return grid


def attend_images(
    model: CratePreTrainedModel,
    images: Sequence[Image.Image],
    augment: Augment,
    *,
    layers: Iterable[int | str] | None = None,
    head: int | None = None,
    mass: float = MASS,
    size: int | None = None,
) -> list[list[ImageAttention]]:
    """Compute the class token's attention over images; the result has a list for each image with an entry per layer.

    Images are resized to squares of `size` pixels, by default the model's own size, and normalized as `augment` says.
    `layers` count from 0, or from the end if negative; an entry "all" stands for every layer. The default is -2 for
    CRATE and -1 for a ViT. `head` selects one head, counted from 1; by default all heads and their mean are returned.
    """
    config = model.config
    check_mass(mass, "mass")
    chosen = layer_indices([default_layer(config)] if layers is None else layers, config.num_hidden_layers)
    if head is not None and not 1 <= head <= config.num_attention_heads:
        heads = config.num_attention_heads
        raise CrateError(f"head {head} is out of range; the model has {heads} heads, 1 to {heads}")
    results: list[list[ImageAttention]] = []
    for image in images:
        square, pixels = square_input(model, image, augment, max(config.image_sides) if size is None else size)
        maps = layer_attention_maps(model, pixels, chosen)[:, 0].double().cpu().numpy()  # (layers, K, rows, columns)
        results.append([])
        for layer, own in zip(chosen, maps, strict=True):
            named = {f"head {k}": part for k, part in enumerate(own, 1)} | {"mean": own.mean(axis=0)}
            named = named if head is None else {f"head {head}": own[head - 1]}
            results[-1].append(ImageAttention(image, square, layer, mass, named))
    return results


def heat_overlay(image: Image.Image, attention: NDArray[Any]) -> Image.Image:
    """Draw a map (rows, columns) over the image in gray: (1 − α)·pixel + α·color(A / max A), α = `OPACITY`.

    The image is gray, so every color comes from the map. A is interpolated bilinearly between the centers of patches,
    because steps at their edges would draw lines that are not in the image. A is divided by its maximum only: uniform
    attention is then one bright color, whereas stretching from minimum to maximum would show its noise.
    """
    from matplotlib import colormaps

    values = Image.fromarray((attention / attention.max()).astype(np.float32))
    large = np.asarray(values.resize(image.size, Image.Resampling.BILINEAR))
    colors = Image.fromarray(colormaps[COLORMAP](large, bytes=True)[..., :3])
    return Image.blend(image.convert("L").convert("RGB"), colors, OPACITY)


def mask_overlay(image: Image.Image, mask: NDArray[np.bool_]) -> Image.Image:
    """Dim an image outside a mask (rows, columns) of patches."""
    bright = image.convert("RGB")
    dim = Image.blend(Image.new("RGB", image.size), bright, DIMMED)
    return Image.composite(bright, dim, Image.fromarray(at_size(mask, image.height, image.width)))


def tile(image: Image.Image, longest: int = TILE) -> Image.Image:
    """Resize an image so that its longer side has the given number of pixels; no side is shorter than one."""
    share = longest / max(image.size)
    width, height = (max(round(side * share), 1) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)
