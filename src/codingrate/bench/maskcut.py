"""The cut of MaskCut by Lanczos against the dense generalised solver, on planted objects."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..inspection.segment.cuts import affinity, normalized_cut
from .timing import Progress, medians

WIDTH, RANK = 384, 8
"""Of the features, those of a small model, and of each object's subspace."""


def bench_maskcut(side: int = 60, repeats: int = 3, progress: Progress | None = None) -> dict[str, Any]:
    """Seconds of one cut of side² patches, and how far the two eigenvectors are apart.

    The rival is SciPy's `eigh(D − W, D)` asked for the second eigenvector only, the form MaskCut is published in;
    asked for all it would be slower still. The affinity, which both need, is timed on its own.
    """
    features = planted_features(side)
    weights = affinity(features, 0.15)
    ours, dense = normalized_cut(weights), dense_cut(weights)
    difference = float(min(np.abs(ours - dense).max(), np.abs(ours + dense).max()) / np.abs(dense).max())
    cases = {
        "ours": lambda: normalized_cut(weights),
        "dense": lambda: dense_cut(weights),
        "affinity": lambda: affinity(features, 0.15),
    }
    seconds = medians(cases, repeats, warmup=0, progress=progress)
    return {
        "tokens": side**2,
        "width": WIDTH,
        "seconds": seconds,
        "speedup": seconds["dense"] / seconds["ours"],
        "difference": difference,
    }


def dense_cut(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The eigenvector of the second smallest μ in (D − W)v = μDv, by LAPACK."""
    from scipy.linalg import eigh

    degrees = np.diag(weights.sum(axis=1))
    return np.asarray(eigh(degrees - weights, degrees, subset_by_index=[1, 1])[1][:, 0])


def planted_features(side: int) -> NDArray[np.float32]:
    """Features (side², 384) of two objects on a background, each around a point of a subspace of its own."""
    draw = np.random.default_rng(0)
    labels = np.zeros((side, side), dtype=int)
    labels[side // 6 : side // 2, side // 6 : side // 2] = 1
    labels[side * 3 // 5 : side * 9 // 10, side // 2 : side * 5 // 6] = 2
    bases = [np.linalg.qr(draw.standard_normal((WIDTH, RANK)))[0] for _ in range(3)]
    codes = 0.8 + draw.standard_normal((side**2, RANK))
    rows = [bases[label] @ code for label, code in zip(labels.ravel(), codes, strict=True)]
    noise = 0.05 * draw.standard_normal((side**2, WIDTH))
    return (np.stack(rows) + noise).astype(np.float32)
