"""MaskCut finds planted objects one after another; its eigenvector is that of a dense generalized solver."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
import torch

from codingrate import CrateError
from codingrate.inspection import maskcut
from codingrate.inspection.segment import cuts
from codingrate.inspection.segment.cuts import affinity, normalized_cut

from .planted import BLOCK, DISC, features_of, labels_of, naive_mask, random_affinity

GRID = (23, 19)


def iou(one, other):
    return (one & other).sum() / (one | other).sum()


@pytest.mark.parametrize("seed", range(5))
def test_planted_objects_come_back(seed):
    labels = labels_of(*GRID)
    found = maskcut(features_of(labels, seed), GRID, masks=2)
    assert len(found) == 2
    for planted in (DISC, BLOCK):
        assert max(iou(cut.mask, labels == planted) for cut in found) >= 0.95
    assert not (found[0].mask & found[1].mask).any()
    assert all(0.5 < cut.cut_quality <= 1 for cut in found)
    assert all(cut.eigenvector[cut.mask].min() > cut.eigenvector.mean() for cut in found)


def test_a_second_cut_is_that_of_the_features_without_the_first():
    features = features_of(labels_of(*GRID), 0)
    first, second = maskcut(features, GRID, masks=2)
    features[first.mask.ravel()] = 0
    vector = normalized_cut(affinity(features, 0.15))
    np.testing.assert_allclose(np.abs(second.eigenvector.ravel()), np.abs(vector), atol=1e-9)
    np.testing.assert_array_equal(second.mask, naive_mask(vector, GRID) & ~first.mask)


def test_boxes_are_tight():
    labels = labels_of(*GRID)
    found = maskcut(features_of(labels, 1), GRID, masks=2)
    for cut in found:
        x, y, width, height = cut.box
        assert cut.mask[y : y + height, x : x + width].sum() == cut.mask.sum()
        for edge in (cut.mask[y], cut.mask[y + height - 1], cut.mask[:, x], cut.mask[:, x + width - 1]):
            assert edge.any()


def test_tensors_of_every_precision_are_taken():
    features = torch.from_numpy(features_of(labels_of(*GRID), 2))
    wanted = maskcut(features, GRID, masks=1)[0].mask
    for dtype in (torch.float32, torch.bfloat16):
        assert iou(maskcut(features.to(dtype).requires_grad_(), GRID, masks=1)[0].mask, wanted) > 0.95


def test_the_search_ends_where_nothing_new_is_found():
    labels = np.where(labels_of(*GRID) == DISC, 1, 0)
    features = np.where(labels.ravel()[:, None] == 1, [[1.0, 0.0]], [[0.0, 1.0]])  # background all alike
    found = maskcut(features, GRID, masks=7)
    assert len(found) == 1
    np.testing.assert_array_equal(found[0].mask, labels == 1)


def test_small_scraps_after_the_first_are_no_objects():
    labels = np.zeros(GRID, dtype=int)
    labels[4:12, 4:12] = 1
    labels[15, 10:14] = 2  # 4 of 437 patches
    features = np.eye(3)[labels.ravel()]
    assert [int(cut.mask.sum()) for cut in maskcut(features, GRID)] == [64]
    labels[15:17, 10:14] = 2
    assert sorted(int(cut.mask.sum()) for cut in maskcut(np.eye(3)[labels.ravel()], GRID)) == [8, 64]


def test_the_side_with_the_corners_is_background_whatever_is_strongest():
    labels = np.zeros(GRID, dtype=int)
    labels[3:-3, 3:-3] = 1  # most patches, so that |v| is largest in the frame, which holds the corners
    found = maskcut(np.eye(2)[labels.ravel()], GRID, masks=1)
    assert np.abs(found[0].eigenvector).argmax() == 0
    np.testing.assert_array_equal(found[0].mask, labels == 1)


@pytest.mark.parametrize("features", [np.ones((437, 3)), np.zeros((437, 3)), np.eye(437)])
def test_an_even_image_has_no_objects(features):
    assert maskcut(features, GRID) == []


@pytest.mark.parametrize(
    ("shape", "grid", "options", "message"),
    [
        ((30, 4), (5, 7), {}, r"features \(30, 4\) do not fit a grid of \(5, 7\)"),
        ((35,), (5, 7), {}, "do not fit"),
        ((1, 4), (1, 1), {}, "one patch cannot be cut"),
        ((35, 4), (5, 7), {"masks": 0}, "masks must be positive"),
        ((35, 4), (5, 7), {"threshold": 1.0}, r"threshold in \[0, 1\)"),
        ((35, 4), (5, 7), {"threshold": -0.1}, r"threshold in \[0, 1\)"),
    ],
)
def test_refusals(shape, grid, options, message):
    with pytest.raises(CrateError, match=message):
        maskcut(np.ones(shape), grid, **options)


def test_features_that_are_no_numbers_are_refused():
    features = np.ones((35, 4))
    features[3, 2] = np.nan
    with pytest.raises(CrateError, match="not finite"):
        maskcut(features, (5, 7))


def dense_vector(weights):
    """v of the second smallest μ in (D − W)v = μDv, out of all of them."""
    degrees = np.diag(weights.sum(axis=1))
    return scipy.linalg.eigh(degrees - weights, degrees)[1][:, 1]


def test_the_eigenvector_and_its_mask_are_the_dense_solvers(monkeypatch):
    for seed in range(50):
        with monkeypatch.context() as patch:
            check_cut(seed, patch)


def check_cut(seed, monkeypatch):
    weights, grid = random_affinity(seed)
    ours, dense = cuts.normalized_cut(weights), dense_vector(weights)
    dense = dense if dense @ ours > 0 else -dense
    np.testing.assert_allclose(ours, dense, rtol=0, atol=1e-6 * np.abs(dense).max())
    assert ours[np.abs(ours).argmax()] > 0
    assert ours @ np.diag(weights.sum(axis=1)) @ ours == pytest.approx(1)

    monkeypatch.setattr(cuts, "affinity", lambda features, threshold: weights)
    found = maskcut(np.ones((weights.shape[0], 1)), grid, masks=1)
    np.testing.assert_array_equal(found[0].mask, naive_mask(dense, grid))


def test_affinity_is_its_definition():
    features = np.random.default_rng(0).standard_normal((17, 5))
    features[3] = 0
    weights = cuts.affinity(features, 0.2)
    for i, f in enumerate(features):
        for j, g in enumerate(features):
            size = np.sqrt((f @ f) * (g @ g))
            assert weights[i, j] == (1.0 if size > 0 and f @ g / size > 0.2 else 1e-5)


def test_few_tokens_and_no_convergence_take_the_dense_way(monkeypatch):
    weights = random_affinity(3)[0]
    wanted = cuts.normalized_cut(weights)

    def gives_up(*_, **__):
        raise scipy.sparse.linalg.ArpackNoConvergence("no", np.zeros(0), np.zeros((0, 0)))

    monkeypatch.setattr(cuts, "eigsh", gives_up)
    np.testing.assert_allclose(cuts.normalized_cut(weights), wanted, atol=1e-9)
    small = np.array([[1, 1, 1e-5], [1, 1, 1e-5], [1e-5, 1e-5, 1]])
    v = cuts.normalized_cut(small)
    assert v[0] == pytest.approx(v[1])
    assert v[0] * v[2] < 0


def test_the_known_eigenvector_is_never_found():
    """Where all other eigenvalues are negative, a deflation to zero would leave it on top."""
    draw = np.random.default_rng(0)
    noise = 0.01 * draw.standard_normal((31, 31))
    weights = 1 + noise + noise.T
    np.fill_diagonal(weights, 1e-5)  # all alike but not themselves: the others stand around −1/30
    ours, dense = cuts.normalized_cut(weights), dense_vector(weights)
    np.testing.assert_allclose(np.abs(ours), np.abs(dense), atol=1e-6 * np.abs(dense).max())


def test_quality_is_one_less_half_the_cut():
    weights = random_affinity(5)[0]
    side = np.random.default_rng(1).random(len(weights)) < 0.3
    cut = sum(weights[i, j] for i in np.flatnonzero(side) for j in np.flatnonzero(~side))
    inside, outside = (sum(weights[i].sum() for i in np.flatnonzero(part)) for part in (side, ~side))
    assert cuts.cut_quality(weights, side) == pytest.approx(1 - cut / inside / 2 - cut / outside / 2)


@pytest.mark.parametrize("alike", [True, False])
def test_a_graph_with_one_kind_of_pair_cannot_be_cut(alike):
    weights = np.full((30, 30), 1.0 if alike else 1e-5)
    np.fill_diagonal(weights, 1.0)
    assert not cuts.can_cut(weights)
    weights[2, 7] = weights[7, 2] = 1e-5 if alike else 1.0
    assert cuts.can_cut(weights)


def release(features, grid, masks, threshold):
    """MaskCut step by step as its release does it: masks of every step on the grid, those of rejected steps empty."""
    rows, columns = grid
    painting, found, previous = np.zeros(grid), [], None
    for step in range(masks):
        shown = features * (1 - painting).reshape(-1, 1)
        norms = np.sqrt((shown**2).sum(1, keepdims=True))
        unit = np.divide(shown, norms, out=np.zeros_like(shown), where=norms > 0)
        weights = np.where(unit @ unit.T > threshold, 1.0, 1e-5)
        degrees = np.diag(weights.sum(1))
        vector = scipy.linalg.eigh(degrees - weights, degrees, subset_by_index=[1, 2])[1][:, 0]
        side = vector > vector.mean()
        seed = int(np.argmax(np.abs(vector)))
        corners = side.reshape(grid)[[0, 0, rows - 1, rows - 1], [0, columns - 1, 0, columns - 1]].sum()
        if corners >= 3 or not side[seed]:
            side, vector = ~side, -vector
        seed = int(np.argmax(vector))
        reached, frontier = set(), [seed]
        while frontier:  # the connected component of the seed
            patch = frontier.pop()
            if patch in reached or not side[patch]:
                continue
            reached.add(patch)
            row, column = divmod(patch, columns)
            near = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
            frontier += [r * columns + c for r, c in near if 0 <= r < rows and 0 <= c < columns]
        mask = np.zeros(rows * columns)
        mask[list(reached)] = 1
        mask = mask.reshape(grid)
        if step:
            union = ((mask + previous) > 0).sum()
            if (mask * previous).sum() / union > 0.5 or mask.mean() <= 0.01:
                mask = np.zeros(grid)
        previous = mask
        painting = np.maximum(painting, mask)
        found.append(mask)
    taken, clean = np.zeros(grid), []
    for mask in found:
        new = mask * (1 - taken)
        taken = np.maximum(taken, mask)
        if new.any():
            clean.append(new > 0)
    return clean


def test_the_rule_of_the_release_is_that_of_its_steps():
    """On random graphs, where cuts are often rejected, and on planted objects."""
    different = 0
    for seed in range(20):
        draw = np.random.default_rng(seed)
        features = features_of(labels_of(*GRID), seed) if seed < 4 else draw.standard_normal((437, 3)) + 0.2
        wanted = release(features, GRID, 4, 0.15)
        found = [cut.mask for cut in maskcut(features, GRID, masks=4, rule="cutler")]
        assert len(found) == len(wanted)
        for mine, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(mine, other)
        symmetric = [cut.mask for cut in maskcut(features, GRID, masks=4)]
        different += len(symmetric) != len(found)
    assert different > 0, "the search of the release goes on after a rejected cut"
    with pytest.raises(CrateError, match="unknown rule 'cutlre'; did you mean 'cutler'"):
        maskcut(features, GRID, rule="cutlre")
