"""Folders of runs: which are refused, which may be started again."""

from __future__ import annotations

import pytest

from tests.refusals import refused

from .resuming import FIVE, assert_same_run

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
    ("key", "value"),
    [("model.config.hidden_size", 48), ("model.config.attention", "tssa"), ("model.name", "vit-tiny-patch16-224"),
     ("optimizer.lr", 0.5), ("run.seed", 3), ("data.name", "elsewhere")],
)  # fmt: skip
def test_a_run_is_not_resumed_with_another_recipe(started, key, value, train_few):
    before = sorted(started.rglob("*"))
    line = refused(f"not {value}", train_few, started, {"schedule.steps": 1, key: value}, resume=True)
    assert line.startswith(str(started))
    assert key in line
    assert sorted(started.rglob("*")) == before


def test_nothing_is_overwritten_and_there_must_be_something_to_resume(tmp_path, started, train_few):
    one = {"schedule.steps": 1}
    refused("resume=True", train_few, started, one)
    refused("there is no run to resume", train_few, tmp_path / "run", one, resume=True)
    assert not (tmp_path / "run").exists()
    (tmp_path / "thesis.tex").write_text("years of work")
    refused("the folder is not empty", train_few, tmp_path, one)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "run").mkdir()
    assert train_few(str(tmp_path / "run"), one).folder == tmp_path / "run", "an empty folder is accepted"
