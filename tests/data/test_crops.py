"""Crops: inside their bounds, reaching every pixel, and in evaluation exactly what PIL gives."""

import numpy as np
import pytest
from PIL import Image

from codingrate.data import Augment
from codingrate.data.transforms import crop_for_evaluation, crop_for_training, random_box, sample_generator
from codingrate.errors import CrateError

from .conftest import picture


def test_random_boxes_keep_to_scale_and_ratio_and_reach_every_pixel():
    width, height, scale, ratio = 61, 47, (0.2, 0.9), (0.75, 1.4)
    covered = np.zeros((height, width), int)
    areas, shapes = [], []
    for key in range(2000):
        left, top, right, bottom = random_box(width, height, scale, ratio, sample_generator(0, 0, key))
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        covered[top:bottom, left:right] += 1
        areas.append((right - left) * (bottom - top) / (width * height))
        shapes.append((right - left) / (bottom - top))
    assert covered.min() > 0
    assert min(areas) == pytest.approx(0.2, abs=0.03)  # rounding to whole pixels
    assert max(areas) == pytest.approx(0.9, abs=0.03)
    assert 0.70 < min(shapes) < 0.80
    assert 1.30 < max(shapes) < 1.47
    small = np.mean([area < 0.4 for area in areas])
    assert small == pytest.approx(2 / 7, abs=0.06)  # nearly even: large boxes fit a little less often


def test_whole_image_and_fallback():
    draw = sample_generator(0, 0, 0)
    assert random_box(10, 10, (1.0, 1.0), (1.0, 1.0), draw) == (0, 0, 10, 10)
    assert random_box(100, 10, (1.0, 1.0), (0.5, 2.0), draw) == (40, 0, 60, 10)  # too wide: the middle, 2 to 1
    assert random_box(10, 100, (1.0, 1.0), (0.5, 2.0), draw) == (0, 40, 10, 60)


@pytest.mark.parametrize(("width", "height", "resized"), [(61, 47, (41, 32)), (47, 61, (32, 41)), (32, 32, (32, 32))])
def test_centre_crop_is_pils(width, height, resized):
    image = picture(0, width, height)
    whole = image.resize(resized, Image.Resampling.BICUBIC)
    left, top = (resized[0] - 28) // 2, (resized[1] - 28) // 2
    wanted = np.asarray(whole)[top : top + 28, left : left + 28]
    for crop in ("random-resized", "center"):
        assert (np.asarray(crop_for_evaluation(image, Augment(image_size=28, crop=crop))) == wanted).all()
    same = crop_for_training(image, Augment(image_size=28, crop="center"), sample_generator(0, 0, 0))
    assert (np.asarray(same) == wanted).all()


def test_direct_resize_is_pils():
    image = picture(0, 61, 47)
    wanted = np.asarray(image.resize((28, 28), Image.Resampling.BILINEAR))
    for settings in ({"crop": "resize"}, {"crop": "pad"}, {"crop": "random-resized", "evaluation": "resize"}):
        augment = Augment(image_size=28, interpolation="bilinear", **settings)
        assert (np.asarray(crop_for_evaluation(image, augment)) == wanted).all()
    squeezed = crop_for_training(image, Augment(image_size=28, crop="resize", interpolation="bilinear"), None)
    assert (np.asarray(squeezed) == wanted).all()


def test_padded_crop_shifts_by_at_most_the_padding():
    image = picture(0, 16, 16)
    padded = np.pad(np.asarray(image), ((2, 2), (2, 2), (0, 0)))
    windows = {padded[y : y + 16, x : x + 16].tobytes() for y in range(5) for x in range(5)}
    augment = Augment(image_size=16, crop="pad", crop_padding=2)
    seen = {crop_for_training(image, augment, sample_generator(0, 0, key)).tobytes() for key in range(300)}
    assert seen == windows


def test_training_crop_is_the_box_resized():
    image, augment = picture(0, 61, 47), Augment(image_size=28)
    box = random_box(61, 47, augment.crop_scale, augment.crop_ratio, sample_generator(1, 2, 3))
    wanted = image.crop(box).resize((28, 28), Image.Resampling.BICUBIC)
    assert crop_for_training(image, augment, sample_generator(1, 2, 3)).tobytes() == wanted.tobytes()


def test_generators_differ_in_seed_epoch_and_row():
    draws = {sample_generator(*key).random() for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))}
    assert len(draws) == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"channels": 2}, "augment.channels: input should be 1 or 3 (got 2)"),
        ({"image_size": 0}, "augment.image_size"),
        (
            {"crop": "random-resize"},
            "augment.crop: input should be 'random-resized', 'center', 'resize' or",
        ),
        ({"interpolation": "cubic"}, "augment.interpolation: input should be 'nearest', 'bilinear', 'bicubic' or"),
        ({"evaluation": "centre"}, "augment.evaluation: input should be 'center' or 'resize' (got 'centre')"),
        ({"flip": 1.5}, "augment.flip: input should be less than or equal to 1 (got 1.5)"),
        ({"crop_scale": (0.5, 1.2)}, "augment.crop_scale.1"),
        ({"crop_scale": (0.5, 0.2)}, "augment.crop_scale: the lower bound must not exceed the upper bound"),
        ({"crop_sale": (0.5, 1.0)}, "augment.crop_sale: unexpected keyword argument"),
        ({"crop_ratio": (0.0, 1.0)}, "augment.crop_ratio"),
        ({"evaluation_ratio": 0.9}, "augment.evaluation_ratio"),
        ({"affine_scale": 1.0}, "affine_scale"),
        ({"rand_augment": (2, 30)}, "augment.rand_augment"),
        ({"mean": (0.5,)}, "augment.mean needs one value per channel (3, got 1)"),
        ({"std": (1.0, 0.0, 1.0)}, "augment.std.1: input should be greater than 0"),
        ({"jitter": (0.4, 0.4, 0.4, 0.6)}, "augment.jitter"),
        ({"channels": 1, "rand_augment": (2, 14)}, "augment.rand_augment needs color images"),
        ({"channels": 1, "jitter": (0.4, 0.4, 0.4, 0.1)}, "augment.jitter needs color images"),
        ({"channels": 1, "grayscale": 0.1}, "augment.grayscale needs color images"),
    ],
)
def test_bad_settings_are_named(settings, words):
    with pytest.raises(CrateError) as caught:
        Augment(**settings)
    assert words in str(caught.value)


def test_lists_from_a_recipe_become_tuples():
    augment = Augment(crop_scale=[0.5, 1.0], rand_augment=[2, 14])
    assert augment == Augment(crop_scale=(0.5, 1.0), rand_augment=(2, 14))
    assert hash(augment) is not None
    assert Augment(channels=1).normalization == ((0.5,), (0.5,))
