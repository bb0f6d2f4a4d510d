"""MaskCut and its refinement: constants against a table with their sources, and a rule that depends on each of them."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from codingrate.inspection.segment import crf, cuts

PROTOCOLS = {  # CutLER's maskcut.py and its CRF, which the paper applies (4.3, C)
    (cuts, "SMALLEST"): 0.01,  # masks of at most a hundredth of the image are dropped
    (cuts, "SAME"): 0.5,  # as are those that repeat the one before by more than half
    (cuts, "WEAK"): 1e-5,  # eps of get_affinity_matrix
    (crf, "SMOOTH_WEIGHT"): 7.0,  # POS_W
    (crf, "SMOOTH_SPREAD"): 3.0,  # POS_XY_STD
    (crf, "COLOR_WEIGHT"): 10.0,  # Bi_W
    (crf, "PLACE_SPREAD"): 50.0,  # Bi_XY_STD
    (crf, "COLOR_SPREAD"): 5.0,  # Bi_RGB_STD
    (crf, "ITERATIONS"): 10,  # MAX_ITER
    (crf, "MIN_OVERLAP"): 0.5,  # a mask is kept if its refined form overlaps it by half
}


def test_constants_are_those_of_maskcut():
    assert {(module, name): getattr(module, name) for module, name in PROTOCOLS} == PROTOCOLS
    defaults = {name: p.default for name, p in inspect.signature(cuts.maskcut).parameters.items()}
    assert (defaults["masks"], defaults["threshold"]) == (3, 0.15)
    assert inspect.signature(crf.mean_field).parameters["iterations"].default == 10


def vector_with_corners(*corners, strongest):
    """An eigenvector on a grid that is above its mean at these corners, with its largest |entry| at `strongest`."""
    vector = np.full((6, 7), -0.1)
    for row, column in corners:
        vector[row, column] = 0.5
    vector[2:4, 2:4] = 0.5
    row, column, value = strongest
    vector[row, column] = value
    return vector


@pytest.mark.parametrize(
    ("corners", "strongest", "foreground"),
    [
        ((), (2, 2, 2.0), True),
        (((0, 0),), (2, 2, 2.0), True),
        (((0, 0), (0, -1), (-1, 0)), (2, 2, 2.0), False),
        (((0, 0), (0, -1), (-1, 0), (-1, -1)), (2, 2, 2.0), False),
        (((0, 0), (0, -1)), (2, 2, 2.0), True),  # two corners: the side of the strongest patch
        (((0, 0), (0, -1)), (5, 3, -2.0), False),
    ],
)
def test_the_object_is_on_the_side_with_fewer_corners_or_of_the_strongest_patch(corners, strongest, foreground):
    vector = vector_with_corners(*corners, strongest=strongest)
    assert cuts._is_foreground(vector) is foreground
    if len(corners) == 2:
        assert cuts._is_foreground(-vector) is not foreground


@pytest.mark.parametrize(("shared", "found"), [(0.45, 2), (0.6, 1)])
def test_a_mask_that_repeats_half_of_the_one_before_ends_the_search(monkeypatch, shared, found):
    """Two cuts on a strip of 20 × 20 patches whose masks share a part of their union."""
    grid = (20, 20)
    first, second = np.full(grid, -0.1), np.full(grid, -0.1)
    first[5:15, 2:12] = 1.0
    shift = round(10 * (1 - shared) / (1 + shared))
    second[5:15, 2 + shift : 12 + shift] = 1.0
    masks = [first > 0, second > 0]
    assert (cuts.overlap(*masks) > 0.5) == (found == 1)
    vectors = iter([first.ravel(), second.ravel()])
    monkeypatch.setattr(cuts, "normalized_cut", lambda weights: next(vectors))
    features = np.random.default_rng(0).standard_normal((400, 3))
    assert len(cuts.maskcut(features, grid, masks=2)) == found


def test_masks_are_kept_if_the_refined_form_overlaps_by_half(monkeypatch):
    image = np.zeros((10, 10, 3), np.uint8)
    mask = np.zeros((10, 10), bool)
    mask[:, :6] = True

    def refined(width):
        answer = np.zeros((1, 10, 10), np.float32)
        answer[0, :, :width] = 1.0
        monkeypatch.setattr(crf, "mean_field", lambda *_: answer)
        (result,) = crf.refine(image, [mask])
        return result

    assert refined(3) is not None  # 30 of 60 patches
    assert refined(2) is None
    assert refined(0) is None


def test_holes_of_the_refined_form_are_filled(monkeypatch):
    """Only what the mask encloses: the notch at the border stays."""
    mask = np.ones((9, 11), bool)
    answer = mask[None].astype(np.float32)
    answer[0, 3:6, 4:7] = answer[0, :2, 5] = 0.2
    monkeypatch.setattr(crf, "mean_field", lambda *_: answer)
    (result,) = crf.refine(np.zeros((9, 11, 3), np.uint8), [mask])
    mask[:2, 5] = False
    np.testing.assert_array_equal(result, mask)


def test_ten_updates_move_an_edge_further_than_one():
    """The mean field is iterated: on a gray image an edge follows the smoothness of all updates, not of the first."""
    image = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    mask = np.random.default_rng(1).random((1, 24, 24)) > 0.45
    states = [crf.mean_field(image, mask, iterations) for iterations in (1, 2, 10)]
    assert np.abs(states[0] - states[1]).max() > 0.01
    np.testing.assert_allclose(crf.mean_field(image, mask), states[2])
