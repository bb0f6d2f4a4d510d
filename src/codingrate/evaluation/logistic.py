"""The linear probe: logistic regression on features, its ℓ2 strength chosen by cross-validation."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from ..errors import CrateError
from ._checks import check_probe, ranked_before
from .features import Features

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)
"""The paper's grid. It does not say whether the ℓ2 term or its inverse is meant; the grid is the same either way."""
_WORTH_THREADS = 5 * 10**8  # multiplications of one product; below, waking other threads costs more than they bring


class LogisticRow(TypedDict):
    """One strength: share of held-out images that were right, and whether every fit of it came to its end."""

    C: float
    validation_top1: float
    converged: bool


@dataclass(frozen=True)
class LogisticResult:
    """What a linear classifier finds in the features, at the strength that is best on held-out training images."""

    C: float
    """Inverse of the ℓ2 strength, as scikit-learn counts it."""
    train_top1: float
    """Share of the training images it gets right, having seen them."""
    top1: float
    """Share of the test images it gets right."""
    top5: float | None
    """Share of the test images whose class is among its five likeliest; None up to five classes."""
    table: list[LogisticRow]
    """Every strength of the grid."""
    folds: int
    """Parts the training images were divided into."""
    converged: bool
    """Whether the final fit came to its end."""


def logistic_probe(
    train: Features,
    test: Features,
    *,
    strengths: Sequence[float] = STRENGTHS,
    folds: int = 5,
    seed: int = 0,
    tolerance: float = 1e-6,
    iterations: int = 1000,
    progress: Callable[[], None] | None = None,
) -> LogisticResult:
    """Fit W, b by  min ½‖W‖² + C Σ_i −log softmax(W z_i + b)_{y_i},  z_i (d,) standardised, W (classes, d).

    Each of `strengths` (C) is tried on `folds` parts of the training images, drawn by `seed` with as much of every
    class in each; the mean and deviation that standardise come from what a fit learns from. Along the grid each fit
    starts from the one before, from strong ℓ2 to weak. The best C, the smallest of equals, is fitted to all training
    images afresh. The paper names neither folds nor standardisation; without the latter one C would not mean the same
    for two models. `progress` hears every fit, `len(strengths)·folds + 1` of them; folds are fewer where a class has
    fewer images. Held in float64 while fitting.
    """
    check_probe(train, test)
    grid = sorted(set(strengths))
    if not grid or not grid[0] > 0 or folds < 2 or iterations < 1 or not tolerance > 0:
        raise CrateError("logistic regression takes strengths above 0, two folds or more, iterations and a tolerance")
    folds = _fitting_folds(train, folds)
    right, done = np.zeros(len(grid), np.int64), np.ones(len(grid), bool)
    settings = {"tol": tolerance, "max_iter": iterations}
    with _threads(train):
        from sklearn.model_selection import StratifiedKFold

        parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
        for learn, held in parts.split(train.labels, train.labels):
            x, scale = _standardized(train.values[learn])
            x_held = scale(train.values[held])
            model = _regression(warm_start=True, **settings)
            for index, strength in enumerate(grid):
                done[index] &= _fit(model.set_params(C=strength), x, train.labels[learn])
                right[index] += (model.predict(x_held) == train.labels[held]).sum()
                if progress is not None:
                    progress()
        best = int(right.argmax())
        x, scale = _standardized(train.values)
        model = _regression(C=grid[best], **settings)
        converged = _fit(model, x, train.labels)
        if progress is not None:
            progress()
        top1, top5 = _accuracy(model, scale(test.values), test)
        train_top1 = float((model.predict(x) == train.labels).mean())
    table: list[LogisticRow] = [
        {"C": strength, "validation_top1": int(hits) / len(train), "converged": bool(ok)}
        for strength, hits, ok in zip(grid, right, done, strict=True)
    ]
    return LogisticResult(grid[best], train_top1, top1, top5, table, folds, converged)


def _fitting_folds(train: Features, folds: int) -> int:
    """At most as many folds as the rarest class has images, so that every fold sees every class."""
    labels, counts = np.unique(train.labels, return_counts=True)
    if counts.min() < 2:
        name = train.classes[int(labels[counts.argmin()])]
        raise CrateError(
            f"class {name!r} has a single training image, and cross-validation holds some out; take more images"
        )
    return min(folds, int(counts.min()))


def _standardized(values: NDArray[np.float32]) -> tuple[NDArray[np.float64], Callable[[Any], NDArray[np.float64]]]:
    """Features with mean 0 and deviation 1, and the function that treats others alike; constant ones become 0."""
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler(copy=False)  # `astype` copies already
    fitted = scaler.fit_transform(values.astype(np.float64))
    return fitted, lambda others: scaler.transform(others.astype(np.float64))


def _regression(**settings: Any) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(solver="lbfgs", **settings)


def _fit(model: Any, x: NDArray[np.float64], labels: NDArray[np.int64]) -> bool:
    """Fit, and say whether it converged; the warning that says so is kept from the user, who finds it in the result."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(x, labels)
    for warning in said:
        if not issubclass(warning.category, ConvergenceWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return not any(issubclass(warning.category, ConvergenceWarning) for warning in said)


def _accuracy(model: Any, x: NDArray[np.float64], test: Features) -> tuple[float, float | None]:
    top1 = float((model.predict(x) == test.labels).mean())
    if len(test.classes) <= 5 or len(model.classes_) == 2:  # two classes get one score between them
        return top1, None if len(test.classes) <= 5 else 1.0
    ahead = ranked_before(model.decision_function(x), np.searchsorted(model.classes_, test.labels))
    return top1, float((ahead < 5).mean())


@contextlib.contextmanager
def _threads(train: Features) -> Iterator[None]:
    """One thread for small products: on a busy machine the wait for a second makes a fit ten times as long."""
    from threadpoolctl import threadpool_limits

    if train.values.size * len(train.classes) >= _WORTH_THREADS:
        yield
        return
    with threadpool_limits(1):
        yield
