"""Augmentation: ranges and probabilities by many draws, and the defaults against a table with their sources.

Shares and means are tested with thousands of draws at 4.5 standard errors: a right one fails once in 150,000 times.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from codingrate.data import Augment, BatchAugment, ViewAugment, Views
from codingrate.data.transforms import EpochGenerators, random_box

SIGMAS = 4.5
DRAWS = 4000


def close_to_mean(values, mean, deviation):
    """Check that the mean of independent draws is as expected, with the deviation of one of them."""
    assert abs(np.mean(values) - mean) <= SIGMAS * deviation / math.sqrt(len(values))


def close_to_share(hits, share):
    close_to_mean(np.asarray(hits, float), share, math.sqrt(share * (1 - share)))


def boxes(width, height, scale, ratio, count=DRAWS):
    generators = EpochGenerators(0)
    return np.array([random_box(width, height, scale, ratio, generators.generator(key)) for key in range(count)])


def test_area_is_uniform_and_aspect_is_uniform_on_a_log_scale():
    left, top, right, bottom = boxes(2000, 2000, (0.2, 0.3), (3 / 4, 4 / 3)).T
    width, height = right - left, bottom - top
    close_to_mean(width * height / 2000**2, 0.25, 0.1 / math.sqrt(12))
    close_to_mean(np.log(width / height), 0.0, 2 * math.log(4 / 3) / math.sqrt(12))
    close_to_share(width < height, 0.5)  # uniform on a linear scale it would be 3/7


def test_every_position_is_equally_likely():
    left, top, right, bottom = boxes(10, 10, (0.36, 0.36), (1.0, 1.0)).T
    assert set(right - left) == set(bottom - top) == {6}
    for corner in (left, top):
        for position in range(5):
            close_to_share(corner == position, 1 / 5)


def test_boxes_that_do_not_fit_are_drawn_again():
    """A box of this scale fits in about half of the draws, so ten draws in a row fail less than once in 500 times."""
    whole = (boxes(100, 100, (0.7, 1.0), (3 / 4, 4 / 3)) == (0, 0, 100, 100)).all(axis=1)
    assert whole.mean() < 0.02


def drawn(settings, channels=3, side=8, count=DRAWS):
    """Augment many small images and return the operation with its drawn parameters."""
    module = BatchAugment(Augment(image_size=side, channels=channels, **{"flip": 0.0, **settings})).train()
    module(torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8), seed=3)
    (operation,) = module.operations
    return operation


def fills(values, low, high):
    """Check that draws are uniform in an interval: in it, near both ends, and with its mean."""
    values = np.asarray(values, float).ravel()
    margin = (high - low) / 100
    assert low <= values.min() < low + margin
    assert high - margin < values.max() <= high
    close_to_mean(values, (low + high) / 2, (high - low) / math.sqrt(12))


def test_rotation_translation_and_zoom_fill_their_ranges():
    settings = {"affine_degrees": 25.0, "affine_translate": 0.1, "affine_scale": 0.2}
    parameters = drawn(settings, channels=1)._params
    assert parameters["batch_prob"].all()
    fills(parameters["angle"], -25, 25)
    for axis in (0, 1):
        fills(parameters["translations"][:, axis], -0.8, 0.8)  # a tenth of 8 pixels
        fills(parameters["scale"][:, axis], 0.8, 1.2)


def test_jitter_fills_its_four_ranges_with_its_probability():
    parameters = drawn({"jitter": (0.4, 0.3, 0.2, 0.1), "jitter_probability": 0.7})._params
    close_to_share(parameters["batch_prob"] > 0.5, 0.7)
    for name, low, high in (
        ("brightness_factor", 0.6, 1.4),
        ("contrast_factor", 0.7, 1.3),
        ("saturation_factor", 0.8, 1.2),
        ("hue_factor", -0.1, 0.1),
    ):
        fills(parameters[name], low, high)


def test_blur_has_its_deviations_and_a_kernel_of_a_tenth_of_the_side():
    operation = drawn({"blur": 1.0}, channels=1)
    fills(operation._params["sigma"], 0.1, 2.0)
    for side, kernel in ((20, 3), (40, 5), (224, 23)):
        (blur,) = BatchAugment(Augment(image_size=side, channels=1, flip=0.0, blur=1.0)).operations
        assert blur.flags["kernel_size"] == (kernel, kernel)


@pytest.mark.parametrize("name", ["flip", "grayscale", "blur", "solarize"])
def test_probabilities_are_those_of_the_recipe(name):
    for share in (0.3, 0.8):
        close_to_share(drawn({name: share})._params["batch_prob"] > 0.5, share)


def test_bright_pixels_are_inverted_and_erased_ones_are_the_mean():
    levels = torch.tensor([40, 100, 140, 250], dtype=torch.uint8).view(1, 1, 2, 2)
    solarized = BatchAugment(Augment(image_size=2, channels=1, flip=0.0, solarize=1.0)).train()(levels, seed=0)
    pixels = (solarized * 0.5 + 0.5) * 255
    torch.testing.assert_close(pixels.flatten(), torch.tensor([40.0, 100.0, 115.0, 5.0]), atol=0.01, rtol=0)
    white = torch.full((50, 1, 20, 20), 255, dtype=torch.uint8)
    erased = BatchAugment(Augment(channels=1, image_size=20, flip=0.0, erase=1.0)).train()(white, seed=0)
    assert set(erased.unique().tolist()) == {0.0, 1.0}


def test_no_two_views_share_their_draws():
    augment = Augment(image_size=8, flip=0.0, jitter=(0.4, 0.4, 0.4, 0.1), jitter_probability=1.0)
    views = Views(local_count=2, local_size=8, blur=(0.0, 0.0, 0.0), solarize=(0.0, 0.0, 0.0))
    image = torch.randint(0, 256, (1, 3, 8, 8), dtype=torch.uint8)
    group = image.expand(2, 1, 3, 8, 8)
    first, second = ViewAugment(augment, views).train()([group, group], seed=1)
    results = [first[0], first[1], second[0], second[1]]
    assert all(not torch.equal(a, b) for i, a in enumerate(results) for b in results[:i])
    other = ViewAugment(augment, views).train()([group, group], seed=2)[0]
    assert not any(torch.equal(view, known) for view in other for known in results)


PROTOCOL = {  # our defaults, and where they are from
    # torchvision's RandomResizedCrop, used by the paper's scripts, DINO and MAE
    "crop": "random-resized", "crop_scale": (0.08, 1.0), "crop_ratio": (3 / 4, 4 / 3), "flip": 0.5,
    # ImageNet's evaluation: short side 256, center crop of 224, bicubic
    "image_size": 224, "evaluation_ratio": 256 / 224, "interpolation": "bicubic", "channels": 3,
    # CIFAR's padded crop
    "crop_padding": 4,
    # DINO and SimCLR jitter colors with probability 0.8; nothing else is on unless a recipe asks for it
    "jitter": None, "jitter_probability": 0.8, "grayscale": 0.0, "blur": 0.0, "solarize": 0.0, "erase": 0.0,
    "rand_augment": None, "affine_degrees": 0.0, "affine_translate": 0.0, "affine_scale": 0.0,
    "evaluation": None, "mean": None, "std": None,
}  # fmt: skip
VIEWS = {  # main_dino.py: global_crops_scale, local_crops_number, local_crops_scale, and DataAugmentationDINO
    "global_scale": (0.4, 1.0), "local_count": 8, "local_size": 96, "local_scale": (0.05, 0.4),
    "blur": (1.0, 0.1, 0.5), "solarize": (0.0, 0.2, 0.0),
}  # fmt: skip


def test_defaults_are_those_of_the_protocols():
    assert dataclasses.asdict(Augment()) == PROTOCOL
    assert dataclasses.asdict(Views()) == VIEWS
