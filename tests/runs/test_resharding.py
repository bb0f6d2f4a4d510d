"""A run continues in another number of processes, sharded or not, as if it had always had that number."""

from __future__ import annotations

import json
import shutil

import pytest

from codingrate.recipes import save_recipe

from .toys import command, few_digits, lines, python, saved, torchrun, toy

pytestmark = pytest.mark.slow

# Augmentation is drawn per process and batch, so two processes would see other images than one.
CHANGES = {
    "augment.flip": 0.0, "augment.affine_degrees": 0.0, "schedule.steps": 8, "run.evaluate_epochs": 1,
    "run.checkpoint_steps": 3, "run.save_total_limit": 9, "run.layerwise_epochs": 1, "run.ema": 0.7,
    "optimizer.lr": 1e-3, "model.config.hidden_size": 30,
}  # fmt: skip
STARTS = {"one": (1, False), "two": (2, False), "two sharded": (2, True)}
"""Number of processes of a run, and whether its weights are sharded."""
TOLERANCE = 2e-5
"""Sums over a batch, of losses and of gradients, are taken in another order if more processes share it, and AdamW's
first steps are about as large for a small gradient as for a large one. Rounding differs by about 1e-7 in a step."""


def run_by(folder, changes, processes, sharded, *more):
    """Train in some processes and return what the command prints."""
    file = folder.with_suffix(".yaml")
    save_recipe(toy({**CHANGES, **changes, "run.fsdp": sharded}), file)
    call = command(folder, file, *more)
    if processes > 1:
        return json.loads(torchrun(*call, processes=processes))
    done = python(*call, seconds=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with a run of each start, and the changes that name their data: 80 images, 4 steps an epoch."""
    root = tmp_path_factory.mktemp("runs")
    changes = few_digits(root / "data", 80)
    for name, (processes, sharded) in STARTS.items():
        run_by(root / name, changes, processes, sharded)
    return root, changes


def check_same(folder, other):
    """Check losses, gradients, evaluations of the averaged weights, layer-wise measures and the saved average."""
    for kind, names in {"training": ("loss", "grad_norm"), "evaluation": ("eval_loss", "eval_top1")}.items():
        mine, theirs = lines(folder, kind), lines(other, kind)
        assert [line["step"] for line in mine] == [line["step"] for line in theirs]
        for name in names:
            assert [line[name] for line in mine] == pytest.approx([line[name] for line in theirs], abs=TOLERANCE)
    mine, theirs = lines(folder, "layerwise"), lines(other, "layerwise")
    assert [line["step"] for line in mine] == [line["step"] for line in theirs] == [0, 4, 8]
    for line, expected in zip(mine, theirs, strict=True):
        for layer, wanted in zip(line["layers"], expected["layers"], strict=True):
            assert layer == pytest.approx(wanted, rel=1e-3, abs=1e-3)  # entries close to zero count as zero or not
    weights, wanted = saved(folder), saved(other)
    assert weights.keys() == wanted.keys()
    assert max(float((weights[key] - wanted[key]).abs().max()) for key in wanted) < 1e-4  # 8 steps of 1e-3


@pytest.mark.parametrize("name", ["two", "two sharded"])
def test_averages_and_layerwise_measures_of_several_processes(runs, name):
    root, _ = runs
    check_same(root / name, root / "one")
    assert lines(root / "one", "training")[0]["loss"] - lines(root / "one", "training")[-1]["loss"] > 0.01


@pytest.mark.parametrize(
    ("start", "processes", "sharded"),
    [
        ("two", 1, False), ("one", 2, False), ("two", 4, False),
        ("two sharded", 1, False), ("one", 2, True), ("two sharded", 4, True),
    ],
)  # fmt: skip
def test_resuming_in_another_number_of_processes(runs, tmp_path, start, processes, sharded):
    """The run continues within an epoch, at step 3 of 4, with every sample of it still seen once."""
    root, changes = runs
    folder = tmp_path / "run"
    shutil.copytree(root / start, folder)
    shutil.rmtree(folder / "model")
    for step in (6, 8):
        shutil.rmtree(folder / "checkpoints" / f"checkpoint-{step}")
    run_by(folder, changes, processes, sharded, "--resume")
    check_same(folder, root / "one")
