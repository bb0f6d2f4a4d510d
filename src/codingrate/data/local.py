"""Datasets on disk: class folders, parquet and arrow files, saved Hugging Face datasets, idx files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import CrateError
from .mnist_idx import is_idx, open_idx
from .splits import SPLIT_WORDS
from .tables import by_split, files_below, is_saved, open_saved, open_tables

IMAGE_SUFFIXES = (
    ".avif", ".bmp", ".gif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff",
    ".webp",
)  # fmt: skip
_TABLES = (".parquet", ".arrow")  # those that can hold images


def open_local(path: Path, streaming: bool) -> dict[str, Any]:
    """The splits found at a path, by name; the label column of class folders and saved sets carries its names."""
    if path.is_file():
        if path.suffix in _TABLES:
            return open_tables({"train": [path]}, streaming)
        raise CrateError(f"cannot read {path} as a dataset; give a .parquet or .arrow file, or a folder")
    if not path.is_dir():
        raise CrateError(f"no such file or folder: {path}")
    if is_saved(path):
        return _streamed(open_saved(path), streaming)
    if any(is_idx(entry) for entry in path.iterdir()):
        return _streamed(open_idx(path), streaming)
    tables = [Path(file) for file in files_below(path, _TABLES)]
    if tables:
        return open_tables(by_split(path, tables), streaming)
    return _streamed(_open_folders(path), streaming)


def _streamed(splits: dict[str, Any], streaming: bool) -> dict[str, Any]:
    if not streaming:
        return splits
    return {name: rows.to_iterable_dataset(num_shards=min(64, max(len(rows), 1))) for name, rows in splits.items()}


def _images(folder: Path) -> list[str]:
    return files_below(folder, IMAGE_SUFFIXES)


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
