"""Whole image files, at their own size."""

from __future__ import annotations

import warnings
from pathlib import Path

from PIL import ExifTags, Image

from ..errors import CrateError
from .decode import UnreadableImageError, decode_image

LARGEST = 4096
"""The longest side that is kept as it is."""


def read_picture(
    path: str | Path, channels: int = 3, *, upright: bool = True, largest: int | None = LARGEST
) -> tuple[Image.Image, str | None]:
    """A whole image, grey for one channel and RGB for three, and a note where it was too large and was scaled down.

    `upright` turns it by its EXIF orientation; annotations made for the stored pixels want it as it lies.
    """
    file = Path(path)
    if not file.is_file():
        raise CrateError(f"{file}: no such image file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # large is no reproach here; damage shows itself in decoding
            with Image.open(file) as opened:
                size = opened.size
                if largest is not None and max(size) > 2 * largest:
                    opened.draft(None, (largest, largest))  # a JPEG is read at a half, a quarter or an eighth
                opened.load()
                if not upright:
                    opened.getexif().pop(ExifTags.Base.Orientation, None)
                image = decode_image(opened, channels)
    except Image.DecompressionBombError as error:
        raise CrateError(f"{file}: is too large to be read safely; scale it down first") from error
    except (UnreadableImageError, OSError, ValueError, SyntaxError) as error:  # PIL's readers raise these on damage
        raise CrateError(
            f"{file}: is not an image that can be read; give a JPEG, PNG or another common format"
        ) from error
    if min(size) < 2:
        raise CrateError(f"{file}: is {size[0]} × {size[1]} pixels; there is nothing to see in it, give a larger image")
    if largest is None or max(size) <= largest:
        return image, None
    image.thumbnail((largest, largest), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return image, f"{file}: scaled down from {size[0]} × {size[1]} to {image.width} × {image.height} pixels"
