"""Read images: values of a dataset's image column, image files of the user, and a count of those that are damaged."""

from __future__ import annotations

import functools
import io
import os
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from .._files import as_path
from ..errors import CrateError
from .augment import Augment
from .transforms import crop_for_evaluation

LARGEST_SIDE = 4096
"""Longest side, in pixels, at which `read_picture` leaves an image as it is."""

_LONGEST_SIDE = 2**17  # pixels; the tables that PIL resizes longer ones with take gigabytes

MODES = {1: "L", 3: "RGB"}

FORMATS = ("AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are decoded. PIL tells the format from the content, so that a file with the suffix .png could otherwise
be PostScript, which PIL gives to Ghostscript to run."""


class UnreadableImageError(Exception):
    """An image that cannot be decoded; loaders skip and count it."""


def decode_image(value: Any, channels: int = 3) -> Image.Image:
    """Decode bytes, a path, a row `{"bytes", "path"}`, an array, nested lists or a PIL image to 8-bit gray or RGB.

    The image is turned upright by its EXIF orientation. Transparent parts are shown on white, because dropping the
    alpha channel would reveal whatever color lies below it. Sixteen-bit gray is divided by its full range 65535, so
    that brightness stays comparable between images. Images beyond PIL's decompression-bomb limit are unreadable.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # damaged EXIF data and the like; only the pixels matter
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = _open(value)
            if min(image.size) < 1 or max(image.size) > _LONGEST_SIDE:
                raise ValueError(f"the image has {image.width} × {image.height} pixels")
            if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:  # exif_transpose always copies
                image = ImageOps.exif_transpose(image)
            return _convert(image, MODES[channels])
    except MemoryError:
        raise
    except Exception as error:  # PIL's readers raise many types on damaged files
        raise UnreadableImageError(f"{type(error).__name__}: {error}") from error


def file_content(value: Any, channels: int = 3) -> bytes:
    """Return an image column's value as the content of a file: its own file, or a PNG of arrays and nested lists."""
    if isinstance(value, Mapping) and (value.get("bytes") or value.get("path")):
        return value["bytes"] or Path(value["path"]).read_bytes()
    file = io.BytesIO()
    decode_image(value, channels).save(file, format="PNG")
    return file.getvalue()


def open_image(source: str | Path | io.BytesIO) -> Image.Image:
    """Open an image in one of `FORMATS`; every image that the package reads is opened here."""
    if not isinstance(source, io.BytesIO) and not os.path.isfile(source):  # a pipe would never end
        raise FileNotFoundError(f"no such file: {source}")
    return Image.open(source, formats=_available_formats())


@functools.cache
def _available_formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)  # AVIF came with Pillow 11.3


def _open(value: Any) -> Image.Image:
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, Image.Image):
        _check_format(value)
        return value
    if isinstance(value, bytes):
        return open_image(io.BytesIO(value))
    if isinstance(value, (str, Path)):
        with open_image(value) as image:
            image.load()
            return image
    return _from_array(np.asarray(value))


def _check_format(image: Image.Image) -> None:
    """Refuse an image that the caller opened from another format and that PIL has not decoded yet."""
    if getattr(image, "tile", None) and image.format not in FORMATS:
        raise ValueError(f"images in the format {image.format} are not read")


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
    return Image.fromarray(((np.clip(array, 0, 65535).astype(np.uint32) + 128) // 257).astype(np.uint8))


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == mode and "transparency" not in image.info:
        image.load()  # raises if the file is truncated
        return image
    if image.mode.startswith("I"):
        image = _eight_bits(np.asarray(image))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def read_picture(
    path: str | Path, channels: int | None = 3, *, upright: bool = True, largest: int | None = LARGEST_SIDE
) -> tuple[Image.Image, str | None]:
    """Read a whole image file; return it with a note if it was scaled down to `largest` pixels, else with None.

    `channels` is 3 for RGB, 1 for gray and None for the values as stored. `upright` applies the EXIF orientation;
    annotations refer to the stored pixels and need `upright=False`. Every image file that a user names is read here.
    """
    file = as_path(path, "the image")
    if not os.path.isfile(file):  # unlike Path.is_file, False for a name that is too long
        raise CrateError(f"{file}: no such image file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a large image is allowed here, and damage shows when decoding
            with open_image(file) as image:
                size = image.size
                if largest is not None and max(size) > 2 * largest:
                    image.draft(None, (largest, largest))  # decodes a JPEG at a half, a quarter or an eighth
                image.load()
                if not upright:
                    image.getexif().pop(ExifTags.Base.Orientation, None)
                picture = image if channels is None else decode_image(image, channels)
    except Image.DecompressionBombError as error:
        raise CrateError(f"{file}: is too large to be read safely; scale it down first") from error
    except MemoryError as error:
        raise CrateError(f"{file}: does not fit in memory; scale it down first") from error
    except Exception as error:  # PIL's readers raise many types on damaged files
        raise CrateError(
            f"{file}: is not an image that can be read; use a JPEG, PNG or another common format"
        ) from error
    if min(size) < 2:
        raise CrateError(f"{file}: is only {size[0]} × {size[1]} pixels; use a larger image")
    if largest is None or max(size) <= largest:
        return picture, None
    picture.thumbnail((largest, largest), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return picture, f"{file}: scaled down from {size[0]} × {size[1]} to {picture.width} × {picture.height} pixels"


def read_image(source: str | Path | Image.Image, augment: Augment) -> Tensor:
    """Return the evaluation crop of an image file or a PIL image as uint8 (channels, side, side)."""
    if isinstance(source, (str, Path)):
        image, _ = read_picture(source, augment.channels, largest=None)
    else:
        try:
            image = decode_image(source, augment.channels)
        except UnreadableImageError as error:
            raise CrateError(f"a {type(source).__name__} cannot be read as an image ({error}); give a file") from error
    return stack_images([crop_for_evaluation(image, augment)])[0]


def stack_images(images: Sequence[Image.Image]) -> Tensor:
    """Return images of one size as uint8 (images, channels, height, width)."""
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in images]))
    return pixels.unsqueeze(1) if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)


def image_key(value: object) -> int:
    """Return a hash of an image's bytes, or else of its class folder and file name.

    It takes the place of a row number in streams, where numbers change with the number of workers.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path") or b""
    if isinstance(value, str):
        value = "/".join(value.replace("\\", "/").split("/")[-2:]).encode()
    return zlib.crc32(value if isinstance(value, bytes) else repr(value).encode())


class CorruptImages:
    """Count unreadable images, in the main process, and stop if their share exceeds `max_share`.

    Training on the rest would hide a broken download. The share is judged when all images have been counted, and in
    training, where more always follow, from the thousandth image on.
    """

    def __init__(self, max_share: float = 0.01) -> None:
        if not 0 <= max_share <= 1:
            raise CrateError(f"`max_share` of corrupt images must lie in [0, 1] (got {max_share})")
        self.max_share, self.seen, self.bad, self.first = max_share, 0, 0, ""
        self.names: list[str] = []

    def add(self, batch: Mapping[str, Any]) -> None:
        """Count the images of a collated training batch."""
        self.count(len(batch["labels"]), batch["corrupt"])
        if self.seen >= 1000:
            self._check()

    def count(self, readable: int, corrupt: Sequence[str]) -> None:
        """Count a number of readable images and the names of unreadable ones."""
        self.names.extend(corrupt)
        self.first = self.first or next(iter(corrupt), "")
        self.seen, self.bad = self.seen + readable + len(corrupt), self.bad + len(corrupt)

    def finish(self) -> tuple[str, ...]:
        """Check the share of the images seen so far; return the names of the unreadable ones since the last call."""
        self._check()
        names, self.names = tuple(self.names), []
        return names

    def _check(self) -> None:
        if self.bad and (self.bad == self.seen or self.bad > self.max_share * self.seen):
            count = f"all {self.bad}" if self.bad == self.seen else f"{self.bad} of {self.seen}"
            raise CrateError(
                f"{count} images cannot be read, but only a share of {self.max_share:g} is allowed; "
                f"the first is {self.first}; remove them or raise data.max_corrupt"
            )
