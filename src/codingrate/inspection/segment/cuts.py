"""MaskCut: find regions one after another by normalized cuts of the graph of patches (paper 4.3, algorithm in C).

A cut needs one eigenvector, which Lanczos computes without a full decomposition.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.ndimage import label
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

from ...errors import CrateError, unknown_name

Box = tuple[int, int, int, int]
Matrix = NDArray[np.float64]
Rule = Literal["symmetric", "cutler"]
"""Rule by which a cut gives a mask: independent of the sign of an eigenvector, or that of MaskCut's release."""
THRESHOLD = 0.15  # default cosine above which two patches are alike
SMALLEST = 0.01  # share of the grid that every mask after the first must exceed
SAME = 0.5  # overlap (intersection over union) above which a mask repeats the one before it
WEAK = 1e-5  # weight of an edge between patches that are not alike; not zero, so that the graph stays connected
_DENSE = 24  # number of patches up to which the dense solver is as fast; Lanczos needs more than a few


@dataclass(frozen=True, eq=False)
class Cut:
    """One region on the grid of patches: an object, or a part of the background."""

    mask: NDArray[np.bool_]  # (rows, columns), True on the region
    cut_quality: float
    """1 − Ncut/2 in [0, 1], see `cut_quality`: how little connects the region with the rest of the image. It is not the
    probability of an object, and the paper defines no score."""
    eigenvector: Matrix  # (rows, columns), the eigenvector of the cut, larger on the region's side

    @property
    def box(self) -> Box:
        """Bounding box (x, y, width, height) in patches."""
        return bounding_box(self.mask)


def maskcut(
    features: Tensor | NDArray[Any],
    grid: tuple[int, int],
    masks: int = 3,
    threshold: float = THRESHOLD,
    rule: Rule = "symmetric",
) -> list[Cut]:
    """Find at most `masks` regions from the features (N, d) of one image's patches, N = rows · columns of `grid`.

    Each of `masks` steps cuts the graph in two (`normalized_cut`), selects the side that is not background, keeps the
    connected part around its strongest patch, and makes the edges of that part weak. A mask after the first is rejected
    if it overlaps the mask of the step before by more than half or covers no more than 1 % of the grid.

    An eigenvector has no sign, but the release of MaskCut (CutLER) decides by the sign that its solver returns which
    side is the object. `rule="symmetric"` decides alike for both signs, and ends the search after a rejected mask,
    because the graph, and so the next cut, is unchanged. `rule="cutler"` does as the release: it calls the same dense
    solver, which takes n³ operations, keeps its sign, and goes on after a rejected mask. The mask of that step is then
    empty, so that the next step accepts the same cut if only its overlap was the reason.
    """
    if rule not in get_args(Rule):
        raise unknown_name("rule", rule, get_args(Rule))
    weights = affinity(_checked(features, grid, masks, threshold), threshold)
    cuts: list[Cut] = []
    taken = np.zeros(grid, dtype=bool)
    previous: NDArray[np.bool_] | None = None
    for _ in range(masks):
        if not can_cut(weights):
            break
        vector = (normalized_cut if rule == "symmetric" else _release_cut)(weights).reshape(grid)
        vector = vector if _is_foreground(vector, rule) else -vector
        parts, _ = label(vector > vector.mean())  # connected by the sides of patches
        part = np.asarray(parts == parts.ravel()[vector.argmax()])
        rejected = previous is not None and (overlap(part, previous) > SAME or part.mean() <= SMALLEST)
        kept = part & (not rejected)
        new = kept & ~taken
        previous = new if rule == "symmetric" else kept
        if new.any():
            cuts.append(Cut(new, cut_quality(weights, new.ravel()), vector))
            taken |= new
            weights[new.ravel()] = WEAK
            weights[:, new.ravel()] = WEAK
        elif rule == "symmetric":
            break
    return cuts


def overlap(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """Compute the intersection over union of two masks; 0 if both are empty."""
    return float(np.count_nonzero(one & other)) / max(int(np.count_nonzero(one | other)), 1)


def bounding_box(mask: NDArray[np.bool_]) -> Box:
    """Return the smallest rectangle (x, y, width, height) that contains a mask; the mask must not be empty."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    x, y = int(columns[0]), int(rows[0])
    return x, y, int(columns[-1]) - x + 1, int(rows[-1]) - y + 1


def affinity(features: NDArray[Any], threshold: float) -> Matrix:
    """Compute W_ij = 1 if cos(f_i, f_j) > τ, else 1e-5: features (n, d) to a symmetric (n, n).

    With f_i = [U_1ᵀz_i … U_Kᵀz_i] the product ⟨f_i, f_j⟩ is the paper's M_ij = Σ_k ⟨U_kᵀz_i, U_kᵀz_j⟩. M is normalized
    and cut at τ as in the MaskCut pipeline that the paper applies; the paper does not write this step. A feature that
    is zero is not similar to any other, nor to itself.
    """
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    unit = features / np.where(norms > 0, norms, 1)
    alike = unit @ unit.T > threshold
    return np.where(alike | alike.T, 1.0, WEAK)  # rounding may make the product slightly asymmetric


def normalized_cut(weights: Matrix) -> Matrix:
    """Return the eigenvector v (n,) of the second smallest μ in (D − W)v = μDv, vᵀDv = 1, its largest entry positive.

    With u = D^½v this is the second largest eigenvalue 1 − μ of the symmetric D^-½WD^-½, whose largest is 1 with
    u_1 = D^½1/‖D^½1‖. Lanczos computes the largest eigenvalue of D^-½WD^-½ − 2u_1u_1ᵀ, where the known eigenvalue is
    moved to −1, below all others. This takes about thirty products with W instead of n³ operations.
    """
    degrees = weights.sum(axis=1)
    scale = degrees**-0.5
    known = np.sqrt(degrees / degrees.sum())

    def product(x: Matrix) -> Matrix:
        x = x.ravel()
        return scale * (weights @ (scale * x)) - 2 * (known @ x) * known

    u: Matrix | None = None
    if len(weights) > _DENSE:
        operator = LinearOperator(weights.shape, matvec=product, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(len(weights))  # fixed, so that masks are reproducible
        with suppress(ArpackError):  # no convergence because eigenvalues are too close
            u = eigsh(operator, k=1, which="LA", v0=start)[1][:, 0]
    if u is None:
        last = len(weights) - 1
        matrix = scale[:, None] * weights * scale - 2 * np.outer(known, known)
        u = eigh(matrix, subset_by_index=[last, last])[1][:, 0]
    v = scale * u
    return v if v[np.abs(v).argmax()] > 0 else -v


def _release_cut(weights: Matrix) -> Matrix:
    """Return the same eigenvector with the sign that the dense solver of the release gives it."""
    degrees = np.diag(weights.sum(axis=1))
    vectors: Matrix = eigh(degrees - weights, degrees, subset_by_index=[1, 2])[1]
    return vectors[:, 0]


def cut_quality(weights: Matrix, side: NDArray[np.bool_]) -> float:
    """Compute 1 − Ncut/2 in [0, 1] of a part A (n,) against the rest B: Ncut = cut(A, B)(1/assoc(A) + 1/assoc(B)).

    It is 1 if no weight connects the two, and ½ or less if they are no more alike within than across.
    """
    degrees = weights.sum(axis=1)
    inside = float(degrees[side].sum())
    crossing = float(weights[np.ix_(side, ~side)].sum())
    return 1 - (crossing / inside + crossing / float(degrees[~side].sum())) / 2


def can_cut(weights: Matrix) -> bool:
    """Check that some pairs of patches are alike and some are not; otherwise a cut is arbitrary."""
    strong = (weights > WEAK)[~np.eye(len(weights), dtype=bool)]
    return bool(strong.any() and not strong.all())


def _is_foreground(vector: Matrix, rule: Rule = "symmetric") -> bool:
    """Decide if the object is on the side above the mean.

    A side with three or four corners of the image is the background. If each side has two, the object is where |v| is
    largest. The release only looks at the corners above the mean, so that fewer than three decide nothing, and its
    answer depends on the arbitrary sign of the eigenvector.
    """
    above = vector > vector.mean()
    corners = int(above[[0, 0, -1, -1], [0, -1, 0, -1]].sum())
    if corners > 2 or (corners < 2 and rule == "symmetric"):
        return corners < 2
    return bool(above.ravel()[np.abs(vector).argmax()])


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
        raise CrateError(f"masks must be positive and threshold in [0, 1) (got {masks} and {threshold})")
    if not np.isfinite(features).all():
        raise CrateError("features are not finite; the model that computed them has diverged or its file is damaged")
    return features
