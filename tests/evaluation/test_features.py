"""Features against the model's own, and a cache that is used only if nothing has changed."""

import dataclasses
import json
import os

import numpy as np
import pytest
import torch
from torch import nn

from codingrate.data import balanced_indices, load_images
from codingrate.evaluation import extract_features, pixel_features
from codingrate.models import CrateForMaskedAutoencoding
from tests.data.conftest import picture, write_classes
from tests.refusals import refused

from .conftest import GRAY, RGB, pixels_and_labels, tiny


class Map(nn.Module):
    """Features linear in the pixels; counts the images it was asked of, and can be killed at some of them."""

    def __init__(self, pixels=64, width=5):
        super().__init__()
        self.map, self.seen, self.modes, self.last = nn.Linear(pixels, width), 0, set(), 10**9

    def features(self, pixel_values):
        if self.seen >= self.last:
            raise KeyboardInterrupt
        self.seen += len(pixel_values)
        self.modes.add((self.training, torch.is_inference_mode_enabled()))
        return self.map(pixel_values.flatten(1))


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("split", ["train", "test"])
def test_are_those_of_the_model_in_the_order_of_the_rows(digits, tmp_path, cached, split):
    model, heard, cache = tiny(dropout=0.5), [], tmp_path / "features" if cached else None
    pixels, labels = pixels_and_labels(digits, GRAY, split)
    with torch.no_grad():
        wanted = model.eval().features(pixels).numpy()
    found = extract_features(
        model.train(), digits, GRAY, split=split, cache=cache, batch_size=97, progress=heard.append
    )
    np.testing.assert_allclose(found.values, wanted, rtol=1e-5, atol=1e-6)
    assert np.array_equal(found.labels, labels)
    assert (found.values.dtype, found.labels.dtype) == (np.float32, np.int64)
    assert (found.classes, found.corrupt, len(found)) == (digits.classes, (), len(labels))
    assert (sum(heard), max(heard)) == (len(labels), 97)
    assert isinstance(found.values, np.memmap) is cached is not found.values.flags.writeable
    assert all(module.training for module in model.modules()), "given back as it was"


def test_of_an_autoencoder_and_of_pixels(digits):
    model = CrateForMaskedAutoencoding(tiny().config).eval()
    pixels, _ = pixels_and_labels(digits, GRAY)
    with torch.no_grad():
        wanted = model.features(pixels[:13]).numpy()
    some = digits.with_splits(test=digits.test.select(range(13)))
    np.testing.assert_allclose(extract_features(model, some, GRAY, split="test").values, wanted, rtol=1e-5, atol=1e-6)
    assert np.array_equal(pixel_features(some, GRAY, split="test").values, pixels[:13].flatten(1).numpy())


def test_a_limit_is_balanced_over_classes_and_always_the_same(tmp_path):
    data = load_images(str(write_classes(tmp_path / "set", {"ant": 10, "bee": 10, "cat": 2})), test_share=1)
    found, whole = (pixel_features(data, RGB, split="test", limit=limit) for limit in (8, None))
    for limit, counts in {3: [1, 1, 1], 6: [2, 2, 2], 8: [3, 3, 2]}.items():
        assert np.bincount(found.labels[:limit]).tolist() == counts
    assert np.array_equal(found.values, whole.values[balanced_indices(whole.labels, 8)])


# cache


def made(model, data, augment=GRAY, **options):
    """Features, and of how many images the model was asked."""
    before = model.seen
    found = extract_features(model, data, augment, split="test", **options)
    return found, model.seen - before


def test_the_same_is_read_back_whatever_the_batch(digits, tmp_path):
    model, heard = Map().train(), []
    first, asked = made(model, digits, cache=tmp_path)
    assert (asked, model.modes, model.training) == (359, {(False, True)}, True)
    again, asked = made(model, digits, cache=tmp_path, batch_size=7, progress=heard.append)
    assert (asked, heard) == (0, [359])
    assert np.array_equal(again.values, first.values)
    assert np.array_equal(again.labels, first.labels)
    copy = Map()
    copy.load_state_dict(model.state_dict())
    augmented = dataclasses.replace(GRAY, flip=0.5, affine_degrees=10)  # training only
    assert made(copy, load_images("digits"), augmented, cache=tmp_path)[1] == 0, "another object, the same contents"
    assert len(list(tmp_path.glob("test-*"))) == 1


def test_what_differs_is_computed_again(digits, tmp_path):
    model = Map()
    made(model, digits, cache=tmp_path)
    less = digits.with_splits(test=digits.test.select(range(350)))
    assert made(model, less, cache=tmp_path)[1] == 350
    assert made(model, digits, dataclasses.replace(GRAY, mean=(0.4,)), cache=tmp_path)[1] == 359
    assert made(model, digits, cache=tmp_path, limit=50)[1] == 50
    for crop, asked in (("center", [359, 359]), ("resize", [0, 0])):  # only the center crop has a ratio
        crops = [dataclasses.replace(GRAY, evaluation=crop, evaluation_ratio=ratio) for ratio in (1.1, 1.2)]
        assert [made(model, digits, augment, cache=tmp_path)[1] for augment in crops] == asked
    with torch.no_grad():
        model.map.bias[3] += 1e-6
    found, asked = made(model, digits, cache=tmp_path)
    assert asked == 359
    assert np.array_equal(found.values, made(model, digits)[0].values)


def test_a_config_field_without_weights_counts(digits, tmp_path):
    one = tiny(step_size=0.1).eval()
    other = tiny(step_size=0.2).eval()
    other.load_state_dict(one.state_dict())
    first, second = (extract_features(m, digits, GRAY, split="test", cache=tmp_path, limit=9) for m in (one, other))
    assert not np.allclose(first.values, second.values)


def test_files_replaced_in_place_are_read_again(tmp_path):
    folder = write_classes(tmp_path / "set", {"ant": 3, "bee": 4})
    model = Map(3 * 49)
    first, _ = made(model, load_images(str(folder), test_share=1), RGB, cache=tmp_path / "cache")
    picture(99).save(folder / "bee" / "002.png")
    os.utime(folder / "bee" / "002.png", ns=(1, 1))
    second, asked = made(model, load_images(str(folder), test_share=1), RGB, cache=tmp_path / "cache")
    assert asked == 7
    assert (first.values != second.values).any(axis=1).tolist() == [False] * 5 + [True, False]


CUT = (lambda content: content[:-4], lambda content: content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
DAMAGE = {
    "values.bin": (*CUT, lambda content: None, lambda content: b""),
    "labels.npy": CUT,
    "features.json": (
        CUT[0], lambda content: None, lambda content: b"[]", lambda content: content.replace(b"[]", b'["a.png"]'),
        lambda content: json.dumps({**json.loads(content), "key": "0"}).encode(),
    ),
}  # fmt: skip
"""Contents in place of those of each file of the cache; without None there is no file."""


@pytest.mark.parametrize(("file", "damage"), [(file, damage) for file in DAMAGE for damage in DAMAGE[file]])
def test_a_damaged_cache_is_built_again(digits, tmp_path, caplog, file, damage):
    caplog.set_level("INFO", "codingrate")
    model = Map()
    wanted = np.array(made(model, digits, cache=tmp_path, limit=23)[0].values)
    (folder,) = tmp_path.glob("test-*")
    assert not caplog.text
    content = damage((folder / file).read_bytes())
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    found, asked = made(model, digits, cache=tmp_path, limit=23)
    assert str(folder) in caplog.text
    assert asked == 23
    assert np.array_equal(found.values, wanted)
    assert made(model, digits, cache=tmp_path, limit=23)[1] == 0


def test_a_killed_extraction_leaves_nothing_and_hurts_nothing(digits, tmp_path):
    model = Map()
    model.last = 100
    with pytest.raises(KeyboardInterrupt):
        extract_features(model, digits, GRAY, cache=tmp_path, batch_size=50)
    assert list(tmp_path.iterdir()) == []
    assert not torch.is_inference_mode_enabled()
    model.last = 10**9
    assert len(extract_features(model, digits, GRAY, cache=tmp_path)) == len(digits.train)


def test_streams_are_read_anew(tmp_path):
    stream, model = load_images("digits", streaming=True), Map()
    (one, asked), (two, again) = (made(model, stream, cache=tmp_path, limit=17) for _ in range(2))
    assert (asked, again, len(list(tmp_path.iterdir()))) == (17, 17, 1)
    assert np.array_equal(one.values, two.values)


# what goes wrong


@pytest.mark.parametrize("cached", [False, True])
def test_corrupt_images_are_left_out_and_named(tmp_path, cached):
    broken = write_classes(tmp_path / "set", {"ant": 8, "bee": 8}) / "ant" / "003.png"
    broken.write_bytes(b"no image")
    data, options = load_images(str(tmp_path / "set"), test_share=1), {"cache": tmp_path / "cache" if cached else None}
    model = Map(3 * 49)
    for _ in range(2):
        found, _ = made(model, data, RGB, max_corrupt=0.2, batch_size=3, **options)
        assert found.corrupt == (str(broken),)
        assert (found.values.shape, np.bincount(found.labels).tolist()) == ((15, 5), [7, 8])
    refused("1 of 16 images", made, model, data, RGB, **options)


def test_what_cannot_be_extracted_is_refused(digits, tmp_path):
    diverged, square, stream = Map(), Map(), load_images("digits", streaming=True)
    nn.init.constant_(diverged.map.bias, torch.nan)
    square.features = lambda pixels: pixels
    (tmp_path / "file").touch()
    nothing = stream.with_splits(test=stream.test.take(0))
    for words, model, data, options in (
        ("Linear", nn.Linear(3, 2), digits, {}),
        ("num_channels=1", tiny(), digits, {"augment": dataclasses.replace(GRAY, channels=3)}),
        ("tset", Map(), digits, {"split": "tset"}),
        ("batch_size", Map(), digits, {"batch_size": 0}),
        ("the train split of digits", Map(), load_images("digits", test_share=1), {}),
        ("not finite", diverged, digits, {}),
        ("(256, 1, 8, 8)", square, digits, {}),
        (str(tmp_path / "file"), Map(), digits, {"cache": tmp_path / "file", "limit": 3}),
        ("the test split of digits", Map(), nothing, {"split": "test"}),
        ("the test split of digits", Map(), nothing, {"split": "test", "cache": tmp_path / "cache"}),
    ):
        refused(words, extract_features, model, data, options.pop("augment", GRAY), **options)
