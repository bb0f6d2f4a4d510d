"""Cropping, image by image in the loader's workers, and augmentation, batch by batch on the device (kornia)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from ..errors import CrateError
from .augment import Augment, Views, view_augments
from .rand_augment import RandAugment

_TRIES = 10  # random boxes drawn before the center is taken
_LONGEST = 16  # aspect ratio beyond which only the middle of an image is resized for a center crop


class EpochGenerators:
    """Random generators of a dataset that depend on (seed, epoch, index) only, not on workers, batches or restarts."""

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise CrateError(f"`seed` must not be negative (got {seed})")
        self.seed = seed
        # The epoch lies in shared memory, so that workers that outlive an epoch see the next one.
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which changes the draws and a stream's order; call it before the loader is iterated."""
        self.epoch.fill_(epoch)

    def generator(self, index: int) -> np.random.Generator:
        """Return the generator of one example in the current epoch."""
        return np.random.default_rng((self.seed, int(self.epoch), index))


def random_box(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], generator: np.random.Generator
) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom of a random resized crop.

    The area is uniform in `scale`, the log of width/height uniform in `ratio`. If none of ten boxes fits, the result is
    the largest centered box with an allowed ratio.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for area, shape, x, y in generator.random((_TRIES, 4)).tolist():
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


def _center_crop(image: Image.Image, augment: Augment) -> Image.Image:
    """Resize the short side to `size · ratio` and cut the middle square; round down, as image processors do."""
    longest = _LONGEST * min(image.size)
    if max(image.size) > longest:  # a file of 2 × 65535 pixels would need gigabytes
        image = ImageOps.fit(image, (min(image.width, longest), min(image.height, longest)))
    size, (width, height) = augment.image_size, image.size
    short = max(round(size * augment.evaluation_ratio), size)
    width, height = (short, int(height * short / width)) if width <= height else (int(width * short / height), short)
    left, top = (width - size) // 2, (height - size) // 2
    return _resize(image, width, height, augment).crop((left, top, left + size, top + size))


def _resize(image: Image.Image, width: int, height: int, augment: Augment) -> Image.Image:
    return image.resize((width, height), Image.Resampling[augment.interpolation.upper()])


def crop_for_evaluation(image: Image.Image, augment: Augment) -> Image.Image:
    """Return the crop of an image on which models are evaluated."""
    if augment.evaluation_crop == "center":
        return _center_crop(image, augment)
    return _resize(image, augment.image_size, augment.image_size, augment)


def crop_for_training(image: Image.Image, augment: Augment, generator: np.random.Generator) -> Image.Image:
    """Return a training crop of an image, random unless `augment.crop` is `center` or `resize`."""
    size = augment.image_size
    if augment.crop == "random-resized":
        box = random_box(*image.size, augment.crop_scale, augment.crop_ratio, generator)
        return _resize(image.crop(box), size, size, augment)
    if augment.crop == "center":
        return _center_crop(image, augment)
    image = _resize(image, size, size, augment)
    if augment.crop == "pad" and augment.crop_padding:
        span = 2 * augment.crop_padding + 1
        left, top = (int(value * span) - augment.crop_padding for value in generator.random(2).tolist())
        return image.crop((left, top, left + size, top + size))  # PIL fills with black outside the image
    return image


class BatchAugment(nn.Module):
    """Turn uint8 images (batch, channels, height, width) into normalized floats; augment them in training mode."""

    mean: Tensor
    std: Tensor

    def __init__(self, augment: Augment) -> None:
        super().__init__()
        mean, std = augment.normalization
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.operations = nn.ModuleList(_operations(augment))
        self.erase: nn.Module | None = None
        if augment.erase:
            from kornia.augmentation import RandomErasing

            self.erase = RandomErasing(value=0.0, p=augment.erase)  # after normalization, where zero is the mean

    def forward(self, images: Tensor, seed: int | None = None) -> Tensor:
        """Return normalized images; a `seed` makes them reproducible and leaves the global generators alone."""
        if images.dtype != torch.uint8:
            raise TypeError(f"BatchAugment takes uint8 pixels in 0…255 (got {images.dtype})")
        pixels = images.to(self.mean.dtype).div_(255)
        if not self.training or len(pixels) == 0:
            return pixels.sub_(self.mean).div_(self.std)
        with _seeded(seed, pixels.device):
            for operation in self.operations:
                pixels = operation(pixels)
            pixels = (pixels - self.mean) / self.std
            return pixels if self.erase is None else self.erase(pixels)


class ViewAugment(nn.Module):
    """Turn uint8 views of images, one tensor (views, batch, channels, side, side) per size, into normalized floats.

    The first global view, the second and the local views have one augmentation each. All local views go through theirs
    as a single batch, in which every image still draws its own operations.
    """

    def __init__(self, augment: Augment, views: Views) -> None:
        super().__init__()
        first, second, local = view_augments(augment, views)
        self.globals = nn.ModuleList([BatchAugment(first), BatchAugment(second)])
        self.local = BatchAugment(local)

    def forward(self, views: Sequence[Tensor], seed: int | None = None) -> list[Tensor]:
        """Return normalized views; a `seed` makes them reproducible and leaves the global generators alone."""
        seeds = [None] * 3 if seed is None else [3 * seed + kind for kind in range(3)]  # no two views share a seed
        augmented = [torch.stack([self.globals[kind](views[0][kind], seeds[kind]) for kind in range(2)])]
        for group in views[1:]:
            augmented.append(self.local(group.flatten(0, 1), seeds[2]).unflatten(0, group.shape[:2]))
        return augmented


@contextlib.contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else [], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # kornia draws from it on every device
        if seed is not None and on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _operations(augment: Augment) -> Iterator[nn.Module]:
    zoom, shift, kernel = augment.affine_scale, augment.affine_translate, max(3, augment.image_size // 10 | 1)
    affine = 1.0 if augment.affine_degrees or shift or zoom else None
    table: tuple[tuple[str, tuple[Any, ...], float | None], ...] = (  # kornia's operation, arguments, probability
        ("RandomHorizontalFlip", (), augment.flip or None),
        ("RandomAffine", (augment.affine_degrees, (shift, shift), (1 - zoom, 1 + zoom)), affine),
        ("RandAugment", augment.rand_augment or (), augment.rand_augment and 1.0),
        ("ColorJitter", augment.jitter or (), augment.jitter and augment.jitter_probability),
        ("RandomGrayscale", (), augment.grayscale or None),
        ("RandomGaussianBlur", ((kernel, kernel), (0.1, 2.0)), augment.blur or None),
        ("RandomSolarize", ((0.5, 0.5), (0.0, 0.0)), augment.solarize or None),
    )
    for name, arguments, probability in table:
        if probability is not None:
            if name == "RandAugment":
                yield RandAugment(*arguments)
                continue
            import kornia.augmentation as K  # only where it is needed

            yield getattr(K, name)(*arguments, p=probability)


def unnormalize(pixels: Tensor, augment: Augment) -> list[Image.Image]:
    """Return normalized pixels (batch, channels, height, width) as images."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in augment.normalization)
    values = ((pixels.detach().float().cpu() * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    arrays = (np.ascontiguousarray(image.permute(1, 2, 0).numpy()) for image in values)
    return [Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array) for array in arrays]
