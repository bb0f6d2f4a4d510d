"""A full disk ends a run with one line, and the run resumes when there is room again."""

from __future__ import annotations

import errno

import pytest
import torch
import transformers
from safetensors.torch import save_file

from codingrate.errors import CrateError
from codingrate.recipes import save_recipe
from codingrate.runs.callbacks import Metrics
from codingrate.runs.trainer import STAGING
from tests.refusals import refused

from .resuming import FIVE, names
from .toys import (
    assert_same,
    command,
    measured,
    one_error,
    python,
    saved,
    toy,
)

# A full disk

FULL = OSError(errno.ENOSPC, "No space left on device")


def fill_disk(patch, name, write, part, first=1):
    """Let writing by a function fail after a few bytes, from the first or a later time that a path has a given part."""
    seen = []

    def fail(contents, file, *args, **kwargs):
        if part not in str(file):
            return write(contents, file, *args, **kwargs)
        seen.append(file)
        if len(seen) < first:
            return write(contents, file, *args, **kwargs)
        with open(file, "wb") as half:
            half.write(b"half")
        raise FULL

    patch.setattr(name, fail)


@pytest.mark.parametrize("step", [5, 10])
@pytest.mark.parametrize(
    "name",
    ["torch.save", "transformers.modeling_utils.safe_save_file", "codingrate.runs.trainer.save_file"],
    ids=["optimizer", "weights", "average"],
)
def test_a_full_disk_in_a_checkpoint(tmp_path, uninterrupted, monkeypatch, name, step, train_few):
    changes, cut = {**FIVE, "run.ema": 0.5}, tmp_path / "cut"
    whole, last = uninterrupted(changes), {5: "no earlier checkpoint", 10: "checkpoint-5"}[step]
    with monkeypatch.context() as patch:
        fill_disk(patch, name, torch.save if name == "torch.save" else save_file, f"checkpoint-{step}")
        line = refused(str(cut / "checkpoints" / f"checkpoint-{step}"), train_few, cut, changes)
    assert all(words in line for words in ("No space left", last))
    assert names(cut) == ["checkpoint-5"][: step > 5]
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


def test_a_full_disk_in_the_saved_model(tmp_path, uninterrupted, monkeypatch, train_few):
    changes, cut = {"run.checkpoint_steps": 4}, tmp_path / "cut"
    whole, name = uninterrupted(changes), "transformers.modeling_utils.safe_save_file"
    with monkeypatch.context() as patch:
        fill_disk(patch, name, transformers.modeling_utils.safe_save_file, ".last.", 2)
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
    assert "resume=True" in line
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
    message = one_error(python("-c", LIMITED, str(limit), *command(cut, tmp_path / "toy.yaml")[2:]))
    assert all(words in message for words in (str(cut / "checkpoints" / "checkpoint-10"), "checkpoint-5"))
    assert names(cut) == ["checkpoint-5"]
    train_few(cut, changes, resume=True)
    train_few(tmp_path / "whole", changes)
    assert_same(saved(tmp_path / "whole"), saved(cut))
