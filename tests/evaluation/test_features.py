"""Features against the model's own, and a cache that is used only if nothing has changed."""

import dataclasses
import json
import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from codingrate.data import BatchAugment, balanced_indices, collate, load_images, torch_dataset
from codingrate.errors import CrateError
from codingrate.evaluation import extract_features, pixel_features
from codingrate.models import CrateConfig, CrateForMaskedAutoencoding
from tests.data.conftest import picture, write_classes

from .conftest import GRAY, RGB, tiny


class Map(nn.Module):
    """Features linear in the pixels, and a count of the images they were asked of."""

    def __init__(self, pixels=64, width=5):
        super().__init__()
        self.map, self.seen = nn.Linear(pixels, width), 0
        self.modes = []

    def features(self, pixel_values):
        self.seen += len(pixel_values)
        self.modes.append((self.training, torch.is_inference_mode_enabled()))
        return self.map(pixel_values.flatten(1))


def pixels_and_labels(data, augment, split):
    """A split at once, without the evaluation room."""
    rows = getattr(data, split)
    dataset = torch_dataset(dataclasses.replace(data, test=rows), augment, train=False)
    batch = next(iter(DataLoader(dataset, batch_size=len(rows), collate_fn=collate)))
    return BatchAugment(augment).eval()(batch["pixel_values"]), batch["labels"].numpy()


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("split", ["train", "test"])
def test_are_those_of_the_model_in_the_order_of_the_rows(digits, tmp_path, cached, split):
    model = tiny().train()
    pixels, labels = pixels_and_labels(digits, GRAY, split)
    with torch.no_grad():
        wanted = model.eval().features(pixels).numpy()
    model.train()
    heard = []
    cache = tmp_path / "features" if cached else None
    found = extract_features(model, digits, GRAY, split=split, cache=cache, batch_size=97, progress=heard.append)
    np.testing.assert_allclose(found.values, wanted, rtol=1e-5, atol=1e-6)
    assert np.array_equal(found.labels, labels)
    assert (found.values.dtype, found.labels.dtype) == (np.float32, np.int64)
    assert (found.classes, found.corrupt, len(found)) == (digits.classes, (), len(labels))
    assert (sum(heard), max(heard)) == (len(labels), 97)
    assert isinstance(found.values, np.memmap) is cached
    assert found.values.flags.writeable is not cached
    assert all(module.training for module in model.modules()), "given back as it was"


def test_of_an_autoencoder_and_of_pixels(digits):
    config = CrateConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=3, image_size=8, patch_size=4, num_channels=1
    )
    model = CrateForMaskedAutoencoding(config).eval()
    pixels, _ = pixels_and_labels(digits, GRAY, "test")
    with torch.no_grad():
        wanted = model.features(pixels[:13]).numpy()
    some = dataclasses.replace(digits, test=digits.test.select(range(13)))
    np.testing.assert_allclose(extract_features(model, some, GRAY, split="test").values, wanted, rtol=1e-5, atol=1e-6)
    assert np.array_equal(pixel_features(some, GRAY, split="test").values, pixels[:13].flatten(1).numpy())


def test_run_in_eval_and_inference_mode(digits):
    model = Map().train()
    extract_features(model, digits, GRAY, limit=20, batch_size=7)
    assert set(model.modes) == {(False, True)}
    assert not torch.is_inference_mode_enabled()
    assert model.training


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
    model = Map()
    first, asked = made(model, digits, cache=tmp_path)
    assert asked == 359
    heard = []
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
    less = dataclasses.replace(digits, test=digits.test.select(range(350)))
    larger = dataclasses.replace(GRAY, mean=(0.4,))
    assert made(model, less, cache=tmp_path)[1] == 350
    assert made(model, digits, larger, cache=tmp_path)[1] == 359
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


def test_a_saved_model_has_the_features_of_the_one_that_was_saved(digits, tmp_path):
    model = tiny().eval()
    model.save_pretrained(tmp_path / "model")
    loaded = type(model).from_pretrained(tmp_path / "model")
    for one in (model, loaded):
        extract_features(one, digits, GRAY, split="test", cache=tmp_path / "cache", limit=9)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_files_replaced_in_place_are_read_again(tmp_path):
    folder = write_classes(tmp_path / "set", {"ant": 3, "bee": 4})
    model = Map(3 * 49)
    first, _ = made(model, load_images(str(folder), test_share=1), RGB, cache=tmp_path / "cache")
    picture(99).save(folder / "bee" / "002.png")
    os.utime(folder / "bee" / "002.png", ns=(1, 1))
    second, asked = made(model, load_images(str(folder), test_share=1), RGB, cache=tmp_path / "cache")
    assert asked == 7
    assert (first.values != second.values).any(axis=1).tolist() == [False] * 5 + [True, False]


def cut(path):
    path.write_bytes(path.read_bytes()[:-4])


def flip(path):
    bytes_ = bytearray(path.read_bytes())
    bytes_[-2] ^= 1
    path.write_bytes(bytes_)


def blank(path):
    path.write_bytes(b"")


def other_key(path):
    path.write_text(json.dumps({**json.loads(path.read_text()), "key": "0"}))


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("values.bin", cut), ("values.bin", flip), ("values.bin", os.remove), ("values.bin", blank),
        ("labels.npy", cut), ("labels.npy", flip), ("features.json", cut), ("features.json", os.remove),
        ("features.json", other_key), ("features.json", lambda path: path.write_text("[]")),
        ("features.json", lambda path: path.write_text(path.read_text().replace("[]", '["a.png"]'))),
    ],
)  # fmt: skip
def test_a_damaged_cache_is_built_again(digits, tmp_path, caplog, file, damage):
    caplog.set_level("INFO", "codingrate")
    model = Map()
    first, _ = made(model, digits, cache=tmp_path, limit=23)
    wanted = np.array(first.values)
    del first  # the map of what is about to be damaged
    (folder,) = tmp_path.glob("test-*")
    assert not caplog.text
    damage(folder / file)
    found, asked = made(model, digits, cache=tmp_path, limit=23)
    assert f"{folder} is damaged; the features are computed again" in caplog.text
    assert asked == 23
    assert np.array_equal(found.values, wanted)
    assert made(model, digits, cache=tmp_path, limit=23)[1] == 0


def test_a_killed_extraction_leaves_nothing_and_hurts_nothing(digits, tmp_path):
    class Killed(Map):
        def features(self, pixel_values):
            if self.seen >= 100:
                raise KeyboardInterrupt
            return super().features(pixel_values)

    model = Killed()
    with pytest.raises(KeyboardInterrupt):
        extract_features(model, digits, GRAY, cache=tmp_path, batch_size=50)
    assert list(tmp_path.iterdir()) == []
    assert not torch.is_inference_mode_enabled()
    model.seen = -10_000
    assert len(extract_features(model, digits, GRAY, cache=tmp_path)) == len(digits.train)


def test_streams_are_read_anew(tmp_path):
    stream, model = load_images("digits", streaming=True), Map()
    found, asked = made(model, stream, cache=tmp_path, limit=17)
    again, asked_again = made(model, stream, cache=tmp_path, limit=17)
    assert (asked, asked_again) == (17, 17)
    assert np.array_equal(found.values, again.values)
    assert len(list(tmp_path.iterdir())) == 1


# what goes wrong


@pytest.mark.parametrize("cached", [False, True])
def test_corrupt_images_are_left_out_and_named(tmp_path, cached):
    folder = write_classes(tmp_path / "set", {"ant": 8, "bee": 8})
    (folder / "ant" / "003.png").write_bytes(b"no image")
    data, cache = load_images(str(folder), test_share=1), tmp_path / "cache" if cached else None
    model = Map(3 * 49)
    for _ in range(2):
        found, _ = made(model, data, RGB, cache=cache, max_corrupt=0.2, batch_size=3)
        assert found.corrupt == (str(folder / "ant" / "003.png"),)
        assert (found.values.shape, np.bincount(found.labels).tolist()) == ((15, 5), [7, 8])
    with pytest.raises(CrateError, match="1 of 16 images cannot be read"):
        made(model, data, RGB, cache=cache)


def refused(match, model, data, augment=GRAY, **options):
    with pytest.raises(CrateError, match=match) as caught:
        extract_features(model, data, augment, **options)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_extracted_is_refused(digits, tmp_path):
    refused("a Linear computes no image features", nn.Linear(3, 2), digits)
    refused("num_channels=1", tiny(), digits, dataclasses.replace(GRAY, channels=3))
    refused("unknown split 'tset'", Map(), digits, split="tset")
    refused("batch_size is 0; it must be a positive integer", Map(), digits, batch_size=0)
    refused("the train split of digits has no images", Map(), load_images("digits", test_share=1))
    diverged = Map()
    nn.init.constant_(diverged.map.bias, torch.nan)
    refused("not finite", diverged, digits)
    diverged.features = lambda pixels: pixels
    refused(r"returned features of shape \(256, 1, 8, 8\); expected \(256, width\)", diverged, digits)
    (tmp_path / "file").touch()
    refused("cannot write .*file.*give another folder", Map(), digits, cache=tmp_path / "file", limit=3)
    stream = load_images("digits", streaming=True)
    nothing = dataclasses.replace(stream, test=stream.test.take(0))
    for cache in (None, tmp_path / "cache"):
        refused("the test split of digits has no images", Map(), nothing, split="test", cache=cache)
