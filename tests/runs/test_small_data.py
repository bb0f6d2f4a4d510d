"""Training with less data than a recipe is made for, and classifiers no better than the most frequent class."""

import logging

import pytest

from codingrate.recipes import load_recipe
from codingrate.runs import train
from codingrate.tasks.reports import majority_note
from tests.refusals import refused

from .toys import assert_same, few_digits, lines, saved, toy, train_toy


@pytest.fixture
def notes(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("codingrate"), "propagate", True)
    caplog.set_level(logging.INFO, "codingrate")
    return lambda: [record.getMessage() for record in caplog.records]


def test_the_run_has_the_settings_that_follow_its_data(tmp_path, notes):
    data = few_digits(tmp_path / "few", 48)
    few = {**data, "schedule.made_for": 400, "schedule.epochs": 2, "run.seed": 3}
    run = train_toy(tmp_path / "run", few)  # 40 steps on its own data; 48 images in batches of 8 are 6 steps
    assert [note for note in notes() if "schedule.batch_size=8 instead of 20" in note]
    stored = load_recipe(str(tmp_path / "run" / "recipe.yaml")).schedule
    assert (stored.batch_size, stored.epochs, stored.made_for, stored.fixed) == (8, 7, None, ())
    assert run.recipe.schedule == stored
    assert lines(tmp_path / "run", "end")[-1]["step"] == 42, "no fewer steps than on its own data"
    kept = {**few, "schedule.fixed": ["schedule.batch_size"]}
    refused("schedule.batch_size=8, not 20", train, toy(kept), tmp_path / "run", resume=True)
    explicit = {**data, "run.seed": 3, "schedule.batch_size": 8, "schedule.epochs": 7}
    train_toy(tmp_path / "explicit", {**explicit, "run.evaluate_epochs": 3.5, "run.checkpoint_epochs": 3.5})
    assert_same(saved(tmp_path / "run"), saved(tmp_path / "explicit"))


def test_a_model_like_the_most_frequent_class_says_so(tmp_path, notes):
    few = {**few_digits(tmp_path / "few"), "optimizer.lr": 1e-9, "schedule.epochs": 1}
    run = train(toy(few), tmp_path / "run")
    assert len([note for note in notes() if "no better than always answering" in note]) == 1
    report = run.evaluate()
    counts = [row["images"] for row in report.per_class]
    assert f"{max(counts) / sum(counts):.2%} of 23" in report.note


@pytest.mark.parametrize(
    ("accuracy", "counts", "noted"),
    [(0.5, [50, 50], True), (0.55, [50, 50], True), (0.56, [50, 50], False), (0.89, [90, 10, 0], True),
     (1.0, [1, 1], False), (1.0, [99, 1], False), (1.0, [7, 0], False), (0.0, [0, 0], False)],
)  # fmt: skip
def test_better_is_more_than_a_standard_error(accuracy, counts, noted):
    """The standard error of 100 answers at a share of one half is 5 %; one class leaves nothing to tell apart."""
    assert (majority_note(accuracy, counts) is not None) == noted
