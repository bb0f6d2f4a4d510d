"""A toy run of images and a shipped model of text, opened once for all tests of the explorer."""

from __future__ import annotations

from pathlib import Path

import pytest

from codingrate.explorer import Library
from tests.event_loops import _no_event_loop_is_left  # noqa: F401  (an autouse fixture)
from tests.runs.toys import train_toy

TEXT = "crate-shakespeare-gpt"
TOY = {
    "model.config": {
        "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "patch_size": 2, "class_token": True,
        "pooling": "class",
    },
    "schedule.epochs": 6,
    "run.layerwise_epochs": 3,
    "run.milestones": [3],
}  # fmt: skip


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory) -> Path:
    """A run folder of a small classifier of digits."""
    folder = tmp_path_factory.mktemp("explorer") / "toy-digits"
    train_toy(folder, TOY)
    return folder


@pytest.fixture(scope="session")
def twin_run(tmp_path_factory) -> Path:
    """A run folder of its black-box twin."""
    folder = tmp_path_factory.mktemp("explorer") / "toy-vit"
    config = {**TOY["model.config"], "attention": "mhsa", "sparsifier": "mlp", "skip": "residual"}
    train_toy(folder, {**TOY, "model.config": config, "schedule.epochs": 1})
    return folder


@pytest.fixture(scope="session")
def library(toy_run, twin_run) -> Library:
    return Library([toy_run, twin_run, TEXT])
