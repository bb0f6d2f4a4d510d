"""Runs that are killed at random times end like uninterrupted ones, bit for bit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest

from codingrate.recipes import save_recipe
from codingrate.runs import train

from .resuming import assert_same_run, names
from .texts import text_recipe
from .toys import (
    ENVIRONMENT,
    command,
    dino,
    mae,
    python,
    toy,
)

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
