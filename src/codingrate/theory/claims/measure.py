"""Measurements that claims share: fitted orders, errors relative to rounding, and tests of sample means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

EXACT = math.sqrt(torch.finfo(torch.float64).eps)
"""Relative error up to which two float64 results count as equal: half of the digits, 1.5e-8."""

LEVEL = 1e-3
"""Probability that a true claim is rejected by chance in one trial."""


class PowerLaw(NamedTuple):
    """y = constant · x^exponent."""

    exponent: float
    constant: float


def power_law(x: Sequence[float] | Tensor, y: Sequence[float] | Tensor, exponent: float | None = None) -> PowerLaw:
    """Fit a power law, or the constant of one with this exponent, to points by least squares in log-log."""
    log_x, log_y = (np.log(np.asarray(values, dtype=float)) for values in (x, y))
    if exponent is None:
        centered = log_x - log_x.mean()
        exponent = float(centered @ log_y / (centered @ centered))
    return PowerLaw(exponent, float(np.exp(log_y.mean() - exponent * log_x.mean())))


class Estimate(NamedTuple):
    """A mean over repetitions with its standard error."""

    mean: float
    error: float


def estimate(values: Sequence[float] | Tensor) -> Estimate:
    """Return the mean and standard error of at least two independent repetitions."""
    data = np.asarray(values, dtype=float).ravel()
    return Estimate(float(data.mean()), float(data.std(ddof=1) / math.sqrt(data.size)))


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of the angle between two tensors of one shape, seen as vectors."""
    return float((a * b).sum() / (torch.linalg.norm(a) * torch.linalg.norm(b)))


def relative(a: Tensor, b: Tensor) -> float:
    """Return ‖a − b‖/‖b‖."""
    return float(torch.linalg.norm(a - b) / torch.linalg.norm(b))


def rounding(size: int, condition: float = 1.0) -> float:
    """Return the relative difference that rounding in float64 explains: size · condition · 2⁻⁵²."""
    return size * condition * 2.0**-52


def critical(tests: int) -> float:
    """Return the bound that |z| exceeds in any of so many tests with probability at most LEVEL (Bonferroni)."""
    return float(norm.isf(LEVEL / (2 * tests)))


def z_scores(sample: Tensor, expected: Tensor | float = 0.0) -> Tensor:
    """Return (mean − expected) / standard error of each column of independent rows, (n, m) → (m,)."""
    return (sample.mean(0) - expected) * len(sample) ** 0.5 / sample.std(0)


def covariance_scores(sample: Tensor, covariance: Tensor) -> Tensor:
    """Return z-scores of the distinct entries of E zz* for independent rows z, (n, d) → (d(d + 1)/2,)."""
    i, j = torch.triu_indices(*covariance.shape)
    return z_scores(sample[:, i] * sample[:, j], covariance[i, j])
