"""Move the edges of masks to those of the image: mean field of a dense CRF (appendix C: it "smooths the edges").

This is our own implementation: pydensecrf, which MaskCut calls, has no wheel for Python 3.11. For two labels it needs
SciPy's Gaussian filter and a bilateral filter, which runs on the permutohedral lattice (Adams, Baek and Davis, 2010):
points are splatted onto the corners of the simplices they lie in, blurred along each axis, and read back. Only corners
near points are stored, so the cost is linear in the points and five dimensions are affordable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert
from scipy.ndimage import binary_fill_holes, gaussian_filter
from scipy.sparse import csr_array

from ...errors import CrateError
from .cuts import overlap

SMOOTH_WEIGHT, SMOOTH_SPREAD = 7.0, 3.0  # weight of the spatial kernel, and its standard deviation in pixels
COLOR_WEIGHT, PLACE_SPREAD, COLOR_SPREAD = 10.0, 50.0, 5.0
"""Weight of the bilateral kernel, and its standard deviations in pixels and in color levels of 255."""
ITERATIONS = 10
MIN_OVERLAP = 0.5  # overlap of a mask with its refined form below which it is dropped

Filter = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def refine(image: NDArray[np.uint8], masks: Sequence[NDArray[np.bool_]]) -> list[NDArray[np.bool_] | None]:
    """Move the edges of each mask (height, width) to those of the image, and fill its holes.

    The result is None for a mask whose overlap with its refined form is below ½: it followed nothing in the image.
    """
    if not masks:
        return []
    refined = [np.asarray(binary_fill_holes(q > 0.5)) for q in mean_field(image, np.stack(masks))]
    pairs = zip(masks, refined, strict=True)
    return [new if new.any() and overlap(old, new) >= MIN_OVERLAP else None for old, new in pairs]


def mean_field(image: NDArray[np.uint8], masks: NDArray[np.bool_], iterations: int = ITERATIONS) -> NDArray[np.float32]:
    """Compute Q of the object at every pixel, (c, height, width), for masks of one image (height, width[, 3]).

    With labels ±1 and t_i = 2Q_i − 1, an update of the dense CRF with Potts penalties is
    t ← tanh(½(m + 7 G t + 10 B t)). Here m_i = ±1 is the mask, so a pixel starts at 0.731 or 0.269, and G, B are the
    kernels exp(−‖x_i − x_j‖²/2·3²) and exp(−‖x_i − x_j‖²/2·50² − ‖c_i − c_j‖²/2·5²), each normalized to N^-½KN^-½,
    N = K1. The sums include j = i, as in the code of Krähenbühl and Koltun that MaskCut calls.
    """
    if image.shape[:2] != masks.shape[1:] or image.dtype != np.uint8:
        raise CrateError(f"masks {masks.shape} do not fit the image {image.shape} of {image.dtype}; resize them to it")
    gaussian = partial(gaussian_filter, sigma=(0, SMOOTH_SPREAD, SMOOTH_SPREAD), mode="constant")
    smooth, bilateral = (_normalized(kernel, image.shape[:2]) for kernel in (gaussian, _bilateral(image)))
    unary = np.where(masks, 1.0, -1.0).astype(np.float32)
    t = np.tanh(unary / 2)
    for _ in range(iterations):
        t = np.tanh((unary + SMOOTH_WEIGHT * smooth(t) + COLOR_WEIGHT * bilateral(t)) / 2)
    return np.asarray((t + 1) / 2)


def _normalized(kernel: Filter, shape: tuple[int, int]) -> Filter:
    """Return N^-½KN^-½."""
    scale: NDArray[np.float32] = np.maximum(kernel(np.ones((1, *shape), np.float32)), 1e-20) ** np.float32(-0.5)
    return lambda x: scale * kernel(scale * x)


def _bilateral(image: NDArray[np.uint8]) -> Filter:
    height, width = image.shape[:2]
    places = np.moveaxis(np.mgrid[:height, :width], 0, -1) / PLACE_SPREAD
    points: NDArray[Any] = np.concatenate([places, image.reshape(height, width, -1) / COLOR_SPREAD], axis=-1)
    lattice = PermutohedralLattice(points.reshape(height * width, -1))
    return lambda x: lattice(x.reshape(len(x), -1).T).T.reshape(x.shape)


class PermutohedralLattice:
    """The filter Kx with K_ij ≈ exp(−½‖f_i − f_j‖²) up to a factor, for points f (n, d) in units of their deviations.

    The lattice consists of the integer points of the hyperplane Σx = 0 in d + 1 dimensions whose coordinates agree
    modulo d + 1. It is built once for an image and filters any number of columns.
    """

    def __init__(self, points: NDArray[Any]) -> None:
        keys, shares = _simplices(points)  # (n, d + 1, d) corners without their last coordinate, (n, d + 1) weights
        count, corners, d = keys.shape
        low = keys.min(axis=(0, 1)) - corners  # room for the neighbors of the outermost
        sides = keys.max(axis=(0, 1)) + corners + 1 - low
        if float(np.prod(sides.astype(float))) >= 2**62:
            raise CrateError("points spread too far in units of their deviations; scale them down")
        strides = np.concatenate([[1], np.cumprod(sides[:-1])])
        known, index = np.unique((keys - low) @ strides, return_inverse=True)
        self.size = len(known)
        rows = np.arange(0, count * corners + 1, corners)
        self.read = csr_array((shares.ravel(), index.ravel(), rows), shape=(count, self.size))
        self.write = self.read.T.tocsr()
        steps = np.ones((corners, d), dtype=np.int64)
        steps[np.arange(d), np.arange(d)] = -d  # along axis j the j-th coordinate moves by −d and all others by 1
        self.neighbors = [
            (self._find(known, known + step), self._find(known, known - step)) for step in steps @ strides
        ]

    def _find(self, known: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of each key among the known ones, or one past the end."""
        index = np.searchsorted(known, wanted)
        exists = known[np.minimum(index, self.size - 1)] == wanted
        return np.where(exists, index, self.size)

    def __call__(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Filter columns (n, c)."""
        lattice = np.zeros((self.size + 1, values.shape[1]), dtype=np.float32)  # the last row stands for missing keys
        lattice[:-1] = self.write @ values.astype(np.float32)
        for forward, back in self.neighbors:
            lattice[:-1] = 0.5 * lattice[:-1] + 0.25 * (lattice[forward] + lattice[back])
        return np.asarray(self.read @ lattice[:-1])


def _simplices(points: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the d + 1 corners of the simplex around each point, and its barycentric coordinates there."""
    count, d = points.shape
    # The rows of Helmert's matrix span the hyperplane Σx = 0; scaled so that the whole filter has deviation one.
    lifted = points @ (helmert(d + 1) * (d + 1) * np.sqrt(2 / 3))  # (n, d + 1)
    nearest = np.rint(lifted / (d + 1)).astype(np.int64) * (d + 1)
    order = np.argsort(nearest - lifted, axis=1, kind="stable")  # largest remainder first
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(d + 1)[None], axis=1)
    rank += nearest.sum(axis=1, keepdims=True) // (d + 1)  # back into the hyperplane: the ranks roll over
    roll = (rank < 0).astype(np.int64) - (rank > d)
    rank, nearest = rank + roll * (d + 1), nearest + roll * (d + 1)
    remainder = np.empty_like(lifted)
    np.put_along_axis(remainder, rank, (lifted - nearest) / (d + 1), axis=1)  # descending
    shares = np.empty((count, d + 1), dtype=np.float32)
    shares[:, 0] = 1 + remainder[:, d] - remainder[:, 0]
    shares[:, 1:] = (remainder[:, :-1] - remainder[:, 1:])[:, ::-1]
    corner = np.arange(d + 1)
    steps = np.where(corner[None] <= d - corner[:, None], corner[:, None], corner[:, None] - (d + 1))  # (corner, rank)
    keys = nearest[:, None, :d] + steps.T[rank[:, :d]].transpose(0, 2, 1)
    return keys, shares
