"""Gaussian filtering in many dimensions at a cost linear in the points: the permutohedral lattice.

Points are splatted onto the corners of the simplices they lie in, blurred there along each axis, and read back
(Adams, Baek and Davis, 2010). Only corners near points exist, which is what makes five dimensions affordable.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CrateError


class Permutohedral:
    """K x for K_ij ≈ exp(−½‖f_i − f_j‖²) up to a factor, for points f (n, d) that are divided by their deviations.

    The lattice is the integer points of the hyperplane Σx = 0 in d + 1 dimensions whose coordinates agree modulo
    d + 1. Built once for an image, it filters any number of columns.
    """

    def __init__(self, points: NDArray[Any]) -> None:
        from scipy.sparse import csr_array

        keys, shares = _simplices(points)  # (n, d + 1, d) corners without their last coordinate, (n, d + 1) weights
        count, corners, d = keys.shape
        low = keys.min(axis=(0, 1)) - corners  # room for the neighbours of the outermost
        sides = keys.max(axis=(0, 1)) + corners + 1 - low
        if float(np.prod(sides.astype(float))) >= 2**62:
            raise CrateError("points spread too far for their deviations; scale them down")
        strides = np.concatenate([[1], np.cumprod(sides[:-1])])
        known, place = np.unique((keys - low) @ strides, return_inverse=True)
        self.size = len(known)
        rows = np.arange(0, count * corners + 1, corners)
        self.read = csr_array((shares.ravel(), place.ravel(), rows), shape=(count, self.size))
        self.write = self.read.T.tocsr()
        steps = np.ones((corners, d), dtype=np.int64)
        steps[np.arange(d), np.arange(d)] = -d  # along axis j every coordinate moves by 1 but the j-th by −d
        self.neighbours = [
            (self._find(known, known + step), self._find(known, known - step)) for step in steps @ strides
        ]

    def _find(self, known: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each key lies among the known, or one past the end."""
        place = np.searchsorted(known, wanted)
        there = known[np.minimum(place, self.size - 1)] == wanted
        return np.where(there, place, self.size)

    def __call__(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Filter columns (n, c)."""
        lattice = np.zeros((self.size + 1, values.shape[1]), dtype=np.float32)  # the last row is what does not exist
        lattice[:-1] = self.write @ values.astype(np.float32)
        for forth, back in self.neighbours:
            lattice[:-1] = 0.5 * lattice[:-1] + 0.25 * (lattice[forth] + lattice[back])
        return np.asarray(self.read @ lattice[:-1])


def _simplices(points: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The d + 1 corners of the simplex each point lies in, and its barycentric coordinates there."""
    count, d = points.shape
    lifted = points @ _lift(d)  # (n, d + 1), in the hyperplane Σx = 0
    nearest = np.rint(lifted / (d + 1)).astype(np.int64) * (d + 1)
    order = np.argsort(nearest - lifted, axis=1, kind="stable")  # largest remainder first
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(d + 1)[None], axis=1)
    rank += nearest.sum(axis=1, keepdims=True) // (d + 1)  # back into the hyperplane: the ranks roll over
    roll = (rank < 0).astype(np.int64) - (rank > d)
    rank, nearest = rank + roll * (d + 1), nearest + roll * (d + 1)
    remainder = np.empty_like(lifted)
    np.put_along_axis(remainder, rank, (lifted - nearest) / (d + 1), axis=1)  # falling
    shares = np.empty((count, d + 1), dtype=np.float32)
    shares[:, 0] = 1 + remainder[:, d] - remainder[:, 0]
    shares[:, 1:] = (remainder[:, :-1] - remainder[:, 1:])[:, ::-1]
    corner = np.arange(d + 1)
    steps = np.where(corner[None] <= d - corner[:, None], corner[:, None], corner[:, None] - (d + 1))  # (corner, rank)
    keys = nearest[:, None, :d] + steps.T[rank[:, :d]].transpose(0, 2, 1)
    return keys, shares


def _lift(d: int) -> NDArray[np.float64]:
    """Rows orthogonal in the hyperplane, (d, d + 1), so scaled that splat, blur and read spread by one deviation."""
    rows = np.zeros((d, d + 1))
    for i in range(d):
        rows[i, : i + 1] = 1
        rows[i, i + 1] = -(i + 1)
        rows[i] /= np.sqrt((i + 1) * (i + 2))
    return rows * (d + 1) * np.sqrt(2 / 3)
