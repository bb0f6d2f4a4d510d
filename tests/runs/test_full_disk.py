"""A full disk ends a run with one line, and the run resumes when there is room again."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys

import pytest
import torch
import transformers

from codingrate.errors import CrateError
from codingrate.recipes import save_recipe
from codingrate.runs.callbacks import Metrics
from codingrate.runs.trainer import STAGING
from tests.refusals import refused

from .resuming import FIVE, names
from .toys import (
    ENVIRONMENT,
    assert_same,
    command,
    lines,
    measured,
    one_error,
    python,
    saved,
    toy,
)

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
    ["torch.save", "transformers.modeling_utils.safe_save_file", "codingrate.runs.trainer.save_file"],
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


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("name", ["torch.save", "transformers.modeling_utils.safe_save_file"])
def test_libraries_that_hide_the_reason(tmp_path, monkeypatch, train_few, name, full):
    """PyTorch says "unexpected pos"; only if a small file cannot be written either, the disk is full."""

    def fail(*args, **kwargs):
        raise RuntimeError("unexpected pos 64 vs 0")

    def no_room(**kwargs):
        raise FULL

    folder = tmp_path / "run"
    file = folder / ("checkpoints/checkpoint-5" if name == "torch.save" else "model/best")
    with monkeypatch.context() as patch:
        patch.setattr(name, fail)
        if full:
            patch.setattr("tempfile.TemporaryFile", no_room)
            refused(f"cannot write {file}: No space left", train_few, folder, FIVE)
        else:
            with pytest.raises((CrateError, RuntimeError), match="unexpected pos"):
                train_few(folder, FIVE)


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
    message = one_error(done)
    assert str(disk / "run") in message
    assert "No space left on device" in message
    assert names(kept), "some checkpoints were written before"
    train_few(kept, changes, resume=True)
    train_few(tmp_path / "whole", changes)
    assert_same(saved(tmp_path / "whole"), saved(kept))
