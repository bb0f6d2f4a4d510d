"""What training starts from, and that what it saves is seen by others as it was by the evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from transformers import AutoImageProcessor, pipeline

from codingrate.data import BatchAugment, crop_for_evaluation, decode_image
from codingrate.models import CrateForImageClassification, create_model, load_released
from codingrate.training import build_classifier, load_weights, saved_model
from codingrate.training.tasks import load_data
from tests.models import released_files
from tests.refusals import refused
from tests.training.toys import assert_same, run, saved, toy

COLOUR = {"augment.channels": 3, "augment.image_size": 16, "model.config.patch_size": 4}


def blobs(root, counts, side=20, start=0):
    """Class folders of pictures, smooth enough that resizing loses little, each class of another colour."""
    draw = np.random.RandomState(start)
    for place, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for index in range(count):
            coarse = draw.randint(0, 120, (5, 4, 3)).astype(np.uint8)
            coarse[..., place % 3] += 120
            Image.fromarray(coarse).resize((side + 7, side), Image.Resampling.BICUBIC).save(
                root / name / f"{index}.png"
            )
    return root


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A run on 8 × 8 grey digits with ten classes."""
    folder = tmp_path_factory.mktemp("start") / "run"
    run(folder, {"schedule.steps": 2, "model.config.class_token": True, "model.config.pooling": "class"})
    return folder


def test_from_a_run_to_other_images_and_classes(start, tmp_path):
    images = blobs(tmp_path / "images", {"ape": 9, "bee": 8, "cat": 7})
    changes = {
        "model.from": str(start), "model.config": {}, "data.name": str(images), "augment.image_size": 12,
        "schedule.steps": 1, "schedule.batch": 8,
    }  # fmt: skip
    recipe = toy(changes)
    model = build_classifier(recipe, ("ape", "bee", "cat"))
    before, after = saved(start, "best"), model.state_dict()
    body = [key for key in after if key.startswith("crate.") and "positions" not in key]
    assert body
    assert_same({key: before[key] for key in body}, {key: after[key] for key in body})
    old, new = before["crate.embedding.positions.weight"], after["crate.embedding.positions.weight"]
    assert (old.shape, new.shape) == ((1 + 2 * 2, 24), (1 + 3 * 3, 24))
    grid = F.interpolate(old[1:].T.reshape(1, 24, 2, 2), size=(3, 3), mode="bicubic", align_corners=False)
    torch.testing.assert_close(new, torch.cat([old[:1], grid.reshape(24, 9).T]))
    assert after["head.weight"].shape == (3, 24)
    assert model.config.id2label == {0: "ape", 1: "bee", 2: "cat"}
    result = run(tmp_path / "run", changes)
    assert result.model.config.image_size == 12
    assert not torch.equal(result.model.state_dict()["head.weight"], after["head.weight"])


def test_a_head_of_equal_size_is_fresh_too(start):
    model = build_classifier(toy({"model.from": str(start), "model.config": {}}), tuple("0123456789"))
    assert not torch.equal(model.state_dict()["head.weight"], saved(start, "best")["head.weight"])
    again = build_classifier(toy({"model.from": str(start), "model.config": {}}), tuple("0123456789"))
    assert torch.equal(model.head.weight, again.head.weight), "drawn from the seed"
    other = build_classifier(toy({"model.from": str(start), "model.config": {}, "run.seed": 5}), tuple("0123456789"))
    assert not torch.equal(model.head.weight, other.head.weight)


def test_from_a_frozen_run_only_the_head_learns(start, tmp_path):
    changes = {"model.from": str(start), "model.config": {}, "model.freeze": True, "schedule.steps": 2}
    run(tmp_path / "run", changes)
    before, after = saved(start, "best"), saved(tmp_path / "run")
    body = [key for key in after if key.startswith("crate.")]
    assert_same({key: before[key] for key in body}, {key: after[key] for key in body})
    fresh = build_classifier(toy(changes), tuple("0123456789")).state_dict()
    assert not torch.equal(after["head.weight"], fresh["head.weight"])


def test_from_a_released_file(tmp_path):
    shapes = released_files.classifier(d=384, depth=2, side=4, patches=16, classes=7)
    file = released_files.write(tmp_path, released_files.random_values(shapes))
    images = blobs(tmp_path / "images", {"ape": 9, "bee": 8})
    changes = {
        **COLOUR, "model.from": str(file), "model.config": {}, "data.name": str(images),
        "schedule.steps": 1, "schedule.batch": 8,
    }  # fmt: skip
    released = load_released(file)
    model = build_classifier(toy(changes), ("ape", "bee"))
    assert_same(dict(released.crate.state_dict()), dict(model.crate.state_dict()))
    assert model.head.weight.shape == (2, 384)
    assert run(tmp_path / "run", changes).model.config.num_labels == 2


def test_from_a_folder_that_save_pretrained_wrote(tmp_path):
    model = create_model("crate-tiny-patch16-224", **{**toy().model.config, "image_size": 8, "num_channels": 1})
    model.save_pretrained(tmp_path)
    loaded = load_weights(str(tmp_path))
    assert isinstance(loaded, CrateForImageClassification)
    assert_same(dict(model.state_dict()), dict(loaded.state_dict()))


def test_the_best_model_of_a_run_or_the_last(start):
    assert saved_model(start) == start / "model" / "best"
    assert saved_model(start, "last") == start / "model" / "last"
    assert saved_model(start / "model" / "best") == start / "model" / "best"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.from": "nonsense"}, "model.from: nonsense: is no checkpoint file, saved model"),
        ({"model.from": "no/such-model"}, "model.from: no/such-model: is no checkpoint file"),
        ({"model.name": "crate-bert-base", "model.config": {}}, "model.name crate-bert-base: classification needs"),
        ({"model.name": "crate-tiny-patch61-224"}, "did you mean 'crate-tiny-patch16-224'"),
        ({"model.config.hiden_size": 3}, "hidden_size"),
        ({"model.config.patch_size": 3}, "patch"),
        ({"model.config.num_attention_heads": 7}, "num_attention_heads 7 does not divide hidden_size 24"),
        ({"model.config.attention": "mhas"}, "did you mean 'mhsa'"),
    ],
    ids=str,
)
def test_models_that_cannot_be(tmp_path, changes, words):
    refused(words, run, tmp_path / "run", {"schedule.steps": 1, **changes})


def test_starts_that_do_not_fit(start, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    refused("holds no saved model", run, tmp_path / "a", {"model.from": str(empty)})
    (tmp_path / "notes.pth").write_text("no weights")
    refused("notes.pth", run, tmp_path / "b", {"model.from": str(tmp_path / "notes.pth")})
    changes = {"model.from": str(start), "model.config": {"hidden_size": 48}}
    refused("cannot change", run, tmp_path / "c", changes)
    changes = {"model.from": str(start), "model.config": {}, "augment.channels": 3}
    refused("channels, patch size and width cannot change", run, tmp_path / "d", changes)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "vit", "architectures": ["ViTModel"]}')
    refused("holds a vit model", run, tmp_path / "e", {"model.from": str(tmp_path / "other")})


def test_a_text_model_is_no_start(tmp_path):
    fields = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 29}
    create_model("crate-bert-base", **fields).save_pretrained(tmp_path / "bert")
    refused("the source model is a text model", run, tmp_path / "run", {"model.from": str(tmp_path / "bert"), "model.config": {}})


# The image processor that is saved with the model


@pytest.mark.parametrize(
    "changes",
    [
        {"augment.crop": "resize"},
        {"augment.crop": "random-resized", "augment.interpolation": "bilinear"},
        {"augment.crop": "center", "augment.evaluation_ratio": 1.0},
        {"augment.crop": "resize", "augment.mean": [0.1, 0.2, 0.3], "augment.std": [0.5, 0.6, 0.7]},
    ],
    ids=str,
)
def test_a_pipeline_sees_images_as_the_evaluation_does(tmp_path, changes):
    images = blobs(tmp_path / "images", {"ape": 6, "bee": 6, "cat": 6})
    changes = {
        **COLOUR, "data.name": str(images), "schedule.steps": 3, "schedule.batch": 8, "optimise.lr": 0.01, **changes,
    }  # fmt: skip
    result = run(tmp_path / "run", changes)
    augment = toy(changes).augment
    classifier = pipeline("image-classification", model=str(tmp_path / "run" / "model" / "last"), device="cpu")
    model = result.model.eval()
    for file in sorted(images.rglob("*.png"))[::4]:
        crop = crop_for_evaluation(decode_image(str(file)), augment)
        pixels = BatchAugment(augment).eval()(torch.tensor(np.asarray(crop)).permute(2, 0, 1)[None])
        with torch.no_grad():
            expected = model(pixels).logits.softmax(-1)[0]
        found = {answer["label"]: answer["score"] for answer in classifier(Image.open(file))}
        for index, name in model.config.id2label.items():
            assert found[name] == pytest.approx(float(expected[index]), abs=1e-5)


def test_the_processor_of_grey_images(tmp_path):
    """transformers' pipelines turn every image into RGB, so the processor is asked directly."""
    changes = {"schedule.steps": 1}
    run(tmp_path / "run", changes)
    processor = AutoImageProcessor.from_pretrained(tmp_path / "run" / "model" / "last")
    data, augment = load_data(toy().data), toy().augment
    for row in data.test.select([0, 50, 150]):
        image = decode_image(row[data.image_column], 1)
        seen = processor(images=np.asarray(image)[..., None], return_tensors="pt", input_data_format="channels_last")
        crop = torch.tensor(np.asarray(crop_for_evaluation(image, augment)))[None, None]
        torch.testing.assert_close(seen["pixel_values"], BatchAugment(augment).eval()(crop))
