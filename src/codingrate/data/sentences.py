"""Sentences, or pairs of them, with a class or a number each: GLUE tasks, and files of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CrateError
from .glue import GLUE, GLUE_HUB
from .hub import local_path, open_hub
from .sentence_columns import find_label_column, find_sentence_columns, is_number_column
from .sentence_labels import check_texts, class_labels, number_labels
from .splits import stratified_split
from .tables import TABLES, files_below, is_saved, open_saved, open_tables, split_word


@dataclass(frozen=True)
class SentenceData:
    """Labelled sentences or pairs, split; labels checked, every one."""

    name: str
    """What the data was asked for by."""
    train: Any
    """Rows to learn from, a `datasets.Dataset`."""
    validation: dict[str, Any]
    """Rows to measure on, by split name: MNLI has `validation_matched` and `validation_mismatched`."""
    columns: tuple[str, ...]
    """Column of the sentence, or of both sentences."""
    label_column: str
    """Column with the class index (integer) or the number (float)."""
    classes: tuple[str, ...] | None
    """Class names; None for regression."""


def load_sentences(
    name: str,
    *,
    path: str | Path | None = None,
    columns: Sequence[str] | None = None,
    label_column: str | None = None,
    regression: bool | None = None,
    validation_share: float = 0.1,
    split_seed: int = 0,
) -> SentenceData:
    """Open a GLUE task (`GLUE`), a local file or folder, or a hub id, looked up in this order.

    `path` says where the files of a GLUE task lie: a folder with train, validation (for MNLI validation_matched and
    validation_mismatched) as .parquet, .jsonl, .csv or .tsv. `columns` names one text column or two. Labels that are
    fractions make a `regression` unless it says otherwise. A single split is split by `split_seed`, class by class; a
    `validation_share` of 1 makes all of it validation.
    """
    task = GLUE.get(name)
    if not 0 < validation_share <= 1:
        raise CrateError(f"validation_share must lie in (0, 1], not {validation_share}")
    if path is not None and task is None:
        known = ", ".join(GLUE)
        raise CrateError(f"path goes with {known}, not with {name!r}; give the path itself as the name")
    if task is not None and regression is not None and regression is not (task.classes is None):
        raise CrateError(f"regression={regression} does not go with {name}; leave it out")
    train, validation = _choose(name, _open(name, path))
    texts = find_sentence_columns(name, train, tuple(columns) if columns else None, task.columns if task else None)
    label = find_label_column(name, train, label_column, texts)
    parts = {"train": train, **validation}
    for split, rows in parts.items():
        check_texts(f"the {split} split of {name}", rows, (*texts, label), texts)
    if task is not None:
        regression = task.classes is None
    elif regression is None:
        regression = is_number_column(train, label)
    if regression:
        parts, classes = number_labels(name, parts, label), None
    else:
        parts, classes = class_labels(name, parts, label, task.classes if task else None)
    parts = {split: rows.select_columns([*texts, label]) for split, rows in parts.items()}
    train = parts.pop("train")
    if not parts:
        train, parts = _split(name, train, label, validation_share, split_seed, regression)
    return SentenceData(name, train, parts, texts, label, classes)


def _open(name: str, path: str | Path | None) -> dict[str, Any]:
    if path is not None:
        local: Path | None = Path(path).expanduser()
    else:
        local = None if name in GLUE else local_path(name, GLUE)
    if local is None:
        return open_hub(name, GLUE_HUB, False, config=name) if name in GLUE else open_hub(name, name, False)
    if local.is_file():
        if local.suffix.lower() not in TABLES:
            raise CrateError(f"cannot read {local} as sentences with labels; give one of {' '.join(TABLES)}")
        return open_tables({"train": [local]}, streaming=False)
    if not local.is_dir():
        raise CrateError(f"no such file or folder: {local}")
    if is_saved(local):
        return open_saved(local)
    files = [Path(file) for file in files_below(local, tuple(TABLES))]
    if not files:
        raise CrateError(f"no sentences below {local}; known are {' '.join(TABLES)}")
    splits: dict[str, list[Path]] = {}
    for file in files:
        split = split_word(local, file) or ("train" if len(files) == 1 else None)
        if split is None:
            raise CrateError(f"cannot tell the split of {file}: name it train… or validation… like its neighbours")
        stem = file.stem.lower()
        part = next((f"_{word}" for word in ("mismatched", "matched") if word in stem), "")
        splits.setdefault(split + part, []).append(file)
    return open_tables({split: files for split, files in splits.items() if not split.startswith("test_")}, False)


def _choose(name: str, splits: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Training rows, and those to measure on: `validation…` before `test`, which in GLUE has no labels."""
    if "train" not in splits:
        if len(splits) > 1:
            raise CrateError(f"{name} has no training split, only {', '.join(splits)}")
        return next(iter(splits.values())), {}
    validation = {split: rows for split, rows in splits.items() if split.startswith("validation")}
    if not validation and "test" in splits:
        validation = {"test": splits["test"]}
    return splits["train"], validation


def _split(name: str, rows: Any, label: str, share: float, seed: int, regression: bool) -> tuple[Any, dict[str, Any]]:
    if share == 1:
        return rows.select([]), {"validation": rows}
    classes = np.zeros(len(rows), np.int64) if regression else np.array(rows[label], np.int64)
    here, held = stratified_split(classes, share, seed)
    if len(held) == 0:
        raise CrateError(f"{name} has too few rows to hold one out; give a validation file")
    return rows.select(here), {"validation": rows.select(held)}
