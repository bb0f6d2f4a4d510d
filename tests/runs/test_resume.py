"""A resumed run equals an uninterrupted one bit for bit: after a kill, a full disk or a half-written checkpoint."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import datasets
import pytest
import torch
import transformers

from codingrate.recipes import load_recipe, save_recipe
from codingrate.runs import Run, TrainingStopped, train
from codingrate.runs.callbacks import Metrics
from codingrate.runs.folder import checkpoints
from codingrate.runs.interruption import SIGNALS
from codingrate.runs.manifest import write_manifest
from codingrate.runs.trainer import STAGING, CrateTrainer
from tests.refusals import refused

from .test_start import COLOR, blobs
from .texts import text_recipe
from .toys import (
    ENVIRONMENT,
    assert_same,
    command,
    dino,
    lines,
    mae,
    measured,
    one_error,
    python,
    saved,
    toy,
    train_toy,
)

FIVE = {"run.checkpoint_steps": 5}


class StoppedError(Exception):
    """Stands for a kill within one process."""


@pytest.fixture(scope="module")
def train_few(few):
    """Return a function that trains the toy recipe on a few digits: twelve steps, four per epoch."""
    return lambda folder, changes=None, **options: train_toy(folder, {**few, **(changes or {})}, **options)


@pytest.fixture
def interrupt(train_few, monkeypatch):
    """Return a function that trains until the step after a given one, and stops there."""

    def until(folder, changes, step):
        plain = CrateTrainer.training_step

        def training_step(self, *args, **kwargs):
            if self.state.global_step == step:
                raise StoppedError
            return plain(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(CrateTrainer, "training_step", training_step)
            with pytest.raises(StoppedError):
                train_few(folder, changes)

    return until


@pytest.fixture(scope="module")
def uninterrupted(train_few, tmp_path_factory):
    """Return a function that trains a recipe without interruption, once, and returns the folder of the run."""
    folders = {}

    def folder(changes):
        key = repr(sorted(changes.items()))
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("whole") / "run"
            train_few(folders[key], changes)
        return folders[key]

    return folder


@pytest.fixture(scope="module")
def interrupted_run(tmp_path_factory, train_few):
    """A run of twelve steps with the checkpoints of steps 5 and 10, as a kill leaves it."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    train_few(folder, {**FIVE, "run.save_total_limit": 3})
    shutil.rmtree(folder / "checkpoints" / "checkpoint-12")
    shutil.rmtree(folder / "model")
    return folder


def names(folder):
    return [path.name for path in checkpoints(folder / "checkpoints")]


def assert_same_run(folder, whole):
    assert_same(saved(folder), saved(whole))
    assert_same(saved(folder, "best"), saved(whole, "best"))
    assert measured(folder) == measured(whole)


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


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] * (c == "workers")) for c in CASES])
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


def test_a_measurement_due_after_the_checkpoint_is_made_up_for(tmp_path, uninterrupted, monkeypatch, train_few):
    changes, cut = {"run.layerwise_epochs": 1, "run.checkpoint_steps": 4}, tmp_path / "cut"
    whole = uninterrupted(changes)

    def interrupted(*args, **kwargs):
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(Metrics, "on_save", interrupted)
        with pytest.raises(StoppedError):
            train_few(cut, changes)
    assert len(lines(cut, "layerwise")) == 1
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


# Ctrl-C and SIGTERM


@pytest.fixture
def signalled(train_few, monkeypatch):
    """Return a function that trains, and sends signals to the own process in the step after a given one."""

    def until(folder, changes, step, *numbers):
        plain = CrateTrainer.training_step

        def training_step(self, *args, **kwargs):
            if self.state.global_step == step:
                for number in numbers:
                    os.kill(os.getpid(), number)
            return plain(self, *args, **kwargs)

        before = [signal.getsignal(number) for number in SIGNALS]
        with monkeypatch.context() as patch:
            patch.setattr(CrateTrainer, "training_step", training_step)
            with pytest.raises(KeyboardInterrupt) as stopped:
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
    assert str(stopped).endswith(f"stopped after step 7, checkpoint saved; continue with: crate train --resume {cut}")
    assert names(cut) == ["checkpoint-5", "checkpoint-7"]
    train(cut, resume=True, quiet=True)
    assert_same_run(cut, whole)
    assert len(lines(cut, "training")) == 12
    assert len(lines(cut, "end")) == 1


def test_the_second_signal_stops_at_once(tmp_path, signalled):
    stopped = signalled(tmp_path / "cut", FIVE, 6, signal.SIGINT, signal.SIGINT)
    assert type(stopped) is KeyboardInterrupt
    assert names(tmp_path / "cut") == ["checkpoint-5"]


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
    line = refused(words, train, recipe, run, resume=True, quiet=True)
    assert line.startswith(f"{run}: the data have changed since the run was started: ")
    assert line.endswith("; restore them or use another --output")


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


# Half-written checkpoints


def test_a_half_written_checkpoint_is_never_used(tmp_path, uninterrupted, interrupt, train_few, few):
    whole, cut = uninterrupted(FIVE), tmp_path / "cut"
    interrupt(cut, FIVE, 6)
    folder = cut / "checkpoints"
    shutil.copytree(folder / "checkpoint-5", folder / STAGING / "checkpoint-10")
    for file in (folder / STAGING / "checkpoint-10").iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    shutil.copytree(folder / "checkpoint-5", folder / "checkpoint-8")
    (folder / "checkpoint-8" / "trainer_state.json").unlink()
    (folder / "checkpoint-9").mkdir()
    (folder / "checkpoint-11.bak").mkdir()
    assert Run.start(cut, toy({**few, **FIVE}), resume=True)[1] == folder / "checkpoint-5"
    train_few(cut, FIVE, resume=True)
    assert_same(saved(whole), saved(cut))
    assert not (folder / STAGING).exists()
    assert names(cut) == ["checkpoint-10", "checkpoint-12"]


def truncate(file):
    file.write_bytes(file.read_bytes()[:-7])


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "flipped bit": ("model.safetensors", flip, "model.safetensors has changed"),
    "truncated": ("optimizer.pt", truncate, "optimizer.pt has "),
    "no optimizer": ("optimizer.pt", Path.unlink, "optimizer.pt is missing"),
    "no schedule": ("scheduler.pt", Path.unlink, "scheduler.pt is missing"),
    "no random state": ("rng_state.pth", Path.unlink, "rng_state.pth is missing"),
    "no manifest": ("manifest.json", Path.unlink, "manifest.json is missing"),
    "bad manifest": ("manifest.json", truncate, "manifest.json cannot be read"),
    "short manifest": ("manifest.json", lambda file: file.write_text('{"files": {}}'), "model is missing"),
    "wrong manifest": ("manifest.json", lambda file: file.write_text("[1]"), "manifest.json cannot be read"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, interrupted_run, few, caplog, case):
    name, damage, words = DAMAGE[case]
    run = shutil.copytree(interrupted_run, tmp_path / "run")
    damage(run / "checkpoints" / "checkpoint-10" / name)
    recipe = toy({**few, **FIVE, "run.save_total_limit": 3})
    with caplog.at_level("WARNING", "codingrate"):
        assert Run.start(run, recipe, resume=True)[1] == run / "checkpoints" / "checkpoint-5"
    (note,) = caplog.messages
    assert note.startswith(f"{run / 'checkpoints' / 'checkpoint-10'}: {words}")
    assert note.endswith("; resuming from checkpoint-5")
    assert (run / "checkpoints" / "damaged-checkpoint-10").is_dir()
    caplog.clear()
    assert Run.start(run, recipe, resume=True)[1] == run / "checkpoints" / "checkpoint-5"
    assert not caplog.messages


def test_a_run_that_fell_back_equals_an_uninterrupted_one(tmp_path, interrupted_run, uninterrupted, train_few):
    run = shutil.copytree(interrupted_run, tmp_path / "run")
    flip(run / "checkpoints" / "checkpoint-10" / "optimizer.pt")
    train_few(run, {**FIVE, "run.save_total_limit": 1}, resume=True)
    assert_same(saved(run), saved(uninterrupted(FIVE)))
    assert names(run) == ["checkpoint-12"]


def test_a_run_without_any_good_checkpoint_is_refused(tmp_path, interrupted_run, train_few):
    run = shutil.copytree(interrupted_run, tmp_path / "run")
    for path in (run / "checkpoints").glob("checkpoint-*"):
        (path / "optimizer.pt").unlink()
    line = refused("checkpoint-10: optimizer.pt is missing, and there is no other", train_few, run, FIVE, resume=True)
    assert f"remove {run / 'checkpoints'} to start from step 0" in line
    assert names(run) == ["checkpoint-5", "checkpoint-10"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trainer_state.json", '{"global_step": "ten"}'),
        ("trainer_state.json", '{"log_history": [1], "epoch": 1.0}'),
        ("trainer_state.json", '{"unknown": 1}'),
        ("optimizer.pt", "no archive"),
        ("scheduler.pt", "no archive"),
        ("rng_state.pth", "no archive"),
        ("model.safetensors", "no tensors"),
        ("interval.json", "[]"),
    ],
)
def test_a_checkpoint_that_was_written_wrong_is_named(tmp_path, interrupted_run, train_few, name, content):
    run = shutil.copytree(interrupted_run, tmp_path / "run")
    checkpoint = run / "checkpoints" / "checkpoint-10"
    (checkpoint / name).write_text(content)
    write_manifest(checkpoint)
    refused(f"{checkpoint}: cannot be read", train_few, run, {**FIVE, "run.save_total_limit": 3}, resume=True)


def test_drafts_of_a_killed_process_are_removed(tmp_path, interrupted_run, few):
    run = shutil.copytree(interrupted_run, tmp_path / "run")
    for draft in (".last.12345678.new", ".best.12345678.new", ".best.12345678.old"):
        (run / "model" / draft).mkdir(parents=True)
        (run / "model" / draft / "model.safetensors").write_text("half")
    for draft in (".recipe.yaml.12345678.tmp", ".metrics.jsonl.12345678.tmp"):
        (run / draft).write_text("half")
    (run / "tokens").mkdir()
    for draft, age in ((".train.bin.12345678.tmp", 7200), (".valid.bin.12345678.tmp", 0)):
        (run / "tokens" / draft).write_text("half")
        os.utime(run / "tokens" / draft, (time.time() - age,) * 2)
    own = run / ".inspection.12345678.new"  # of another verb, which may be running
    own.mkdir()
    Run.start(run, toy({**few, **FIVE}), resume=True)
    assert sorted(path.name for path in (run / "model").iterdir()) == ["best"], "an old folder is given back"
    assert [path.name for path in run.glob(".*")] == [own.name]
    assert [path.name for path in (run / "tokens").iterdir()] == [".valid.bin.12345678.tmp"], "it may be being written"


@pytest.mark.parametrize("moment", ["save_model", "_save_optimizer_and_scheduler", "_save_rng_state"])
def test_an_interrupted_checkpoint_is_not_used(tmp_path, uninterrupted, monkeypatch, moment, train_few):
    whole, cut = uninterrupted(FIVE), tmp_path / "cut"
    write = getattr(transformers.Trainer, moment)

    def interrupted(self, *args, **kwargs):
        write(self, *args, **kwargs)
        if self.state.global_step == 10:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transformers.Trainer, moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_few(cut, FIVE)
    assert any((cut / "checkpoints" / STAGING / "checkpoint-10").iterdir())
    assert names(cut) == ["checkpoint-5"]
    train_few(cut, FIVE, resume=True)
    assert_same_run(cut, whole)


def test_an_incomplete_line_of_metrics_is_dropped(tmp_path, uninterrupted, interrupt, train_few):
    whole, cut = uninterrupted(FIVE), tmp_path / "cut"
    interrupt(cut, FIVE, 6)
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "training", "st')
    train_few(cut, FIVE, resume=True)
    assert measured(cut) == measured(whole)


# A full disk

FULL = OSError(errno.ENOSPC, "No space left on device")


def fill_disk(patch, name, write, step):
    """Let writing by the function `name` fail after a few bytes, in the checkpoint of one step."""

    def fail(contents, file, *args, **kwargs):
        if f"checkpoint-{step}" not in str(file):
            return write(contents, file, *args, **kwargs)
        with open(file, "wb") as half:
            half.write(b"half")
        raise FULL

    patch.setattr(name, fail)


@pytest.mark.parametrize(
    "name",
    ["torch.save", "transformers.modeling_utils.safe_save_file", "codingrate.runs.optimizers.save_file"],
    ids=["optimizer", "weights", "average"],
)
def test_a_full_disk_in_a_checkpoint(tmp_path, uninterrupted, monkeypatch, name, train_few):
    from safetensors.torch import save_file

    changes, cut = {**FIVE, "run.ema": 0.5}, tmp_path / "cut"
    whole = uninterrupted(changes)
    with monkeypatch.context() as patch:
        fill_disk(patch, name, torch.save if name == "torch.save" else save_file, 10)
        line = refused(f"cannot write {cut / 'checkpoints' / 'checkpoint-10'}: No space left", train_few, cut, changes)
    assert "the last good checkpoint is checkpoint-5" in line
    assert "--resume" in line
    assert names(cut) == ["checkpoint-5"]
    assert not (cut / "checkpoints" / STAGING).exists(), "the failed checkpoint gives its space back"
    train_few(cut, changes, resume=True)
    assert_same(saved(whole), saved(cut))


def test_a_full_disk_in_the_first_checkpoint(tmp_path, monkeypatch, train_few):
    with monkeypatch.context() as patch:
        fill_disk(patch, "torch.save", torch.save, 5)
        refused("there is no earlier checkpoint", train_few, tmp_path / "run", FIVE)
    train_few(tmp_path / "run", FIVE, resume=True)
    assert lines(tmp_path / "run", "evaluation")[-1]["step"] == 12


def test_a_full_disk_in_the_saved_model(tmp_path, uninterrupted, monkeypatch, train_few):
    changes, cut, evaluations = {"run.checkpoint_steps": 4}, tmp_path / "cut", []
    whole, write = uninterrupted(changes), transformers.modeling_utils.safe_save_file

    def fail(contents, file, *args, **kwargs):
        if ".last." in str(file):
            evaluations.append(file)
            if len(evaluations) == 2:
                raise FULL
        return write(contents, file, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr("transformers.modeling_utils.safe_save_file", fail)
        refused(f"cannot write {cut / 'model' / 'last'}: No space left", train_few, cut, changes)
    assert sorted(path.name for path in (cut / "model").iterdir()) == ["best", "last"]
    assert saved(cut)
    train_few(cut, changes, resume=True)
    assert_same(saved(whole), saved(cut))


def test_a_full_disk_in_the_metrics(tmp_path, uninterrupted, monkeypatch, train_few):
    whole, cut, write = uninterrupted(FIVE), tmp_path / "cut", Metrics.write

    def fail(self, state, kind, values):
        if state.global_step == 7:
            raise FULL
        write(self, state, kind, values)

    with monkeypatch.context() as patch:
        patch.setattr(Metrics, "write", fail)
        line = refused(f"cannot write {cut}: No space left on device", train_few, cut, FIVE)
    assert "--resume" in line
    train_few(cut, FIVE, resume=True)
    assert measured(cut) == measured(whole)


LIMITED = """
import resource, signal, sys
from codingrate.runs.trainer import CrateTrainer
from codingrate.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit, plain = int(sys.argv[1]), CrateTrainer.training_step
def training_step(self, *args, **kwargs):
    if self.state.global_step == 6:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    return plain(self, *args, **kwargs)
CrateTrainer.training_step = training_step
main(sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [12_000, 30_000], ids=["weights", "optimizer"])
def test_files_that_may_not_grow(tmp_path, limit, train_few, few):
    """Writing fails in the operating system, in the weights (18 kB) or the optimizer's state (36 kB)."""
    changes, cut = {**FIVE, "run.evaluate_epochs": 3}, tmp_path / "cut"
    save_recipe(toy({**few, **changes}), tmp_path / "toy.yaml")
    failed = python("-c", LIMITED, str(limit), *command(cut, tmp_path / "toy.yaml")[2:])
    message = one_error(failed)
    assert f"cannot write {cut / 'checkpoints' / 'checkpoint-10'}" in message
    assert "checkpoint-5" in message
    assert names(cut) == ["checkpoint-5"]
    train_few(cut, changes, resume=True)
    train_few(tmp_path / "whole", changes)
    assert_same(saved(tmp_path / "whole"), saved(cut))


@pytest.mark.slow
def test_a_disk_that_is_full(tmp_path, train_few, few):
    """Checkpoints of 100 kB are written to a disk of 256 kB, which is mounted for this process alone."""
    changes = {"run.checkpoint_steps": 1, "run.save_total_limit": 9, "run.evaluate_epochs": 3}
    save_recipe(toy({**few, **changes}), tmp_path / "toy.yaml")
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    small = f"mount -t tmpfs -o size=256k none {disk}"
    if shutil.which("unshare") is None or subprocess.run([*mount, small], check=False, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    call = " ".join([sys.executable, *command(disk / "run", tmp_path / "toy.yaml")])
    done = subprocess.run(
        [*mount, f"{small} && {call}; code=$?; cp -r {disk}/run {kept}; exit $code"],
        env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert str(disk / "run") in one_error(done)
    assert names(kept), "some checkpoints were written before"
    train_few(kept, changes, resume=True)
    train_few(tmp_path / "whole", changes)
    assert_same(saved(tmp_path / "whole"), saved(kept))


# Killed processes


def start_process(folder, recipe):
    """Start or resume a run in a process of its own."""
    more = ["--resume"] if (folder / "recipe.yaml").exists() else []
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, *command(folder, recipe, *more)], env=ENVIRONMENT, **quiet)


def kill_at_random(folder, recipe, draw):
    """Train in a process and kill it: at a random time after its first new checkpoint, or while it starts."""
    before, start = set(names(folder)), time.monotonic()
    process = start_process(folder, recipe)
    if draw.random() < 0.2:
        time.sleep(draw.uniform(0, 6))
    else:
        while process.poll() is None and not set(names(folder)) - before:
            assert time.monotonic() - start < 120
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.3))
    assert process.poll() is None, "the run ended before it was killed"
    process.kill()
    process.wait()


KILLS = int(os.environ.get("CRATE_KILLS", "6"))
"""Number of kills of each run; CRATE_KILLS=25 gives a hundred in all."""
KILLED = {
    "digits": {
        "run.ema": 0.9, "run.layerwise_epochs": 2, "run.evaluate_epochs": 2, "run.log_steps": 3,
        "model.config.dropout": 0.1,
    },
    "mae": mae({"run.evaluate_epochs": 5, "run.log_steps": 3}),
    "dino": dino({"run.evaluate_epochs": 5, "run.log_steps": 3}),
    "gpt": {"run.log_steps": 3, "model.config.dropout": 0.1},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KILLED)
def test_killed_at_random(tmp_path, few, kind):
    changes = {**KILLED[kind], "schedule.steps": 100 * KILLS, "run.checkpoint_steps": 5}
    recipe = text_recipe("causal-lm", changes) if kind == "gpt" else toy({**few, **changes})
    whole, cut, draw = tmp_path / "whole", tmp_path / "cut", random.Random(kind)
    train(recipe, whole, quiet=True)
    save_recipe(recipe, tmp_path / "toy.yaml")
    for _ in range(KILLS):
        kill_at_random(cut, tmp_path / "toy.yaml", draw)
    done = python(*command(cut, tmp_path / "toy.yaml", "--resume"))
    assert done.returncode == 0, done.stderr
    assert_same_run(cut, whole)
    last = f"checkpoint-{100 * KILLS}"
    weights = [folder / "checkpoints" / last / "model.safetensors" for folder in (cut, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes(), "student, teacher and center too"
    assert not [path for path in cut.rglob(".*") if path.is_file()], "no drafts and no lock are left"


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
