"""What a probe costs: neighbours and logistic regression on features of ten Gaussian classes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ..evaluation import Features, knn_probe, logistic_probe
from .timing import peak_memory

KNN = (50_000, 10_000, 384)
LOGISTIC = (10_000, 2_000, 192)
_CLASSES, _SPREAD = 10, 4.0


def bench_probe(knn: tuple[int, int, int] = KNN, logistic: tuple[int, int, int] = LOGISTIC) -> dict[str, Any]:
    """Seconds and, measured in a process of its own, MiB of both probes on (training, test, width) features.

    The neighbours' time holds the choice of k, for which every training image is compared with all others; that of
    the regression its seven strengths on five folds each, and the final fit.
    """
    result: dict[str, Any] = {}
    for name, shape in (("knn", knn), ("logistic", logistic)):
        parts = gaussian_features(*shape)
        start = time.perf_counter()
        found = knn_probe(*parts) if name == "knn" else logistic_probe(*parts)
        seconds = time.perf_counter() - start
        result[name] = {
            **dict(zip(("train", "test", "width"), shape, strict=True)),
            "seconds": seconds,
            "peak_mib": peak_memory(_one_probe, (name, shape)),
            "top1": found.metrics["top1"],
        }
    return result


def gaussian_features(train: int, test: int, width: int) -> tuple[Features, Features]:
    """Features around ten means, spread so that the classes overlap; always the same."""
    draw = np.random.default_rng(0)
    means = draw.standard_normal((_CLASSES, width), dtype=np.float32)
    names = tuple(f"class {number}" for number in range(_CLASSES))
    parts = []
    for rows in (train, test):
        labels = np.arange(rows) % _CLASSES
        values = draw.standard_normal((rows, width), dtype=np.float32)
        values *= _SPREAD
        values += means[labels]
        parts.append(Features(values, labels, names))
    return parts[0], parts[1]


def _one_probe(name: str, shape: tuple[int, int, int]) -> None:
    parts = gaussian_features(*shape)
    if name == "knn":
        knn_probe(*parts)
    else:
        logistic_probe(*parts)
