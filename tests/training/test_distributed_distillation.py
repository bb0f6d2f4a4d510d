"""Self-distillation killed and resumed, and on two processes: student, teacher and centre as of one process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from codingrate.training import save_recipe
from tests.training.test_distributed import torchrun
from tests.training.toys import ENVIRONMENT, assert_same, lines, run, saved, toy

from .test_autoencoding import mae
from .test_distillation import dino

pytestmark = pytest.mark.slow

STEPS = {
    "schedule.batch": 64, "schedule.steps": 20, "run.checkpoint_steps": 5, "run.evaluate_epochs": 0, "run.keep": 9,
    "optimise.lr": 3e-4,
}  # fmt: skip


def state(folder, step=20):
    return load_file(folder / "checkpoints" / f"checkpoint-{step}" / "model.safetensors")


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    root = tmp_path_factory.mktemp("dino")
    run(root / "one", dino(STEPS))
    return root


def test_two_processes_are_one_with_their_batch(one):
    """Crops belong to the row and the epoch, and nothing else is random here; 20 batches of 64 lie within a pass."""
    save_recipe(toy(dino(STEPS)), one / "two.yaml")
    torchrun("-m", "codingrate", "train", one / "two.yaml", "--output", one / "two", "--json")
    alone, together = (lines(one / name, "training") for name in ("one", "two"))
    assert [line["loss"] for line in together] == pytest.approx([line["loss"] for line in alone], abs=2e-4)
    mine, theirs = state(one / "one"), state(one / "two")
    torch.testing.assert_close(theirs["center"], mine["center"], rtol=0, atol=2e-5)
    for name, weight in mine.items():
        torch.testing.assert_close(theirs[name], weight, rtol=0, atol=2e-3, msg=name)  # AdamW: 20 steps of 3e-4
    start = run(one / "start", dino({**STEPS, "schedule.steps": 1, "optimise.lr": 1e-12})).model.state_dict()
    moved = max(float((mine[name] - start[name]).abs().max()) for name in mine if name.startswith("student"))
    assert moved > 3e-3, "more than the tolerance"


def test_killed_and_resumed(one, tmp_path):
    save_recipe(toy(dino(STEPS)), tmp_path / "toy.yaml")
    call = [sys.executable, "-m", "codingrate", "train", str(tmp_path / "toy.yaml"), "--output", str(tmp_path / "run")]
    process = subprocess.Popen(call, env=ENVIRONMENT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    waited = time.monotonic()
    while not (tmp_path / "run" / "checkpoints" / "checkpoint-10").exists():
        assert process.poll() is None
        assert time.monotonic() - waited < 120
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run(tmp_path / "run", dino(STEPS), resume=True)
    assert_same(state(one / "one"), state(tmp_path / "run"))
    assert_same(saved(one / "one"), saved(tmp_path / "run"))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_an_autoencoder_on_two_processes(tmp_path, kind):
    """Masks are drawn for each process, so that the losses differ from one process's; both must be saved whole."""
    changes = mae({**STEPS, "run.evaluate_epochs": 1, "run.fsdp": kind == "fsdp"})
    save_recipe(toy(changes), tmp_path / "toy.yaml")
    torchrun("-m", "codingrate", "train", tmp_path / "toy.yaml", "--output", tmp_path / "two", "--json")
    alone = run(tmp_path / "one", {**changes, "run.fsdp": False})
    two = lines(tmp_path / "two", "evaluation")[-1]["eval_loss"]
    assert two == pytest.approx(alone.metrics["loss"], rel=0.05)
    assert saved(tmp_path / "two").keys() == saved(tmp_path / "one").keys()
