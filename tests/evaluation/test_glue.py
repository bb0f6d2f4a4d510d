"""GLUE: the metrics against scikit-learn and scipy, the paper's average, and the task table against the paper's."""

import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from codingrate.data import GLUE
from codingrate.evaluation import glue_average, sentence_metrics
from codingrate.recipes import load_recipe
from tests.refusals import refused

TABLE = """
sst2 | sentence             | 2 | accuracy | 3 | 512 | validation
mrpc | sentence1 sentence2  | 2 | f1       | 5 | 512 | validation
stsb | sentence1 sentence2  | 1 | spearman | 3 | 512 | validation
qqp  | question1 question2  | 2 | f1       | 3 | 512 | validation
mnli | premise hypothesis   | 3 | accuracy | 8 | 512 | validation_matched validation_mismatched
qnli | question sentence    | 2 | accuracy | 3 | 512 | validation
rte  | sentence1 sentence2  | 2 | accuracy | 3 | 512 | validation
wnli | sentence1 sentence2  | 2 | accuracy | 5 | 128 | validation
cola | sentence             | 2 | matthews | 3 | 512 | validation
"""

PUBLISHED = """
90.5 87.8 87.6 86.2 80.8 81.2 88.6 64.6 30.1 | 77.5
92.3 90.9 88.5 88.2 84.4 84.6 91.7 64.3 53.5 | 82.0
85.9 80.0 73.0 85.8 76.1 75.3 83.4 53.8 56.3 | 74.4
90.5 89.6 88.0 86.2 80.8 81.2 88.6 72.6 30.1 | 78.6
92.3 90.3 86.8 88.2 84.4 84.6 91.7 79.4 53.5 | 83.5
85.9 84.7 83.2 85.8 76.1 75.3 83.4 65.0 56.3 | 77.3
"""


def test_tasks_and_recipes_are_the_papers():
    lines = [[part.strip() for part in line.split("|")] for line in TABLE.strip().splitlines()]
    assert [line[0] for line in lines] == list(GLUE)
    for name, columns, labels, metric, epochs, length, splits in lines:
        task = GLUE[name]
        assert task.columns == tuple(columns.split())
        assert (1 if task.classes is None else len(task.classes)) == int(labels)
        assert task.metrics[0] == metric
        assert task.validation == tuple(splits.split())
        assert task.in_average == (name != "cola")
        recipe = load_recipe("glue", variant=name)
        assert recipe.data.name == name
        assert (recipe.schedule.epochs, recipe.text.max_length) == (int(epochs), int(length))
        assert (recipe.optimizer.lr, recipe.schedule.batch_size) == (2e-5, 32)


@pytest.mark.parametrize("row", PUBLISHED.strip().splitlines())
def test_the_average_is_that_of_the_published_rows(row):
    numbers, average = row.split("|")
    found = [float(number) for number in numbers.split()]
    scores = dict(zip(("sst2", "mrpc", "stsb", "qqp", "qnli", "rte", "wnli"), found[:4] + found[6:], strict=True))
    scores["mnli"] = dict(zip(GLUE["mnli"].validation, found[4:6], strict=True))
    assert glue_average(scores) == pytest.approx(float(average), abs=0.051)
    assert glue_average({**scores, "cola": 1.0}) == glue_average(scores), "CoLA does not count"
    for name in scores:
        refused(name, glue_average, {key: value for key, value in scores.items() if key != name})
    refused("validation_mismatched", glue_average, {**scores, "mnli": {"validation_matched": 80.0}})


@pytest.mark.parametrize("seed", range(5))
def test_metrics_are_those_of_the_libraries(seed):
    draw = np.random.default_rng(seed)
    guess, truth = draw.integers(2, size=(2, 101))
    three = draw.integers(3, size=(2, 101))
    value, score = draw.normal(size=101).astype(np.float32), draw.integers(6, size=101) / 1.0
    for pair, expected in (
        (
            (guess, truth),
            {
                "accuracy": metrics.accuracy_score(truth, guess),
                "f1": metrics.f1_score(truth, guess),
                "matthews": metrics.matthews_corrcoef(truth, guess),
            },
        ),
        (three, {"accuracy": (three[0] == three[1]).mean()}),
        (
            (value, score),
            {"spearman": stats.spearmanr(value, score)[0], "pearson": stats.pearsonr(value.astype(float), score)[0]},
        ),
    ):
        assert sentence_metrics(tuple(expected), *pair) == pytest.approx(expected, rel=1e-12)


def test_what_is_undefined_is_zero_and_silent():
    ones, mixed = np.ones(7), np.arange(7.0)
    one, zero, both = ones.astype(int), np.zeros(7, dtype=int), (mixed > 3).astype(int)
    undefined, numbers = {"f1": 0, "matthews": 0}, {"spearman": 0, "pearson": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for guess, truth, expected in (
            (ones * 0.1, mixed, numbers), (mixed, ones, numbers), (ones, ones, numbers), (ones[:1], ones[:1], numbers),
            (zero, both, undefined), (zero, zero, {**undefined, "accuracy": 1}), (one, one, {"f1": 1, "matthews": 0}),
            (1e-9 * mixed, mixed, {"pearson": pytest.approx(1)}),  # small is not constant
        ):  # fmt: skip
            assert sentence_metrics(tuple(expected), guess, truth) == expected


def test_what_cannot_be_measured():
    ids = np.array([0, 1, 2])
    for words, metric, guess, truth in (
        ("accuracy", "acuracy", ids, ids), ("(2,)", "accuracy", ids, ids[:2]), ("", "accuracy", ids[:0], ids[:0]),
        ("f1", "f1", ids, ids), ("finite", "pearson", np.array([np.nan, 1]), np.array([1.0, 2.0])),
    ):  # fmt: skip
        refused(words, sentence_metrics, [metric], guess, truth)
