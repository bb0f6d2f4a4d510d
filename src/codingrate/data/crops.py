"""Geometry of one image, in the loader's workers: images differ in size until they are cropped."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from .augment import Augment

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_TRIES = 10


def sample_generator(seed: int, epoch: int, key: int) -> np.random.Generator:
    """Randomness that belongs to one image in one epoch, whoever draws it: no worker, batch or restart changes it."""
    return np.random.default_rng((seed, epoch, key))


def random_box(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], draw: np.random.Generator
) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of a random resized crop: area even in `scale`, log of width/height even in `ratio`.

    Boxes that do not fit are drawn again, ten times at most; then the largest centred box of an allowed ratio.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for area, shape, x, y in draw.random((_TRIES, 4)).tolist():
        target = width * height * (scale[0] + (scale[1] - scale[0]) * area)
        aspect = math.exp(low + (high - low) * shape)
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
            return left, top, left + w, top + h
    w = min(width, round(height * ratio[1]))
    h = min(height, round(width / ratio[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def center_crop(image: Image.Image, size: int, ratio: float, resample: Image.Resampling) -> Image.Image:
    """Short side to `size · ratio`, then the middle square of side `size`; rounded down, as image processors do."""
    width, height = image.size
    short = max(round(size * ratio), size)
    width, height = (short, int(height * short / width)) if width <= height else (int(width * short / height), short)
    image = _resize(image, width, height, resample)
    left, top = (width - size) // 2, (height - size) // 2
    return image.crop((left, top, left + size, top + size))


def _resize(image: Image.Image, width: int, height: int, resample: Image.Resampling) -> Image.Image:
    return image if image.size == (width, height) else image.resize((width, height), resample)


def crop_for_evaluation(image: Image.Image, augment: Augment) -> Image.Image:
    """The one view of an image that is measured."""
    size, resample = augment.image_size, _FILTERS[augment.interpolation]
    if augment.evaluation_crop == "center":
        return center_crop(image, size, augment.evaluation_ratio, resample)
    return _resize(image, size, size, resample)


def crop_for_training(image: Image.Image, augment: Augment, draw: np.random.Generator) -> Image.Image:
    """A view of an image to learn from."""
    size, resample = augment.image_size, _FILTERS[augment.interpolation]
    if augment.crop == "random-resized":
        box = random_box(*image.size, augment.crop_scale, augment.crop_ratio, draw)
        return image.crop(box).resize((size, size), resample)
    if augment.crop == "center":
        return center_crop(image, size, augment.evaluation_ratio, resample)
    image = _resize(image, size, size, resample)
    if augment.crop == "pad" and augment.crop_padding:
        span = 2 * augment.crop_padding + 1
        left, top = (int(value * span) - augment.crop_padding for value in draw.random(2).tolist())
        return image.crop((left, top, left + size, top + size))  # PIL fills what lies outside with black
    return image
