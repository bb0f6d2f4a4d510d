"""Data as they come: damaged, lopsided, of every kind of pixel; and what is said when they cannot be learned from."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from codingrate.evaluation import classify
from codingrate.models import CrateForImageClassification
from codingrate.training.tasks import load_data
from tests.data.conftest import encoded, picture, write_classes
from tests.refusals import refused
from tests.training.toys import lines, run, toy

PICTURES = {"augment.channels": 3, "schedule.steps": 3, "schedule.batch": 8}


def damage(root, count):
    """The first files of every class cut short."""
    for folder in sorted(root.iterdir()):
        for file in sorted(folder.iterdir())[:count]:
            file.write_bytes(file.read_bytes()[:40])


def attempt(tmp_path, data, **changes):
    return run(tmp_path / "run", {**PICTURES, "data.name": str(data), **changes})


def test_corrupt_images_are_skipped_and_named(tmp_path):
    data = write_classes(tmp_path / "data", {"ape": 10, "bee": 12})
    damage(data, 2)
    changes = {"data.max_corrupt": 0.4, "schedule.steps": 6}
    result = attempt(tmp_path, data, **changes)
    found = lines(tmp_path / "run", "unreadable")
    assert found
    assert sum(line["unreadable"] for line in found) >= 4
    assert all(line["first_unreadable"].startswith(str(data)) for line in found)
    recipe = toy({**PICTURES, "data.name": str(data), **changes})
    model = CrateForImageClassification.from_pretrained(tmp_path / "run" / "model" / "last")
    report = classify(model, load_data(recipe.data), recipe.augment, max_corrupt=1)
    assert result.metrics["top1"] == pytest.approx(report.top1, abs=1e-9)
    assert result.metrics["loss"] == pytest.approx(report.loss, rel=1e-5)


def test_a_batch_with_nothing_readable_makes_no_step_of_the_data(tmp_path):
    data = write_classes(tmp_path / "data", {"ape": 6, "bee": 6})
    damage(data, 2)
    result = attempt(tmp_path, data, **{"data.max_corrupt": 0.6, "schedule.batch": 1, "schedule.steps": 10})
    losses = [line["loss"] for line in lines(tmp_path / "run", "training")]
    assert losses.count(0.0) == sum(line["unreadable"] for line in lines(tmp_path / "run", "unreadable")[:1])
    assert 0.0 in losses
    assert np.isfinite(result.metrics["loss"])


def test_too_many_corrupt_images(tmp_path):
    data = write_classes(tmp_path / "data", {"ape": 10, "bee": 12})
    damage(data, 4)
    said = refused("images cannot be read, but only a share of 0.01 is allowed", attempt, tmp_path, data)
    assert str(data) in said


def test_all_images_corrupt(tmp_path):
    data = write_classes(tmp_path / "data", {"ape": 5, "bee": 5})
    damage(data, 5)
    refused("all ", attempt, tmp_path, data, **{"data.max_corrupt": 1.0})


@pytest.mark.parametrize("mode", ["L", "RGBA", "LA", "P", "1", "I;16", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_pixel_is_learned_from(tmp_path, mode, channels):
    for name in ("ape", "bee"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for index in range(6):
            image = picture(index + 10 * (name == "bee"))
            if mode == "I;16":
                image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
            else:
                image = image.convert(mode)
            image.save(tmp_path / "data" / name / f"{index}.{'tif' if mode == 'CMYK' else 'png'}")
    changes = {"augment.channels": channels, "schedule.steps": 1, "data.max_corrupt": 0.0}
    assert np.isfinite(attempt(tmp_path, tmp_path / "data", **changes).metrics["loss"])


def test_missing_folder(tmp_path):
    refused("no such file or folder", attempt, tmp_path, tmp_path / "nowhere")
    assert not (tmp_path / "run" / "model").exists()


def test_empty_class(tmp_path):
    data = write_classes(tmp_path / "data", {"ape": 3, "bee": 3})
    (data / "cat").mkdir()
    refused("cat has no images", attempt, tmp_path, data)


def test_one_class_only(tmp_path):
    refused("has one class only", attempt, tmp_path, write_classes(tmp_path / "data", {"ape": 6}))


def table(path, labels, names=None):
    import datasets

    images = [{"bytes": encoded(picture(index)), "path": None} for index in range(len(labels))]
    label = datasets.ClassLabel(names=names) if names else datasets.Value("int64")
    features = datasets.Features({"image": datasets.Image(), "label": label})
    datasets.Dataset.from_dict({"image": images, "label": labels}, features=features).to_parquet(path)
    return path


def test_labels_outside_the_classes(tmp_path):
    """Known sets have as many classes as they have: cifar10's files with a label 10 are not cifar10's."""
    data = table(tmp_path / "train.parquet", [0, 1, 2, 10, 1, 0])
    changes = {**PICTURES, "data.name": "cifar10", "data.path": str(data), "data.image_column": "image"}
    refused("label 10", run, tmp_path / "run", {**changes, "data.label_column": "label"})


def test_labels_of_the_test_split_that_training_has_not(tmp_path):
    (tmp_path / "data").mkdir()
    table(tmp_path / "data" / "train.parquet", [0, 1, 0, 1])
    table(tmp_path / "data" / "test.parquet", [0, 5])
    refused("label 5", attempt, tmp_path, tmp_path / "data")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimise.name": "sgd"}, "optimise.name"),
        ({"optimise.lr": -1.0}, "optimise.lr is -1.0; it must be positive"),
        ({"optimise.lr": float("nan")}, "optimise.lr is nan"),
        ({"schedule.batch": 0}, "schedule.batch is 0"),
        ({"schedule.epochs": -2}, "schedule.epochs"),
        ({"schedule.steps": 0}, "schedule.steps is 0; it must be positive"),
        ({"schedule.steps": -3}, "schedule.steps is -3; it must be positive"),
        ({"schedule.warmup_steps": -1}, "schedule.warmup_steps"),
        ({"schedule.final_lr": -1e-3}, "schedule.final_lr"),
        ({"run.device_batch": 7}, "schedule.batch 360 is not a multiple of 1 processes"),
        ({"run.device_batch": -4}, "run.device_batch is -4; it must be positive"),
        ({"run.device_batch": 0}, "run.device_batch is 0; it must be positive"),
        ({"run.checkpoint_steps": -4}, "run.checkpoint_steps is -4; it must be positive"),
        ({"run.evaluate_epochs": -1}, "run.evaluate_epochs"),
        ({"run.layerwise_epochs": -1}, "run.layerwise_epochs"),
        ({"run.layerwise_images": 0, "run.layerwise_epochs": 1}, "run.layerwise_images"),
        ({"run.ema": 1.0}, "run.ema"),
        ({"run.seed": -1}, "seed"),
        ({"data.streaming": True}, "schedule.steps"),
        ({"data.workers": -1}, "data.workers"),
        ({"data.max_corrupt": 2}, "corrupt"),
        ({"data.name": "digit"}, "did you mean 'digits'"),
        ({"augment.image_size": 9}, "image_size"),
    ],
    ids=str,
)
def test_recipes_that_cannot_run(tmp_path, changes, words):
    refused(words, lambda: run(tmp_path / "run", {"schedule.epochs": 1, **changes}))
