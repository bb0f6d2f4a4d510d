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
    [("knn", {}), ("knn", {"ks": [7]}), ("logistic", {}), ("logistic", {"strengths": [0.1, 1.0], "folds": 3})],
)
def test_reports_are_complete_and_written_as_json(tmp_path, method, options):
    calls = []
    report = probe_features(TRAIN, TEST, method, progress=calls.append, about={"data": "toy"}, **options)
    result = (knn_probe if method == "knn" else logistic_probe)(TRAIN, TEST, **options)
    assert (report.metrics, report.chosen, report.table) == (result.metrics, result.chosen, result.table)
    assert (list(report.metrics), list(report.chosen)) == (
        ["top1", "top5", "train_top1"],
        ["k" if method == "knn" else "C"],
    )
    assert (report.images, report.width, report.method) == ({"train": 211, "test": 53}, 5, method)
    assert (report.seconds > 0, report.to_dict()["about"]) == (True, {"data": "toy"})
    assert sum(calls) == probe_steps(211, 53, method, options)
    assert json.loads((report.save(tmp_path / "new") / "metrics.json").read_text()) == report.to_dict()


def test_notes_say_what_did_not_converge_and_what_lies_at_the_edge():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        report = probe_features(TRAIN, TEST, "logistic", strengths=[0.1, 1.0], iterations=2)
    assert [row["converged"] for row in report.table] == [False, False]
    for note, words in zip(report.notes, ("C = 0.1, 1", "converge", "edge of the grid"), strict=True):
        assert words in note
    assert probe_features(TRAIN, TEST, "knn").notes == ()


def changed(part, rows=slice(None), **changes):
    values = {"values": part.values[rows], "labels": part.labels[rows], "classes": part.classes, **changes}
    return features(**values)


UNUSABLE = [
    (changed(TRAIN, slice(0)), TEST, "training features"),
    (TRAIN, changed(TEST, slice(0)), "test features"),
    (changed(TRAIN, TRAIN.labels == 4), TEST, "'class 4'"),
    (changed(TRAIN, TRAIN.labels != 4), TEST, "'class 4'"),
    (TRAIN, changed(TEST, classes=tuple("abcdefg")), "a, b, c"),
    (TRAIN, gaussian(53, 5, 3), "classes: 7"),
    (TRAIN, changed(TEST, values=TEST.values[:, :3]), "widths 5 and 3"),
    (TRAIN, changed(TEST, labels=TEST.labels + 1), "label 7"),
    (TRAIN, changed(TEST, labels=TEST.labels[:9]), "(9,)"),
    (TRAIN, changed(TEST, values=np.where(np.arange(5) == 3, np.nan, TEST.values)), "finite"),
]


def test_features_that_cannot_be_probed():
    for train, test, message in UNUSABLE:
        for method in ("knn", "logistic"):
            refused(message, probe_features, train, test, method)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("knm", {}, "'knn'"), ("knn", {"ks": [10, 31]}, "k=31"), ("knn", {"ks": [0, 5]}, "k is [0, 5]"),
        ("knn", {"ks": []}, "k is []"), ("knn", {"temperature": 0}, "temperature is 0"),
        ("knn", {"device": "gpu"}, "'gpu'"),
        ("knn", {"metric": "codingrate"}, "'coding-rate'"), ("logistic", {"strengths": []}, "strengths"),
        ("logistic", {"strengths": [0, 1]}, "strengths"), ("logistic", {"folds": 1}, "folds"),
        ("logistic", {"iterations": 0}, ""), ("logistic", {"tolerance": 0}, ""),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(method, options, words):
    refused(words, probe_features, gaussian(31, 5, 3), gaussian(11, 5, 3), method, **options)


def test_too_few_or_too_equal_or_too_wide_features(monkeypatch):
    constant, few = features(np.ones((11, 3)), np.arange(11) % 3), gaussian(10, 5, 3)
    monkeypatch.setattr(probe, "WIDEST", 4)
    for words, call, *arguments in (
        ("equal", in_coding_rate_metric, constant, constant), ("width 5", in_coding_rate_metric, TRAIN, TEST),
        ("k=10", knn_probe, few, few), ("single", neighbor_accuracy, features([[1.0]], [0])),
    ):  # fmt: skip
        refused(words, call, *arguments)


# nearest neighbors


def naive(train, queries, k, leave_one_out, temperature=0.07):
    """Top-1 and top-5 accuracy by the definition, one query and one neighbor at a time."""
    z, q = (
        part.values / np.linalg.norm(part.values.astype(np.float64), axis=1, keepdims=True) for part in (train, queries)
    )
    ranks = []
    for number, (query, label) in enumerate(zip(q, queries.labels, strict=True)):
        others = [(-float(query @ z[i]), i) for i in range(len(z)) if not (leave_one_out and i == number)]
        votes = dict.fromkeys(train.labels[[i for _, i in sorted(others)[:k]]], 0.0)
        for minus, i in sorted(others)[:k]:
            votes[train.labels[i]] += math.exp(-minus / temperature)
        order = sorted(votes, key=lambda c: (-votes[c], c))
        ranks.append(order.index(label) if label in order else len(train.classes))
    return np.mean(np.array(ranks) < 1), np.mean(np.array(ranks) < 5)


@pytest.fixture(params=[(1024, 16384), (13, 17)], ids=["one block", "many blocks"])
def _blocks(request, monkeypatch):
    for name, size in zip(("QUERY_BLOCK", "NEIGHBOR_BLOCK"), request.param, strict=True):
        monkeypatch.setattr(probe, name, size)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("classes", [3, 7])
def test_neighbors_agree_with_loops(classes):
    train, test, calls = gaussian(211, 5, classes, seed=1), gaussian(53, 5, classes, seed=2), []
    report = knn_probe(train, test, ks=[3, 29, 11, 101, 3], progress=calls.append)
    assert [row["k"] for row in report.table] == [3, 11, 29, 101]
    for row in report.table:
        top1, top5 = naive(train, test, row["k"], leave_one_out=False)
        expected = {"k": row["k"], "train_top1": naive(train, train, row["k"], True)[0], "top1": top1}
        assert row == pytest.approx(expected | ({"top5": top5} if classes > 5 else {}))
    best = max(report.table, key=lambda row: (row["train_top1"], -row["k"]))
    assert {**report.chosen, **report.metrics} == best
    assert sum(calls) == 211 + 53
    assert 1 / classes + 0.1 < best["top1"] < 1, "neither chance nor trivial, or the comparison would show nothing"
    assert [row["k"] for row in knn_probe(train, test).table] == [10, 20, 100, 200], "or as many as there are samples"
    for part, k in ((train, 20), (gaussian(12, 5, 7), 11)):  # within a split, without the image itself
        assert neighbor_accuracy(part) == pytest.approx(naive(part, part, k, leave_one_out=True)[0])


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
@pytest.mark.parametrize(("temperature", "top1"), [(0.07, 1), (100, 0), (1e-5, 1)])
def test_votes_are_weighted_by_similarity(temperature, top1):
    """Two near neighbors outweigh three far ones, unless all weigh the same; the exponential must not overflow."""
    degrees = np.deg2rad([0, 1, 40, 41, 42, 90])
    train = features(np.stack([np.cos(degrees), np.sin(degrees)], 1), [0, 0, 1, 1, 1, 2])
    test = features([[1.0, 0.01]], [0], train.classes)
    assert knn_probe(train, test, ks=[5], temperature=temperature).metrics["top1"] == top1


def test_ties_go_to_the_lower_class_and_the_smaller_k():
    train = features([[1, 0], [1, 0], [0, 1], [0, 1]], [1, 0, 2, 1])
    test = features([[1, 0], [0, 1]], [0, 1], train.classes)
    metrics = knn_probe(train, test, ks=[2]).metrics
    assert (metrics["top1"], metrics["train_top1"]) == (1, None), "for a single k there is nothing to choose"
    separated = features([[1, 0], [2, 0], [3, 0], [0, 1], [0, 2], [0, 3]], [0, 0, 0, 1, 1, 1])
    assert knn_probe(separated, separated, ks=[2, 1]).chosen == {"k": 1}
    separated = features([[10.0 * (index % 2) + index % 3] for index in range(20)], [0, 1] * 10)
    report = logistic_probe(separated, separated, strengths=[100.0, 1.0, 10.0])
    assert ([row["validation_top1"] for row in report.table], report.chosen) == ([1, 1, 1], {"C": 1.0})


def test_length_does_not_matter_and_zero_has_no_direction():
    scale = np.random.RandomState(0).uniform(0.1, 10, (211, 1)).astype(np.float32)
    scaled, zeros = (changed(TRAIN, values=TRAIN.values * factor) for factor in (scale, 0))
    assert knn_probe(scaled, TEST, ks=[7, 13]).table == knn_probe(TRAIN, TEST, ks=[7, 13]).table
    assert 0 < knn_probe(zeros, TEST, ks=[210]).metrics["top1"] < 1


@pytest.mark.usefixtures("_blocks")
def test_the_metric_is_that_of_the_gradient_of_the_coding_rate():
    mapped, other = in_coding_rate_metric(TRAIN, TEST)
    values = torch.tensor(TRAIN.values).double()
    mean, size = values.mean(dim=0), (values - values.mean(dim=0)).square().sum(dim=1).mean().sqrt()
    z = ((values - mean) / size).requires_grad_()
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


# logistic regression

EXACT = {"tolerance": 1e-9, "iterations": 10_000}


def pipeline(strength):
    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, tol=1e-9, max_iter=10_000))


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_is_scikit_learns_regression_at_the_chosen_strength(classes):
    train, test, calls = gaussian(211, 5, classes, seed=1), gaussian(97, 5, classes, seed=2), []
    report = logistic_probe(train, test, progress=calls.append, **EXACT)
    x, x_test = (part.values.astype(np.float64) for part in (train, test))
    model = pipeline(report.chosen["C"]).fit(x, train.labels)
    expected = {"top1": model.score(x_test, test.labels), "train_top1": model.score(x, train.labels)}
    if classes > 5:
        expected["top5"] = top_k_accuracy_score(test.labels, model.decision_function(x_test), k=5)
    assert report.metrics == pytest.approx(expected)
    assert calls == [1] * 36, "seven strengths in five folds, and the final fit"
    assert not any("converge" in note for note in report.notes)
    assert report.metrics["top1"] > 1.5 / classes


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
    units = np.array([1e-3, 1, 1e3, 7, 0.1], np.float32)
    scaled = (changed(part, values=part.values * units + units) for part in (TRAIN, TEST))
    wider = (changed(part, values=np.c_[part.values, np.full(len(part), 3.0)]) for part in (TRAIN, TEST))
    found = [
        logistic_probe(*pair, strengths=[0.1, 1], **EXACT).metrics["top1"] for pair in ((TRAIN, TEST), scaled, wider)
    ]
    assert found == [found[0]] * 3


def test_the_seed_draws_the_folds():
    train, test = gaussian(211, 5, 7, seed=1, spread=3), gaussian(97, 5, 7, seed=2)
    first, again, other = (logistic_probe(train, test, seed=seed, strengths=[0.1, 1]) for seed in (0, 0, 1))
    assert (first.table, first.metrics) == (again.table, again.metrics)
    assert first.table != other.table


def test_folds_are_as_many_as_the_rarest_class_has_images():
    train = gaussian(53, 5, 3, seed=1)
    kept = np.concatenate([np.flatnonzero(train.labels == 0)[:3], np.flatnonzero(train.labels != 0)])
    few, single, none = (changed(train, kept[start:]) for start in (0, 2, 3))
    calls = []
    report = logistic_probe(few, train, strengths=[1.0], progress=calls.append)
    assert (len(calls), len(report.notes), report.notes[0][:7]) == (4, 1, "3 folds")
    refused("class 'class 0'", logistic_probe, single, train)
    metrics = logistic_probe(none, none, strengths=[0.1]).metrics
    assert 0.3 < metrics["top1"] <= 1, "a class without training images may be left out of both"


def test_the_paper_s_probes_neither_standardize_nor_leave_an_image_out():
    """Regression on the values as they are, and a training accuracy in which every image is its own neighbor."""
    scaled, other = (changed(part, values=part.values * [1, 1, 1, 10, 0.1]) for part in (TRAIN, TEST))
    settings = {"strengths": [0.1], "tolerance": 1e-6, "iterations": 2000, "folds": 2}
    report = logistic_probe(scaled, other, standardize=False, **settings)
    model = LogisticRegression(C=0.1, tol=1e-6, max_iter=2000).fit(scaled.values.astype(np.float64), scaled.labels)
    assert report.metrics["top1"] == pytest.approx(model.score(other.values, other.labels))
    assert report.metrics != logistic_probe(scaled, other, **settings).metrics
    own = knn_probe(TRAIN, TEST, ks=[1, 20], own_vote=True)
    assert (own.table[0]["train_top1"], own.chosen) == (1.0, {"k": 1})
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
