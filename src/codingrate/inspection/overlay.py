"""An image with what was found in it drawn over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from .segment import Segment

COLORS = ((230, 159, 0), (0, 114, 178), (0, 158, 115), (204, 121, 167), (213, 94, 0), (86, 180, 233))
"""Told apart by most eyes, also those that see few colours (Okabe and Ito)."""


def overlay(image: Image.Image, segments: Sequence[Segment]) -> Image.Image:
    """The image with every object tinted, framed by its box, and its number and score in the box's corner."""
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
