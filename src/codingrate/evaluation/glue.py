"""Sentence classification and regression: the metrics of the GLUE tasks, and their average as in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import GLUE
from ..errors import CrateError, unknown_name

CLASS_METRICS = ("accuracy", "f1", "matthews")
"""Metrics of class predictions; `f1` is that of class 1, `matthews` is a correlation."""
REGRESSION_METRICS = ("pearson", "spearman")
"""Metrics of numbers, both correlations."""


def sentence_metrics(names: Sequence[str], predictions: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
    """Return each named metric of predictions (n,), which are class indices or numbers, and labels (n,).

    An undefined metric is 0: a correlation if all predictions are equal, F1 if class 1 occurs in neither.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    known = (*CLASS_METRICS, *REGRESSION_METRICS)
    for name in names:
        if name not in known:
            raise unknown_name("metric", name, known)
    if predictions.shape != labels.shape or labels.ndim != 1:
        raise CrateError(f"predictions {predictions.shape} and labels {labels.shape} must both be (n,)")
    if len(labels) == 0:
        raise CrateError("there are no predictions to score; use a split that is not empty")
    if not np.isfinite(predictions).all():
        raise CrateError("the predictions are not all finite: training diverged or the model's file is damaged")
    return {name: float(_metric(name, predictions, labels)) for name in names}


def _metric(name: str, predictions: NDArray[Any], labels: NDArray[Any]) -> Any:
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import f1_score, matthews_corrcoef

    if name == "accuracy":
        return (predictions == labels).mean()
    if name == "f1":
        if max(labels.max(), predictions.max()) > 1:
            raise CrateError("f1 needs two classes; use accuracy for more")
        return f1_score(labels, predictions, zero_division=0)
    if any(np.ptp(column) <= 1e-10 * abs(column).max() for column in (predictions, labels)):  # one is constant
        return 0.0
    if name == "matthews":
        return matthews_corrcoef(labels, predictions)
    return (pearsonr if name == "pearson" else spearmanr)(predictions.astype(float), labels).statistic


def glue_average(scores: Mapping[str, float | Mapping[str, float]]) -> float:
    """Return the paper's average: the mean of nine scores, with two for MNLI (matched, mismatched) and without CoLA.

    `scores` contains the main metric of each task; for MNLI, a mapping with one score per validation set.
    """
    values: list[float] = []
    for name, task in GLUE.items():
        if not task.in_average:
            continue
        score = scores.get(name)
        by_split = score if isinstance(score, Mapping) else {} if score is None else {task.validation[0]: score}
        missing = [split for split in task.validation if split not in by_split]
        if missing:
            label = f"{name}, {missing[0]}" if len(task.validation) > 1 else name
            raise CrateError(f"the average needs nine scores; {label} is missing")
        values += [by_split[split] for split in task.validation]
    return sum(values) / len(values)
