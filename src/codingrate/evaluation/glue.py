"""Sentence classification and regression: the metrics of GLUE, their average in the paper, and a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import GLUE
from ..errors import CrateError, unknown_name
from .probe import STRENGTHS

CLASS_METRICS = ("accuracy", "f1", "matthews")
"""Metrics of class predictions; `f1` is that of class 1, `matthews` is a correlation."""
REGRESSION_METRICS = ("pearson", "spearman")  # metrics of numbers, both correlations


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


def bag_of_words_metrics(
    train: Any,
    validation: Any,
    columns: Sequence[str],
    names: Sequence[str],
    *,
    label_column: str = "label",
    folds: int = 5,
    seed: int = 0,
) -> dict[str, float]:
    """Return the metrics `names` on `validation` of a linear model fitted to the words of `train`.

    Both datasets are indexed by column name, like the splits of `load_sentences`. Each word of each of `columns` is one
    binary feature: whether it occurs in that column. Classes are predicted by logistic regression, numbers by ridge
    regression. The regularization is chosen from the probes' grid by cross-validation with `folds` folds, shuffled by
    `seed`. The result also contains the chosen `strength` (scikit-learn's C, or 1/alpha) and the number of `words`.
    """
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold

    labels, validation_labels = np.asarray(train[label_column]), np.asarray(validation[label_column])
    if len(labels) < 2 * folds:
        raise CrateError(f"{len(labels)} training sentences are too few for {folds} folds; use more, or fewer folds")
    vectorizers = [CountVectorizer(binary=True, token_pattern=r"(?u)\b\w+\b").fit(train[name]) for name in columns]
    x, x_validation = (
        csr_matrix(hstack([words.transform(split[name]) for words, name in zip(vectorizers, columns, strict=True)]))
        for split in (train, validation)
    )
    regression = set(names) <= set(REGRESSION_METRICS)
    model, grid = LogisticRegression(max_iter=2000), {"C": list(STRENGTHS)}
    if regression:
        model, grid = Ridge(), {"alpha": [1 / strength for strength in STRENGTHS]}
    splitter = (KFold if regression else StratifiedKFold)(folds, shuffle=True, random_state=seed)
    search = GridSearchCV(model, grid, cv=splitter).fit(x, labels)
    (chosen,) = search.best_params_.values()
    strength = 1 / chosen if regression else chosen
    metrics = sentence_metrics(names, search.predict(x_validation), validation_labels)
    return {**metrics, "strength": float(strength), "words": float(x.shape[1])}
