"""A run goes on where it stopped as if it never had: killed, out of space, or half through a checkpoint."""

from __future__ import annotations

import errno
import json
import random
import shutil
import subprocess
import sys
import time

import pytest
import torch
import transformers

from codingrate.training import save_recipe, train
from codingrate.training.callbacks import Metrics
from codingrate.training.run import open_folder
from codingrate.training.trainer import STAGING, CrateTrainer, checkpoints
from tests.refusals import refused
from tests.training.toys import (
    ENVIRONMENT,
    assert_same,
    command,
    lines,
    measured,
    python,
    run,
    saved,
    toy,
)


class StoppedError(Exception):
    """What a kill is within one process."""


@pytest.fixture
def stop(monkeypatch):
    """Makes training break off in the step after a given one."""

    def after(step):
        whole = CrateTrainer.training_step

        def training_step(self, *args, **kwargs):
            if self.state.global_step == step:
                raise StoppedError
            return whole(self, *args, **kwargs)

        monkeypatch.setattr(CrateTrainer, "training_step", training_step)

    return after


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of a run that nothing stopped, made once for each recipe."""
    made = {}

    def folder(changes):
        key = repr(sorted(changes.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("whole") / "run"
            run(made[key], changes)
        return made[key]

    return folder


def names(folder):
    return [path.name for path in checkpoints(folder / "checkpoints")]


CASES = {
    "within a pass": ({}, 6, "checkpoint-5"),
    "at the end of a pass": ({"run.checkpoint_steps": 4}, 4, "checkpoint-4"),
    "in the next pass": ({"run.checkpoint_steps": 4}, 6, "checkpoint-4"),
    "before any checkpoint": ({"run.layerwise_epochs": 1}, 3, None),
    "average of weights": ({"run.ema": 0.8}, 7, "checkpoint-5"),
    "accumulation": ({"run.device_batch": 90}, 6, "checkpoint-5"),
    "lion": ({"optimise.name": "lion", "optimise.lr": 3e-4}, 8, "checkpoint-5"),
    "dropout": ({"model.config.dropout": 0.2}, 6, "checkpoint-5"),
    "layerwise": ({"run.layerwise_epochs": 0.5, "run.checkpoint_steps": 2}, 7, "checkpoint-6"),
    "crops": ({"augment.crop": "pad", "augment.crop_padding": 2}, 6, "checkpoint-5"),
    "workers": ({"data.workers": 1, "schedule.epochs": 2}, 6, "checkpoint-5"),
}


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] * (c == "workers")) for c in CASES])
def test_resumed_equals_uninterrupted(tmp_path, uninterrupted, stop, monkeypatch, case):
    changes, step, last = CASES[case]
    changes = {"run.checkpoint_steps": 5, **changes}
    whole, cut = uninterrupted(changes), tmp_path / "cut"
    stop(step)
    with pytest.raises(StoppedError):
        run(cut, changes)
    assert names(cut)[-1:] == ([last] if last else [])
    monkeypatch.undo()
    torch.manual_seed(987)  # a new process has another state of its generators
    run(cut, changes, resume=True)
    assert_same(saved(whole), saved(cut))
    assert_same(saved(whole, "best"), saved(cut, "best"))
    assert measured(cut) == measured(whole)
    assert len(lines(cut, "training")) == lines(cut)[-1]["step"], "a line per step"


def test_stopped_between_a_checkpoint_and_the_end_of_its_pass(tmp_path, uninterrupted, monkeypatch):
    """The measurement due at the end of the pass is made up for."""
    changes = {"run.layerwise_epochs": 1, "run.checkpoint_steps": 4}
    whole = uninterrupted(changes)
    write = CrateTrainer._save_checkpoint

    def interrupted(self, *args):
        write(self, *args)
        raise StoppedError

    monkeypatch.setattr(CrateTrainer, "_save_checkpoint", interrupted)
    with pytest.raises(StoppedError):
        run(tmp_path / "cut", changes)
    monkeypatch.undo()
    assert len(lines(tmp_path / "cut", "layerwise")) == 1
    run(tmp_path / "cut", changes, resume=True)
    assert [line["epoch"] for line in lines(tmp_path / "cut", "layerwise")] == [0, 1, 2, 3]
    assert measured(tmp_path / "cut") == measured(whole)


@pytest.mark.parametrize("steps", [None, 6], ids=["at the end of a pass", "within a pass"])
def test_a_finished_run_resumes_to_itself(tmp_path, steps):
    changes = {"schedule.steps": steps}
    first = run(tmp_path / "run", changes)
    before = saved(tmp_path / "run")
    again = run(tmp_path / "run", changes, resume=True)
    assert names(tmp_path / "run")[-1] == f"checkpoint-{steps or 12}"
    assert_same(before, saved(tmp_path / "run"))
    assert again.metrics["top1"] == first.metrics["top1"]
    assert again.metrics["loss"] == first.metrics["loss"]


def test_the_stated_settings_may_change_on_resuming(tmp_path, uninterrupted, stop, monkeypatch):
    changes = {"run.checkpoint_steps": 5}
    whole = uninterrupted(changes)
    stop(6)
    with pytest.raises(StoppedError):
        run(tmp_path / "cut", changes)
    monkeypatch.undo()
    run(tmp_path / "cut", {"run.checkpoint_steps": 3, "run.keep": 1, "run.log_steps": 2}, resume=True)
    assert_same(saved(whole), saved(tmp_path / "cut"))
    assert names(tmp_path / "cut") == ["checkpoint-12"]


# Half-written checkpoints


def test_a_half_written_checkpoint_is_never_picked_up(tmp_path, uninterrupted, stop, monkeypatch):
    changes = {"run.checkpoint_steps": 5}
    whole = uninterrupted(changes)
    stop(6)
    with pytest.raises(StoppedError):
        run(tmp_path / "cut", changes)
    monkeypatch.undo()
    folder = tmp_path / "cut" / "checkpoints"
    shutil.copytree(folder / "checkpoint-5", folder / STAGING / "checkpoint-10")
    for file in (folder / STAGING / "checkpoint-10").iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    shutil.copytree(folder / "checkpoint-5", folder / "checkpoint-8")
    (folder / "checkpoint-8" / "trainer_state.json").unlink()
    (folder / "checkpoint-9").mkdir()
    (folder / "checkpoint-11.bak").mkdir()
    assert open_folder(tmp_path / "cut", toy(changes), resume=True) == folder / "checkpoint-5"
    run(tmp_path / "cut", changes, resume=True)
    assert_same(saved(whole), saved(tmp_path / "cut"))
    assert not (folder / STAGING).exists()
    assert names(tmp_path / "cut") == ["checkpoint-10", "checkpoint-12"]


@pytest.mark.parametrize("moment", ["save_model", "_save_optimizer_and_scheduler", "_save_rng_state"])
def test_broken_off_while_writing(tmp_path, uninterrupted, monkeypatch, moment):
    """Whatever had been written of the second checkpoint, the first is the last."""
    changes = {"run.checkpoint_steps": 5}
    whole = uninterrupted(changes)
    write = getattr(transformers.Trainer, moment)

    def interrupted(self, *args, **kwargs):
        write(self, *args, **kwargs)
        if self.state.global_step == 10:
            raise KeyboardInterrupt

    monkeypatch.setattr(transformers.Trainer, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", changes)
    monkeypatch.undo()
    assert any((tmp_path / "cut" / "checkpoints" / STAGING / "checkpoint-10").iterdir())
    assert names(tmp_path / "cut") == ["checkpoint-5"]
    run(tmp_path / "cut", changes, resume=True)
    assert_same(saved(whole), saved(tmp_path / "cut"))
    assert measured(tmp_path / "cut") == measured(whole)


def test_a_line_of_metrics_cut_short_is_dropped(tmp_path, uninterrupted, stop, monkeypatch):
    changes = {"run.checkpoint_steps": 5}
    whole = uninterrupted(changes)
    stop(6)
    with pytest.raises(StoppedError):
        run(tmp_path / "cut", changes)
    monkeypatch.undo()
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "training", "st')
    run(tmp_path / "cut", changes, resume=True)
    assert measured(tmp_path / "cut") == measured(whole)


# Disk full


def full(monkeypatch, name, write, place, at):
    """Writing by `name` puts a few bytes into files below `place` and fails, once a run is at step `at`."""

    def fail(contents, file, *args, **kwargs):
        if place not in str(file) or at not in str(file):
            return write(contents, file, *args, **kwargs)
        with open(file, "wb") as half:
            half.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(name, fail)


@pytest.mark.parametrize("name", ["torch.save", "transformers.modeling_utils.safe_save_file", "average"])
def test_disk_full_in_a_checkpoint(tmp_path, uninterrupted, monkeypatch, name):
    import codingrate.training.ema as ema

    changes = {"run.checkpoint_steps": 5, "run.ema": 0.5}
    whole = uninterrupted(changes)
    writers = {
        "torch.save": torch.save,
        "transformers.modeling_utils.safe_save_file": transformers.modeling_utils.safe_save_file,
        "average": ema.save_file,
    }
    target = "codingrate.training.ema.save_file" if name == "average" else name
    full(monkeypatch, target, writers[name], "checkpoints", "checkpoint-10")
    said = refused("checkpoint-10: cannot be written (No space left on device)", run, tmp_path / "cut", changes)
    assert said.startswith(str(tmp_path / "cut" / "checkpoints"))
    assert "the last good one is checkpoint-5" in said
    assert "--resume" in said
    monkeypatch.undo()
    assert names(tmp_path / "cut") == ["checkpoint-5"]
    assert not (tmp_path / "cut" / "checkpoints" / STAGING).exists(), "the failed one gives its space back"
    run(tmp_path / "cut", changes, resume=True)
    assert_same(saved(whole), saved(tmp_path / "cut"))


def test_disk_full_in_the_first_checkpoint(tmp_path, monkeypatch):
    full(monkeypatch, "torch.save", torch.save, "checkpoints", "checkpoint-5")
    refused("there is none yet", run, tmp_path / "run", {"run.checkpoint_steps": 5})
    monkeypatch.undo()
    assert run(tmp_path / "run", {"run.checkpoint_steps": 5}, resume=True).metrics["step"] == 12


def test_disk_full_in_the_saved_model(tmp_path, uninterrupted, monkeypatch):
    """The evaluated model of before stays whole."""
    changes = {"run.checkpoint_steps": 4}
    whole = uninterrupted(changes)
    evaluations = []
    write = transformers.modeling_utils.safe_save_file

    def fail(contents, file, *args, **kwargs):
        if ".last." in str(file):
            evaluations.append(file)
            if len(evaluations) == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(contents, file, *args, **kwargs)

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", fail)
    said = refused("No space left on device; free space", run, tmp_path / "cut", changes)
    assert said.startswith(f"cannot write {tmp_path / 'cut' / 'model' / 'last'}: ")
    monkeypatch.undo()
    assert sorted(path.name for path in (tmp_path / "cut" / "model").iterdir()) == ["best", "last"]
    assert saved(tmp_path / "cut")
    run(tmp_path / "cut", changes, resume=True)
    assert_same(saved(whole), saved(tmp_path / "cut"))


def test_disk_full_in_the_log(tmp_path, uninterrupted, monkeypatch):
    changes = {"run.checkpoint_steps": 5}
    whole = uninterrupted(changes)
    write = Metrics.write

    def fail(self, state, kind, values):
        if state.global_step == 7:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, state, kind, values)

    monkeypatch.setattr(Metrics, "write", fail)
    said = refused("cannot be written (No space left on device)", run, tmp_path / "cut", changes)
    assert said.startswith(str(tmp_path / "cut"))
    monkeypatch.undo()
    run(tmp_path / "cut", changes, resume=True)
    assert measured(tmp_path / "cut") == measured(whole)


LIMITED = """
import resource, signal, sys
from codingrate.training.trainer import CrateTrainer
from codingrate.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit, whole = int(sys.argv[1]), CrateTrainer.training_step
def training_step(self, *args, **kwargs):
    if self.state.global_step == 6:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    return whole(self, *args, **kwargs)
CrateTrainer.training_step = training_step
main(sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [12_000, 30_000], ids=["weights", "optimizer"])
def test_files_that_may_not_grow(tmp_path, limit):
    """A real failure of the system's write, in the weights (18 kB) or the optimizer's state (36 kB)."""
    changes = {"run.checkpoint_steps": 5, "run.evaluate_epochs": 3}
    save_recipe(toy(changes), tmp_path / "toy.yaml")
    call = command(tmp_path / "cut", tmp_path / "toy.yaml")[2:]
    failed = python("-c", LIMITED, str(limit), *call)
    said = [line for line in failed.stderr.splitlines() if line.startswith("crate:")]
    assert failed.returncode == 1, failed.stderr
    assert len(said) == 1
    assert "Traceback" not in failed.stderr
    assert "checkpoint-10: cannot be written" in said[0]
    assert "checkpoint-5" in said[0]
    assert names(tmp_path / "cut") == ["checkpoint-5"]
    run(tmp_path / "cut", changes, resume=True)
    run(tmp_path / "whole", changes)
    assert_same(saved(tmp_path / "whole"), saved(tmp_path / "cut"))


@pytest.mark.slow
def test_a_disk_that_is_full(tmp_path):
    """Checkpoints of 100 kB onto a disk of 256 kB, mounted for this process alone."""
    changes = {"run.checkpoint_steps": 1, "run.keep": 9, "run.evaluate_epochs": 3}
    save_recipe(toy(changes), tmp_path / "toy.yaml")
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
    said = [line for line in done.stderr.splitlines() if line.startswith("crate:")]
    assert done.returncode == 1, done.stderr
    assert len(said) == 1
    assert str(disk / "run") in said[0]
    assert "Traceback" not in done.stderr
    assert names(kept), "some had been written before"
    run(kept, changes, resume=True)
    run(tmp_path / "whole", changes)
    assert_same(saved(tmp_path / "whole"), saved(kept))


# Kill


@pytest.mark.slow
def test_killed_ten_times(tmp_path):
    changes = {
        "schedule.epochs": 30, "schedule.batch": 120, "run.checkpoint_steps": 5, "run.ema": 0.9,
        "run.layerwise_epochs": 2, "run.evaluate_epochs": 2, "run.log_steps": 5, "model.config.dropout": 0.1,
    }  # fmt: skip
    recipe = tmp_path / "toy.yaml"
    save_recipe(toy(changes), recipe)
    done = python(*command(tmp_path / "whole", recipe))
    assert done.returncode == 0, done.stderr
    cut, draw, kills = tmp_path / "cut", random.Random(0), 0
    while kills < 10:
        more = ["--resume"] if (cut / "recipe.yaml").exists() else []
        before = set(names(cut))
        process = subprocess.Popen(
            [sys.executable, *command(cut, recipe, *more)],
            env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while process.poll() is None and not set(names(cut)) - before:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.3))
        assert process.poll() is None, "the run ended before it was killed often enough"
        process.kill()
        process.wait()
        kills += 1
    done = python(*command(cut, recipe, "--resume"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["top1"] == lines(tmp_path / "whole", "evaluation")[-1]["eval_top1"]
    assert_same(saved(tmp_path / "whole"), saved(cut))
    assert_same(saved(tmp_path / "whole", "best"), saved(cut, "best"))
    assert measured(cut) == measured(tmp_path / "whole")


# What is refused


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    folder = tmp_path_factory.mktemp("started") / "run"
    run(folder, {"schedule.steps": 1})
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.config.hidden_size": 48}, "was started with model.config.hidden_size=24, not 48"),
        ({"model.config.attention": "tssa"}, "was started with model.config.attention=None, not tssa"),
        ({"model.name": "vit-tiny-patch16-224"}, "model.name=crate-tiny-patch16-224, not vit-tiny-patch16-224"),
        ({"optimise.lr": 0.5}, "optimise.lr=0.001, not 0.5"),
        ({"run.seed": 3}, "run.seed=0, not 3"),
        ({"data.name": "elsewhere"}, "data.name=digits, not elsewhere"),
    ],
)
def test_another_recipe_is_not_resumed(started, changes, words):
    before = sorted(started.rglob("*"))
    said = refused(words, run, started, {"schedule.steps": 1, **changes}, resume=True)
    assert said.startswith(str(started))
    assert sorted(started.rglob("*")) == before


def test_a_run_is_not_overwritten(started):
    refused("holds a run already; go on with --resume", run, started, {"schedule.steps": 1})


def test_nothing_to_resume(tmp_path):
    refused("holds no run to resume", run, tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()


def test_a_folder_with_other_things(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    refused("is not empty", run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "run").mkdir()
    assert train(toy({"schedule.steps": 1}), str(tmp_path / "run"), quiet=True).folder == tmp_path / "run"
