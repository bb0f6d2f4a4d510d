"""From stored bytes to pixels of the wanted kind, and what to do with the images that cannot be read."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps

from ..errors import CrateError

_MODES = {1: "L", 3: "RGB"}


class UnreadableImageError(Exception):
    """One image that cannot be decoded; the loader skips and counts it."""


def decode_image(value: Any, channels: int = 3) -> Image.Image:
    """An 8-bit image, grey for one channel and RGB for three, out of bytes, a path, a `{"bytes", "path"}` row, an
    array, nested lists, or a PIL image.

    Turned upright by its EXIF orientation. Transparent parts are laid over white, the page such images are drawn for;
    dropping alpha would bring up whatever colour lies below it. Sixteen-bit grey is scaled by its full range 65535,
    so that brightness stays comparable between images. Images beyond PIL's decompression-bomb limit are unreadable.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # damaged EXIF and the like: the pixels decide
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return _convert(_upright(_open(value)), _MODES[channels])
    except MemoryError:
        raise
    except Exception as error:  # PIL's readers raise every kind on damaged files
        raise UnreadableImageError(f"{type(error).__name__}: {error}") from error


def _open(value: Any) -> Image.Image:
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, Image.Image):
        return value
    if isinstance(value, bytes):
        return Image.open(io.BytesIO(value))
    if isinstance(value, str):
        with Image.open(value) as image:
            image.load()
            return image
    return _from_array(np.asarray(value))


def _upright(image: Image.Image) -> Image.Image:
    if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:  # most: spares exif_transpose's copy
        return image
    return ImageOps.exif_transpose(image)


def _from_array(array: Any) -> Image.Image:
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype == np.uint16:
        return _eight_bits(array)
    if array.dtype == np.bool_:
        array = array * np.uint8(255)
    if array.dtype.kind not in "iu" or array.min() < 0 or array.max() > 255:
        raise ValueError(f"pixels of type {array.dtype} outside 0…255")
    return Image.fromarray(np.ascontiguousarray(array, np.uint8))


def _eight_bits(array: Any) -> Image.Image:
    return Image.fromarray(np.rint(np.clip(array, 0, 65535) / 257).astype(np.uint8))


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == mode and "transparency" not in image.info:
        image.load()  # a truncated file shows itself here
        return image
    if image.mode.startswith("I"):
        image = _eight_bits(np.asarray(image))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


class CorruptImages:
    """Counts unreadable images over an epoch, in the main process, from the names each batch carries.

    More than `max_share` of them ends the run: training on what is left would hide a broken download. Judged once
    `minimum` images were seen, and at the end of the epoch.
    """

    def __init__(self, max_share: float = 0.01, minimum: int = 100) -> None:
        if not 0 <= max_share <= 1:
            raise CrateError(f"max_share of corrupt images must lie in [0, 1], not {max_share}")
        self.max_share, self.minimum = max_share, minimum
        self.seen = 0
        self.names: list[str] = []

    def add(self, batch: Mapping[str, Any]) -> None:
        """Count a collated batch."""
        self.count(len(batch["labels"]), batch["corrupt"])

    def count(self, good: int, corrupt: Sequence[str]) -> None:
        """Count so many readable images and the names of the unreadable ones."""
        self.names.extend(corrupt)
        self.seen += good + len(corrupt)
        if self.seen >= self.minimum:
            self._judge()

    def finish(self) -> tuple[str, ...]:
        """End an epoch: judge it, start anew, and give the names of what was skipped."""
        self._judge()
        names, self.seen, self.names = tuple(self.names), 0, []
        return names

    def _judge(self) -> None:
        bad = len(self.names)
        if bad and (bad == self.seen or bad > self.max_share * self.seen):
            lead = f"all {bad}" if bad == self.seen else f"{bad} of {self.seen}"
            raise CrateError(
                f"{lead} images cannot be read, where a share of {self.max_share:g} may; the first: {self.names[0]}"
            )
