"""Crops and batch augmentation: inside their bounds, reproducible, and in evaluation exactly what PIL gives."""

import numpy as np
import pytest
import torch
from PIL import Image

from codingrate.data import Augment, BatchAugment
from codingrate.data.transforms import EpochGenerators, crop_for_evaluation, crop_for_training, random_box
from codingrate.errors import CrateError
from codingrate.models.processing import IMAGENET_MEAN, IMAGENET_STD

from .conftest import picture


def sample_generator(seed, epoch, key):
    generators = EpochGenerators(seed)
    generators.set_epoch(epoch)
    return generators.generator(key)


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
def test_center_crop_is_pils(width, height, resized):
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


BAD_SETTINGS = [
    ({"channels": 2}, "augment.channels is 2; it must be 1 or 3"),
    ({"image_size": 0}, "augment.image_size"),
    (
        {"crop": "random-resize"},
        "it must be 'random-resized', 'center', 'resize' or",
    ),
    ({"interpolation": "cubic"}, "it must be 'nearest', 'bilinear', 'bicubic' or"),
    ({"evaluation": "centre"}, "augment.evaluation is 'centre'; it must be 'center' or 'resize'"),
    ({"flip": 1.5}, "augment.flip is 1.5; it must be less than or equal to 1"),
    ({"crop_scale": (0.5, 1.2)}, "augment.crop_scale.1"),
    ({"crop_scale": (0.5, 0.2)}, "the lower bound must not exceed the upper bound"),
    ({"crop_sale": (0.5, 1.0)}, "unexpected keyword argument"),
    ({"crop_ratio": (0.0, 1.0)}, "augment.crop_ratio"),
    ({"evaluation_ratio": 0.9}, "augment.evaluation_ratio"),
    ({"affine_scale": 1.0}, "affine_scale"),
    ({"rand_augment": (2, 30)}, "augment.rand_augment"),
    ({"mean": (0.5,)}, "augment.mean needs one value per channel (3, got 1)"),
    ({"std": (1.0, 0.0, 1.0)}, "it must be greater than 0"),
    ({"jitter": (0.4, 0.4, 0.4, 0.6)}, "augment.jitter"),
    ({"channels": 1, "rand_augment": (2, 14)}, "augment.rand_augment needs color images"),
    ({"channels": 1, "jitter": (0.4, 0.4, 0.4, 0.1)}, "augment.jitter needs color images"),
    ({"channels": 1, "grayscale": 0.1}, "augment.grayscale needs color images"),
]


def test_bad_settings_are_named():
    for settings, words in BAD_SETTINGS:
        with pytest.raises(CrateError) as caught:
            Augment(**settings)
        assert words in str(caught.value)


def test_lists_from_a_recipe_become_tuples():
    augment = Augment(crop_scale=[0.5, 1.0], rand_augment=[2, 14])
    assert augment == Augment(crop_scale=(0.5, 1.0), rand_augment=(2, 14))
    assert hash(augment) is not None
    assert Augment(channels=1).normalization == ((0.5,), (0.5,))


EVERYTHING = Augment(
    image_size=19, rand_augment=(2, 14), jitter=(0.4, 0.4, 0.2, 0.1), grayscale=0.2, blur=0.5, solarize=0.2, erase=0.25,
    affine_degrees=10, affine_translate=0.1, affine_scale=0.1,
)  # fmt: skip
PLAIN = {"image_size": 19, "flip": 0.0}


def images(batch=7, channels=3, height=19, width=19):
    """Smooth, asymmetric pictures: nothing survives a flip, a blur or a turn unchanged."""
    x = torch.linspace(0, 1, width).expand(batch, channels, height, width)
    y = torch.linspace(0, 1, height).view(-1, 1)
    phase = torch.arange(batch * channels).view(batch, channels, 1, 1)
    return ((0.5 + 0.45 * torch.sin(5 * x + 9 * y * y + phase)) * 255).to(torch.uint8)


def plain(pixels, augment):
    mean, std = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in augment.normalization)
    return (pixels.double() / 255 - mean) / std


@pytest.mark.parametrize("channels", [1, 3])
def test_evaluation_is_plain_normalization(channels):
    augment = EVERYTHING if channels == 3 else Augment(channels=1, **PLAIN)
    pixels = images(channels=channels)
    result = BatchAugment(augment).eval()(pixels)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), plain(pixels, augment), atol=1e-6, rtol=0)
    custom = Augment(channels=1, mean=(0.3,), std=(0.2,), **PLAIN)
    torch.testing.assert_close(
        BatchAugment(custom).eval()(images(channels=1)), ((images(channels=1) / 255) - 0.3) / 0.2
    )


def test_same_seed_same_bits_and_the_global_generator_is_left_alone():
    module, pixels = BatchAugment(EVERYTHING).train(), images()
    kept, before = pixels.clone(), torch.get_rng_state()
    first = module(pixels, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(module(pixels, seed=5), first)
    assert not torch.equal(module(pixels, seed=6), first)
    assert torch.equal(pixels, kept)
    assert torch.equal(BatchAugment(EVERYTHING).train()(pixels, seed=5), first)


def test_without_a_seed_the_global_generator_decides():
    module, pixels = BatchAugment(EVERYTHING).train(), images()
    first = module(pixels)
    assert not torch.equal(module(pixels), first)


def test_shape_type_and_range():
    result = BatchAugment(EVERYTHING).train()(images(batch=23), seed=0)
    assert (result.shape, result.dtype) == ((23, 3, 19, 19), torch.float32)
    low = (0 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    high = (1 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    assert (result.amin((0, 2, 3)) >= low - 1e-4).all()
    assert (result.amax((0, 2, 3)) <= high + 1e-4).all()
    assert BatchAugment(EVERYTHING).train()(images(batch=0), seed=0).shape == (0, 3, 19, 19)
    with pytest.raises(TypeError, match="uint8"):
        BatchAugment(EVERYTHING)(torch.rand(1, 3, 19, 19))


ANY_COLOR = [
    {"flip": 1.0},
    {"affine_degrees": 30.0},
    {"affine_translate": 0.3},
    {"affine_scale": 0.3},
    {"blur": 1.0},
    {"solarize": 1.0},
    {"erase": 1.0},
]
RGB_ONLY = [
    {"rand_augment": (2, 14)},
    {"jitter": (0.4, 0.4, 0.4, 0.1), "jitter_probability": 1.0},
    {"grayscale": 1.0},
]


@pytest.mark.parametrize(
    ("channels", "settings"), [*((1, s) for s in ANY_COLOR), *((3, s) for s in ANY_COLOR + RGB_ONLY)]
)
def test_each_operation_changes_images_in_training_only(channels, settings):
    augment = Augment(**{**PLAIN, "channels": channels, **settings})
    module, pixels = BatchAugment(augment), images(channels=channels)
    untouched = module.eval()(pixels)
    changed = (module.train()(pixels, seed=0) - untouched).abs().amax((1, 2, 3)) > 1e-3
    assert changed.float().mean() > (0.6 if "rand_augment" in settings else 0.99)


def test_no_operation_no_change():
    module, pixels = BatchAugment(Augment(**PLAIN)), images()
    assert torch.equal(module.train()(pixels, seed=0), module.eval()(pixels))


def test_known_operations_give_known_pixels():
    pixels = images()
    flipped = BatchAugment(Augment(image_size=19, flip=1.0)).train()(pixels, seed=0)
    torch.testing.assert_close(flipped.double(), plain(pixels.flip(-1), Augment()), atol=1e-6, rtol=0)
    solarized = BatchAugment(Augment(solarize=1.0, **PLAIN)).train()(pixels, seed=0)
    wanted = torch.where(pixels >= 128, 255 - pixels, pixels)
    torch.testing.assert_close(solarized.double(), plain(wanted, Augment()), atol=1e-5, rtol=0)
    erased = BatchAugment(Augment(erase=1.0, **PLAIN)).train()(pixels, seed=0)
    hidden = (erased == 0).all(1).float().mean((1, 2))
    assert (hidden > 0.01).all()
    assert (hidden < 0.5).all()
