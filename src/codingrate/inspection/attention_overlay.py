"""Attention maps for people: drawn over the image as heat, and as the patches on which most of the attention lies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..operators.attention_mass import MASS, at_size, mass_masks

COLORMAP = "inferno"
"""Even steps of attention look even, also to eyes that see few colours, and in grey."""
OPACITY = 0.6
"""How much of the heat covers the image."""
DIMMED = 0.25
"""Brightness of what lies outside a mask."""
TILE = 240
"""Longest side, in pixels, of an image within a grid."""
GAP = 4
"""Pixels between the images of a grid."""
HEADER = 18
"""Height of the names above them."""
NAME = 56
"""Width that a name needs at least."""


def named_maps(maps: NDArray[Any], head: int | None = None) -> dict[str, NDArray[Any]]:
    """Maps of one image (K, rows, columns) by name: `head 1` … `head K` and their `mean`, or one head only."""
    if head is not None:
        return {f"head {head}": maps[head - 1]}
    return {f"head {k}": own for k, own in enumerate(maps, 1)} | {"mean": maps.mean(axis=0)}


def heat_overlay(image: Image.Image, attention: NDArray[Any]) -> Image.Image:
    """The image in grey under a map (rows, columns): (1 − α)·pixel + α·colour(A / max A), α = `OPACITY`.

    Grey, so that every colour is the map's. A is read bilinearly between the centres of patches: steps at their edges
    would draw lines that the image has not. Scaled by its largest value alone, even attention is one bright colour,
    where stretching from the least to the largest would show its noise.
    """
    from matplotlib import colormaps

    values = Image.fromarray((attention / attention.max()).astype(np.float32))
    large = np.asarray(values.resize(image.size, Image.Resampling.BILINEAR))
    colors = Image.fromarray(colormaps[COLORMAP](large, bytes=True)[..., :3])
    return Image.blend(image.convert("L").convert("RGB"), colors, OPACITY)


def mask_overlay(image: Image.Image, mask: NDArray[np.bool_]) -> Image.Image:
    """The image as it is where a mask (rows, columns) holds, and dim elsewhere; patches have their edges here."""
    bright = image.convert("RGB")
    dim = Image.blend(Image.new("RGB", image.size), bright, DIMMED)
    return Image.composite(bright, dim, Image.fromarray(at_size(mask, image.height, image.width)))


def tile(image: Image.Image, longest: int = TILE) -> Image.Image:
    """The image with its longer side at so many pixels, never less than one high or wide."""
    share = longest / max(image.size)
    width, height = (max(round(side * share), 1) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def attention_grid(image: Image.Image, maps: Mapping[str, NDArray[Any]], mass: float = MASS) -> Image.Image:
    """image | heat of each map, and below it the patches that hold the share `mass` of its attention."""
    small = tile(image).convert("RGB")
    width, height = small.size
    step = max(width, NAME) + GAP
    grid = Image.new("RGB", ((1 + len(maps)) * step - GAP, HEADER + 2 * height + GAP), "white")
    draw = ImageDraw.Draw(grid)
    below = HEADER + height + GAP
    draw.text((2, 2), "image", fill="black", font_size=12)
    draw.text((2, below + 2), f"patches\nholding\n{mass:.0%} of it", fill="black", font_size=12)
    grid.paste(small, (0, HEADER))
    for column, (name, attention) in enumerate(maps.items(), 1):
        draw.text((column * step + 2, 2), name, fill="black", font_size=12)
        grid.paste(heat_overlay(small, attention), (column * step, HEADER))
        grid.paste(mask_overlay(small, mass_masks(attention, mass)), (column * step, below))
    return grid
