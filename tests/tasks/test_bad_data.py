"""Images as they come: damaged, of every kind of pixel, in uneven classes; and what cannot be used at all."""

from __future__ import annotations

import json
import shutil

import datasets
import numpy as np
import pytest

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


# Data that cannot be used


def table(path, labels):
    """Write a table of images with labels that are bare numbers."""
    images = [{"bytes": encoded(picture(index)), "path": None} for index in range(len(labels))]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    path.parent.mkdir(exist_ok=True)
    datasets.Dataset.from_dict({"image": images, "label": labels}, features=features).to_parquet(path)


def damaged(root, count):
    damage(write_classes(root, {"ape": 5, "bee": 5}), count)


COLUMNS = {"data.image_column": "image", "data.label_column": "label"}
UNUSABLE = {
    "missing": (lambda root: None, {}, "no such file or folder"),
    "empty class": (lambda root: (write_classes(root, {"ape": 3, "bee": 3}) / "cat").mkdir(), {}, "cat"),
    "single class": (lambda root: write_classes(root, {"ape": 6}), {}, "one class"),
    "unreadable": (lambda root: damaged(root, 2), {}, "0.01"),
    "all unreadable": (lambda root: damaged(root, 5), {"data.max_corrupt": 1.0}, "10 images"),
    "labels of another dataset": (  # a known dataset has a known number of classes
        lambda root: table(root / "train.parquet", [0, 1, 2, 10, 1, 0]),
        {"data.name": "cifar10", **COLUMNS}, "label 10",
    ),
    "labels of the test split": (
        lambda root: [table(root / f"{name}.parquet", [0, last]) for name, last in (("train", 1), ("test", 5))],
        {}, "label 5",
    ),
}  # fmt: skip
"""How data that cannot be used are written, changes of the recipe, and words of the refusal."""


@pytest.mark.parametrize("case", UNUSABLE)
def test_data_that_cannot_be_used(tmp_path, case):
    write, changes, words = UNUSABLE[case]
    write(tmp_path / "data")
    place = {"data.path": str(tmp_path / "data" / "train.parquet")} if "data.name" in changes else {}
    refused(words, attempt, tmp_path, tmp_path / "data", **changes, **place)
    assert not (tmp_path / "run" / "model").exists()
