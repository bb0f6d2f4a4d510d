"""Neighbours against loops in float64, in blocks of any size, with ties, and leaving oneself out."""

import math

import numpy as np
import pytest
import torch
from codingrate.evaluation.knn import nearest

from codingrate.errors import CrateError
from codingrate.evaluation import knn, knn_probe

from .probes import features, gaussian


def naive(train, queries, k, own, temperature=0.07):
    """Top-1 and top-5 by the definition, one query and one neighbour at a time."""
    z = train.values.astype(np.float64)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    right = [0, 0]
    for number, (query, label) in enumerate(zip(queries.values.astype(np.float64), queries.labels, strict=True)):
        query = query / np.linalg.norm(query)
        others = [(-float(query @ z[i]), i) for i in range(len(z)) if not (own and i == number)]
        votes = {}
        for minus, i in sorted(others)[:k]:
            votes[train.labels[i]] = votes.get(train.labels[i], 0.0) + math.exp(-minus / temperature)
        order = sorted(votes, key=lambda c: (-votes[c], c))
        right[0] += order[0] == label
        right[1] += label in order[:5]
    return right[0] / len(queries), right[1] / len(queries)


@pytest.fixture(params=[(1024, 16384), (13, 17)], ids=["one block", "many blocks"])
def _blocks(request, monkeypatch):
    for name, size in zip(("_ROWS", "_COLUMNS"), request.param, strict=True):
        monkeypatch.setattr(knn, name, size)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("classes", [3, 7])
def test_agrees_with_loops(classes):
    train, test = gaussian(211, 5, classes, seed=1), gaussian(53, 5, classes, seed=2)
    heard = []
    result = knn_probe(train, test, ks=[3, 11, 29, 101], progress=heard.append)
    for row in result.table:
        learned, _ = naive(train, train, row["k"], own=True)
        top1, top5 = naive(train, test, row["k"], own=False)
        assert (row["train_top1"], row["top1"]) == (pytest.approx(learned), pytest.approx(top1))
        assert row["top5"] == (pytest.approx(top5) if classes > 5 else None)
    best = max(result.table, key=lambda row: (row["train_top1"], -row["k"]))
    assert (result.k, result.train_top1, result.top1, result.top5) == tuple(best.values())
    assert sum(heard) == 211 + 53
    assert 1 / classes + 0.1 < result.top1 < 1, "neither chance nor trivial, or the comparison would show nothing"


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("own", [None, 0, 3])
def test_nearest_are_in_order_the_earlier_of_equals_first(own):
    draw = np.random.RandomState(0)
    values = np.eye(8, dtype=np.float32)[draw.randint(3, size=61)]  # cosines 0 or 1, exactly
    queries = values[own or 0 :][:19]
    similarity, rows = nearest(torch.from_numpy(queries), values, 43, own)
    for number, query in enumerate(queries):
        others = [i for i in range(61) if own is None or i != own + number]
        wanted = sorted(others, key=lambda i: (-float(query @ values[i]), i))[:43]
        assert rows[number].tolist() == wanted
        assert similarity[number].tolist() == [float(query @ values[i]) for i in wanted]


@pytest.mark.usefixtures("_blocks")
def test_votes_are_weighted_by_similarity():
    degrees = np.deg2rad([0, 1, 40, 41, 42, 90])
    train = features(np.stack([np.cos(degrees), np.sin(degrees)], 1), [0, 0, 1, 1, 1, 2])
    test = features([[1.0, 0.01]], [0], train.classes)
    assert knn_probe(train, test, ks=[5]).top1 == 1, "two near ones outweigh three far ones"
    assert knn_probe(train, test, ks=[5], temperature=100).top1 == 0, "unless all weigh the same"
    assert knn_probe(train, test, ks=[5], temperature=1e-5).top1 == 1, "nor does the exponential overflow"


def test_of_equal_votes_the_lower_class_wins_and_of_equal_k_the_smaller():
    train = features([[1, 0], [1, 0], [0, 1], [0, 1]], [1, 0, 2, 1])
    test = features([[1, 0], [0, 1]], [0, 1], train.classes)
    result = knn_probe(train, test, ks=[2])
    assert (result.top1, result.train_top1) == (1, None), "for a single k there is nothing to choose"
    far = features([[1, 0], [2, 0], [3, 0], [0, 1], [0, 2], [0, 3]], [0, 0, 0, 1, 1, 1])
    assert knn_probe(far, far, ks=[2, 1]).k == 1


def test_a_class_without_a_vote_is_not_among_five():
    train = features(np.eye(7), np.arange(7))
    test = features([[1, 0.1, 0, 0, 0, 0, 0]], [2], train.classes)
    assert knn_probe(train, test, ks=[2]).top5 == 0
    assert knn_probe(train, test, ks=[3]).top5 == 1


def test_length_does_not_matter_and_zero_has_no_direction():
    train, test = gaussian(97, 5, 3, seed=1), gaussian(31, 5, 3, seed=2)
    scale = np.random.RandomState(0).uniform(0.1, 10, (97, 1)).astype(np.float32)
    scaled = features(train.values * scale, train.labels, train.classes)
    assert knn_probe(scaled, test, ks=[7, 13]).table == knn_probe(train, test, ks=[7, 13]).table
    nothing = features(np.zeros((97, 5)), train.labels, train.classes)
    assert 0 < knn_probe(nothing, test, ks=[96]).top1 < 1


def test_the_grid_is_cut_to_the_samples():
    train, test = gaussian(101, 5, 3, seed=1), gaussian(11, 5, 3, seed=2)
    assert [row["k"] for row in knn_probe(train, test).table] == [10, 20, 100]
    assert [row["k"] for row in knn_probe(train, test, ks=[5, 2, 5]).table] == [2, 5]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ks": [10, 31]}, "31 training images are fewer samples than k=31 needs; give a k below 31"),
        ({"ks": [0, 5]}, r"k is \[0, 5\]"),
        ({"ks": []}, r"k is \[\]"),
        ({"temperature": 0}, "temperature is 0"),
        ({"device": "gpu"}, "cannot use device 'gpu'"),
    ],
)
def test_what_cannot_vote_is_refused(options, match):
    with pytest.raises(CrateError, match=match):
        knn_probe(gaussian(31, 5, 3), gaussian(11, 5, 3), **options)


def test_too_few_samples_for_the_whole_grid():
    with pytest.raises(CrateError, match="10 training images are fewer samples than k=10 needs"):
        knn_probe(gaussian(10, 5, 3), gaussian(11, 5, 3))
