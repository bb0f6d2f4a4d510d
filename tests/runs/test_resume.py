"""A resumed run equals an uninterrupted one bit for bit: after a kill, a full disk or a half-written checkpoint."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
import transformers

from codingrate.recipes import save_recipe
from codingrate.runs import Run, TrainingStopped, train
from codingrate.runs.callbacks import Metrics
from codingrate.runs.folder import checkpoints
from codingrate.runs.interruption import SIGNALS
from codingrate.runs.trainer import STAGING, CrateTrainer
from tests.refusals import refused

from .toys import ENVIRONMENT, assert_same, command, dino, lines, mae, measured, python, saved, toy, train_toy

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


def one_error(process):
    """Return the one line that a failed command prints."""
    messages = [line for line in process.stderr.splitlines() if line.startswith("crate:")]
    assert process.returncode == 1, process.stderr
    assert len(messages) == 1
    assert "Traceback" not in process.stderr
    return messages[0]


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


def kill_after_a_checkpoint(folder, recipe, wait):
    """Train in a process until there is a new checkpoint, wait, and kill it."""
    before, more = set(names(folder)), ["--resume"] if (folder / "recipe.yaml").exists() else []
    process = subprocess.Popen(
        [sys.executable, *command(folder, recipe, *more)],
        env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    start = time.monotonic()
    while process.poll() is None and not set(names(folder)) - before:
        assert time.monotonic() - start < 120
        time.sleep(0.002)
    time.sleep(wait)
    assert process.poll() is None, "the run ended before it was killed"
    process.kill()
    process.wait()


@pytest.mark.slow
def test_killed_ten_times(tmp_path, train_few, few):
    changes = {
        "schedule.epochs": 80, "run.checkpoint_steps": 5, "run.ema": 0.9,
        "run.layerwise_epochs": 2, "run.evaluate_epochs": 2, "run.log_steps": 5, "model.config.dropout": 0.1,
    }  # fmt: skip
    recipe, cut, draw = tmp_path / "toy.yaml", tmp_path / "cut", random.Random(0)
    save_recipe(toy({**few, **changes}), recipe)
    train_few(tmp_path / "whole", changes)
    for _ in range(10):
        kill_after_a_checkpoint(cut, recipe, draw.uniform(0, 0.3))
    done = python(*command(cut, recipe, "--resume"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["top1"] == lines(tmp_path / "whole", "evaluation")[-1]["eval_top1"]
    assert_same_run(cut, tmp_path / "whole")


@pytest.mark.slow
def test_a_teacher_killed_and_resumed(tmp_path, train_few, few):
    changes = dino({"schedule.epochs": 40, "run.evaluate_epochs": 0, **FIVE})
    save_recipe(toy({**few, **changes}), tmp_path / "toy.yaml")
    kill_after_a_checkpoint(tmp_path / "cut", tmp_path / "toy.yaml", 0.1)
    for folder, resume in (("cut", True), ("whole", False)):
        train_few(tmp_path / folder, changes, resume=resume)
    weights = [tmp_path / name / "checkpoints" / "checkpoint-160" / "model.safetensors" for name in ("cut", "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert_same(saved(tmp_path / "whole"), saved(tmp_path / "cut"))


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
