"""A resumed run equals an uninterrupted one bit for bit, also after Ctrl-C and SIGTERM; changed data are noticed."""

from __future__ import annotations

import os
import shutil
import signal

import datasets
import pytest
import torch

from codingrate.recipes import load_recipe, save_recipe
from codingrate.runs import TrainingStopped, train
from codingrate.runs.callbacks import Metrics
from codingrate.runs.interruption import SIGNALS
from tests.refusals import refused

from .resuming import FIVE, StoppedError, assert_same_run, names
from .test_start import COLOR, blobs
from .toys import (
    assert_same,
    dino,
    lines,
    mae,
    measured,
    saved,
    train_toy,
)

CASES = {
    "within an epoch": ({}, 6, "checkpoint-5"),
    "at the end of an epoch": ({"run.checkpoint_steps": 4}, 4, "checkpoint-4"),
    "in the next epoch": ({"run.checkpoint_steps": 4}, 6, "checkpoint-4"),
    "before any checkpoint": ({"run.layerwise_epochs": 1}, 3, None),
    "average of weights": ({"run.ema": 0.8}, 7, "checkpoint-5"),
    "accumulation": ({"run.per_device_batch_size": 5}, 6, "checkpoint-5"),
    "lion": ({"optimizer.name": "lion", "optimizer.lr": 3e-4}, 8, "checkpoint-5"),
    "muon": ({"optimizer.name": "muon", "optimizer.lr": 2e-3}, 8, "checkpoint-5"),
    "dropout": ({"model.config.dropout": 0.2}, 6, "checkpoint-5"),
    "layerwise": ({"run.layerwise_epochs": 0.5, "run.checkpoint_steps": 2}, 7, "checkpoint-6"),
    "crops": ({"augment.crop": "pad", "augment.crop_padding": 2}, 6, "checkpoint-5"),
    "masks": (mae(), 6, "checkpoint-5"),
    "teacher": (dino(), 6, "checkpoint-5"),
    "workers": ({"data.workers": 1, "schedule.epochs": 2}, 6, "checkpoint-5"),
}


SLOW = ("at the end of an epoch", "accumulation", "lion", "crops", "workers")  # near to others that are quick


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] * (c in SLOW)) for c in CASES])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, uninterrupted, interrupt, case, train_few):
    changes, step, last = CASES[case]
    changes, cut = {**FIVE, **changes}, tmp_path / "cut"
    whole = uninterrupted(changes)
    interrupt(cut, changes, step)
    assert names(cut)[-1:] == ([last] if last else [])
    torch.manual_seed(987)  # a new process has other states of its generators
    train_few(cut, changes, resume=True)
    assert_same_run(cut, whole)
    assert len(lines(cut, "training")) == lines(cut)[-1]["step"], "a line per step"
    if last:
        weights = [folder / "checkpoints" / names(whole)[-1] / "model.safetensors" for folder in (cut, whole)]
        assert weights[0].read_bytes() == weights[1].read_bytes(), "student, teacher and center too"


def test_a_measurement_at_the_step_of_a_checkpoint_is_not_repeated(tmp_path, uninterrupted, monkeypatch, train_few):
    changes, cut = {"run.layerwise_epochs": 1, "run.checkpoint_steps": 4}, tmp_path / "cut"
    whole = uninterrupted(changes)

    def interrupted(*args, **kwargs):
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(Metrics, "on_save", interrupted)
        with pytest.raises(StoppedError):
            train_few(cut, changes)
    assert len(lines(cut, "layerwise")) == 2, "at steps 0 and 4"
    train_few(cut, changes, resume=True)
    assert [line["epoch"] for line in lines(cut, "layerwise")] == [0, 1, 2, 3]
    assert measured(cut) == measured(whole)


@pytest.mark.parametrize("steps", [None, 6], ids=["at the end of an epoch", "within an epoch"])
def test_resuming_a_finished_run_changes_nothing(tmp_path, steps, train_few):
    changes = {"schedule.steps": steps}
    metrics = train_few(tmp_path / "run", changes).metrics
    before = saved(tmp_path / "run")
    again = train_few(tmp_path / "run", changes, resume=True)
    assert names(tmp_path / "run")[-1] == f"checkpoint-{steps or 12}"
    assert_same(before, saved(tmp_path / "run"))
    assert again.metrics == metrics


def test_the_first_log_entry_after_a_resume_covers_its_interval(tmp_path, uninterrupted, interrupt, train_few):
    changes, cut = {**FIVE, "run.log_steps": 3}, tmp_path / "cut"
    whole = uninterrupted(changes)
    interrupt(cut, changes, 5)
    train_few(cut, changes, resume=True)
    assert [line["step"] for line in lines(cut, "training")] == [1, 3, 6, 9, 12]
    assert measured(cut) == measured(whole), "the entry of step 6 is the mean of steps 4 to 6"
    losses = {line["step"]: line["loss"] for line in lines(uninterrupted(FIVE), "training")}
    session = sum(losses[step] for step in range(6, 13)) / 7
    assert lines(cut, "end")[-1]["train_loss"] == pytest.approx(session, rel=1e-5)


def test_settings_of_execution_may_change_on_resuming(tmp_path, uninterrupted, interrupt, train_few):
    whole, cut = uninterrupted(FIVE), tmp_path / "cut"
    interrupt(cut, FIVE, 6)
    train_few(cut, {"run.checkpoint_steps": 3, "run.save_total_limit": 1, "run.log_steps": 2}, resume=True)
    assert_same(saved(whole), saved(cut))
    assert names(cut) == ["checkpoint-12"]


def test_the_interval_between_checkpoints_may_change_on_resuming(tmp_path, interrupt, train_few):
    interrupt(tmp_path / "cut", FIVE, 6)
    train_few(tmp_path / "cut", {"run.checkpoint_steps": 2, "run.save_total_limit": 9}, resume=True)
    assert names(tmp_path / "cut") == [f"checkpoint-{step}" for step in (5, 6, 8, 10, 12)]


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_a_run_can_be_made_longer(tmp_path, uninterrupted, before_step, schedule, train_few):
    """From the checkpoint on, the learning rate is that of the longer run; a constant one gives the same model."""
    changes, rates = {"schedule.scheduler": schedule}, {}
    shorter = {**changes, "schedule.epochs": 2}

    def record(trainer):
        rates[trainer.state.global_step] = trainer.optimizer.param_groups[0]["lr"]

    with before_step(record):
        whole = uninterrupted(changes)
        expected = {step: rate for step, rate in rates.items() if step >= 8}
        train_few(tmp_path / "run", shorter)
        rates.clear()
        train_few(tmp_path / "run", changes, resume=True)
    assert rates == expected
    if schedule == "constant":
        assert_same(saved(whole), saved(tmp_path / "run"))
    refused("schedule.epochs=3.0, not 2.0", train_few, tmp_path / "run", shorter, resume=True)


# Ctrl-C and SIGTERM


@pytest.fixture
def signalled(train_few, before_step):
    """Return a function that trains, and sends signals to the own process in the step after a given one."""

    def until(folder, changes, step, *numbers):
        def send(trainer):
            for number in numbers if trainer.state.global_step == step else ():
                os.kill(os.getpid(), number)

        before = [signal.getsignal(number) for number in SIGNALS]
        with before_step(send), pytest.raises(KeyboardInterrupt) as stopped:
            train_few(folder, changes)
        assert [signal.getsignal(number) for number in SIGNALS] == before
        return stopped.value

    return until


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_saves_a_checkpoint_and_the_folder_alone_resumes(tmp_path, uninterrupted, signalled, number):
    whole, cut = uninterrupted(FIVE), tmp_path / "cut"
    stopped = signalled(cut, FIVE, 6, number)
    assert isinstance(stopped, TrainingStopped)
    assert stopped.signal == number
    assert str(stopped).endswith(
        f"stopped after step 7, checkpoint saved; continue with: `train({str(cut)!r}, resume=True)`"
    )
    assert names(cut) == ["checkpoint-5", "checkpoint-7"]
    train(cut, resume=True, quiet=True)
    assert_same_run(cut, whole)
    assert len(lines(cut, "training")) == 12
    assert len(lines(cut, "end")) == 1


def test_the_second_signal_stops_at_once(tmp_path, signalled):
    stopped = signalled(tmp_path / "cut", FIVE, 6, signal.SIGINT, signal.SIGINT)
    assert type(stopped) is KeyboardInterrupt
    assert names(tmp_path / "cut") == ["checkpoint-5"]


# Data that changed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.select(range(70)), "the train split had 77 rows and has 70"),
        (lambda table: table.map(lambda row: {"label": (row["label"] + 1) % 10}), "labels of the train split changed"),
        (
            lambda table: table.map(lambda row, index: {"image": [[9] * 8] * 8 if index == 3 else row["image"]}, True),
            "the content of the train split changed",
        ),
    ],
    ids=["rows", "labels", "pixels"],
)
def test_changed_data_are_named(tmp_path, few, interrupted_run, change, words):
    run = shutil.copytree(interrupted_run, tmp_path / "run")
    data = shutil.copytree(few["data.name"], tmp_path / "data")
    recipe = load_recipe(str(run / "recipe.yaml"), {"data.name": str(data)})
    save_recipe(recipe, run / "recipe.yaml")
    before = (run / "data.json").read_text()
    train(recipe, run, resume=True, quiet=True)
    assert (run / "data.json").read_text() == before, "a copy of the data is the same"
    table = datasets.Dataset.from_parquet(str(data / "train.parquet"), cache_dir=str(tmp_path / "cache"))
    change(table).to_parquet(data / "train.parquet")
    assert refused(words, train, recipe, run, resume=True, quiet=True).startswith(f"{run}: ")


def test_renamed_classes_are_named(tmp_path):
    images = blobs(tmp_path / "images", {"ape": 6, "bee": 6})
    changes = {**COLOR, "data.name": str(images), "schedule.steps": 1, "schedule.batch_size": 8}
    train_toy(tmp_path / "run", changes)
    (images / "bee").rename(images / "cat")
    refused("class 'bee' is now called 'cat'", train_toy, tmp_path / "run", changes, resume=True)


@pytest.mark.parametrize("content", [None, "{}", "half"])
def test_a_missing_fingerprint_is_a_note(tmp_path, interrupted_run, train_few, caplog, content):
    run = shutil.copytree(interrupted_run, tmp_path / "run")
    if content is None:
        (run / "data.json").unlink()
    else:
        (run / "data.json").write_text(content)
    with caplog.at_level("WARNING", "codingrate"):
        train_few(run, {**FIVE, "run.save_total_limit": 3}, resume=True)
    assert any("data.json is missing or damaged" in message for message in caplog.messages)
    assert (run / "data.json").read_text() == (interrupted_run / "data.json").read_text()
