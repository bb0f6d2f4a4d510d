"""Folders of runs: which are refused, which may be started again."""

from __future__ import annotations

import pytest

from codingrate.runs import train
from tests.refusals import refused

from .resuming import FIVE, assert_same_run
from .toys import (
    toy,
)

# Starts that fail


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"data.name": "/nowhere"}, "nowhere"),
        ({"model.config.hidden_size": 25}, "hidden_size"),
        ({"schedule.batch_size": 15, "run.per_device_batch_size": 4}, "batch_size"),
    ],
)
def test_a_failed_start_does_not_block_the_corrected_one(tmp_path, train_few, wrong, message):
    refused(message, train_few, tmp_path / "run", {"schedule.steps": 1, **wrong})
    assert not (tmp_path / "run").exists()
    train_few(tmp_path / "run", {"schedule.steps": 1})


def test_a_folder_without_a_checkpoint_can_be_started_again(tmp_path, uninterrupted, interrupt, train_few):
    cut = tmp_path / "cut"
    interrupt(cut, {**FIVE, "optimizer.lr": 5e-3}, 3)
    assert (cut / "recipe.yaml").is_file()
    train_few(cut, FIVE)
    assert_same_run(cut, uninterrupted(FIVE))


# Folders that are refused


@pytest.fixture(scope="module")
def started(tmp_path_factory, train_few):
    return train_few(tmp_path_factory.mktemp("started") / "run", {"schedule.steps": 1}).folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.config.hidden_size": 48}, "was started with model.config.hidden_size=24, not 48"),
        ({"model.config.attention": "tssa"}, "was started with model.config.attention=None, not tssa"),
        ({"model.name": "vit-tiny-patch16-224"}, "model.name=crate-tiny-patch16-224, not vit-tiny-patch16-224"),
        ({"optimizer.lr": 0.5}, "optimizer.lr=0.001, not 0.5"),
        ({"run.seed": 3}, "run.seed=0, not 3"),
        ({"data.name": "elsewhere"}, "digits, not elsewhere"),
    ],
)
def test_a_run_is_not_resumed_with_another_recipe(started, changes, message, train_few):
    before = sorted(started.rglob("*"))
    line = refused(message, train_few, started, {"schedule.steps": 1, **changes}, resume=True)
    assert line.startswith(str(started))
    assert sorted(started.rglob("*")) == before


def test_a_run_is_not_overwritten(started, train_few):
    refused("a run is here already; continue it with crate train --resume", train_few, started, {"schedule.steps": 1})


def test_there_is_nothing_to_resume(tmp_path, train_few):
    refused("there is no run to resume", train_few, tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()


def test_a_folder_with_other_files_is_refused(tmp_path, train_few):
    (tmp_path / "thesis.tex").write_text("years of work")
    refused("the folder is not empty", train_few, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_is_accepted(tmp_path, few):
    (tmp_path / "run").mkdir()
    assert train(toy({**few, "schedule.steps": 1}), str(tmp_path / "run"), quiet=True).folder == tmp_path / "run"
