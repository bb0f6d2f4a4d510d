"""Tests of means: how far from its expectation a sample mean may lie before a claim is called wrong."""

from __future__ import annotations

import torch
from scipy.stats import norm
from torch import Tensor

LEVEL = 1e-3  # a true claim is called wrong in one trial of a thousand


def critical(tests: int) -> float:
    """The |z| that none of so many normal z-scores exceeds but with probability LEVEL (Bonferroni)."""
    return float(norm.isf(LEVEL / (2 * tests)))


def z_scores(sample: Tensor, expected: Tensor | float = 0.0) -> Tensor:
    """(mean − expected) / standard error for each column of independent rows: (n, m) → (m,)."""
    return (sample.mean(0) - expected) * len(sample) ** 0.5 / sample.std(0)


def outer_squares(z: Tensor) -> Tensor:
    """The distinct entries of zz* for each row, (n, d) → (n, d(d + 1)/2)."""
    i, j = torch.triu_indices(z.shape[-1], z.shape[-1], device=z.device)
    return z[:, i] * z[:, j]
