"""Accuracy against scikit-learn's, whatever the batch, the source and the files that cannot be read."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, top_k_accuracy_score

from codingrate.data import load_images
from codingrate.errors import CrateError
from codingrate.evaluation import classify
from tests.data.conftest import write_classes

from .conftest import GREY, RGB, Fixed, Linear, answers, one_hot, tiny


@pytest.mark.parametrize("split", ["test", "train"])
@pytest.mark.parametrize("build", [lambda: Linear(10), lambda: tiny().eval()], ids=["linear", "crate"])
def test_agrees_with_scikit_learn(digits, build, split):
    model = build()
    logits, labels = answers(model, digits, GREY, split)
    guesses, every = logits.argmax(1), range(10)
    report = classify(model, digits, GREY, split=split)
    assert (report.data, report.split, report.images, report.corrupt) == ("digits", split, len(labels), ())
    assert report.top1 == pytest.approx(accuracy_score(labels, guesses), abs=1e-12)
    assert report.top5 == pytest.approx(top_k_accuracy_score(labels, logits, k=5, labels=every), abs=1e-12)
    confusion = confusion_matrix(labels, guesses, labels=every)
    assert np.array_equal(report.confusion, confusion)
    probabilities = torch.from_numpy(logits).softmax(1).numpy()
    assert report.loss == pytest.approx(log_loss(labels, probabilities, labels=every), rel=1e-5)  # float32 logits
    for index, row in enumerate(report.per_class):
        assert (row["class"], row["images"]) == (str(index), confusion[index].sum())
        assert row["accuracy"] == pytest.approx(confusion[index, index] / confusion[index].sum(), abs=1e-12)
    assert report.images_per_second == pytest.approx(report.images / report.seconds)


def test_neither_batch_size_nor_workers_matter(digits):
    model = Linear(10)
    first = classify(model, digits, GREY, batch_size=359)
    for batch_size, workers in ((7, 0), (64, 2), (1, 0)):
        other = classify(model, digits, GREY, batch_size=batch_size, workers=workers)
        assert np.array_equal(other.confusion, first.confusion)
        assert other.top5 == first.top5
        assert other.loss == pytest.approx(first.loss, rel=1e-6)


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_are_measured_like_rows(digits, workers):
    model = Linear(10)
    whole = classify(model, load_images("digits", test_share=1), GREY)
    stream = load_images("digits", streaming=True)
    parts = [classify(model, stream, GREY, split=split, workers=workers) for split in ("train", "test")]
    assert np.array_equal(parts[0].confusion + parts[1].confusion, whole.confusion)
    assert classify(model, stream, GREY, limit=13, workers=workers).images == 13


def test_few_classes_have_no_top_five_and_ties_go_where_topk_puts_them(tmp_path):
    data = load_images(str(write_classes(tmp_path / "set", {"ant": 3, "bee": 4, "cat": 2})), test_share=1)
    flat = torch.zeros(9, 3)
    report = classify(Fixed(flat), data, RGB, batch_size=9)
    assert report.top5 is None
    assert report.confusion[:, flat.topk(3).indices[0, 0]].tolist() == [3, 4, 2]
    assert report.loss == pytest.approx(np.log(3))


def test_a_class_without_images_has_no_accuracy(digits):
    some = dataclasses.replace(digits, test=digits.test.filter(lambda row: row["label"] != 4))
    row = classify(Linear(10), some, GREY).per_class[4]
    assert row == {"class": "4", "images": 0, "accuracy": None}


def test_a_limit_is_spread_over_the_split(tmp_path):
    data = load_images(str(write_classes(tmp_path / "set", {"ant": 10, "bee": 10, "cat": 10})), test_share=1)
    report = classify(Linear(3, 3 * 49), data, RGB, limit=6)
    assert report.confusion.sum(1).tolist() == [2, 2, 2]
    assert classify(Linear(3, 3 * 49), data, RGB, limit=99).images == 30


def test_a_limit_takes_every_class_when_they_come_in_turn(tmp_path):
    """Ten rows that go round two classes: every other row would be of one class only."""
    data = load_images(str(write_classes(tmp_path / "set", {"ant": 10, "bee": 10})), test_share=1)
    turns = dataclasses.replace(data, test=data.test.select([row // 2 + 10 * (row % 2) for row in range(20)]))
    assert turns.test["label"][:4] == [0, 1, 0, 1]
    assert classify(Linear(2, 3 * 49), turns, RGB, limit=10).confusion.sum(1).tolist() == [5, 5]


@pytest.mark.parametrize("streaming", [False, True])
def test_corrupt_images_are_left_out_and_named(tmp_path, streaming):
    folder = write_classes(tmp_path / "set", {"ant": 8, "bee": 8})
    broken = [folder / "ant" / "003.png", folder / "bee" / "000.png"]
    for file in broken:
        file.write_bytes(b"no image")
    data = load_images(str(folder), test_share=1, streaming=streaming)
    heard = []
    report = classify(Linear(2, 3 * 49), data, RGB, batch_size=5, max_corrupt=0.2, progress=heard.append)
    assert sorted(report.corrupt) == sorted(map(str, broken))
    assert (report.images, report.confusion.sum(1).tolist(), sum(heard)) == (14, [7, 7], 16)
    with pytest.raises(CrateError, match="2 of 16 images cannot be read"):
        classify(Linear(2, 3 * 49), data, RGB)


def test_a_batch_of_corrupt_images_is_skipped_and_a_set_of_them_refused(tmp_path):
    folder = write_classes(tmp_path / "set", {"ant": 4, "bee": 4})
    data = load_images(str(folder), test_share=1)
    for file in (folder / "ant").iterdir():
        file.write_bytes(b"")
    report = classify(Fixed(one_hot([1, 1, 1, 0], 2)), data, RGB, batch_size=4, max_corrupt=0.5)
    assert report.confusion.tolist() == [[0, 0], [1, 3]]
    for file in (folder / "bee").iterdir():
        file.write_bytes(b"")
    with pytest.raises(CrateError, match="all 8 images cannot be read"):
        classify(Linear(2), data, RGB, max_corrupt=1)


def test_the_model_runs_in_eval_mode_and_is_given_back_as_it_was(digits):
    model = Linear(10).train()
    model.map.eval()  # a frozen part
    classify(model, digits, GREY, limit=20)
    assert set(model.modes) == {(False, True)}
    assert (model.training, model.map.training) == (True, False)
    broken = Linear(10, pixels=63).train()
    with pytest.raises(RuntimeError):
        classify(broken, digits, GREY)
    assert broken.training


def test_training_goes_on_after_an_evaluation(digits):
    model = tiny(dropout=0.5).train()
    classify(model, digits, GREY, limit=20)
    loss = model(pixel_values=torch.randn(2, 1, 8, 8), labels=torch.tensor([1, 2])).loss
    loss.backward()
    assert all(module.training for module in model.modules())
    assert model.head.weight.grad.abs().sum() > 0


def test_runs_in_the_models_own_precision_and_where_it_is_told(digits):
    report = classify(tiny().to(torch.bfloat16), digits, GREY, limit=20, device="cpu")
    assert 0 < report.loss < 10


def test_many_classes_have_no_confusion_matrix(digits, monkeypatch):
    monkeypatch.setattr("codingrate.evaluation._tally._LARGEST_CONFUSION", 9)
    report = classify(Linear(10), digits, GREY)
    right = sum(row["images"] * row["accuracy"] for row in report.per_class)
    assert report.confusion is None
    assert report.top1 == pytest.approx(right / report.images)
