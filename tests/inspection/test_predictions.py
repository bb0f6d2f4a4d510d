"""Verdicts follow from the stated prediction, the values and their errors, and sentences never contradict them."""

import math

import pandas as pd
import pytest

from codingrate.inspection.measure.predictions import (
    FALLS,
    FALLS_BEFORE_LAST,
    RISES,
    RISES_BEFORE_LAST,
    Finding,
    Verdict,
    describe_trend,
    judge_training,
    judge_trend,
    standard_errors,
    step_signs,
)
from codingrate.inspection.report.panel import Panel

AGREES, PART, DIFFERS = Verdict.agrees, Verdict.in_part, Verdict.differs
VERDICTS = [
    (FALLS, [4, 3, 2, 1], 0, AGREES),
    (FALLS, [1, 2, 3, 4], 0, DIFFERS),
    (RISES, [1, 2, 3, 4], 0, AGREES),
    (RISES, [4, 3, 2, 1], 0, DIFFERS),
    (FALLS, [9, 7, 5, 6], 0, AGREES),  # in most cases (4.2), with a rise in the last layer
    (FALLS, [9, 7, 5, 10], 0, PART),  # in most steps, but not as a whole
    (FALLS, [9, 10, 11, 5], 0, PART),  # as a whole, but not in most steps
    (FALLS, [9, 10, 8], 0, PART),  # as a whole, and in half of the steps, which is not most of them
    (FALLS, [9, 10, 11, 5], 3, AGREES),  # the two rises lie within their errors, √2 · 3
    (FALLS_BEFORE_LAST, [0.5, 0.3, 0.2, 0.6], 0, AGREES),  # the last layer counts neither way
    (FALLS_BEFORE_LAST, [0.2, 0.3, 0.5, 0.1], 0, DIFFERS),
    (RISES_BEFORE_LAST, [1, 2, 3, 0], 0, AGREES),
    (FALLS_BEFORE_LAST, [2, 1], 0, AGREES),  # of two layers, both count
    (FALLS, [1, 1, 1], 0, DIFFERS),  # certainly no fall
    (FALLS, [1.2, 1.1, 1.0], 1, None),  # nothing exceeds its error
    (FALLS, [1], 0, None),
    (FALLS, [3, 2.9, 2.8, 2.7], 0.15, AGREES),  # only the whole change exceeds its error
    (FALLS, [math.nan, math.nan], 0, None),
]


def test_verdicts_over_depth():
    for row in VERDICTS:
        prediction, values, error, verdict = row
        assert prediction.judge_depth(values, [error] * len(values)) is verdict, row
        assert error or prediction.judge_depth(values) is verdict, row


@pytest.mark.parametrize(
    ("differences", "error", "verdict"),
    [
        ([-1, -2, -3], 0, AGREES),
        ([1, 2, 3], 0, DIFFERS),
        ([-1, -1, 5], 0, PART),
        ([-9, 1, 1], 0, PART),
        ([-9, 1, 1], 1.5, AGREES),
        ([-0.1, 0.1], 1, None),
        ([-1, -1, -1, -1], 1.2, AGREES),  # no layer exceeds its error; their mean does, with half of it
        ([1, 1, 1, 1], 1.2, DIFFERS),
        ([-1, -1, -1, -1], 2.1, None),
        ([3, -1, -1, -1, -1, -4], [0, 2, 2, 2, 2, 9], DIFFERS),  # the mean, -0.8 ± 1.6, counts neither way
    ],
)
def test_verdicts_against_a_reference(differences, error, verdict):
    errors = error if isinstance(error, list) else [error] * len(differences)
    assert FALLS.judge_difference(differences, errors) is verdict


@pytest.mark.parametrize(
    ("differences", "error", "verdict"),
    [
        ([-1, -2, -3], 0.5, AGREES),
        ([-1, -2, 3], 0.1, PART),  # most layers, but not the mean
        ([-9, 1, 1], 0.5, PART),  # the mean, but not most layers
        ([-0.1, -0.1, -0.1], 0.2, DIFFERS),  # within the error: the control is not beaten
        ([-0.1, -0.1, -0.1, -9], 0.2, PART),
        ([1, 2, 3], 0, DIFFERS),
        ([-9, 1], 0.1, PART),  # half of the layers are not most of them
        ([0, 0], 0, DIFFERS),
    ],
)
def test_a_control_is_beaten_only_by_more_than_the_error(differences, error, verdict):
    assert FALLS.judge_control(differences, [error] * len(differences)) is verdict
    assert RISES.judge_control([-value for value in differences], [error] * len(differences)) is verdict


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [([], None), ([None], None), ([AGREES, None], AGREES), ([AGREES, DIFFERS], PART), ([DIFFERS, DIFFERS], DIFFERS)],
)
def test_several_verdicts_make_one(verdicts, expected):
    assert Verdict.combine(verdicts) is expected
    panel = Panel("p", "", "A prediction.", "", findings=[Finding("x", "x", verdict) for verdict in verdicts])
    assert panel.verdict is expected
    assert panel.judgements(measured=False) == ([f"Verdict: {expected.value}."] if expected else [])
    assert panel.verdict_text == (f"Verdict: {expected.value}." if expected else f"No verdict: {panel.unjudged}.")
    assert Panel("p", "", "", "").verdict_text == "", "no prediction, no verdict"


@pytest.mark.parametrize(
    ("lead", "values", "error", "words"),
    [
        ("falls", [3, 2, 1], 0, "x falls in every layer (3 in the first layer, 1 in the last)"),
        ("rises", [3, 2, 1], 0, "x falls in every layer"),
        ("falls", [9, 7, 5, 6], 0, "x falls in every layer but the last, where it rises (9 in"),
        ("rises", [9, 7, 5, 6], 0, "x falls in every layer but the last, where it rises (9 in"),
        ("rises", [1, 5, 4, 3], 0, "x rises in 1 of 3 steps and falls in 2"),
        ("falls", [1, 5, 4, 3], 0, "x falls in 2 of 3 steps and rises in 1"),
        (None, [1, 1, 2], 0, "x rises in 1 of 2 steps and stays the same in 1"),
        ("falls", [9, 10, 4], 2, "x falls in 1 of 2 steps and changes by less than its error in 1"),
        ("falls", [1, 1, 1], 0, "x is 1 in every layer"),
        ("falls", [1], 0, "x is 1 in the only layer"),
    ],
)
def test_the_sentence_names_the_predicted_direction_first(lead, values, error, words):
    assert words in describe_trend("x", values, [error] * len(values), lead)


def test_errors_are_those_of_the_mean_over_samples():
    table = pd.DataFrame({"layer": [1, 2], "x": [2.0, 1.0], "x_std": [6.0, 6.0], "samples": [9, 9], "y": [1.0, 2.0]})
    assert standard_errors(table, "x").tolist() == [2, 2]
    assert standard_errors(table, "y").tolist() == [0, 0]
    assert judge_trend("x", table, "x", FALLS).verdict is None
    assert judge_trend("x", table.assign(samples=900), "x", FALLS).verdict is AGREES


@pytest.mark.parametrize(("errors", "sign"), [((0.5, 1.0), None), ((1.0, 0.5), None), ((0.6, 0.7), -1)])
def test_the_error_of_a_change_is_that_of_both_its_values(errors, sign):
    """√(0.5² + 1²) = 1.12 exceeds the change of one, √(0.6² + 0.7²) = 0.92 does not."""
    assert step_signs([3, 2], errors) == [sign]


@pytest.mark.parametrize(
    ("before", "after", "error", "verdict"),
    [
        ([10, 7], [10, 2], 5, AGREES),  # the quotient 0.2 has the error 0.2 · 5/10 = 0.1
        ([2, 10.4], [2, 10], 0.1, None),  # the quotient 5 has the error 5 · 0.1/2 = 0.25
    ],
)
def test_the_error_of_a_relative_change_is_that_of_the_quotient(before, after, error, verdict):
    def rows(values, errors):
        return pd.DataFrame(
            {"layer": [1, 2], "compression": values, "compression_std": errors, "nonzero": 0.5, "samples": 1}
        )

    findings = judge_training(rows(before, [0, 0]), rows(after, [error, 0]))
    assert findings[1].verdict is verdict


def test_training_has_to_make_both_terms_fall_by_more():
    def rows(compression, nonzero):
        return pd.DataFrame({"layer": [1, 2, 3, 4], "compression": compression, "nonzero": nonzero})

    before, after = rows([9, 9.1, 9, 9.2], [0.5, 0.5, 0.5, 0.5]), rows([9, 7, 5, 6], [0.5, 0.4, 0.2, 0.6])
    findings = judge_training(before, after)
    assert [finding.verdict for finding in findings] == [AGREES] * 4
    assert "from the first to the last layer is -33%, and was +2% before training" in findings[1].measured
    assert "to the last layer but one is -60%, and was +0% before training" in findings[3].measured
    assert [finding.verdict for finding in judge_training(after, before)] == [DIFFERS] * 4
    assert [finding.verdict for finding in judge_training(before, after, white_box=False)] == [None] * 4
