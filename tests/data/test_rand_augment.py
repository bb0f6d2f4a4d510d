"""RandAugment: torchvision's magnitudes, and for every operation the pixels that PIL gives."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from codingrate.data.rand_augment import OPERATIONS, RandAugment, magnitude_of

WIDTH, HEIGHT = 61, 47

# Published values at m = 14 of 30 for an image of 224 × 224 (torchvision, RandAugment with 31 bins).
AT_14 = {
    "shear-x": 0.14, "shear-y": 0.14, "rotate": 14.0, "translate-x": 47, "translate-y": 47, "brightness": 0.42,
    "color": 0.42, "contrast": 0.42, "sharpness": 0.42, "posterize": 6, "solarize": 136,
}  # fmt: skip
SIGNED = {
    "shear-x", "shear-y", "rotate", "translate-x", "translate-y", "brightness", "color", "contrast", "sharpness",
}  # fmt: skip


def test_the_magnitudes_are_those_of_torchvision():
    for name, wanted in AT_14.items():
        found, signed = magnitude_of(name, 14, 224, 224)
        assert found == pytest.approx(wanted)
        assert signed == (name in SIGNED)
    assert magnitude_of("translate-x", 30, 331, 100)[0] == 150  # the range of the paper on AutoAugment, in its size
    assert [magnitude_of("posterize", m, 9, 9)[0] for m in (0, 4, 8, 12, 19, 30)] == [8, 7, 7, 6, 5, 4]
    assert magnitude_of("solarize", 30, 9, 9)[0] == 0


def by_pil(name, image, value):
    """The operation as torchvision calls it on an image of PIL."""
    affine = {
        "shear-x": (1, value, 0, 0, 1, 0), "shear-y": (1, 0, 0, value, 1, 0), "translate-x": (1, 0, -value, 0, 1, 0),
        "translate-y": (1, 0, 0, 0, 1, -value),
    }  # fmt: skip
    enhance = {
        "brightness": ImageEnhance.Brightness, "color": ImageEnhance.Color, "contrast": ImageEnhance.Contrast,
        "sharpness": ImageEnhance.Sharpness,
    }  # fmt: skip
    if name in affine:
        return image.transform(image.size, Image.Transform.AFFINE, affine[name], Image.Resampling.NEAREST)
    if name in enhance:
        return enhance[name](image).enhance(1 + value)
    return {
        "identity": lambda: image,
        "rotate": lambda: image.rotate(value, Image.Resampling.NEAREST),
        "posterize": lambda: ImageOps.posterize(image, int(value)),
        "solarize": lambda: ImageOps.solarize(image, value),
        "auto-contrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
    }[name]()


def photographs():
    """Images of smooth colors and noise, one of them flat in a channel."""
    draw = np.random.default_rng(0)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    smooth = np.stack([2 * x + y, 90 + 60 * np.sin(x / 9), 200 - 3 * y], -1)
    noisy = smooth + draw.normal(0, 25, smooth.shape)
    flat = noisy.copy()
    flat[..., 1] = 77
    return [Image.fromarray(values.clip(0, 255).astype(np.uint8)) for values in (smooth, noisy, flat)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_gives_the_pixels_of_pil(name):
    for m in (3, 14, 29):
        check_pixels(name, m)


def check_pixels(name, m):
    pictures = photographs()
    images = torch.stack([torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in pictures]) / 255
    size, signed = magnitude_of(name, m, WIDTH, HEIGHT)
    for sign in (1, -1) if signed else (1,):
        found = OPERATIONS[name](images, torch.full((len(images),), sign * size))
        for image, picture in zip(found, pictures, strict=True):
            wanted = torch.from_numpy(np.array(by_pil(name, picture, sign * size))).permute(2, 0, 1)
            levels = (image * 255).round()
            assert (levels - image * 255).abs().max() < 1e-3, "whole levels"
            off = (levels - wanted).abs()
            # PIL rounds some products in float32: at most one level, at few pixels; moved pixels are equal but at ties.
            moves = name in ("rotate", "shear-x", "shear-y")
            assert moves or off.max() <= 1
            assert (off > 0).float().mean() < 0.02


def test_every_image_draws_its_own_operations_and_signs():
    torch.manual_seed(0)
    one = torch.from_numpy(np.array(photographs()[1])).permute(2, 0, 1)[None] / 255
    result = RandAugment(1, 14)(one.repeat(400, 1, 1, 1))
    kinds = {image.mul(255).round().to(torch.uint8).numpy().tobytes() for image in result}
    assert len(kinds) == 14 + len(SIGNED), "14 operations, nine of them with two signs"
    twice = RandAugment(2, 14)(one.repeat(400, 1, 1, 1))
    kinds = {image.mul(255).round().to(torch.uint8).numpy().tobytes() for image in twice}
    assert len(kinds) > 100
    assert math.isclose(float(twice.min()), 0, abs_tol=1e-6)
