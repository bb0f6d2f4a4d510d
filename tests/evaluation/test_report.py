"""What is written down: whole files only, numbers that can be read back, pictures that show something."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from codingrate.errors import CrateError
from codingrate.evaluation import ClassificationReport, classify, confusion_picture

from .conftest import GREY, Linear


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
    """An image is worth opening: its size, and how many colours it has."""
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert min(image.size) > 100
        return image.size, len(image.convert("RGB").getcolors(image.width * image.height))


def test_json_reads_back_and_leaves_large_matrices_out():
    values = json.loads(json.dumps(made_up().to_json(), allow_nan=False))
    assert values["confusion"] == [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert (values["corrupt"], values["top5"], values["per_class"][1]["class"]) == (["a.png"], None, "class 1")
    assert "confusion" in made_up(100).to_json()
    assert "confusion" not in made_up(101).to_json()
    assert "confusion" not in made_up(confusion=None).to_json()
    assert made_up(loss=float("inf")).to_json()["loss"] is None


def test_saves_four_files_and_no_leftovers(tmp_path, digits):
    report = classify(Linear(10), digits, GREY)
    folder = tmp_path / "run" / "evaluation"
    for _ in range(2):  # the second time over the first
        written = report.save(folder)
    names = {"metrics.json", "per_class.csv", "confusion.csv", "confusion.png"}
    assert {path.name for path in folder.iterdir()} == names == {path.name for path in written}
    assert json.loads((folder / "metrics.json").read_text()) == report.to_json()
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


@pytest.mark.parametrize("classes", [2, 37, 1000, 1500])
def test_pictures_of_any_number_of_classes(tmp_path, classes):
    counts = np.random.RandomState(0).poisson(np.eye(classes) * 20 + 1 / classes)
    (width, height), colours = shown(confusion_picture(counts, [f"name {i}" for i in range(classes)], tmp_path / "p"))
    assert max(width, height) < 1400
    assert colours > 10


def test_pictures_take_any_name_and_classes_without_images(tmp_path):
    names = ["$a_b$", "猫", "a name that goes on and on and on", ""]
    assert shown(confusion_picture(np.diag([3, 0, 2, 0]), names, tmp_path / "odd.png"))[1] > 2
    assert shown(confusion_picture(np.zeros((4, 4), int), names, tmp_path / "none.png"))[1] > 2
    with pytest.raises(CrateError, match=r"of 3 classes is square, not \(4, 4\)"):
        confusion_picture(np.zeros((4, 4), int), names[:3], tmp_path / "wrong.png")


def test_matplotlib_waits_for_a_picture_and_pyplot_stays_out():
    code = """if True:
        import sys, tempfile
        from codingrate.evaluation import ClassificationReport, classify, confusion_picture
        assert "matplotlib" not in sys.modules
        confusion_picture([[1, 0], [1, 2]], "ab", tempfile.mkdtemp() + "/p.png")
        assert "matplotlib.pyplot" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
