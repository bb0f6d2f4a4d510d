"""The normalised cut of a graph of patches: one eigenvector by Lanczos, not a full decomposition (paper 4.3, C)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

WEAK = 1e-5
"""Weight of an edge between patches that are not alike; not zero, so that the graph stays in one piece."""
_DENSE = 24  # tokens up to which the dense solver is as quick, and Lanczos has no room


def affinity(features: NDArray[Any], threshold: float) -> NDArray[np.float64]:
    """W_ij = 1 where cos(f_i, f_j) > τ, else 1e-5: features (n, d) to a symmetric (n, n).

    With f_i = [U_1ᵀz_i … U_Kᵀz_i] the product ⟨f_i, f_j⟩ is the paper's M_ij = Σ_k ⟨U_kᵀz_i, U_kᵀz_j⟩. Norms are taken
    out and M is cut at τ, as the MaskCut pipeline that the paper applies does; the paper does not write this step.
    A feature that is zero is like no other, not even itself.
    """
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    unit = features / np.where(norms > 0, norms, 1)
    alike = unit @ unit.T > threshold
    return np.where(alike | alike.T, 1.0, WEAK)  # a product may differ from its mirror image in the last digit


def can_cut(weights: NDArray[np.float64]) -> bool:
    """Whether a cut says anything: not where all pairs are alike, or none is."""
    pairs = weights.size - len(weights)
    strong = int(np.count_nonzero(weights > WEAK)) - int(np.count_nonzero(np.diagonal(weights) > WEAK))
    return 0 < strong < pairs


def normalized_cut(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The eigenvector v (n,) of the second smallest μ in (D − W)v = μDv, with vᵀDv = 1 and its largest entry positive.

    With u = D^½v that is the second largest eigenvalue 1 − μ of the symmetric D^-½WD^-½, whose largest is 1 with
    u_1 = D^½1/‖D^½1‖. Lanczos looks for the largest eigenvalue of D^-½WD^-½ − 2u_1u_1ᵀ, where the known one stands
    at −1, below all others: some thirty products with W in place of n³ operations.
    """
    degrees = weights.sum(axis=1)
    scale = degrees**-0.5
    known = np.sqrt(degrees / degrees.sum())
    u = None if len(weights) <= _DENSE else _lanczos(weights, scale, known)
    v = scale * (_dense(weights, scale, known) if u is None else u)
    return v if v[np.abs(v).argmax()] > 0 else -v


def _lanczos(
    weights: NDArray[np.float64], scale: NDArray[np.float64], known: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    def product(x: NDArray[np.float64]) -> NDArray[np.float64]:
        x = x.ravel()
        return scale * (weights @ (scale * x)) - 2 * (known @ x) * known

    operator = LinearOperator(weights.shape, matvec=product, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(len(weights))  # the same every time, so that masks are
    try:
        return np.asarray(eigsh(operator, k=1, which="LA", v0=start)[1][:, 0])
    except ArpackError:  # eigenvalues too close to be told apart in its number of steps
        return None


def _dense(weights: NDArray[np.float64], scale: NDArray[np.float64], known: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.linalg import eigh

    last = len(weights) - 1
    matrix = scale[:, None] * weights * scale - 2 * np.outer(known, known)
    return np.asarray(eigh(matrix, subset_by_index=[last, last])[1][:, 0])


def cut_quality(weights: NDArray[np.float64], side: NDArray[np.bool_]) -> float:
    """1 − Ncut/2 in [0, 1] of a part A (n,): Ncut = cut(A, B)/assoc(A) + cut(A, B)/assoc(B), B being all others.

    One where no weight crosses between the two, ½ or less where they are no more alike within than across.
    """
    degrees = weights.sum(axis=1)
    inside = float(degrees[side].sum())
    crossing = float(weights[np.ix_(side, ~side)].sum())
    return 1 - (crossing / inside + crossing / float(degrees[~side].sum())) / 2
