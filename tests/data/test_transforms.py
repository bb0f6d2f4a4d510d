"""Batch augmentation: repeatable by seed, invisible to the global generator, every operation at work."""

import pytest
import torch

from codingrate.data import Augment, BatchAugment
from codingrate.data.transforms import RandAugment
from codingrate.models.processing import IMAGENET_MEAN, IMAGENET_STD

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
def test_evaluation_is_plain_normalisation(channels):
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


ANY_COLOUR = [
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
    ("channels", "settings"), [*((1, s) for s in ANY_COLOUR), *((3, s) for s in ANY_COLOUR + RGB_ONLY)]
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


def test_rand_augment_draws_for_each_image():
    one = images(batch=1)
    same = one.repeat(64, 1, 1, 1) / 255
    result = RandAugment(1, 14)(same)
    kinds = {tuple(image.flatten().tolist()) for image in result}
    assert 8 < len(kinds) <= 21  # fifteen operations, six of them with a sign; a batch-wide draw would give one or two


@pytest.mark.parametrize(("index", "name"), [(11, "shear_x"), (12, "shear_y")])
def test_rand_augment_shears_by_a_slope(index, name):
    """At m = 30·⅔ the slope is 0.2: the outermost rows of 100 pixels move by ±10, no more."""
    stripes = torch.zeros(1, 3, 101, 101)
    stripes[..., 50] = 1.0  # a vertical line through the middle
    if name == "shear_y":
        stripes = stripes.transpose(-1, -2).contiguous()
    sheared = RandAugment(1, 20).choices[index](stripes)
    sheared = sheared if name == "shear_x" else sheared.transpose(-1, -2)
    top, bottom = sheared[0, 0, 2].argmax().item(), sheared[0, 0, 98].argmax().item()
    assert abs(top - bottom) == pytest.approx(0.2 * 96, abs=2)
