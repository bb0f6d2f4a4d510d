"""The small measurements that claims share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class PowerLaw(NamedTuple):
    """y = constant · x^exponent."""

    exponent: float
    constant: float


def power_law(x: Sequence[float] | Tensor, y: Sequence[float] | Tensor) -> PowerLaw:
    """The power law through the points, by least squares in log-log."""
    log_x, log_y = (np.log(np.asarray(values, dtype=float)) for values in (x, y))
    centred = log_x - log_x.mean()
    exponent = float(centred @ log_y / (centred @ centred))
    return PowerLaw(exponent, float(np.exp(log_y.mean() - exponent * log_x.mean())))


def law_through(x: Sequence[float], y: Sequence[float], order: float) -> list[float]:
    """The power law of this order through the middle of the points in log-log, at each x."""
    log_x, log_y = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    return [float(value) for value in np.exp(log_y.mean() + order * (log_x - log_x.mean()))]


class Estimate(NamedTuple):
    """A mean over repetitions with its standard error."""

    mean: float
    error: float


def estimate(values: Sequence[float] | Tensor) -> Estimate:
    """Mean and standard error of independent repetitions, at least two."""
    data = np.asarray(values, dtype=float).ravel()
    return Estimate(float(data.mean()), float(data.std(ddof=1) / math.sqrt(data.size)))


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of the angle between two tensors of one shape, seen as vectors."""
    return float((a * b).sum() / (torch.linalg.norm(a) * torch.linalg.norm(b)))


def relative(a: Tensor, b: Tensor) -> float:
    """‖a − b‖/‖b‖."""
    return float(torch.linalg.norm(a - b) / torch.linalg.norm(b))


def rounding(size: int, condition: float = 1.0) -> float:
    """What two float64 roads to one value may differ by, relative: size · condition · 2⁻⁵²."""
    return size * condition * 2.0**-52
