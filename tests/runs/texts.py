"""Text recipes that train in a second, and labeled sentences for them."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from codingrate.recipes import Recipe, build_recipe
from codingrate.runs import Run, train
from codingrate.runs.folder import resolve_source
from codingrate.tasks import Task, TaskPaths, open_task

from .toys import changed

NAMES = {"causal-lm": "crate-gpt-base", "masked-lm": "crate-bert-base", "sequence-classification": "crate-bert-base"}
# At this width, embeddings that start at 0.02 take thousands of steps to learn more than token frequencies.
CONFIG = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "positions": "learned",
    "initializer_range": 0.3,
}  # fmt: skip
BASE: dict[str, Any] = {
    "data": {"name": "pydoc", "workers": 0},
    "optimizer": {"lr": 2e-2},
    "schedule": {"steps": 6, "batch_size": 32, "warmup_steps": 20},
    "run": {"log_steps": 1, "evaluate_epochs": 0},
}


def text_recipe(task: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Return the toy recipe of a text task with other values at dotted keys."""
    text = {"max_length": 16} if task == "sequence-classification" else {"block": 16}
    values = {"task": task, "model": {"name": NAMES[task], "config": CONFIG}, "text": text, **BASE}
    return build_recipe(changed(values, changes))


def text_task(task: str, changes: Mapping[str, Any] | None = None) -> Task:
    """Return the task of the toy recipe, outside of any run."""
    recipe = text_recipe(task, changes)
    return open_task(recipe, TaskPaths(source=resolve_source(recipe.source)))


def train_text(folder: Path, task: str, changes: Mapping[str, Any] | None = None, **options: Any) -> Run:
    """Train the toy recipe of a text task into a folder."""
    return train(text_recipe(task, changes), folder, quiet=True, **options)


WORDS = {"good": ("fine", "good", "nice", "sweet"), "bad": ("awful", "bad", "poor", "ugly")}


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return sentences made of good or of bad words, with their label."""
    draw = random.Random(seed)
    kinds = [draw.choice(["good", "bad"]) for _ in range(count)]
    return [(" ".join(draw.choices(WORDS[kind], k=draw.randint(1, 3))), kind) for kind in kinds]


def write_csv(path: Path, columns: list[str], rows: list[Any]) -> Path:
    """Write a table and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def write_sentences(path: Path, count: int = 203) -> Path:
    """Write a table of labeled sentences and return its path."""
    return write_csv(path, ["sentence", "label"], sentences(count))


def write_pairs(
    folder: Path, columns: list[str], label: Callable[[str, str], Any], sizes: tuple[int, ...] = (83, 31)
) -> Path:
    """Write train.csv and validation.csv of sentence pairs; `label` maps the two labels of a pair to its own."""
    for split, size in zip(("train", "validation"), sizes, strict=True):
        first, second = sentences(size, seed=size), sentences(size, seed=size + 1)
        rows = [(a, b, label(one, two)) for (a, one), (b, two) in zip(first, second, strict=True)]
        write_csv(folder / f"{split}.csv", [*columns, "label"], rows)
    return folder
