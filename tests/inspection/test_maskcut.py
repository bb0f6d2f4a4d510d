"""MaskCut finds what was planted, one object after another, and refuses what it cannot cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from codingrate import CrateError
from codingrate.inspection import maskcut
from codingrate.inspection.ncut import affinity, normalized_cut

from .planted import BLOCK, DISC, features_of, labels_of, naive_mask

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
    assert all(0.5 < cut.score <= 1 for cut in found)
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
