"""Recipes that train in a second, and readers of what their runs write."""

from __future__ import annotations

import copy
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from safetensors.torch import load_file

from codingrate.data import balanced_indices, decode_image
from codingrate.inspection import read_metrics
from codingrate.recipes import Recipe, build_recipe
from codingrate.runs import Run, train
from codingrate.runs.folder import resolve_source
from codingrate.runs.trainer import CrateTrainer
from codingrate.runs.training import build_trainer
from codingrate.tasks import Task, TaskPaths, open_task

MODEL = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "patch_size": 4, "class_token": False, "pooling": "mean",
}  # fmt: skip
BASE: dict[str, Any] = {
    "model": {"config": MODEL},
    "data": {"name": "digits", "workers": 0},
    "augment": {"image_size": 8, "channels": 1, "crop": "resize", "flip": 0.5, "affine_degrees": 10},
    "schedule": {"batch_size": 360, "epochs": 3},  # 1438 images: four steps per epoch
    "run": {"log_steps": 1},
}
MAE = {
    "task": "autoencoding",
    "model.name": "crate-mae-base",
    "model.config": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 2},
    "augment.flip": 0.0,
    "augment.affine_degrees": 0.0,
    "optimizer.lr": 3e-3,
}
DINO = {
    "task": "distillation",
    "model.name": "crate-dino-small-patch16",
    "model.config": {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 2,
        "projection_hidden": 32, "projection_bottleneck": 16, "prototypes": 37,
    },
    "augment.flip": 0.0,
    "augment.affine_degrees": 0.0,
    "views.local_count": 2,
    "views.local_size": 4,
    "views.blur": [0.0, 0.0, 0.0],
    "views.solarize": [0.0, 0.0, 0.0],
    "optimizer.lr": 1e-3,
    "optimizer.weight_decay": 0.04,
    "optimizer.final_weight_decay": 0.4,
    "optimizer.max_grad_norm": 3.0,
    "optimizer.clip_by": "tensor",
    "distillation.teacher_temperature": 0.04,
    "distillation.final_teacher_temperature": 0.07,
    "distillation.temperature_epochs": 2,
}  # fmt: skip

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
DETERMINISTIC = (
    "kind", "step", "epoch", "loss", "grad_norm", "learning_rate", "accuracy", "eval_loss", "eval_top1",
    "eval_accuracy", "eval_bits_per_byte", "layers",
)  # fmt: skip
"""Keys of metrics.jsonl that do not depend on time."""


def changed(values: Mapping[str, Any], changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of nested values with other values at dotted keys."""
    result = copy.deepcopy(dict(values))
    for key, value in (changes or {}).items():
        *sections, last = key.split(".")
        section = result
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = copy.deepcopy(value)
    return result


def toy(changes: Mapping[str, Any] | None = None) -> Recipe:
    """Return the toy recipe, a classifier of digits, with other values at dotted keys."""
    return build_recipe(changed(BASE, changes))


def mae(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the changes that make the toy recipe a masked autoencoder."""
    return {**MAE, **(changes or {})}


def dino(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the changes that make the toy recipe a self-distillation."""
    return {**DINO, **(changes or {})}


def toy_task(changes: Mapping[str, Any] | None = None) -> Task:
    """Return the task of the toy recipe, outside of any run."""
    recipe = toy(changes)
    return open_task(recipe, TaskPaths(source=resolve_source(recipe.source)))


def train_toy(folder: Path, changes: Mapping[str, Any] | None = None, **options: Any) -> Run:
    """Train the toy recipe into a folder."""
    return train(toy(changes), folder, quiet=True, **options)


def toy_trainer(folder: Path, changes: Mapping[str, Any] | None = None, *callbacks: Any) -> CrateTrainer:
    """Return the trainer that `train` builds, with further callbacks."""
    run, _ = Run.start(folder, toy(changes))
    trainer = build_trainer(run, run.task, run.task.build_model(), quiet=True)
    for callback in callbacks:
        trainer.add_callback(callback)
    return trainer


def saved(folder: Path, checkpoint: str = "last") -> dict[str, torch.Tensor]:
    """Return the saved weights of a run."""
    return load_file(folder / "model" / checkpoint / "model.safetensors")


def assert_same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    """Check that two sets of weights are equal bit for bit."""
    assert one.keys() == other.keys()
    assert [key for key in one if not torch.equal(one[key], other[key])] == []


def lines(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl, all or those of one kind."""
    return [line for line in read_metrics(folder / "metrics.jsonl") if kind in (None, line["kind"])]


def measured(folder: Path) -> list[dict[str, Any]]:
    """Return what a run measured, without times."""
    return [{key: line[key] for key in DETERMINISTIC if key in line} for line in lines(folder) if line["kind"] != "end"]


def python(*arguments: str, seconds: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with one thread in a process of its own."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        **options,
    )


def one_error(process: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that a failed command prints."""
    messages = [line for line in process.stderr.splitlines() if line.startswith("crate:")]
    assert process.returncode == 1, process.stderr
    assert len(messages) == 1
    assert "Traceback" not in process.stderr
    return messages[0]


def torchrun(*arguments: Any, processes: int = 2) -> str:
    """Run Python in several processes that work together, and return what they print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-addr", "127.0.0.1"]
    done = python(*launch, "--master-port", str(port), *arguments, seconds=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(folder: Path, recipe: Path, *more: str) -> list[str]:
    """Return the arguments of Python that train a recipe file by the command."""
    return ["-m", "codingrate", "train", str(recipe), "--output", str(folder), "--json", *more]


def digit_pictures(count: int) -> list[Image]:
    """Return the first test digits as PIL images."""
    data = toy_task().data
    return [decode_image(row[data.column], 1) for row in islice(data.test, count)]


def digits_images(
    count: int | None = None, changes: Mapping[str, Any] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first test digits in [−1, 1], and their labels, without the package's transforms."""
    data = toy_task(changes).data
    rows = list(islice(data.test, count))
    images = [np.asarray(decode_image(row[data.column], 1)) for row in rows]
    labels = torch.tensor([row[data.label_column] for row in rows])
    return torch.tensor(np.stack(images))[:, None].float().div(255).sub(0.5).div(0.5), labels


def digits_sample(count: int) -> tuple[list[int], torch.Tensor]:
    """Return the sample of test digits that pictures and layer-wise measures take: its indices and its images."""
    pixels, labels = digits_images()
    indices = balanced_indices(labels.numpy(), count)
    return indices, pixels[indices]


def naive_metrics(model: Any, changes: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Compute loss and accuracies of a classifier on the test digits, by a loop over images."""
    pixels, labels = digits_images(None, changes)
    with torch.no_grad():
        rows = list(zip(model.eval()(pixels).logits.double(), labels.tolist(), strict=True))
    ranks = np.array([int((row > row[label]).sum()) for row, label in rows])
    loss = np.mean([float(row.logsumexp(0) - row[label]) for row, label in rows])
    return {"loss": float(loss), "top1": float((ranks < 1).mean()), "top5": float((ranks < 5).mean())}


def few_digits(folder: Path, count: int = 77) -> dict[str, Any]:
    """Write some training and 23 test digits, and return the changes that train on them, in four steps per epoch."""
    import datasets

    data = toy_task().data
    folder.mkdir(parents=True)
    for name, rows, size in (("train", data.train, count), ("test", data.test, 23)):
        images = [np.asarray(decode_image(row[data.column], 1)).tolist() for row in rows.select(range(size))]
        table = {"image": images, "label": rows.select(range(size))[data.label_column]}
        datasets.Dataset.from_dict(table).to_parquet(folder / f"{name}.parquet")
    return {"data.name": str(folder), "schedule.batch_size": 20}
