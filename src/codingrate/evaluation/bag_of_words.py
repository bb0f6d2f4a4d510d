"""Bag-of-words baseline for sentence classification: a linear model that ignores the order of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import CrateError
from .glue import REGRESSION_METRICS, sentence_metrics
from .probe import STRENGTHS


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
    if set(names) <= set(REGRESSION_METRICS):
        splitter = KFold(folds, shuffle=True, random_state=seed)
        search = GridSearchCV(Ridge(), {"alpha": [1 / strength for strength in STRENGTHS]}, cv=splitter)
        strength = 1 / search.fit(x, labels).best_params_["alpha"]
    else:
        stratified = StratifiedKFold(folds, shuffle=True, random_state=seed)
        search = GridSearchCV(LogisticRegression(max_iter=2000), {"C": STRENGTHS}, cv=stratified)
        strength = search.fit(x, labels).best_params_["C"]
    metrics = sentence_metrics(names, search.predict(x_validation), validation_labels)
    return {**metrics, "strength": float(strength), "words": float(x.shape[1])}
