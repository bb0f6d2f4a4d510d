"""ImageNet ReaL: any fitting label counts, images without one do not, and files are found by their number."""

import json

import numpy as np
import pytest

from codingrate.data import balanced_indices, load_images
from codingrate.evaluation import read_real_labels, real_accuracy
from tests.data.conftest import picture
from tests.refusals import refused

from .conftest import GRAY, RGB, Fixed, Linear, evaluate, image_task, one_hot


def evaluate_real(model, data, augment, labels, *, max_corrupt=0.01, **reading):
    return image_task(data, augment, max_corrupt=max_corrupt).evaluate_real(model, labels, **reading)


def written(tmp_path, labels):
    path = tmp_path / "real.json"
    path.write_text(json.dumps(labels))
    return path


def test_by_hand():
    labels = [[3], [1, 2], [], [0, 4], [2]]
    assert real_accuracy(np.array([3, 2, 9, 1, 2]), labels) == 3 / 4
    assert real_accuracy([0, 0, 0, 0, 0], labels) == 1 / 4
    refused("5", real_accuracy, [1, 2], labels)
    refused("none", real_accuracy, [1], [[]])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"nothing", ""), (b'{"1": [2]}', ""), (b"[[1], 2]", "index 1"), (b'[[1], ["cat"]]', "index 1"),
        (b"[[1], [true]]", "index 1"), (b"[[1], [4, 5]]", "label 5 at index 1"), (b"[[-1], [4]]", "index 0"),
        (b"[[1]]", "2"), (b"\xff\xfe\x00", ""), (None, ""),
    ],
)  # fmt: skip
def test_files_that_are_not_real_labels(tmp_path, content, words):
    path = tmp_path / "real.json"
    if content is not None:
        path.write_bytes(content)
    assert str(path) in refused(words, read_real_labels, path, images=2, classes=5)


def test_labels_without_bounds_are_read(tmp_path):
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
    folder, stream = imagenet_like(tmp_path), load_images("digits", streaming=True)
    whole = load_images(str(folder))
    picture(0).save(folder / "n01" / "cat.png")
    for words, data, augment, classes, labels in (
        ("7", digits, GRAY, 7, [[1]] * 359), ("359", digits, GRAY, 10, [[1]] * 3),
        ("label 10 at index 0", digits, GRAY, 10, [[10]] * 359), ("streaming", stream, GRAY, 10, [[1]] * 359),
        ("ILSVRC2012_val", whole, RGB, 2, [[1]] * 2),
        ("image 3", load_images(str(folder), test_share=1), RGB, 2, [[1]] * 6),
    ):  # fmt: skip
        refused(words, evaluate_real, Linear(classes), data, augment, written(tmp_path, labels))
