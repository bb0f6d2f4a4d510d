"""Judge measurements by what the paper predicts: agrees, agrees in part, does not agree.

A prediction is a direction: a measure falls or rises with depth, or lies below or above a reference. Two questions
decide the verdict, because the paper speaks of improvement "in most cases" (4.2):

1. Do most of the changes go as predicted, that is more than half of those that count?
2. Does the whole go as predicted: the change from the first to the last layer, or the mean over layers?

The measurement agrees if both are answered with yes, agrees in part if one is, and does not agree if none is. A change
within its error bar counts neither way. If nothing counts, there is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray


class Verdict(str, Enum):
    """The result of comparing a measurement with a prediction."""

    agrees = "agrees"
    in_part = "agrees in part"
    differs = "does not agree"

    @staticmethod
    def of(answers: Iterable[bool | None]) -> Verdict | None:
        """Return the verdict that follows from answers to questions; None is a question without an answer."""
        known = {answer for answer in answers if answer is not None}
        if not known:
            return None
        return Verdict.in_part if len(known) > 1 else (Verdict.agrees if True in known else Verdict.differs)

    @staticmethod
    def combine(verdicts: Iterable[Verdict | None]) -> Verdict | None:
        """Return the verdict on several measurements: in part, unless all have the same."""
        known = {verdict for verdict in verdicts if verdict is not None}
        return None if not known else known.pop() if len(known) == 1 else Verdict.in_part


@dataclass(frozen=True)
class Prediction:
    """A direction in which a measure is predicted to change."""

    direction: Literal["falls", "rises"]
    except_last: bool = False
    """Whether the change into the last layer counts neither way: the head reads this layer, and in the paper the share
    of non-zero entries rises there (4.2)."""

    def judge_depth(self, values: Sequence[float], errors: ArrayLike = 0.0) -> Verdict | None:
        """Judge values of the layers in their order, with their standard errors."""
        depth = len(values) - int(self.except_last and len(values) > 2)
        if depth < 2:
            return None
        values, errors = values[:depth], np.broadcast_to(errors, len(values))[:depth]
        whole = _signs([values[-1] - values[0]], math.hypot(errors[0], errors[-1]))
        return self._judge(step_signs(values, errors), whole)

    def judge_difference(self, differences: Sequence[float], errors: ArrayLike = 0.0) -> Verdict | None:
        """Judge differences to a reference, one for each layer, with their standard errors; below is `falls`."""
        return self._judge(_signs(differences, errors), _sign_of_mean(differences, errors))

    def _judge(self, signs: Sequence[int | None], whole: Sequence[int | None]) -> Verdict | None:
        counted = [sign == self.sign for sign in signs if sign is not None]
        most = 2 * sum(counted) > len(counted) if counted else None
        return Verdict.of([most, *(None if sign is None else sign == self.sign for sign in whole)])

    def judge_control(self, differences: Sequence[float], errors: ArrayLike = 0.0) -> Verdict | None:
        """Judge differences to a control, one for each layer: it is beaten only by more than the standard error.

        Here a difference within its error counts against the prediction, for single layers and for the mean.
        """
        beaten = [sign == self.sign for sign in _signs(differences, errors)]
        whole = _sign_of_mean(differences, errors) == [self.sign]
        return Verdict.of([2 * sum(beaten) > len(beaten), whole])

    @property
    def sign(self) -> int:
        """The sign of the predicted change."""
        return 1 if self.direction == "rises" else -1

    @property
    def text(self) -> str:
        """The prediction over the layers as the predicate of a sentence."""
        return f"{self.direction} (the last layer is not judged)" if self.except_last else self.direction


FALLS, RISES = Prediction("falls"), Prediction("rises")
FALLS_BEFORE_LAST, RISES_BEFORE_LAST = Prediction("falls", except_last=True), Prediction("rises", except_last=True)


@dataclass(frozen=True)
class Finding:
    """A measurement in words, with the verdict on it."""

    quantity: str
    measured: str
    """The measurement, as a part of a sentence."""
    verdict: Verdict | None = None
    """None if there is no prediction, or if nothing counts."""
    model: str = ""
    """Name of the model, where a report has several."""
    expected: str = ""
    """The prediction for this model, as the predicate of a sentence about the quantity; empty if there is none."""


def judge_trend(
    quantity: str,
    table: pd.DataFrame,
    column: str,
    prediction: Prediction | None = None,
    model: str = "",
    error: float | None = None,
) -> Finding:
    """Describe how a column of a table changes from layer to layer, and judge it by a prediction.

    `error` is the error of every value, where the table has none.
    """
    values, errors = table[column].tolist(), standard_errors(table, column) if error is None else error
    if prediction is None:
        return Finding(quantity, describe_trend(quantity, values, errors), model=model)
    text = describe_trend(quantity, values, errors, prediction.direction)
    return Finding(quantity, text, prediction.judge_depth(values, errors), model, prediction.text)


def judge_reference(
    quantity: str,
    table: pd.DataFrame,
    column: str,
    reference: str,
    where: str,
    prediction: Prediction | None = None,
    error: float | None = None,
) -> Finding:
    """Describe in which layers a column lies below another, and judge it; `where` describes the reference.

    `FALLS` predicts that it lies below.
    """
    differences = table[column] - table[reference]
    lower = int((differences < 0).sum())
    layers = "every layer" if lower == len(table) else f"{lower} of {len(table)} layers" if lower else "no layer"
    text = f"{quantity} is {table[column].mean():.3g} on average, where {where}, and lower than that in {layers}"
    if prediction is None:
        return Finding(quantity, text)
    errors = standard_errors(table, column) if error is None else error
    expected = f"is {'lower' if prediction.direction == 'falls' else 'higher'} than the reference"
    return Finding(quantity, text, prediction.judge_difference(differences.tolist(), errors), expected=expected)


def standard_errors(table: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """Return the standard error of each mean of a column, `…_std`/√`samples`; zeros if it has no deviations."""
    samples: ArrayLike = table.get("samples", 1)
    return np.asarray(table.get(f"{column}_std", 0 * table["layer"]) / np.sqrt(samples), dtype=np.float64)


def describe_trend(
    name: str, values: Iterable[float], errors: ArrayLike = 0.0, lead: Literal["falls", "rises"] | None = None
) -> str:
    """Describe how a measure changes from layer to layer: "R^c falls in every layer (9.1 in the first …)".

    The direction `lead`, by default the more frequent one, is named first. A change within its standard error is
    counted apart.
    """
    values = list(values)
    if len(set(values)) == 1:
        return f"{name} is {values[0]:.3g} in {'every' if len(values) > 1 else 'the only'} layer"
    range_ = f"{values[0]:.3g} in the first layer, {values[-1]:.3g} in the last"
    signs = step_signs(values, errors)
    steps, falls, rises = len(signs), ("falls", -1), ("rises", 1)
    first, second = (falls, rises) if signs.count(-1) >= signs.count(1) else (rises, falls)
    if lead not in (None, first[0]):
        first, second = second, first
    for (verb, sign), (other, _) in ((first, second), (second, first)):
        if signs.count(sign) == steps:
            return f"{name} {verb} in every layer ({range_})"
        if steps > 1 and signs == [sign] * (steps - 1) + [-sign]:
            return f"{name} {verb} in every layer but the last, where it {other} ({range_})"
    counts = [(second[0], second[1]), ("stays the same", 0), ("changes by less than its error", None)]
    parts = [f"{first[0]} in {signs.count(first[1])} of {steps} steps"]
    parts += [f"{words} in {signs.count(sign)}" for words, sign in counts if signs.count(sign)]
    text = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    return f"{name} {text} ({range_})"


def step_signs(values: Sequence[float], errors: ArrayLike) -> list[int | None]:
    """Return the sign of the change from each layer to the next, None if it lies within its standard error.

    The error of a change is √(a² + b²) for errors a and b of its two values. Both are measured on the same samples, so
    this is an upper bound where their values rise and fall together.
    """
    errors = np.broadcast_to(errors, len(values))
    return _signs(np.diff(values).tolist(), np.hypot(errors[:-1], errors[1:]))


def _sign_of_mean(differences: Sequence[float], errors: ArrayLike) -> list[int | None]:
    """Return the sign of the mean of independent differences, as `_signs` does."""
    errors = np.broadcast_to(errors, len(differences))
    return _signs([float(np.mean(differences))], float(np.linalg.norm(errors)) / max(len(errors), 1))


def _signs(changes: Sequence[float], errors: ArrayLike) -> list[int | None]:
    """Return 1, −1, 0 for no change at all, or None for a change within its error; NaN counts neither way."""
    pairs = zip(changes, np.broadcast_to(errors, len(changes)).tolist(), strict=True)
    return [
        None if math.isnan(change) or 0 < error >= abs(change) else (change > 0) - (change < 0)
        for change, error in pairs
    ]


def rate_column(*tables: pd.DataFrame) -> str:
    """Return the column of R^c to compare: that of unit tokens, or the printed one if an earlier version measured."""
    column = "compression_normalized"
    return column if all(column in table and table[column].notna().all() for table in tables) else "compression"


def judge_training(before: pd.DataFrame, after: pd.DataFrame, *, white_box: bool = True) -> list[Finding]:
    """Judge R^c and the share of non-zero entries over depth, before and after training, by the paper (4.2).

    Both fall with depth in a trained model, and by more than in the untrained one, which is the control. A black box
    has no prediction.
    """
    findings = []
    for column, name, prediction in (
        (rate_column(before, after), "R^c", FALLS),
        ("nonzero", "the share of non-zero entries", FALLS_BEFORE_LAST),
    ):
        findings.append(judge_trend(name, after, column, prediction if white_box else None))
        (old, old_error), (new, new_error) = (_relative_change(rows, column, prediction) for rows in (before, after))
        verdict = FALLS.judge_difference([new - old], [math.hypot(old_error, new_error)]) if white_box else None
        end = "the last layer but one" if prediction.except_last and len(after) > 2 else "the last layer"
        text = f"its change from the first to {end} is {new:+.0%}, and was {old:+.0%} before training"
        expected = "is lower than before training" if white_box else ""
        findings.append(Finding(f"the change of {name} over depth", text, verdict, expected=expected))
    return findings


def _relative_change(table: pd.DataFrame, column: str, prediction: Prediction) -> tuple[float, float]:
    """Return the change from the first to the last layer that counts, relative to the first, and its error."""
    end = len(table) - 1 - int(prediction.except_last and len(table) > 2)
    errors, values = standard_errors(table, column), table[column].tolist()
    first, last = values[0], values[end]
    if first == 0:
        return math.nan, 0.0
    first_error, last_error = float(errors[0]), float(errors[end])
    return last / first - 1, math.hypot(last_error, last / first * first_error) / abs(first)
