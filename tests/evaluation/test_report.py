"""Reports of tasks: complete files only, numbers that can be read back, and pictures that show something."""

import csv
import dataclasses
import json
import re
import subprocess
import sys
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
    assert made_up(6, top5=0.9).to_dict()["top5"] == 0.9
    assert "confusion" in made_up(100).to_dict()
    assert "confusion" not in made_up(101).to_dict()
    assert "confusion" not in made_up(confusion=None).to_dict()
    assert made_up(loss=float("inf")).to_dict()["loss"] is None


def test_saves_four_files_and_no_leftovers(tmp_path, digits):
    report = evaluate(Linear(digits.classes), digits)
    folder = tmp_path / "run" / "evaluation"
    for _ in range(2):  # the second time over the first
        assert report.save(folder) == folder
    names = {"metrics.json", "per_class.csv", "confusion.csv", "confusion.png"}
    assert {path.name for path in folder.iterdir()} == names
    assert json.loads((folder / "metrics.json").read_text()) == report.to_dict()
    with (folder / "confusion.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head[1:] == list(digits.classes) == [row[0] for row in rows]
    assert np.array_equal(np.array([row[1:] for row in rows], int), report.confusion)
    with (folder / "per_class.csv").open(newline="") as file:
        assert [float(row["accuracy"]) for row in csv.DictReader(file)] == [r["accuracy"] for r in report.per_class]
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
    with pytest.raises(CrateError, match=r"cannot write .*confusion\.png: No space left on device"):
        made_up().save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(CrateError, match="cannot write"):
        made_up().save(tmp_path / "metrics.json" / "below")


@pytest.mark.parametrize("classes", [2, 37, 1000, pytest.param(1500, marks=pytest.mark.slow)])
def test_pictures_of_any_number_of_classes(tmp_path, classes):
    counts = np.random.RandomState(0).poisson(np.eye(classes) * 20 + 1 / classes)
    (width, height), colors = shown(confusion_picture(counts, [f"name {i}" for i in range(classes)], tmp_path / "p"))
    assert max(width, height) < 1400
    assert colors > 10


def test_pictures_take_any_name_and_classes_without_images(tmp_path, monkeypatch):
    names = ["$a_b$", "猫", "a name that goes on and on and on", ""]
    assert shown(confusion_picture(np.diag([3, 0, 2, 0]), names, tmp_path / "odd.png"))[1] > 2
    assert shown(confusion_picture(np.zeros((4, 4), int), names, tmp_path / "none.png"))[1] > 2
    with monkeypatch.context() as patch:
        labels = []
        patch.setattr(Figure, "savefig", lambda figure, *_, **__: labels.extend(figure.axes[0].get_yticklabels()))
        with suppress(CrateError):  # nothing was written
            confusion_picture(np.eye(4, dtype=int), names, tmp_path / "names.png")
    texts = [label.get_text() for label in labels]
    assert texts == (["$a_b$", "猫", "a name that goes on and …", ""] if can_draw("猫") else ["1", "2", "3", "4"])
    with pytest.raises(CrateError, match=r"of 3 classes must be square, not \(4, 4\)"):
        confusion_picture(np.zeros((4, 4), int), names[:3], tmp_path / "wrong.png")


@pytest.mark.slow  # a fresh process imports torch and scikit-learn
def test_matplotlib_waits_for_a_picture_and_keeps_no_global_state():
    code = """if True:
        import sys, tempfile
        from codingrate.tasks.reports import ClassificationReport, confusion_picture
        assert "matplotlib" not in sys.modules
        confusion_picture([[1, 0], [1, 2]], "ab", tempfile.mkdtemp() + "/p.png")
        import matplotlib
        assert matplotlib.get_backend(auto_select=False) is None, "no backend was chosen for the user"
        import matplotlib.pyplot
        assert matplotlib.pyplot.get_fignums() == [], "no figure stays open"
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr


def test_notebooks_show_numbers_and_classes_as_tables():
    report = made_up(data="<b>set</b>", classes=2)
    html = report._repr_html_()
    assert "&lt;b&gt;set&lt;/b&gt;" in html
    assert "<b>" not in html
    assert html.count("<table") == 2, "the numbers, and a row for every class"
    assert "class 1" in html
    splits = {"matched": {"loss": 0.25, "accuracy": 0.75, "rows": 4}, "mismatched": {"loss": 0.5, "accuracy": 0.5}}
    html = SentenceReport("mnli", splits)._repr_html_()
    assert all(word in html for word in ("matched", "mismatched", "0.75"))


def test_other_reports_save_their_numbers_and_name_their_metrics(tmp_path):
    masked = MaskedReport(cross_entropy=2.5, perplexity=float("inf"), accuracy=0.25, tokens=7, block=13, seconds=1.0)
    assert masked.save(tmp_path / "masked") == tmp_path / "masked"
    stored = json.loads((tmp_path / "masked" / "metrics.json").read_text())
    assert stored == masked.to_dict()
    assert (stored["cross_entropy"], stored["perplexity"], stored["tokens"]) == (2.5, None, 7)
    assert masked.metrics == {"cross_entropy": 2.5, "accuracy": 0.25}
    sentences = SentenceReport("sst2", {"validation": {"loss": 0.5, "accuracy": 0.75, "rows": 4}})
    sentences.save(tmp_path / "sentences")
    assert json.loads((tmp_path / "sentences" / "metrics.json").read_text())["splits"] == sentences.splits
    assert sentences.metrics == {"loss": 0.5, "accuracy": 0.75}


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
    draw = torch.Generator().manual_seed(0)
    bytes_ = [torch.randint(0, 256, (2, channels, 5, 5), generator=draw) for _ in range(3)]
    augment = Augment(channels=channels, mean=(0.5,) * channels, std=(0.25,) * channels)
    result = Reconstruction(["a", "b"], [0.5, 1.5], [(part / 255 - 0.5) / 0.25 for part in bytes_], augment)
    assert result.loss == 1.0
    rows = result.pictures()
    for row, (left, middle, right) in enumerate(rows):
        for picture, part in ((left, bytes_[0]), (middle, bytes_[1]), (right, bytes_[2])):
            expected = part[row].permute(1, 2, 0).squeeze(-1).numpy()
            np.testing.assert_array_equal(np.asarray(picture), expected)
    assert result.save(tmp_path / "sheet.png", scale=7) == tmp_path / "sheet.png"
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape == (20 + 2 * (35 + 8), 3 * 35 + 4 * 8, 3)
    third = sheet[20 + 43 : 20 + 43 + 35, 8 + 2 * 43 : 8 + 2 * 43 + 35]
    expected = bytes_[2][1].permute(1, 2, 0).numpy().repeat(7, 0).repeat(7, 1)
    np.testing.assert_array_equal(third, np.broadcast_to(expected, (35, 35, 3)))
