"""What the words alone tell: the bag-of-words rival of a model that reads sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import CrateError
from .glue import NUMBERS, sentence_metrics
from .logistic import STRENGTHS


def bag_of_words(
    train: Any,
    validation: Any,
    columns: Sequence[str],
    names: Sequence[str],
    *,
    label_column: str = "label",
    folds: int = 5,
    seed: int = 0,
) -> dict[str, float]:
    """The named metrics of a linear model that sees which words are there, not their order.

    `train` and `validation` give columns by name, as the tables of `load_sentences` do. Each word of each of `columns`
    is an input, 1 where it occurs in that sentence. Classes are told apart by logistic regression with an ℓ2 term,
    numbers by ridge regression; the strength is the best of the probes' grid over `folds` parts of `train`, drawn by
    `seed`. The `strength` chosen and the number of `words` are given too.
    """
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold

    labels, truths = np.asarray(train[label_column]), np.asarray(validation[label_column])
    if len(labels) < 2 * folds:
        raise CrateError(f"{len(labels)} training sentences are too few for {folds} folds; give more, or fewer folds")
    counters = [CountVectorizer(binary=True, token_pattern=r"(?u)\b\w+\b").fit(train[name]) for name in columns]
    seen, asked = (
        csr_matrix(hstack([counter.transform(rows[name]) for counter, name in zip(counters, columns, strict=True)]))
        for rows in (train, validation)
    )
    if set(names) <= set(NUMBERS):
        parts = KFold(folds, shuffle=True, random_state=seed)
        search = GridSearchCV(Ridge(), {"alpha": [1 / strength for strength in STRENGTHS]}, cv=parts)
        strength = 1 / search.fit(seen, labels).best_params_["alpha"]
    else:
        cuts = StratifiedKFold(folds, shuffle=True, random_state=seed)
        search = GridSearchCV(LogisticRegression(max_iter=2000), {"C": STRENGTHS}, cv=cuts)
        strength = search.fit(seen, labels).best_params_["C"]
    found = sentence_metrics(names, search.predict(asked), truths)
    return {**found, "strength": float(strength), "words": float(seen.shape[1])}
