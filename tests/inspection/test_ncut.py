"""One eigenvector by Lanczos against a dense generalised solver, and the graph against its definition."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg

from codingrate.inspection import maskcut as maskcut_function
from codingrate.inspection import ncut

from .planted import naive_mask, random_affinity


def dense_vector(weights):
    """v of the second smallest μ in (D − W)v = μDv, out of all of them."""
    degrees = np.diag(weights.sum(axis=1))
    return scipy.linalg.eigh(degrees - weights, degrees)[1][:, 1]


@pytest.mark.parametrize("seed", range(50))
def test_the_eigenvector_and_its_mask_are_the_dense_solvers(seed, monkeypatch):
    weights, grid = random_affinity(seed)
    ours, dense = ncut.normalized_cut(weights), dense_vector(weights)
    dense = dense if dense @ ours > 0 else -dense
    np.testing.assert_allclose(ours, dense, rtol=0, atol=1e-6 * np.abs(dense).max())
    assert ours[np.abs(ours).argmax()] > 0
    assert ours @ np.diag(weights.sum(axis=1)) @ ours == pytest.approx(1)

    module = importlib.import_module("codingrate.inspection.maskcut")  # the package's own name is the function's
    monkeypatch.setattr(module, "affinity", lambda features, threshold: weights)
    found = maskcut_function(np.ones((weights.shape[0], 1)), grid, masks=1)
    np.testing.assert_array_equal(found[0].mask, naive_mask(dense, grid))


def test_affinity_is_its_definition():
    features = np.random.default_rng(0).standard_normal((17, 5))
    features[3] = 0
    weights = ncut.affinity(features, 0.2)
    for i, f in enumerate(features):
        for j, g in enumerate(features):
            size = np.sqrt((f @ f) * (g @ g))
            assert weights[i, j] == (1.0 if size > 0 and f @ g / size > 0.2 else 1e-5)


def test_few_tokens_and_no_convergence_take_the_dense_way(monkeypatch):
    weights = random_affinity(3)[0]
    wanted = ncut.normalized_cut(weights)

    def gives_up(*_, **__):
        raise scipy.sparse.linalg.ArpackNoConvergence("no", np.zeros(0), np.zeros((0, 0)))

    monkeypatch.setattr(scipy.sparse.linalg, "eigsh", gives_up)
    np.testing.assert_allclose(ncut.normalized_cut(weights), wanted, atol=1e-9)
    small = np.array([[1, 1, 1e-5], [1, 1, 1e-5], [1e-5, 1e-5, 1]])
    v = ncut.normalized_cut(small)
    assert v[0] == pytest.approx(v[1])
    assert v[0] * v[2] < 0


def test_the_known_eigenvector_is_never_found():
    """Where all other eigenvalues are negative, a deflation to zero would leave it on top."""
    draw = np.random.default_rng(0)
    noise = 0.01 * draw.standard_normal((31, 31))
    weights = 1 + noise + noise.T
    np.fill_diagonal(weights, 1e-5)  # all alike but not themselves: the others stand around −1/30
    ours, dense = ncut.normalized_cut(weights), dense_vector(weights)
    np.testing.assert_allclose(np.abs(ours), np.abs(dense), atol=1e-6 * np.abs(dense).max())


def test_quality_is_one_less_half_the_cut():
    weights = random_affinity(5)[0]
    side = np.random.default_rng(1).random(len(weights)) < 0.3
    cut = sum(weights[i, j] for i in np.flatnonzero(side) for j in np.flatnonzero(~side))
    inside, outside = (sum(weights[i].sum() for i in np.flatnonzero(part)) for part in (side, ~side))
    assert ncut.cut_quality(weights, side) == pytest.approx(1 - cut / inside / 2 - cut / outside / 2)


@pytest.mark.parametrize("alike", [True, False])
def test_a_graph_with_one_kind_of_pair_cannot_be_cut(alike):
    weights = np.full((30, 30), 1.0 if alike else 1e-5)
    np.fill_diagonal(weights, 1.0)
    assert not ncut.can_cut(weights)
    weights[2, 7] = weights[7, 2] = 1e-5 if alike else 1.0
    assert ncut.can_cut(weights)
