"""Weights that training starts from, and fine-tuning; saved models see images as the evaluation does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from transformers import AutoImageProcessor, pipeline

from codingrate.data import BatchAugment, read_image
from codingrate.models import create_model, load_released
from codingrate.runs import Run
from codingrate.runs.manifest import write_manifest
from tests.models import released_files
from tests.refusals import refused

from .toys import assert_same, digit_pictures, saved, toy, toy_task, train_toy

COLOR = {"augment.channels": 3, "augment.image_size": 16, "model.config.patch_size": 4}


def blobs(root, counts, side=20):
    """Write class folders of pictures, smooth enough that resizing loses little, each class in another color."""
    draw = np.random.RandomState(0)
    for index, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for number in range(count):
            coarse = draw.randint(0, 120, (5, 4, 3)).astype(np.uint8)
            coarse[..., index % 3] += 120
            picture = Image.fromarray(coarse).resize((side + 7, side), Image.Resampling.BICUBIC)
            picture.save(root / name / f"{number}.png")
    return root


def body(weights):
    """Return the weights of the body without positions, which may be resized."""
    return {key: value for key, value in weights.items() if key.startswith("crate.") and "positions" not in key}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Return the folder of a run on 8 × 8 gray digits with ten classes, whose best model is not its last."""
    changes = {"schedule.steps": 2, "model.config.class_token": True, "model.config.pooling": "class"}
    folder = train_toy(tmp_path_factory.mktemp("start") / "run", changes).folder
    model = Run(folder).model("best")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    model.save_pretrained(folder / "model" / "best")
    write_manifest(folder / "model" / "best")
    return folder


@pytest.fixture
def from_start(start):
    return {"model.from": str(start), "model.config": {}}


def test_from_a_run_to_other_images_and_classes(start, from_start, tmp_path):
    images = blobs(tmp_path / "images", {"ape": 9, "bee": 8, "cat": 7})
    changes = {
        **from_start, "data.name": str(images), "augment.image_size": 12, "schedule.steps": 1, "schedule.batch_size": 8,
    }  # fmt: skip
    model = toy_task(changes).build_model()
    before, after = saved(start, "last"), model.state_dict()
    assert body(after)
    assert_same(body(before), body(after))
    old, new = before["crate.embedding.positions.weight"], after["crate.embedding.positions.weight"]
    assert (old.shape, new.shape) == ((1 + 2 * 2, 24), (1 + 3 * 3, 24))
    grid = F.interpolate(old[1:].T.reshape(1, 24, 2, 2), size=(3, 3), mode="bicubic", align_corners=False)
    torch.testing.assert_close(new, torch.cat([old[:1], grid.reshape(24, 9).T]))
    assert after["head.weight"].shape == (3, 24)
    assert model.config.id2label == {0: "ape", 1: "bee", 2: "cat"}
    trained = train_toy(tmp_path / "run", changes).model()
    assert trained.config.image_size == 12
    assert not torch.equal(trained.state_dict()["head.weight"], after["head.weight"])


def test_a_run_gives_its_last_model_and_a_folder_inside_it_that_one(start, from_start):
    """A run names its last model; RUN/model/best and RUN/checkpoints/checkpoint-2 name themselves."""
    inner = {"model/last": "last", "model/best": "best", "checkpoints/checkpoint-2": 2}
    for name, checkpoint in inner.items():
        source = Run(start / name)
        assert source.model_folder() == Run(start).model_folder(checkpoint) == start / name
        task = toy_task({**from_start, "model.from": str(start / name)})
        assert_same(body(task.build_model().state_dict()), body(source.model().state_dict()))
    plain = toy_task(from_start).build_model().state_dict()
    assert_same(body(plain), body(saved(start, "last")))
    assert Run(start).model_folder() == start / "model" / "last"


def test_a_head_of_equal_size_is_new_and_drawn_from_the_seed(start, from_start):
    heads = [toy_task({**from_start, "run.seed": seed}).build_model().head.weight for seed in (0, 0, 5)]
    assert not torch.equal(heads[0], saved(start)["head.weight"])
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_with_a_frozen_body_only_the_head_learns(start, from_start, few, tmp_path):
    changes = {**from_start, **few, "model.freeze": True, "schedule.steps": 2}
    train_toy(tmp_path / "run", changes)
    before, after = saved(start), saved(tmp_path / "run")
    assert_same(*({k: v for k, v in weights.items() if k.startswith("crate.")} for weights in (before, after)))
    assert not torch.equal(after["head.weight"], toy_task(changes).build_model().state_dict()["head.weight"])


def test_from_a_released_file(tmp_path):
    shapes = released_files.classifier(d=384, depth=2, side=4, patches=16, classes=7)
    file = released_files.write(tmp_path, released_files.random_values(shapes))
    images = blobs(tmp_path / "images", {"ape": 9, "bee": 8})
    changes = {
        **COLOR, "model.from": str(file), "model.config": {}, "data.name": str(images),
        "schedule.steps": 1, "schedule.batch_size": 8,
    }  # fmt: skip
    model = toy_task(changes).build_model()
    assert_same(load_released(file).crate.state_dict(), model.crate.state_dict())
    assert model.head.weight.shape == (2, 384)
    assert train_toy(tmp_path / "run", changes).model().config.num_labels == 2


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"model.from": "nonsense"}, "model.from"),
        ({"model.from": "no/such-model"}, "model.from"),
        ({"model.name": "crate-bert-base", "model.config": {}}, "model.name"),
        ({"model.name": "crate-tiny-patch61-224"}, "crate-tiny-patch16-224"),
        ({"model.config.hiden_size": 3}, "hidden_size"),
        ({"model.config.patch_size": 3}, "patch"),
        ({"model.config.num_attention_heads": 7}, "num_attention_heads"),
        ({"model.config.attention": "mhas"}, "mhsa"),
    ],
    ids=str,
)
def test_models_that_cannot_be_built(tmp_path, changes, name):
    refused(name, train_toy, tmp_path / "run", {"schedule.steps": 1, **changes})


def test_sources_that_do_not_fit(start, from_start, tmp_path):
    for name in ("empty", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.pth").write_text("no weights")
    (tmp_path / "other" / "config.json").write_text('{"model_type": "swin", "architectures": ["SwinModel"]}')
    fields = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 29}
    create_model("crate-bert-base", **fields).save_pretrained(tmp_path / "bert")
    changes = [{"model.from": str(tmp_path / name)} for name in ("empty", "notes.pth", "other", "bert")]
    changes += [{"model.config": {"hidden_size": 48}}, {"augment.channels": 3}]
    for number, change in enumerate(changes):
        words = change.get("model.from", "") if number < 2 else ""
        refused(words, train_toy, tmp_path / str(number), {**from_start, **change})


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
        **COLOR, "data.name": str(images), "schedule.steps": 3, "schedule.batch_size": 8, "optimizer.lr": 0.01,
        **changes,
    }  # fmt: skip
    run = train_toy(tmp_path / "run", changes)
    run.model().save_pretrained(tmp_path / "again")
    classifier = pipeline("image-classification", model=str(tmp_path / "again"), device="cpu")
    files = sorted(images.rglob("*.png"))[::4]
    for file, answers in zip(files, run.predict(files), strict=True):
        expected = {answer["label"]: answer["score"] for answer in classifier(Image.open(file))}
        assert {answer["label"]: answer["score"] for answer in answers} == pytest.approx(expected, abs=1e-5)
        pixels = BatchAugment(toy(changes).augment).eval()(read_image(file, toy(changes).augment)[None])
        with torch.no_grad():
            scores = run.model()(pixels).logits.softmax(-1)[0]
        assert [expected[name] for name in run.model().config.id2label.values()] == pytest.approx(
            scores.tolist(), abs=1e-5
        )


def test_the_processor_of_gray_images(tmp_path):
    """Pipelines of transformers convert every image to RGB, so the processor is called directly."""
    run = train_toy(tmp_path / "run", {"schedule.steps": 1})
    for processor in (AutoImageProcessor.from_pretrained(run.model_folder()), run.processor):
        for picture in digit_pictures(3):
            picture.save(tmp_path / "image.png")
            options = {"return_tensors": "pt", "input_data_format": "channels_last"}
            pixels = processor(images=np.asarray(picture)[..., None], **options)["pixel_values"]
            crop = read_image(tmp_path / "image.png", toy().augment)
            torch.testing.assert_close(pixels, BatchAugment(toy().augment).eval()(crop[None]))
