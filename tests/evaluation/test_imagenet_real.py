"""ImageNet ReaL: any fitting label counts, images without one do not, and files are found by their number."""

import json
import re

import numpy as np
import pytest

from codingrate.data import balanced_indices, load_images
from codingrate.errors import CrateError
from codingrate.evaluation import read_real_labels, real_accuracy
from tests.data.conftest import picture

from .conftest import GRAY, RGB, Fixed, Linear, evaluate, image_task, one_hot


def evaluate_real(model, data, augment, labels, *, max_corrupt=0.01, **reading):
    return image_task(data, augment, max_corrupt=max_corrupt).evaluate_real(model, labels, **reading)


def written(tmp_path, labels):
    path = tmp_path / "real.json"
    path.write_text(labels if isinstance(labels, str) else json.dumps(labels))
    return path


def test_by_hand():
    labels = [[3], [1, 2], [], [0, 4], [2]]
    assert real_accuracy(np.array([3, 2, 9, 1, 2]), labels) == 3 / 4
    assert real_accuracy([0, 0, 0, 0, 0], labels) == 1 / 4
    with pytest.raises(CrateError, match="2 predictions, but ReaL labels for 5"):
        real_accuracy([1, 2], labels)
    with pytest.raises(CrateError, match="none of the images"):
        real_accuracy([1], [[]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nothing", "is not a list of labels per image (Invalid JSON"),
        ('{"1": [2]}', "Input should be a valid array)"),
        ("[[1], 2]", "Input should be a valid array at index 1)"),
        ('[[1], ["cat"]]', "Input should be a valid integer at index 1); use real.json"),
        ("[[1], [true]]", "Input should be a valid integer at index 1)"),
        ("[[1], [4, 5]]", "has label 5 at index 1, which is outside the 5 classes"),
        ("[[-1], [4]]", "greater than or equal to 0 at index 0"),
        ("[[1]]", "has labels for 1 images, but the dataset has 2"),
    ],
)
def test_files_that_are_not_real_labels(tmp_path, content, message):
    with pytest.raises(CrateError, match=re.escape(message)):
        read_real_labels(written(tmp_path, content), images=2, classes=5)


def test_files_that_are_not_there_or_not_text(tmp_path):
    with pytest.raises(CrateError, match="cannot read the ReaL labels"):
        read_real_labels(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CrateError, match="Invalid JSON"):
        read_real_labels(tmp_path / "binary")
    assert read_real_labels(written(tmp_path, [[999], []])) == [[999], []]


def test_rows_without_names_go_by_their_order(tmp_path, digits):
    labels = list(digits.test["label"])
    fitting = [[] if row % 5 == 0 else [label, (label + 1) % 10] for row, label in enumerate(labels)]
    guesses = [(label + row // 2 % 3) % 10 for row, label in enumerate(labels)]  # right, next one, wrong
    path = written(tmp_path, fitting)
    report = evaluate_real(Fixed(one_hot(guesses, 10)), digits, GRAY, path)
    counted = [row // 2 % 3 < 2 for row in range(len(labels)) if row % 5]
    assert report.real_top1 == pytest.approx(np.mean(counted))
    assert report.top1 == pytest.approx(np.mean([row // 2 % 3 == 0 for row in range(len(labels))]))
    assert evaluate(Fixed(one_hot(guesses, 10)), digits).real_top1 is None
    rows = balanced_indices(np.array(labels), 40)
    part = Fixed(one_hot([guesses[row] for row in rows], 10))
    counted = [row // 2 % 3 < 2 for row in rows if row % 5]
    assert evaluate_real(part, digits, GRAY, path, limit=40).real_top1 == pytest.approx(np.mean(counted))


def imagenet_like(tmp_path):
    """Six validation files in class folders, so that rows are not in the order of their numbers."""
    for name, numbers in {"n01": (2, 5, 6), "n02": (1, 3, 4)}.items():
        (tmp_path / "val" / name).mkdir(parents=True)
        for number in numbers:
            picture(number).save(tmp_path / "val" / name / f"ILSVRC2012_val_{number:08}.png")
    return tmp_path / "val"


def test_validation_files_go_by_their_number_around_corrupt_ones(tmp_path):
    folder = imagenet_like(tmp_path)
    path = written(tmp_path, [[1], [0], [0], [], [0, 1], [1], [0]])  # of files 1 … 7
    data = load_images(str(folder), test_share=1)
    guesses = [0, 1, 0, 1, 1, 0]  # rows are files 2, 5, 6, 1, 3, 4: right, right, wrong, right, wrong, not counted
    assert evaluate_real(Fixed(one_hot(guesses, 2)), data, RGB, path).real_top1 == 3 / 5
    (folder / "n01" / "ILSVRC2012_val_00000005.png").write_bytes(b"")
    del guesses[1]
    report = evaluate_real(Fixed(one_hot(guesses, 2)), data, RGB, path, max_corrupt=0.5, batch_size=4)
    assert report.real_top1 == 2 / 4


def test_labels_that_do_not_go_with_the_data(tmp_path, digits):
    def refused(match, data, augment, labels):
        with pytest.raises(CrateError, match=match):
            evaluate_real(Linear(len(data.classes)), data, augment, written(tmp_path, labels))

    with pytest.raises(CrateError, match="the model has 7 classes, but digits has 10"):
        evaluate_real(Linear(7), digits, GRAY, written(tmp_path, [[1]] * 359))
    refused("has labels for 3 images, but the dataset has 359", digits, GRAY, [[1]] * 3)
    refused("label 10 at index 0, which is outside the 10 classes", digits, GRAY, [[10]] * 359)
    refused("without streaming", load_images("digits", streaming=True), GRAY, [[1]] * 359)
    folder = imagenet_like(tmp_path)
    refused("has labels for 2 images, but the dataset has ILSVRC2012_val", load_images(str(folder)), RGB, [[1]] * 2)
    picture(0).save(folder / "n01" / "cat.png")
    refused("image 3 of .* has no name like", load_images(str(folder), test_share=1), RGB, [[1]] * 6)
