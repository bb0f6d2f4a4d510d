"""RandAugment (Cubuk et al., 2020) with the operations and ranges of torchvision, on batches of tensors.

torchvision's `RandAugment(n, m)` draws n of 14 operations for each image, with replacement, each at magnitude m of 30.
Every operation here gives the pixels that PIL, on which torchvision's is built, gives for an image of 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Operation = Callable[[Tensor, Tensor], Tensor]
"""Maps images (batch, 3, height, width) with values k/255 and signed magnitudes (batch,) to images of the same kind."""
MAGNITUDES = 30
"""Largest magnitude m."""
_GRAY = (299 / 1000, 587 / 1000, 114 / 1000)  # luminance of PIL's mode L


def magnitude_of(name: str, m: float, width: int, height: int) -> tuple[float, bool]:
    """Return the magnitude of an operation at m of 30, and whether its sign is drawn at random.

    These are torchvision's: rotation 30°·m/30, shear 0.3·m/30 as a slope, translation 150/331 of the side · m/30 in
    whole pixels, brightness, color, contrast and sharpness by the factor 1 ± 0.9·m/30, posterization to
    8 − round(m/7.5) bits, solarization from 255·(1 − m/30) on. At m = 14 they are 14°, 0.14, 47 of 224 pixels,
    1 ± 0.42, 6 bits and 136.
    """
    share = m / MAGNITUDES
    table = {
        "shear-x": (0.3 * share, True), "shear-y": (0.3 * share, True), "rotate": (30.0 * share, True),
        "translate-x": (float(int(150 / 331 * width * share)), True),
        "translate-y": (float(int(150 / 331 * height * share)), True),
        "brightness": (0.9 * share, True), "color": (0.9 * share, True), "contrast": (0.9 * share, True),
        "sharpness": (0.9 * share, True), "posterize": (8.0 - round(m / (MAGNITUDES / 4)), False),
        "solarize": (255 * (1 - share), False),
    }  # fmt: skip
    return table.get(name, (0.0, False))


class RandAugment(nn.Module):
    """Apply n operations in turn to each image (batch, 3, height, width) in [0, 1], each at magnitude m of 30."""

    def __init__(self, n: int, m: float) -> None:
        super().__init__()
        self.n, self.m = n, m

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        drawn = torch.randint(len(OPERATIONS), (self.n, len(images)))
        signs = torch.randint(2, (self.n, len(images))) * 2 - 1
        for choice, sign in zip(drawn.to(images.device), signs.to(images.device), strict=True):
            augmented = images.clone()
            for number, (name, operation) in enumerate(OPERATIONS.items()):
                chosen = (choice == number).nonzero().flatten()
                if len(chosen):
                    size, signed = magnitude_of(name, self.m, width, height)
                    magnitudes = size * (sign[chosen].to(images.dtype) if signed else torch.ones_like(chosen))
                    augmented[chosen] = operation(images[chosen], magnitudes)
            images = augmented
        return images

    def extra_repr(self) -> str:
        return f"n={self.n}, m={self.m}"


def _levels(images: Tensor) -> Tensor:
    """Return the 256 levels of images in [0, 1], as floats."""
    return (images * 255).round()


def _blend(images: Tensor, other: Tensor, magnitudes: Tensor) -> Tensor:
    """Return other + (1 + magnitude)(image − other), in whole levels and clipped, as PIL's `ImageEnhance`."""
    factor = (1 + magnitudes).view(-1, 1, 1, 1)
    blended = other + factor * (_levels(images) - other)
    return blended.clamp(0, 255).floor() / 255


def _gray(images: Tensor) -> Tensor:
    """Return the luminance (batch, 1, height, width) in whole levels, rounded as PIL's fixed-point formula does."""
    weights = images.new_tensor([math.floor(weight * 65536 + 0.5) for weight in _GRAY]).view(1, 3, 1, 1)
    return ((_levels(images) * weights).sum(1, keepdim=True) / 65536 + 0.5).floor()


def _smooth(images: Tensor) -> Tensor:
    """Return the images smoothed by PIL's filter SMOOTH; the border is unchanged."""
    kernel = images.new_tensor([[1, 1, 1], [1, 5, 1], [1, 1, 1]]).div(13).expand(3, 1, 3, 3)
    levels = _levels(images)
    smooth = levels.clone()
    smooth[..., 1:-1, 1:-1] = (F.conv2d(levels, kernel, groups=3) + 0.5).floor().clamp(0, 255)
    return smooth


def _brightness(images: Tensor, magnitudes: Tensor) -> Tensor:
    return _blend(images, torch.zeros_like(images), magnitudes)


def _color(images: Tensor, magnitudes: Tensor) -> Tensor:
    return _blend(images, _gray(images).expand_as(images), magnitudes)


def _contrast(images: Tensor, magnitudes: Tensor) -> Tensor:
    mean = (_gray(images).mean(dim=(1, 2, 3), keepdim=True) + 0.5).floor()
    return _blend(images, mean.expand_as(images), magnitudes)


def _sharpness(images: Tensor, magnitudes: Tensor) -> Tensor:
    return _blend(images, _smooth(images), magnitudes) if min(images.shape[-2:]) > 2 else images


def _posterize(images: Tensor, bits: Tensor) -> Tensor:
    step = (2.0 ** (8 - bits)).view(-1, 1, 1, 1)
    return (_levels(images) / step).floor() * step / 255


def _solarize(images: Tensor, threshold: Tensor) -> Tensor:
    levels = _levels(images)
    return torch.where(levels >= threshold.view(-1, 1, 1, 1), 255 - levels, levels) / 255


def _auto_contrast(images: Tensor, _: Tensor) -> Tensor:
    levels = _levels(images)
    low, high = levels.amin((2, 3), keepdim=True), levels.amax((2, 3), keepdim=True)
    stretched = ((levels - low) * (255 / (high - low).clamp(min=1))).clamp(0, 255)
    return torch.where(high > low, (stretched + 1e-4).floor(), levels) / 255


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    levels = _levels(images).long().flatten(2)  # (batch, 3, pixels)
    counts = torch.zeros(*levels.shape[:2], 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    last = counts.gather(2, levels.amax(2, keepdim=True))  # pixels of the highest level that occurs
    step = torch.div(counts.sum(2, keepdim=True) - last, 255, rounding_mode="floor")
    before = counts.cumsum(2) - counts
    table = torch.div(before + step // 2, step.clamp(min=1), rounding_mode="floor").clamp(max=255)
    equalized = table.gather(2, levels).view_as(images)
    return torch.where((step > 0)[..., None], equalized, levels.view_as(images)).to(images.dtype) / 255


def _warp(images: Tensor, matrices: Tensor) -> Tensor:
    """Move pixels: the one at (x, y) comes from A(x + ½, y + ½) + b of matrices [A b] (batch, 2, 3), or is black."""
    height, width = images.shape[-2:]
    y, x = torch.meshgrid(
        torch.arange(height, device=images.device) + 0.5, torch.arange(width, device=images.device) + 0.5, indexing="ij"
    )
    points = torch.stack([x, y, torch.ones_like(x)]).to(torch.float64).flatten(1)  # (3, pixels)
    source = matrices.to(torch.float64) @ points  # (batch, 2, pixels)
    column, row = source.floor().long().unbind(1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1))[:, None].expand(-1, 3, -1)
    moved = images.flatten(2).gather(2, index) * inside[:, None]
    return moved.view_as(images)


def _affine(images: Tensor, *entries: Tensor | float) -> Tensor:
    columns = [entry if isinstance(entry, Tensor) else images.new_full((len(images),), entry) for entry in entries]
    return _warp(images, torch.stack([column.to(torch.float64) for column in columns], dim=1).unflatten(1, (2, 3)))


def _rotate(images: Tensor, degrees: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    angle = torch.deg2rad(-degrees.double())
    cos, sin = angle.cos(), angle.sin()
    x, y = width / 2, height / 2
    return _affine(images, cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y)


OPERATIONS: dict[str, Operation] = {
    "identity": lambda images, _: images,
    "shear-x": lambda images, slope: _affine(images, 1.0, slope, 0.0, 0.0, 1.0, 0.0),
    "shear-y": lambda images, slope: _affine(images, 1.0, 0.0, 0.0, slope, 1.0, 0.0),
    "translate-x": lambda images, pixels: _affine(images, 1.0, 0.0, -pixels, 0.0, 1.0, 0.0),
    "translate-y": lambda images, pixels: _affine(images, 1.0, 0.0, 0.0, 0.0, 1.0, -pixels),
    "rotate": _rotate,
    "brightness": _brightness,
    "color": _color,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "auto-contrast": _auto_contrast,
    "equalize": _equalize,
}
"""The operations of torchvision's RandAugment by name."""
