"""Files of rows: parquet, arrow, JSON, CSV, and which of them belong to which split."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import CrateError
from .splits import SPLIT_WORDS

TABLES = {
    ".parquet": "parquet", ".arrow": "arrow", ".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv",
    ".tsv": "csv",
}  # fmt: skip
"""Suffixes of tables, and the reader of `datasets` for each."""

_CSV = {"keep_default_na": False, "na_values": [""]}  # "None" and "NA" are words; only an empty cell is missing
_OPTIONS: dict[str, dict[str, Any]] = {
    ".csv": _CSV,
    ".tsv": {**_CSV, "sep": "\t", "quoting": csv.QUOTE_NONE},  # GLUE's own files hold stray quotes
}


def open_tables(files: Mapping[str, list[Path]], streaming: bool) -> dict[str, Any]:
    """The rows of each split, memory-mapped or as streams."""
    import datasets

    found = {path.suffix.lower() for paths in files.values() for path in paths}
    kinds = [suffix for suffix in TABLES if suffix in found]
    if len(kinds) > 1:
        raise CrateError(f"{next(iter(files.values()))[0].parent} mixes {' and '.join(kinds)} files; keep one kind")
    suffix = kinds[0]
    splits = {}
    for split, paths in files.items():  # one by one: loaded together, all would get the first file's class names
        named = [str(path) for path in paths]
        try:
            splits[split] = datasets.load_dataset(
                TABLES[suffix], data_files=named, split="train", streaming=streaming, **_OPTIONS.get(suffix, {})
            )
        except Exception as error:  # whatever a damaged file makes the reader raise, the user's remedy is the same
            raise CrateError(f"cannot read {', '.join(named)}: {first_line(error.__cause__ or error)}") from error
    return splits


def open_saved(path: Path) -> dict[str, Any]:
    """What `save_to_disk` wrote, split by split."""
    import datasets

    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:  # as above
        raise CrateError(f"cannot read the saved dataset {path}: {first_line(error)}") from error
    return dict(saved) if isinstance(saved, datasets.DatasetDict) else {"train": saved}


def is_saved(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def split_word(folder: Path, file: Path) -> str | None:
    """The split that the name of a file, or of a folder it lies in, speaks of."""
    words = re.split(r"[^a-z0-9]+", str(file.relative_to(folder)).lower())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), None)


def by_split(folder: Path, files: Iterable[Path]) -> dict[str, list[Path]]:
    """Files grouped by the split their names speak of; all are training files when none does."""
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(split_word(folder, file) or "", []).append(file)
    if "" in splits and len(splits) > 1:
        raise CrateError(f"cannot tell the split of {splits[''][0]}: name it train… or test… like its neighbours")
    return {split or "train": paths for split, paths in splits.items()}


def files_below(folder: Path, suffixes: tuple[str, ...]) -> list[str]:
    """Files with one of the suffixes, in a fixed order, hidden ones left out."""
    found = []
    for where, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = (name for name in files if not name.startswith(".") and name.lower().endswith(suffixes))
        found += [os.path.join(where, name) for name in sorted(names)]
    return found


def first_line(error: BaseException) -> str:
    """What an error says, cut to one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
