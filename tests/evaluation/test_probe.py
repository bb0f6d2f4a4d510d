"""Probes: neighbors against loops in float64, regression against scikit-learn, and the features no probe accepts."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import top_k_accuracy_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from codingrate import create_model
from codingrate.evaluation import (
    BareFeatures,
    Features,
    in_coding_rate_metric,
    knn_probe,
    logistic_probe,
    neighbor_accuracy,
    probe,
    probe_features,
    probe_steps,
)
from codingrate.evaluation.probe import nearest_neighbors
from codingrate.objective import coding_rate
from tests.refusals import refused


def gaussian(count, width, classes, seed=0, spread=1.5):
    """Samples around one mean per class; the means are the same for every seed, and every class occurs."""
    means = np.random.RandomState(7).normal(size=(classes, width))
    draw = np.random.RandomState(seed)
    labels = np.concatenate([np.arange(classes), draw.randint(classes, size=count - classes)])
    values = means[labels] + spread * draw.normal(size=(count, width))
    return Features(values.astype(np.float32), labels, tuple(f"class {i}" for i in range(classes)))


def features(values, labels, classes=None):
    values, labels = np.asarray(values, np.float32), np.asarray(labels, np.int64)
    return Features(values, labels, classes or tuple(map(str, range(labels.max() + 1))))


TRAIN, TEST = gaussian(211, 5, 7, seed=1), gaussian(53, 5, 7, seed=2)

# reports


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("knn", {}),
        ("knn", {"ks": [7]}),
        ("logistic", {}),
        ("logistic", {"strengths": [0.1, 1.0], "folds": 3}),
    ],
)
def test_reports_are_complete_and_written_as_json(tmp_path, method, options):
    calls = []
    report = probe_features(TRAIN, TEST, method, progress=calls.append, about={"data": "toy"}, **options)
    result = (knn_probe if method == "knn" else logistic_probe)(TRAIN, TEST, **options)
    assert (report.metrics, report.chosen, report.table) == (result.metrics, result.chosen, result.table)
    assert list(report.metrics) == ["top1", "top5", "train_top1"]
    assert list(report.chosen) == ["k" if method == "knn" else "C"]
    assert (report.images, report.width, report.method) == ({"train": 211, "test": 53}, 5, method)
    assert report.seconds > 0
    assert report.to_dict()["about"] == {"data": "toy"}
    assert sum(calls) == probe_steps(211, 53, method, options)
    assert json.loads((report.save(tmp_path / "new") / "metrics.json").read_text()) == report.to_dict()


def test_notes_say_what_did_not_converge_and_what_lies_at_the_edge():
    report = probe_features(TRAIN, TEST, "logistic", strengths=[0.1, 1.0], iterations=2)
    assert report.notes[0] == "not converged in cross-validation: C = 0.1, 1"
    assert "did not converge" in report.notes[1]
    assert "edge of the grid" in report.notes[2]
    assert probe_features(TRAIN, TEST, "knn").notes == ()


def subset(part, rows, **changes):
    values = {"values": part.values[rows], "labels": part.labels[rows], "classes": part.classes, **changes}
    return features(**values)


ONE_CLASS = np.flatnonzero(TRAIN.labels == 4)
NOT_FOUR = np.flatnonzero(TRAIN.labels != 4)
DIVERGED = np.where(np.arange(5) == 3, np.nan, TEST.values)


UNUSABLE = [
    (subset(TRAIN, slice(0)), TEST, "the training features are empty"),
    (TRAIN, subset(TEST, slice(0)), "the test features are empty"),
    (subset(TRAIN, ONE_CLASS), TEST, "one class only ('class 4')"),
    (subset(TRAIN, NOT_FOUR), TEST, "test class 'class 4' has no training image"),
    (TRAIN, subset(TEST, slice(None), classes=tuple("abcdefg")), "class 1, class 2, …) and 7 (a, b, c, …)"),
    (TRAIN, gaussian(53, 5, 3), "have different classes: 7 (class 0, class 1, class 2, …) and 3"),
    (TRAIN, subset(TEST, slice(None), values=TEST.values[:, :3]), "have widths 5 and 3"),
    (TRAIN, subset(TEST, slice(None), labels=TEST.labels + 1), "test label 7 is outside the 7 classes"),
    (TRAIN, subset(TEST, slice(None), labels=TEST.labels[:9]), "not (53, 5) with (9,)"),
    (TRAIN, subset(TEST, slice(None), values=DIVERGED), "the test features are not all finite"),
]


def test_features_that_cannot_be_probed():
    for train, test, message in UNUSABLE:
        for method in ("knn", "logistic"):
            refused(message, probe_features, train, test, method)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("knm", {}, "unknown method 'knm'; did you mean 'knn'"),
        ("knn", {"ks": [10, 31]}, "31 training images are too few for k=31; use a k below 31"),
        ("knn", {"ks": [0, 5]}, "k is [0, 5]"),
        ("knn", {"ks": []}, "k is []"),
        ("knn", {"temperature": 0}, "temperature is 0"),
        ("knn", {"device": "gpu"}, "cannot use device 'gpu'"),
        ("knn", {"metric": "codingrate"}, "unknown metric 'codingrate'; did you mean 'coding-rate'"),
        *(
            ("logistic", options, "a logistic probe needs positive strengths")
            for options in (
                {"strengths": []}, {"strengths": [0, 1]}, {"folds": 1}, {"iterations": 0}, {"tolerance": 0}
            )
        ),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(method, options, message):
    refused(message, probe_features, gaussian(31, 5, 3), gaussian(11, 5, 3), method, **options)


# nearest neighbors


def naive(train, queries, k, leave_one_out, temperature=0.07):
    """Top-1 and top-5 accuracy by the definition, one query and one neighbor at a time."""
    z = train.values.astype(np.float64)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    correct = [0, 0]
    for number, (query, label) in enumerate(zip(queries.values.astype(np.float64), queries.labels, strict=True)):
        query = query / np.linalg.norm(query)
        others = [(-float(query @ z[i]), i) for i in range(len(z)) if not (leave_one_out and i == number)]
        votes = {}
        for minus, i in sorted(others)[:k]:
            votes[train.labels[i]] = votes.get(train.labels[i], 0.0) + math.exp(-minus / temperature)
        order = sorted(votes, key=lambda c: (-votes[c], c))
        correct[0] += order[0] == label
        correct[1] += label in order[:5]
    return correct[0] / len(queries), correct[1] / len(queries)


@pytest.fixture(params=[(1024, 16384), (13, 17)], ids=["one block", "many blocks"])
def _blocks(request, monkeypatch):
    for name, size in zip(("QUERY_BLOCK", "NEIGHBOR_BLOCK"), request.param, strict=True):
        monkeypatch.setattr(probe, name, size)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("classes", [3, 7])
def test_neighbors_agree_with_loops(classes):
    train, test = gaussian(211, 5, classes, seed=1), gaussian(53, 5, classes, seed=2)
    calls = []
    report = knn_probe(train, test, ks=[3, 11, 29, 101], progress=calls.append)
    for row in report.table:
        train_top1, _ = naive(train, train, row["k"], leave_one_out=True)
        top1, top5 = naive(train, test, row["k"], leave_one_out=False)
        assert (row["train_top1"], row["top1"]) == (pytest.approx(train_top1), pytest.approx(top1))
        assert row.get("top5") == (pytest.approx(top5) if classes > 5 else None)
    best = max(report.table, key=lambda row: (row["train_top1"], -row["k"]))
    assert {**report.chosen, **report.metrics} == best
    assert sum(calls) == 211 + 53
    assert 1 / classes + 0.1 < best["top1"] < 1, "neither chance nor trivial, or the comparison would show nothing"


@pytest.mark.usefixtures("_blocks")
def test_neighbors_within_a_split_do_not_include_the_image_itself():
    assert neighbor_accuracy(TRAIN) == pytest.approx(naive(TRAIN, TRAIN, 20, leave_one_out=True)[0])
    few = gaussian(12, 5, 7)
    assert neighbor_accuracy(few) == pytest.approx(naive(few, few, 11, leave_one_out=True)[0]), "all others"
    refused("there is a single image", neighbor_accuracy, features([[1.0]], [0]))


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("first", [None, 0, 3])
def test_nearest_are_in_order_the_earlier_of_equals_first(first):
    draw = np.random.RandomState(0)
    values = np.eye(8, dtype=np.float32)[draw.randint(3, size=61)]  # cosines 0 or 1, exactly
    queries = values[first or 0 :][:19]
    similarity, rows = nearest_neighbors(torch.from_numpy(queries), values, 43, first)
    for number, query in enumerate(queries):
        others = [i for i in range(61) if first is None or i != first + number]
        expected = sorted(others, key=lambda i: (-float(query @ values[i]), i))[:43]
        assert rows[number].tolist() == expected
        assert similarity[number].tolist() == [float(query @ values[i]) for i in expected]


@pytest.mark.usefixtures("_blocks")
def test_votes_are_weighted_by_similarity():
    degrees = np.deg2rad([0, 1, 40, 41, 42, 90])
    train = features(np.stack([np.cos(degrees), np.sin(degrees)], 1), [0, 0, 1, 1, 1, 2])
    test = features([[1.0, 0.01]], [0], train.classes)
    for temperature, top1, reason in (
        (0.07, 1, "two near neighbors outweigh three far ones"),
        (100, 0, "unless all weigh the same"),
        (1e-5, 1, "the exponential must not overflow"),
    ):
        assert knn_probe(train, test, ks=[5], temperature=temperature).metrics["top1"] == top1, reason


def test_ties_go_to_the_lower_class_and_the_smaller_k():
    train = features([[1, 0], [1, 0], [0, 1], [0, 1]], [1, 0, 2, 1])
    test = features([[1, 0], [0, 1]], [0, 1], train.classes)
    metrics = knn_probe(train, test, ks=[2]).metrics
    assert (metrics["top1"], metrics["train_top1"]) == (1, None), "for a single k there is nothing to choose"
    separated = features([[1, 0], [2, 0], [3, 0], [0, 1], [0, 2], [0, 3]], [0, 0, 0, 1, 1, 1])
    assert knn_probe(separated, separated, ks=[2, 1]).chosen == {"k": 1}


def test_a_class_without_a_vote_is_not_among_five():
    train = features(np.eye(7), np.arange(7))
    test = features([[1, 0.1, 0, 0, 0, 0, 0]], [2], train.classes)
    assert [knn_probe(train, test, ks=[k]).metrics["top5"] for k in (2, 3)] == [0, 1]


def test_length_does_not_matter_and_zero_has_no_direction():
    train, test = gaussian(97, 5, 3, seed=1), gaussian(31, 5, 3, seed=2)
    scale = np.random.RandomState(0).uniform(0.1, 10, (97, 1)).astype(np.float32)
    scaled = features(train.values * scale, train.labels, train.classes)
    assert knn_probe(scaled, test, ks=[7, 13]).table == knn_probe(train, test, ks=[7, 13]).table
    zeros = features(np.zeros((97, 5)), train.labels, train.classes)
    assert 0 < knn_probe(zeros, test, ks=[96]).metrics["top1"] < 1


@pytest.mark.usefixtures("_blocks")
def test_the_metric_is_that_of_the_gradient_of_the_coding_rate():
    mapped, other = in_coding_rate_metric(TRAIN, TEST)
    centered = torch.tensor(TRAIN.values).double()
    mean, size = centered.mean(dim=0), (centered - centered.mean(dim=0)).square().sum(dim=1).mean().sqrt()
    z = ((centered - mean) / size).requires_grad_()
    (gradient,) = torch.autograd.grad(coding_rate(z), z)  # α M z_i in its rows
    alpha = z.shape[1] / (z.shape[0] * 0.5**2)
    for found, source in ((mapped, TRAIN), (other, TEST)):
        products = torch.tensor(found.values).double() @ torch.tensor(mapped.values).double().T / size**2
        expected = (torch.tensor(source.values).double() - mean) / size @ gradient.T / alpha
        torch.testing.assert_close(products, expected, rtol=1e-4, atol=1e-6)


def test_in_the_metric_of_the_coding_rate_neither_a_shift_nor_a_scale_nor_a_rotation_matters():
    rotation = np.linalg.qr(np.random.RandomState(3).normal(size=(5, 5)))[0]
    moved = [features(3 * part.values @ rotation + 7, part.labels, part.classes) for part in (TRAIN, TEST)]
    plain, metric = ([knn_probe(*pair, metric=name) for pair in ((TRAIN, TEST), moved)] for name in probe.METRICS)
    assert metric[0].table == metric[1].table
    assert plain[0].table != plain[1].table != metric[1].table


def test_features_that_have_no_metric_of_the_coding_rate(monkeypatch):
    constant = features(np.ones((11, 5)), np.arange(11) % 3)
    refused("all training features are equal", in_coding_rate_metric, constant, constant)
    monkeypatch.setattr(probe, "WIDEST", 4)
    refused("features of width 5 are too wide for the coding-rate metric", in_coding_rate_metric, TRAIN, TEST)


def test_the_grid_is_cut_to_the_samples():
    train, test = gaussian(101, 5, 3, seed=1), gaussian(11, 5, 3, seed=2)
    assert [row["k"] for row in knn_probe(train, test).table] == [10, 20, 100]
    assert [row["k"] for row in knn_probe(train, test, ks=[5, 2, 5]).table] == [2, 5]
    refused("10 training images are too few for k=10", knn_probe, gaussian(10, 5, 3), test)


# logistic regression

EXACT = {"tolerance": 1e-9, "iterations": 10_000}


def pipeline(strength):
    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, tol=1e-9, max_iter=10_000))


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_is_scikit_learns_regression_at_the_chosen_strength(classes):
    train, test = gaussian(211, 5, classes, seed=1), gaussian(97, 5, classes, seed=2)
    calls = []
    report = logistic_probe(train, test, progress=calls.append, **EXACT)
    model = pipeline(report.chosen["C"]).fit(train.values.astype(np.float64), train.labels)
    x = test.values.astype(np.float64)
    expected = {
        "top1": pytest.approx(model.score(x, test.labels)),
        "train_top1": pytest.approx(model.score(train.values.astype(np.float64), train.labels)),
    }
    if classes > 5:
        top5 = top_k_accuracy_score(test.labels, model.decision_function(x), k=5)
        expected["top5"] = pytest.approx(top5)
    assert report.metrics == expected
    assert calls == [1] * 36, "seven strengths in five folds, and the final fit"
    assert not any("converge" in note for note in report.notes)
    assert report.metrics["top1"] > 1.5 / classes


def test_of_equally_good_strengths_the_smallest_is_chosen():
    labels = [0, 1] * 10
    separated = features([[10.0 * label + index % 3] for index, label in enumerate(labels)], labels)
    report = logistic_probe(separated, separated, strengths=[100.0, 1.0, 10.0])
    assert [row["validation_top1"] for row in report.table] == [1, 1, 1]
    assert report.chosen == {"C": 1.0}


def test_the_warm_path_is_that_of_cold_fits():
    train, test = gaussian(211, 5, 3, seed=1), gaussian(97, 5, 3, seed=2)
    report = logistic_probe(train, test, folds=3, seed=4, **EXACT)
    x, splitter = train.values.astype(np.float64), StratifiedKFold(3, shuffle=True, random_state=4)
    assert [row["C"] for row in report.table] == list(probe.STRENGTHS)
    for row in report.table:
        correct = sum(
            (pipeline(row["C"]).fit(x[fitted], train.labels[fitted]).predict(x[held]) == train.labels[held]).sum()
            for fitted, held in splitter.split(x, train.labels)
        )
        assert row["validation_top1"] == pytest.approx(correct / 211)
        assert row["converged"]
    best = max(report.table, key=lambda row: (row["validation_top1"], -row["C"]))
    assert report.chosen == {"C": best["C"]}


def test_units_and_constant_features_do_not_matter():
    train, test = gaussian(211, 5, 3, seed=1), gaussian(97, 5, 3, seed=2)
    units = np.array([1e-3, 1, 1e3, 7, 0.1], np.float32)
    scaled = (features(part.values * units + units, part.labels, part.classes) for part in (train, test))
    wider = (features(np.c_[part.values, np.full(len(part), 3.0)], part.labels, part.classes) for part in (train, test))
    top1 = logistic_probe(train, test, **EXACT).metrics["top1"]
    for other in (scaled, wider):
        assert logistic_probe(*other, **EXACT).metrics["top1"] == top1


def test_the_seed_draws_the_folds():
    train, test = gaussian(211, 5, 7, seed=1, spread=3), gaussian(97, 5, 7, seed=2)
    first, again, other = (logistic_probe(train, test, seed=seed, strengths=[0.1, 1]) for seed in (0, 0, 1))
    assert (first.table, first.metrics) == (again.table, again.metrics)
    assert first.table != other.table


def test_fits_that_were_cut_short_are_named_not_warned_about():
    train, test = gaussian(211, 5, 3, seed=1, spread=0.5), gaussian(97, 5, 3, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        report = logistic_probe(train, test, strengths=[1e-3, 1e6], iterations=18)
    assert [row["converged"] for row in report.table] == [True, False]
    assert "the final fit, C = 1e+06, did not converge" in report.notes


def test_other_warnings_are_passed_on(monkeypatch):
    fit = LogisticRegression.fit

    def warning_fit(self, x, labels):
        warnings.warn("something else", RuntimeWarning, stacklevel=1)
        return fit(self, x, labels)

    monkeypatch.setattr(LogisticRegression, "fit", warning_fit)
    with pytest.warns(RuntimeWarning, match="something else"):
        logistic_probe(gaussian(31, 5, 3), gaussian(11, 5, 3), strengths=[1.0])


def test_folds_are_as_many_as_the_rarest_class_has_images():
    train = gaussian(53, 5, 3, seed=1)
    kept = np.concatenate([np.flatnonzero(train.labels == 0)[:3], np.flatnonzero(train.labels != 0)])
    few = features(train.values[kept], train.labels[kept], train.classes)
    calls = []
    report = logistic_probe(few, train, strengths=[1.0], progress=calls.append)
    assert (len(calls), report.notes) == (4, ("3 folds, as many as the rarest class has training images",))
    single = features(train.values[kept[2:]], train.labels[kept[2:]], train.classes)
    refused("class 'class 0' has a single training image", logistic_probe, single, train)


def test_classes_without_a_training_image_may_be_left_out_of_both():
    train, test = gaussian(97, 5, 7, seed=1), gaussian(53, 5, 7, seed=2)
    without = (
        features(part.values[part.labels != 3], part.labels[part.labels != 3], part.classes) for part in (train, test)
    )
    metrics = logistic_probe(*without, strengths=[0.1]).metrics
    assert 0.3 < metrics["top1"] < metrics["top5"] <= 1


def test_the_paper_s_probes_neither_standardize_nor_leave_an_image_out():
    """Regression on the values as they are, and a training accuracy in which every image is its own neighbor."""
    scaled = features(TRAIN.values * [1, 1, 1, 10, 0.1], TRAIN.labels)
    other = features(TEST.values * [1, 1, 1, 10, 0.1], TEST.labels, scaled.classes)
    settings = {"strengths": [0.1], "tolerance": 1e-6, "iterations": 2000, "folds": 2}
    report = logistic_probe(scaled, other, standardize=False, **settings)
    model = LogisticRegression(C=0.1, tol=1e-6, max_iter=2000).fit(scaled.values.astype(np.float64), scaled.labels)
    assert report.metrics["top1"] == pytest.approx(model.score(other.values, other.labels))
    assert report.metrics != logistic_probe(scaled, other, **settings).metrics
    own = knn_probe(TRAIN, TEST, ks=[1, 20], own_vote=True)
    assert own.table[0]["train_top1"] == 1.0
    assert own.chosen == {"k": 1}
    assert knn_probe(TRAIN, TEST, ks=[1, 20]).chosen == {"k": 20}


def test_bare_features_are_the_tokens_before_any_norm():
    config = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 8, "patch_size": 4}
    pixels = torch.randn(2, 3, 8, 8)
    for fields in ({}, {"final_norm": True, "pooling": "mean"}, {"pooling": "patches"}):
        model = create_model("crate-tiny-patch16-224", **config, **fields).eval()
        z = model.crate.embedding(pixels)
        for layer in model.crate.layers:
            z = layer(z)[0]
        wanted = z[:, 0] if not fields else z.mean(1) if fields["pooling"] == "mean" else z[:, 1:].mean(1)
        torch.testing.assert_close(BareFeatures(model).features(pixels), wanted)
