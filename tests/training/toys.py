"""Recipes that train in a blink, and what their runs leave behind."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from codingrate.inspection import read_metrics
from codingrate.training import Recipe, build_recipe, train

MODEL = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "patch_size": 4, "class_token": False, "pooling": "mean",
}  # fmt: skip
BASE: dict[str, Any] = {
    "model": {"config": MODEL},
    "data": {"name": "digits", "workers": 0},
    "augment": {"image_size": 8, "channels": 1, "crop": "resize", "flip": 0.5, "affine_degrees": 10},
    "schedule": {"batch": 360, "epochs": 3},  # 1438 rows: four steps in a pass
    "run": {"log_steps": 1},
}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
MEASURED = (
    "kind",
    "step",
    "epoch",
    "loss",
    "grad_norm",
    "learning_rate",
    "accuracy",
    "eval_loss",
    "eval_top1",
    "eval_accuracy",
    "eval_bits_per_byte",
    "layers",
)


def values(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The toy recipe with other values at dotted keys."""
    found = copy.deepcopy(BASE)
    for key, value in (changes or {}).items():
        *sections, last = key.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return found


def toy(changes: dict[str, Any] | None = None) -> Recipe:
    return build_recipe(values(changes))


def run(folder: Path, changes: dict[str, Any] | None = None, **options: Any) -> Any:
    """Train the toy recipe."""
    return train(toy(changes), folder, quiet=True, **options)


def saved(folder: Path, which: str = "last") -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / which / "model.safetensors")


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    assert [key for key in one if not torch.equal(one[key], other[key])] == []


def lines(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    found = read_metrics(folder / "metrics.jsonl")
    return [line for line in found if kind in (None, line["kind"])]


def measured(folder: Path) -> list[dict[str, Any]]:
    """What a run measured, without how long it took."""
    return [{key: line[key] for key in MEASURED if key in line} for line in lines(folder) if line["kind"] != "end"]


def python(*arguments: str, seconds: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
    """A process of its own, with one thread."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        **options,
    )


def command(folder: Path, recipe: Path, *more: str) -> list[str]:
    return ["-m", "codingrate", "train", str(recipe), "--output", str(folder), "--json", *more]
