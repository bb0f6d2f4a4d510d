"""A probe's report, and the sets of features no probe should accept."""

import json

import numpy as np
import pytest

from codingrate.errors import CrateError
from codingrate.evaluation import knn_probe, logistic_probe, probe_features
from codingrate.evaluation.probe import probe_steps

from .probes import features, gaussian

TRAIN, TEST = gaussian(211, 5, 7, seed=1), gaussian(53, 5, 7, seed=2)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("knn", {}),
        ("knn", {"ks": [7]}),
        ("logistic", {}),
        ("logistic", {"strengths": [0.1, 1.0], "folds": 3}),
    ],
)
def test_reports_what_the_method_found(tmp_path, method, options):
    heard = []
    report = probe_features(TRAIN, TEST, method, progress=heard.append, about={"data": "toy"}, **options)
    result = (knn_probe if method == "knn" else logistic_probe)(TRAIN, TEST, **options)
    assert report.metrics == {"top1": result.top1, "top5": result.top5, "train_top1": result.train_top1}
    assert report.chosen == ({"k": result.k} if method == "knn" else {"C": result.C})
    assert report.table == result.table
    assert (report.images, report.width, report.method) == ({"train": 211, "test": 53}, 5, method)
    assert report.seconds > 0
    assert report.to_json()["about"] == {"data": "toy"}
    assert sum(heard) == probe_steps(211, 53, method, options)
    assert json.loads(report.save(tmp_path / "new" / "probe.json").read_text()) == report.to_json()


def test_notes_say_what_did_not_converge_and_what_lies_at_the_edge():
    report = probe_features(TRAIN, TEST, "logistic", strengths=[0.1, 1.0], iterations=2)
    assert report.notes[0] == "not converged in cross-validation: C = 0.1, 1"
    assert "did not converge" in report.notes[1]
    assert "edge of the grid" in report.notes[2]
    assert probe_features(TRAIN, TEST, "knn").notes == ()


def test_an_unknown_method():
    with pytest.raises(CrateError, match="unknown method 'knm'; did you mean 'knn'"):
        probe_features(TRAIN, TEST, "knm")


def some(part, rows, **changes):
    values = {"values": part.values[rows], "labels": part.labels[rows], "classes": part.classes, **changes}
    return features(**values)


ONE = np.flatnonzero(TRAIN.labels == 4)
NOT_FOUR = np.flatnonzero(TRAIN.labels != 4)
DIVERGED = np.where(np.arange(5) == 3, np.nan, TEST.values)


@pytest.mark.parametrize("method", ["knn", "logistic"])
@pytest.mark.parametrize(
    ("train", "test", "match"),
    [
        (some(TRAIN, slice(0)), TEST, "the training features are empty"),
        (TRAIN, some(TEST, slice(0)), "the test features are empty"),
        (some(TRAIN, ONE), TEST, "one class only \\('class 4'\\)"),
        (some(TRAIN, NOT_FOUR), TEST, "test class 'class 4' is in no training image"),
        (TRAIN, some(TEST, slice(None), classes=tuple("abcdefg")), "other classes: 7 .*class 0.* and 7 \\(a, b, c"),
        (TRAIN, gaussian(53, 5, 3), "other classes: 7 .* and 3"),
        (TRAIN, some(TEST, slice(None), values=TEST.values[:, :3]), "are 5 and 3 wide"),
        (TRAIN, some(TEST, slice(None), labels=TEST.labels + 1), "test label 7 is outside the 7 classes"),
        (TRAIN, some(TEST, slice(None), labels=TEST.labels[:9]), r"not \(53, 5\) with \(9,\)"),
        (TRAIN, some(TEST, slice(None), values=DIVERGED), "the test features are not all finite"),
    ],
)
def test_what_cannot_be_probed_is_refused(method, train, test, match):
    with pytest.raises(CrateError, match=match) as caught:
        probe_features(train, test, method)
    assert "\n" not in str(caught.value)
