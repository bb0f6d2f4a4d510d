"""Text recipes that train in a blink, and labelled sentences made on the spot."""

from __future__ import annotations

import copy
import csv
import random
from pathlib import Path
from typing import Any

from codingrate.training import Recipe, build_recipe, train

NAMES = {"causal-lm": "crate-gpt-base", "masked-lm": "crate-bert-base", "sequence-classification": "crate-bert-base"}
# At this width words and maps that start at 0.02 leave the frequencies of tokens only after thousands of steps.
CONFIG = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "positions": "learned",
    "initializer_range": 0.3,
}  # fmt: skip
BASE: dict[str, Any] = {
    "data": {"name": "pydoc", "workers": 0},
    "optimise": {"lr": 2e-2},
    "schedule": {"steps": 6, "batch": 32, "warmup_steps": 20},
    "run": {"log_steps": 1, "evaluate_epochs": 0},
}


def text_recipe(task: str, changes: dict[str, Any] | None = None) -> Recipe:
    """The toy recipe of a task with other values at dotted keys."""
    found = copy.deepcopy({"task": task, "model": {"name": NAMES[task], "config": CONFIG}, **BASE})
    found["text"] = {"max_length": 16} if task == "sequence-classification" else {"block": 16}
    for key, value in (changes or {}).items():
        *sections, last = key.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return build_recipe(found)


def run_text(folder: Path, task: str, changes: dict[str, Any] | None = None, **options: Any) -> Any:
    return train(text_recipe(task, changes), folder, quiet=True, **options)


WORDS = {"good": ("fine", "good", "nice", "sweet"), "bad": ("awful", "bad", "poor", "ugly")}


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Sentences of two kinds of words, with their kind."""
    draw = random.Random(seed)
    kinds = [draw.choice(["good", "bad"]) for _ in range(count)]
    return [(" ".join(draw.choices(WORDS[kind], k=draw.randint(1, 3))), kind) for kind in kinds]


def write_csv(path: Path, columns: list[str], rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def write_sentences(path: Path, count: int = 203) -> Path:
    return write_csv(path, ["sentence", "label"], sentences(count))


def write_pairs(folder: Path, columns: list[str], label: Any, sizes: tuple[int, ...] = (83, 31)) -> Path:
    """Train and validation files of pairs; `label` says what the two kinds of a pair make."""
    for split, size in zip(("train", "validation"), sizes, strict=True):
        first, second = sentences(size, seed=size), sentences(size, seed=size + 1)
        rows = [(a, b, label(one, two)) for (a, one), (b, two) in zip(first, second, strict=True)]
        write_csv(folder / f"{split}.csv", [*columns, "label"], rows)
    return folder
