"""MaskCut: objects in an image, one after another, by cuts of the graph of its patches (paper 4.3, algorithm in C)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import CrateError
from .ncut import WEAK, affinity, can_cut, cut_quality, normalized_cut

Box = tuple[int, int, int, int]
SMALLEST = 0.01
"""Share of the grid that a mask after the first must exceed."""
SAME = 0.5
"""Overlap (intersection over union) above which a mask is the one before it again."""


@dataclass(frozen=True, eq=False)
class Cut:
    """One object on the grid of patches."""

    mask: NDArray[np.bool_]
    """(rows, columns), True on the object."""
    score: float
    """How cleanly it comes off, 1 − Ncut/2 in [0, 1]. The paper defines no score; this one is ours."""
    eigenvector: NDArray[np.float64]
    """(rows, columns), of the cut it came from; larger on the object's side."""

    @property
    def box(self) -> Box:
        """The rectangle that just holds it, (x, y, width, height) in patches."""
        return tight_box(self.mask)


def maskcut(
    features: Tensor | NDArray[Any], grid: tuple[int, int], masks: int = 3, threshold: float = 0.15
) -> list[Cut]:
    """At most `masks` objects from the features (N, d) of one image's patches, N = rows · columns of `grid`.

    Each turn cuts the graph in two (`ncut`), takes the side that is not background, keeps of it the connected piece
    around the strongest patch, and then paints it out: its edges become weak. A mask after the first is dropped where
    it overlaps the one before by more than half, or covers no more than 1 % of the grid. The graph is then the same
    as before, and so is the next cut: the search ends.
    """
    weights = affinity(_checked(features, grid, masks, threshold), threshold)
    found: list[Cut] = []
    painted = np.zeros(grid, dtype=bool)
    while len(found) < masks and can_cut(weights):
        vector = normalized_cut(weights).reshape(grid)
        vector = vector if _is_foreground(vector) else -vector
        piece = _piece(vector)
        if found and (overlap(piece, found[-1].mask) > SAME or piece.mean() <= SMALLEST):
            break
        piece &= ~painted
        if not piece.any():
            break
        found.append(Cut(piece, cut_quality(weights, piece.ravel()), vector))
        painted |= piece
        weights[piece.ravel()] = WEAK
        weights[:, piece.ravel()] = WEAK
    return found


def overlap(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """Intersection over union of two masks; 0 of two empty ones."""
    return float(np.count_nonzero(one & other)) / max(int(np.count_nonzero(one | other)), 1)


def tight_box(mask: NDArray[np.bool_]) -> Box:
    """The rectangle (x, y, width, height) that just holds a mask that is not empty."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    x, y = int(columns[0]), int(rows[0])
    return x, y, int(columns[-1]) - x + 1, int(rows[-1]) - y + 1


def _is_foreground(vector: NDArray[np.float64]) -> bool:
    """Whether the object is on the side above the mean.

    Three or four corners of the image on one side make it the background; with two on each, the object is where |v| is
    largest. MaskCut looks at the corners of the side above the mean only, so that its answer depends on the sign of
    the eigenvector, which is arbitrary; this one does not.
    """
    above = vector > vector.mean()
    corners = int(above[[0, 0, -1, -1], [0, -1, 0, -1]].sum())
    if corners != 2:
        return corners < 2
    return bool(above.ravel()[np.abs(vector).argmax()])


def _piece(vector: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Of the patches above the mean, those connected (side by side) to the largest."""
    from scipy.ndimage import label

    parts, _ = label(vector > vector.mean())
    return np.asarray(parts == parts.ravel()[vector.argmax()])


def _checked(features: Tensor | NDArray[Any], grid: tuple[int, int], masks: int, threshold: float) -> NDArray[Any]:
    if isinstance(features, Tensor):
        features = features.detach().cpu()
        features = (features if features.element_size() > 2 else features.float()).numpy()
    if features.ndim != 2 or len(grid) != 2 or min(grid) < 1 or len(features) != grid[0] * grid[1]:
        raise CrateError(
            f"features {tuple(features.shape)} do not fit a grid of {tuple(grid)}; give (rows · columns, d)"
        )
    if len(features) < 2:
        raise CrateError("an image of one patch cannot be cut; give a larger image or a smaller patch")
    if masks < 1 or not 0 <= threshold < 1:
        raise CrateError(f"masks must be positive and threshold in [0, 1), not {masks} and {threshold}")
    if not np.isfinite(features).all():
        raise CrateError("features are not finite; the model that made them has diverged or its file is damaged")
    return features
