"""Images as they come: damaged, of every kind of pixel, in uneven classes; and what cannot be used at all."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from codingrate.data.sources import image_dataset
from codingrate.runs import Run
from tests.data.conftest import encoded, picture, write_classes
from tests.refusals import refused
from tests.runs.toys import assert_same, lines, saved, train_toy

COLOR = {"augment.channels": 3, "schedule.steps": 3, "schedule.batch_size": 8}


def damage(root, count):
    """Cut the first files of every class short."""
    for folder in sorted(root.iterdir()):
        for file in sorted(folder.iterdir())[:count]:
            file.write_bytes(file.read_bytes()[:40])


def attempt(tmp_path, data, **changes):
    resume = changes.pop("resume", False)
    return train_toy(tmp_path / "run", {**COLOR, "data.name": str(data), **changes}, resume=resume)


def test_unreadable_images_are_left_out_and_named(tmp_path, caplog):
    data = write_classes(tmp_path / "data", {"ape": 10, "bee": 12})
    damage(data, 2)
    with caplog.at_level("WARNING", "codingrate"):
        run = attempt(tmp_path, data, **{"data.max_corrupt": 0.4, "schedule.steps": 6, "data.workers": 1})
    assert any("4 of 22 images cannot be read" in message and "ape/000.png" in message for message in caplog.messages)
    assert lines(tmp_path / "run", "unreadable") == []
    assert json.loads((run.folder / "data.json").read_text())["unreadable"] == [
        "ape/000.png", "ape/001.png", "bee/000.png", "bee/001.png",
    ]  # fmt: skip
    assert run.task.data.total == 18, "an opened run leaves them out too"
    report = run.evaluate()
    assert run.metrics["top1"] == pytest.approx(report.top1, abs=1e-9)
    assert run.metrics["loss"] == pytest.approx(report.loss, rel=1e-5)


def test_unreadable_files_may_be_removed_before_a_longer_resume(tmp_path):
    """They are judged over all images before the first epoch, and neither the split nor training depends on them."""
    data = write_classes(tmp_path / "data", {"ape": 10, "bee": 12})
    damage(data, 2)
    copy = shutil.copytree(data, tmp_path / "copy")
    changes = {"schedule.steps": None, "schedule.scheduler": "constant", "run.checkpoint_steps": 3}
    attempt(tmp_path, data, **changes, **{"data.max_corrupt": 0.2, "schedule.epochs": 2})
    for folder in (data, copy):
        for file in (*folder.glob("*/000.png"), *folder.glob("*/001.png")):
            file.unlink()
    changes["schedule.epochs"] = 4
    run = attempt(tmp_path, data, resume=True, **changes)
    clean = train_toy(tmp_path / "clean", {**COLOR, **changes, "data.name": str(copy)})
    assert_same(saved(run.folder), saved(clean.folder))


def test_a_row_of_a_table_that_cannot_be_read_is_left_out(tmp_path):
    content = [encoded(picture(index)) for index in range(12)]
    content[3] = b"no image"
    (tmp_path / "data").mkdir()
    image_dataset(content, [0, 1] * 6, ["ape", "bee"]).to_parquet(tmp_path / "data" / "train.parquet")
    run = attempt(tmp_path, tmp_path / "data", **{"data.max_corrupt": 0.1})
    assert run.task.unreadable == ("row 3 of train",)
    assert run.task.data.total == 11
    assert Run(run.folder).on_data(str(tmp_path / "data")).data.total == 11
    other = Run(run.folder).on_data(str(write_classes(tmp_path / "other", {"ape": 3, "bee": 3})))
    assert other.unreadable == (), "the names are those of the run's own data"


def test_a_batch_without_readable_images_has_no_loss(tmp_path):
    """A stream cannot be checked before it is read."""
    data = write_classes(tmp_path / "data", {"ape": 6, "bee": 6})
    damage(data, 2)
    changes = {"data.streaming": True, "schedule.batch_size": 1, "schedule.steps": 10, "data.test_share": 0.5}
    run = attempt(tmp_path, data, **{**changes, "data.max_corrupt": 0.8})
    losses = [line["loss"] for line in lines(tmp_path / "run", "training")]
    assert losses.count(0.0) == sum(line["unreadable"] for line in lines(tmp_path / "run", "unreadable")[:1])
    assert 0.0 in losses
    assert np.isfinite(run.metrics["loss"])


def test_too_many_unreadable_images(tmp_path):
    data = write_classes(tmp_path / "data", {"ape": 10, "bee": 12})
    damage(data, 4)
    line = refused("images cannot be read, but only a share of 0.01 is allowed", attempt, tmp_path, data)
    assert str(data) in line


def test_no_readable_images(tmp_path):
    data = write_classes(tmp_path / "data", {"ape": 5, "bee": 5})
    damage(data, 5)
    refused("all 10 images cannot be read", attempt, tmp_path, data, **{"data.max_corrupt": 1.0})


@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_pixel_is_read(tmp_path, channels):
    """In one folder: an epoch and an evaluation read every image, and none may be unreadable."""
    modes = ["L", "RGBA", "LA", "P", "1", "I;16", "CMYK"]
    for number, name in enumerate(("ape", "bee")):
        (tmp_path / "data" / name).mkdir(parents=True)
        for index, mode in enumerate(modes * 3):
            image = picture(index + 100 * number)
            if mode == "I;16":
                image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
            else:
                image = image.convert(mode)
            image.save(tmp_path / "data" / name / f"{index}.{'tif' if mode == 'CMYK' else 'png'}")
    changes = {"augment.channels": channels, "schedule.steps": None, "schedule.epochs": 1, "data.max_corrupt": 0.0}
    run = attempt(tmp_path, tmp_path / "data", **changes)
    assert np.isfinite(run.metrics["loss"])
    assert lines(tmp_path / "run", "unreadable") == []
    losses = [line["loss"] for line in lines(tmp_path / "run", "training")]
    assert len(losses) > 3
    assert np.isfinite(losses).all()


# Data that cannot be used


def test_a_missing_folder(tmp_path):
    refused("no such file or folder", attempt, tmp_path, tmp_path / "nowhere")
    assert not (tmp_path / "run" / "model").exists()


def test_an_empty_class(tmp_path):
    data = write_classes(tmp_path / "data", {"ape": 3, "bee": 3})
    (data / "cat").mkdir()
    refused("cat has no images", attempt, tmp_path, data)


def test_a_single_class(tmp_path):
    refused("has one class only", attempt, tmp_path, write_classes(tmp_path / "data", {"ape": 6}))


def table(path, labels):
    """Write a table of images with labels that are bare numbers."""
    import datasets

    images = [{"bytes": encoded(picture(index)), "path": None} for index in range(len(labels))]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    datasets.Dataset.from_dict({"image": images, "label": labels}, features=features).to_parquet(path)
    return path


def test_labels_outside_the_classes(tmp_path):
    """A known dataset has a known number of classes: files with a label 10 are not those of cifar10."""
    data = table(tmp_path / "train.parquet", [0, 1, 2, 10, 1, 0])
    changes = {"data.path": str(data), "data.image_column": "image", "data.label_column": "label"}
    refused("label 10", attempt, tmp_path, "cifar10", **changes)


def test_labels_of_the_test_split_that_training_does_not_have(tmp_path):
    (tmp_path / "data").mkdir()
    table(tmp_path / "data" / "train.parquet", [0, 1, 0, 1])
    table(tmp_path / "data" / "test.parquet", [0, 5])
    refused("label 5", attempt, tmp_path, tmp_path / "data")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run.per_device_batch_size": 7}, "schedule.batch_size 360 is not a multiple of 1 processes"),
        ({"data.streaming": True}, "set schedule.steps"),
        ({"data.streaming": True, "schedule.steps": 2, "schedule.warmup_epochs": 1}, "set schedule.warmup_steps"),
        ({"data.name": "digit"}, "did you mean 'digits'"),
        ({"data.name": "???"}, "give --data (or data.name)"),
        ({"model.from": "???"}, "give model.from=RUN"),
        ({"augment.image_size": 9}, "image_size 9 is not divisible by patch_size 4"),
        ({"augment.channels": 3, "augment.mean": [0.5]}, "augment.mean needs one value per channel"),
    ],
    ids=str,
)
def test_recipes_that_cannot_run(tmp_path, changes, message):
    refused(message, lambda: train_toy(tmp_path / "run", {"schedule.epochs": 1, **changes}))
    assert not (tmp_path / "run" / "model").exists()
    if "???" in changes.values():
        assert not (tmp_path / "run").exists(), "refused before anything is written"
