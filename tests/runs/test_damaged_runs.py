"""Checkpoints that are damaged or half-written are never used: the run falls back to the one before."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import transformers

from codingrate.runs import Run
from codingrate.runs.manifest import write_manifest
from codingrate.runs.trainer import STAGING
from tests.refusals import refused

from .resuming import FIVE, assert_same_run, names
from .toys import (
    assert_same,
    measured,
    saved,
    toy,
)

# Half-written checkpoints


def test_a_half_written_checkpoint_is_never_used(tmp_path, uninterrupted, interrupt, train_few, few):
    whole, cut = uninterrupted(FIVE), tmp_path / "cut"
    interrupt(cut, FIVE, 6)
    folder = cut / "checkpoints"
    for copy in (STAGING + "/checkpoint-10", "checkpoint-8"):
        shutil.copytree(folder / "checkpoint-5", folder / copy)
    for file in (folder / STAGING / "checkpoint-10").iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    (folder / "checkpoint-8" / "trainer_state.json").unlink()
    for name in ("checkpoint-9", "checkpoint-11.bak"):
        (folder / name).mkdir()
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
    "flipped bit": ("model.safetensors", flip),
    "truncated": ("optimizer.pt", truncate),
    "no optimizer": ("optimizer.pt", Path.unlink),
    "no schedule": ("scheduler.pt", Path.unlink),
    "no random state": ("rng_state.pth", Path.unlink),
    "no manifest": ("manifest.json", Path.unlink),
    "bad manifest": ("manifest.json", truncate),
    "wrong manifest": ("manifest.json", lambda file: file.write_text("[1]")),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, interrupted_run, few, caplog, case):
    (name, damage), run = DAMAGE[case], shutil.copytree(interrupted_run, tmp_path / "run")
    damage(run / "checkpoints" / "checkpoint-10" / name)
    recipe = toy({**few, **FIVE, "run.save_total_limit": 3})
    for notes in (1, 0):
        with caplog.at_level("WARNING", "codingrate"):
            assert Run.start(run, recipe, resume=True)[1] == run / "checkpoints" / "checkpoint-5"
        assert len(caplog.messages) == notes
        assert all(note.startswith(f"{run / 'checkpoints' / 'checkpoint-10'}: {name}") for note in caplog.messages)
        assert (run / "checkpoints" / "damaged-checkpoint-10").is_dir()
        caplog.clear()


def test_a_run_with_one_good_checkpoint_continues_and_one_without_any_is_refused(
    tmp_path, interrupted_run, uninterrupted, train_few
):
    run = shutil.copytree(interrupted_run, tmp_path / "run")
    (run / "checkpoints" / "checkpoint-10" / "optimizer.pt").unlink()
    copy = shutil.copytree(run, tmp_path / "copy")
    train_few(copy, {**FIVE, "run.save_total_limit": 1}, resume=True)
    assert_same(saved(copy), saved(uninterrupted(FIVE)))
    assert names(copy) == ["checkpoint-12"]
    (run / "checkpoints" / "checkpoint-5" / "optimizer.pt").unlink()
    line = refused("checkpoint-10: optimizer.pt", train_few, run, FIVE, resume=True)
    assert str(run / "checkpoints") in line
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
    (run / "tokens").mkdir()
    old, new, own = (run / name for name in ("tokens/.train.bin.1.tmp", "tokens/.valid.bin.1.tmp", ".inspection.1.new"))
    for draft in (run / ".recipe.yaml.12345678.tmp", run / ".metrics.jsonl.12345678.tmp", old, new):
        draft.write_text("half")
    os.utime(old, (0, 0))
    own.mkdir()  # of another verb, which may be running
    Run.start(run, toy({**few, **FIVE}), resume=True)
    assert sorted(path.name for path in (run / "model").iterdir()) == ["best"], "an old folder is given back"
    assert [*run.glob(".*")] == [own]
    assert [*(run / "tokens").iterdir()] == [new], "it may be being written"


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
