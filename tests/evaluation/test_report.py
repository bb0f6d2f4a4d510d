"""Reports of tasks: complete files only, numbers that can be read back, and pictures that show something."""

import csv
import dataclasses
import json
import re
from contextlib import suppress

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from codingrate._fonts import can_draw
from codingrate._report import EvaluationReport
from codingrate.data import Augment
from codingrate.errors import CrateError
from codingrate.evaluation import LambadaReport
from codingrate.tasks import ClassificationReport, MaskedReport, Reconstruction, SentenceReport
from codingrate.tasks.reports import confusion_picture
from tests.refusals import refused

from .conftest import Linear, evaluate


def subclasses(kind):
    return [each for one in kind.__subclasses__() for each in (one, *subclasses(one))]


def made_up(classes=3, **fields):
    names = tuple(f"class {index}" for index in range(classes))
    rows = [{"class": name, "images": 2, "accuracy": 0.5} for name in names]
    base = {
        "data": "set", "split": "test", "images": 2 * classes, "corrupt": ("a.png",), "loss": 0.7, "top1": 0.5,
        "top5": None, "per_class": rows, "confusion": np.eye(classes, dtype=np.int64) + np.eye(classes, k=1, dtype=int),
        "classes": names, "real_top1": None, "seconds": 2.0, "images_per_second": float(classes),
    }  # fmt: skip
    return ClassificationReport(**{**base, **fields})


def shown(path):
    """Check that a file is a picture worth opening; return its size and its number of colors."""
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert min(image.size) > 100
        return image.size, len(image.convert("RGB").getcolors(image.width * image.height))


def test_json_reads_back_and_leaves_large_matrices_out():
    values = json.loads(json.dumps(made_up().to_dict(), allow_nan=False))
    assert values["confusion"] == [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert (values["corrupt"], values["per_class"][1]["class"]) == (["a.png"], "class 1")
    assert "top5" not in values, "three classes"
    assert made_up(6, top5=0.9, loss=float("inf")).to_dict().items() >= {"top5": 0.9, "loss": None}.items()
    reports = (made_up(100), made_up(101), made_up(confusion=None))
    assert ["confusion" in report.to_dict() for report in reports] == [True, False, False]


def test_saves_four_files_and_no_leftovers(tmp_path, digits):
    report, folder = evaluate(Linear(digits.classes), digits), tmp_path / "run" / "evaluation"
    for _ in range(2):  # the second time over the first
        assert report.save(folder) == folder
    names = {"metrics.json", "per_class.csv", "confusion.csv", "confusion.png"}
    assert {path.name for path in folder.iterdir()} == names
    assert json.loads((folder / "metrics.json").read_text()) == report.to_dict()
    head, *rows = csv.reader((folder / "confusion.csv").read_text().splitlines())
    assert head[1:] == list(digits.classes) == [row[0] for row in rows]
    assert np.array_equal(np.array([row[1:] for row in rows], int), report.confusion)
    rows = csv.DictReader((folder / "per_class.csv").read_text().splitlines())
    assert [float(row["accuracy"]) for row in rows] == [row["accuracy"] for row in report.per_class]
    assert shown(folder / "confusion.png")[1] > 10


def test_without_a_matrix_there_is_no_picture_and_no_accuracy_is_an_empty_cell(tmp_path):
    made_up(confusion=None, per_class=[{"class": "x", "images": 0, "accuracy": None}]).save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.json", "per_class.csv"}
    assert (tmp_path / "per_class.csv").read_text() == "class,images,accuracy\nx,0,\n"


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path, monkeypatch):
    made_up().save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(self, file, **kwargs):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    refused("confusion.png: No space left on device", made_up().save, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    refused("cannot write", made_up().save, tmp_path / "metrics.json" / "below")


@pytest.mark.parametrize("classes", [2, 37, 1000, pytest.param(1500, marks=pytest.mark.slow)])
def test_pictures_of_any_number_of_classes(tmp_path, classes):
    counts = np.random.RandomState(0).poisson(np.eye(classes) * 20 + 1 / classes)
    (width, height), colors = shown(confusion_picture(counts, [f"name {i}" for i in range(classes)], tmp_path / "p"))
    assert max(width, height) < 1400
    assert colors > 10


def test_pictures_take_any_name_and_classes_without_images(tmp_path, monkeypatch):
    names, labels = ["$a_b$", "猫", "a name that goes on and on and on", ""], []
    for counts in (np.diag([3, 0, 2, 0]), np.zeros((4, 4), int)):
        assert shown(confusion_picture(counts, names, tmp_path / "odd.png"))[1] > 2
    refused("(4, 4)", confusion_picture, np.zeros((4, 4), int), names[:3], tmp_path / "wrong.png")
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: labels.extend(figure.axes[0].get_yticklabels()))
    with suppress(CrateError):  # nothing was written
        confusion_picture(np.eye(4, dtype=int), names, tmp_path / "names.png")
    texts = [label.get_text() for label in labels]
    assert texts == (["$a_b$", "猫", "a name that goes on and …", ""] if can_draw("猫") else ["1", "2", "3", "4"])


def test_notebooks_show_numbers_and_classes_as_tables():
    report = made_up(data="<b>set</b>", classes=2)
    html = report._repr_html_()
    assert "&lt;b&gt;set&lt;/b&gt;" in html
    assert "<b>" not in html
    assert html.count("<table") == 1, "a row for every class"
    assert "class 1" in html
    assert f"top-1 {report.top1:.2%}" in html
    splits = {"matched": {"loss": 0.25, "accuracy": 0.75, "rows": 4}, "mismatched": {"loss": 0.5, "accuracy": 0.5}}
    html = SentenceReport("mnli", splits)._repr_html_()
    assert all(word in html for word in ("matched", "mismatched", "0.75"))


@pytest.mark.parametrize(
    ("report", "metrics"),
    [
        (
            MaskedReport(cross_entropy=2.5, perplexity=float("inf"), accuracy=0.25, tokens=7, block=13, seconds=1.0),
            {"cross_entropy": 2.5, "accuracy": 0.25},
        ),
        (
            SentenceReport("sst2", {"validation": {"loss": 0.5, "accuracy": 0.75, "rows": 4}}),
            {"loss": 0.5, "accuracy": 0.75},
        ),
    ],
    ids=["masked", "sentences"],
)
def test_other_reports_save_their_numbers_and_name_their_metrics(tmp_path, report, metrics):
    assert report.save(tmp_path / "out") == tmp_path / "out"
    stored = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert stored == report.to_dict()
    assert report.metrics == metrics
    assert stored.get("perplexity") is None, "infinity is no number in JSON"


assert LambadaReport in subclasses(EvaluationReport)  # evaluation is imported
REPORTS = [kind for kind in subclasses(EvaluationReport) if "metrics" not in vars(kind)]


@pytest.mark.parametrize("kind", REPORTS, ids=lambda kind: kind.__name__)
def test_metrics_are_the_numbers_that_are_neither_counts_nor_times(kind):
    hints = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    values = {"int": 7, "float": 0.5, "str": "word", "dict": {}, "list": [], "tuple": ()}
    report = kind(**{name: values.get(re.match(r"\w+", hint)[0]) for name, hint in hints.items()})
    numbers = {name for name, hint in hints.items() if hint.startswith("float")}
    assert report.metrics == dict.fromkeys(numbers - {"seconds", "images_per_second"}, 0.5)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_reconstruction_is_drawn_in_rows_of_three_pictures(tmp_path, channels):
    """Normalized pixels (batch, channels, 5, 5) become pictures again, without blur."""
    bytes_ = torch.randint(0, 256, (3, 2, channels, 5, 5))
    augment = Augment(channels=channels, mean=(0.5,) * channels, std=(0.25,) * channels)
    result = Reconstruction(["a", "b"], [0.5, 1.5], [*((bytes_ / 255 - 0.5) / 0.25)], augment)
    assert result.loss == 1.0
    found = np.stack([[np.asarray(picture) for picture in row] for row in result.pictures()])
    np.testing.assert_array_equal(found, bytes_.permute(1, 0, 3, 4, 2).squeeze(-1).numpy())
    assert result.save(tmp_path / "sheet.png", scale=7) == tmp_path / "sheet.png"
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape == (20 + 2 * (35 + 8), 3 * 35 + 4 * 8, 3)
    third = sheet[20 + 43 : 20 + 43 + 35, 8 + 2 * 43 : 8 + 2 * 43 + 35]
    expected = bytes_[2, 1].permute(1, 2, 0).numpy().repeat(7, 0).repeat(7, 1)
    np.testing.assert_array_equal(third, np.broadcast_to(expected, (35, 35, 3)))
