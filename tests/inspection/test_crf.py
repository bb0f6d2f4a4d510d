"""The lattice against exact Gaussian kernels, the mean field against one written out, and masks made better."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from codingrate import CrateError
from codingrate.inspection.segment.crf import PermutohedralLattice, mean_field, refine

HEIGHT, WIDTH = 29, 23


def iou(one, other):
    return (one & other).sum() / (one | other).sum()


def scene(seed, height=HEIGHT, width=WIDTH, noise=3.0):
    """A disc of one colour on another, with some grain: the image and the disc."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    disc = (y - 0.5 * height) ** 2 + (x - 0.45 * width) ** 2 < (0.3 * min(height, width)) ** 2
    colors = draw.integers(60, 120, 3), draw.integers(140, 200, 3)
    image = np.where(disc[..., None], colors[1], colors[0]) + noise * draw.standard_normal((height, width, 3))
    return np.clip(image, 0, 255).astype(np.uint8), disc


def kernel(points):
    """exp(−½‖f_i − f_j‖²), N^-½KN^-½."""
    weights = np.exp(-0.5 * ((points[:, None] - points[None]) ** 2).sum(axis=-1))
    scale = weights.sum(axis=1) ** -0.5
    return scale[:, None] * weights * scale


def points_of(image, place, color=None):
    height, width = image.shape[:2]
    places = np.stack(np.mgrid[:height, :width], axis=-1).reshape(-1, 2) / place
    return places if color is None else np.hstack([places, image.reshape(height * width, -1) / color])


def normalized(lattice, count):
    scale = lattice(np.ones((count, 1))) ** -0.5
    return lambda x: scale * lattice(scale * x)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 5])
def test_the_lattice_is_nearly_a_gaussian(dimensions):
    draw = np.random.default_rng(dimensions)
    points = draw.uniform(0, 3.0, (701, dimensions))
    smooth = np.sin(points.sum(axis=1, keepdims=True)) + draw.standard_normal((701, 2)) * 0.1
    ours, exact = normalized(PermutohedralLattice(points), 701)(smooth), kernel(points) @ smooth
    assert np.abs(ours - exact).mean() < 0.15 * np.abs(exact).mean()  # the cube has edges, where the lattice ends
    for column in (0, 1):
        assert np.corrcoef(ours[:, column], exact[:, column])[0, 1] > 0.99


def test_the_lattice_spreads_by_one_deviation():
    """The variance of a point's image on a dense line is that of the unit Gaussian, on average over its place."""
    points = np.arange(-6, 6, 0.05)[:, None]
    middle = range(100, 140)  # two cells of the lattice, or more
    images = PermutohedralLattice(points)(np.eye(len(points))[:, middle])
    images /= images.sum(axis=0)
    means = images.T @ points[:, 0]
    np.testing.assert_allclose(means, points[middle, 0], atol=0.05)
    variances = images.T @ points[:, 0] ** 2 - means**2
    assert variances.mean() == pytest.approx(1, rel=0.03)
    assert 0.8 < variances.min() <= variances.max() < 1.2


def test_the_lattice_is_symmetric_and_linear():
    draw = np.random.default_rng(0)
    lattice = PermutohedralLattice(draw.uniform(0, 2, (53, 3)))
    matrix = lattice(np.eye(53))
    np.testing.assert_allclose(matrix.sum(axis=1, keepdims=True), lattice(np.ones((53, 1))), rtol=1e-5)
    assert np.abs(matrix - matrix.T).max() < 0.15 * matrix.max()  # blurs along axes follow one another in one order


def test_one_update_is_nearly_the_exact_one():
    """The log-odds after one update, before they grow so large that nothing can be seen of its parts."""
    image, disc = scene(0)
    noisy = disc ^ (np.random.default_rng(1).random(disc.shape) < 0.15)
    q = mean_field(image, noisy[None], iterations=1)[0].astype(float)
    unary = np.where(noisy.ravel(), 1.0, -1.0)
    t = np.tanh(unary / 2)
    exact = unary + 7 * kernel(points_of(image, 3.0)) @ t + 10 * kernel(points_of(image, 50.0, 5.0)) @ t
    odds = np.log(q / (1 - q)).ravel()
    assert np.abs(odds - exact).mean() < 0.03 * np.abs(exact).mean()


def test_the_mean_field_is_nearly_the_exact_one():
    image, disc = scene(0)
    noisy = disc ^ (np.random.default_rng(1).random(disc.shape) < 0.15)
    ours = mean_field(image, np.stack([noisy, disc]))
    smooth, bilateral = kernel(points_of(image, 3.0)), kernel(points_of(image, 50.0, 5.0))
    for mask, q in zip((noisy, disc), ours, strict=True):
        unary = np.where(mask.ravel(), 1.0, -1.0)
        foreground = np.exp(unary / 2) / (np.exp(unary / 2) + np.exp(-unary / 2))
        for _ in range(10):  # both labels, as the equations stand
            energy = [-7 * smooth @ label - 10 * bilateral @ label for label in (1 - foreground, foreground)]
            up, down = np.exp(unary / 2 - energy[1]), np.exp(-unary / 2 - energy[0])
            foreground = up / (up + down)
        exact = foreground.reshape(q.shape)
        assert ((q > 0.5) == (exact > 0.5)).mean() > 0.99
        assert np.abs(q - exact).mean() < 0.02


@pytest.mark.parametrize("seed", range(4))
def test_noisy_masks_get_better(seed):
    image, disc = scene(seed, 61, 53)
    draw = np.random.default_rng(seed)
    grainy = disc ^ (draw.random(disc.shape) < 0.1)
    coarse = gaussian_filter(disc.astype(float), 3) > 0.5
    blocks = np.kron(disc[::8, ::8], np.ones((8, 8), dtype=bool))[:61, :53]  # as patches leave them
    for mask, better in zip((grainy, coarse, blocks), refine(image, [grainy, coarse, blocks]), strict=True):
        assert better is not None
        assert iou(better, disc) > max(iou(mask, disc), 0.95)


def test_grey_images_and_no_masks():
    image, disc = scene(0)
    better = refine(image[..., 0], [disc])[0]
    assert better is not None
    assert iou(better, disc) > 0.9
    assert refine(image, []) == []


def test_a_hole_is_filled_and_a_mask_that_follows_nothing_is_dropped():
    image, disc = scene(2, 61, 53)
    image[28:32, 22:26] = 255  # a spot of another colour in the disc
    better, dropped = refine(image, [disc, np.random.default_rng(0).random(disc.shape) < 0.3])
    assert better is not None
    assert better[28:32, 22:26].all()
    assert dropped is None


def test_refusals():
    image, disc = scene(0)
    with pytest.raises(CrateError, match="do not fit the image"):
        mean_field(image, disc[None, :-1])
    with pytest.raises(CrateError, match="spread too far"):
        PermutohedralLattice(np.array([[0.0] * 5, [1e5] * 5]))
