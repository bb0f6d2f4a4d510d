"""Draw over images: objects with their boxes, attention maps as heat, and masks of patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...operators.attention_mass import at_size
from .objects import Segment

COLORS = ((230, 159, 0), (0, 114, 178), (0, 158, 115), (204, 121, 167), (213, 94, 0), (86, 180, 233))
"""Colors that most people can tell apart, including the color-blind (Okabe and Ito)."""
COLORMAP = "inferno"
"""Perceptually uniform, also for the color-blind and in grayscale."""
OPACITY = 0.6
"""Opacity of the heat over the image."""
DIMMED = 0.25
"""Brightness of an image outside a mask."""
TILE = 240
"""Longest side of an image within a grid, in pixels."""


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
