"""Datasets on disk: class folders, parquet and arrow files, saved Hugging Face datasets, idx files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ..errors import CrateError
from .arrays import is_idx, open_idx
from .splits import SPLIT_WORDS

IMAGE_SUFFIXES = (
    ".avif", ".bmp", ".gif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff",
    ".webp",
)  # fmt: skip
_TABLES = {".parquet": "parquet", ".arrow": "arrow"}


def open_local(path: Path, streaming: bool) -> dict[str, Any]:
    """The splits found at a path, by name; the label column of class folders and saved sets carries its names."""
    if path.is_file():
        if path.suffix in _TABLES:
            return _open_tables({"train": [path]}, streaming)
        raise CrateError(f"cannot read {path} as a dataset; give a .parquet or .arrow file, or a folder")
    if not path.is_dir():
        raise CrateError(f"no such file or folder: {path}")
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return _streamed(_open_saved(path), streaming)
    if any(is_idx(entry) for entry in path.iterdir()):
        return _streamed(open_idx(path), streaming)
    tables = [Path(file) for file in _files(path, tuple(_TABLES))]
    if tables:
        return _open_tables(_by_split(path, tables), streaming)
    return _streamed(_open_folders(path), streaming)


def _streamed(splits: dict[str, Any], streaming: bool) -> dict[str, Any]:
    if not streaming:
        return splits
    return {name: rows.to_iterable_dataset(num_shards=min(64, max(len(rows), 1))) for name, rows in splits.items()}


def _open_saved(path: Path) -> dict[str, Any]:
    import datasets

    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever a damaged file makes the reader raise, the user's remedy is the same
        raise CrateError(f"cannot read the saved dataset {path}: {_line(error)}") from error
    return dict(saved) if isinstance(saved, datasets.DatasetDict) else {"train": saved}


def _by_split(folder: Path, files: list[Path]) -> dict[str, list[Path]]:
    splits: dict[str, list[Path]] = {}
    for file in files:
        words = re.split(r"[^a-z0-9]+", str(file.relative_to(folder)).lower())
        split = next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "")
        splits.setdefault(split, []).append(file)
    if "" in splits and len(splits) > 1:
        raise CrateError(f"cannot tell the split of {splits[''][0]}: name it train… or test… like its neighbours")
    return {split or "train": paths for split, paths in splits.items()}


def _open_tables(files: dict[str, list[Path]], streaming: bool) -> dict[str, Any]:
    import datasets

    kinds = {path.suffix for paths in files.values() for path in paths}
    if len(kinds) > 1:
        raise CrateError(f"{next(iter(files.values()))[0].parent} mixes .parquet and .arrow files; keep one kind")
    kind = _TABLES[kinds.pop()]
    splits = {}
    for split, paths in files.items():  # one by one: loaded together, all would get the first file's class names
        named = [str(path) for path in paths]
        try:
            splits[split] = datasets.load_dataset(kind, data_files=named, split="train", streaming=streaming)
        except Exception as error:  # as above
            raise CrateError(f"cannot read {', '.join(named)}: {_line(error.__cause__ or error)}") from error
    return splits


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[str]:
    found = []
    for where, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = (name for name in files if not name.startswith(".") and name.lower().endswith(suffixes))
        found += [os.path.join(where, name) for name in sorted(names)]
    return found


def _images(folder: Path) -> list[str]:
    return _files(folder, IMAGE_SUFFIXES)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _open_folders(root: Path) -> dict[str, Any]:
    splits = {SPLIT_WORDS[sub.name.lower()]: sub for sub in _subfolders(root) if sub.name.lower() in SPLIT_WORDS}
    if "train" not in splits or not _subfolders(splits["train"]):  # none, or "train" is itself a class
        splits = {"train": root}
    names = [sub.name for sub in _subfolders(splits["train"])]
    return {split: _class_folders(folder, names) for split, folder in splits.items()}


def _class_folders(root: Path, names: list[str]) -> Any:
    import datasets

    subfolders = _subfolders(root)
    if not subfolders:
        loose = "its images lie loose; put those of each class in a folder of its own" if _images(root) else "no images"
        raise CrateError(f"{root} has no class folders: {loose}")
    files: list[str] = []
    labels: list[int] = []
    for folder in subfolders:
        images = _images(folder)
        if not images and (len(subfolders) == 1 or not any(_images(other) for other in subfolders)):
            raise CrateError(f"no images below {root}; known are {' '.join(IMAGE_SUFFIXES)}")
        if not images:
            raise CrateError(f"class folder {folder} holds no images; fill it or remove it")
        if folder.name not in names:
            raise CrateError(f"{root} has class {folder.name!r}, which the training folder has not")
        files += images
        labels += [names.index(folder.name)] * len(images)
    features = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=names)})
    images_column = [{"bytes": None, "path": file} for file in files]
    return datasets.Dataset.from_dict({"image": images_column, "label": labels}, features=features)
