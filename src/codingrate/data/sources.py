"""Open the splits of a dataset by short name, local path or hub id: images, text and labeled sentences."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..errors import CrateError, unknown_name
from .catalog import BUILT_IN_IMAGES, HUB_DATASETS, HubDataset, dataset_names, text_names
from .documents import TEXT_SUFFIXES, file_key
from .mnist_idx import is_idx, open_digits, open_idx

Kind = Literal["images", "text", "sentences"]

TABLES = {
    ".parquet": "parquet", ".arrow": "arrow", ".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv",
    ".tsv": "csv",
}  # fmt: skip
"""Suffixes of tables, and the reader of `datasets` for each."""

_READABLE: dict[str, tuple[str, ...]] = {
    "images": (".parquet", ".arrow"),  # the tables that can hold images
    "text": (*TABLES, *TEXT_SUFFIXES),
    "sentences": tuple(TABLES),
}
_IMAGE_SUFFIXES = (
    ".avif", ".bmp", ".gif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff",
    ".webp",
)  # fmt: skip
_SPLIT_WORDS = {
    "train": "train", "training": "train",
    "test": "test", "testing": "test", "t10k": "test",
    "val": "validation", "valid": "validation", "validation": "validation", "dev": "validation", "eval": "validation",
}  # fmt: skip
_ABOUT = ("readme", "license", "dataset_info", "dataset_infos")  # files that describe a dataset
_CSV = {"keep_default_na": False, "na_values": [""]}  # "None" and "NA" are words; only an empty cell is missing
_OPTIONS: dict[str, dict[str, Any]] = {
    ".csv": _CSV,
    ".tsv": {**_CSV, "sep": "\t", "quoting": csv.QUOTE_NONE},  # GLUE's own files contain stray quotes
}


class Splits(dict[str, Any]):
    """Splits by name, each a `datasets.Dataset`, an `IterableDataset` or, for plain text, a list of files."""

    def __init__(
        self,
        splits: Mapping[str, Any],
        files: Mapping[str, Sequence[Path]] | None = None,
        hub: HubDataset | None = None,
    ) -> None:
        super().__init__(splits)
        self.files, self.hub = files, hub

    def version(self, split: str) -> str | None:
        """Return a hash that changes with the contents of a split, or None if that cannot be known."""
        fingerprint: str | None = getattr(self[split], "_fingerprint", None)
        if fingerprint is not None:
            return fingerprint
        if self.files is not None:
            return file_key(self.files[split])
        return None if self.hub is None else _hub_version(self.hub, split)


def open_splits(name: str, *, kind: Kind, path: str | Path | None = None, streaming: bool = False) -> Splits:
    """Open a dataset by a short name, a local path or a hub id `owner/name`, looked up in this order.

    `path` is where the files of a known dataset are, if they are not to come from the hub. `./name` is always a path.
    Splits are called train, validation and test.
    """
    known = HUB_DATASETS[kind]
    if path is not None:
        if name not in known:
            raise CrateError(f"`path` is for {', '.join(known)}, not for {name!r}; use the path itself as the name")
        return _open_local(Path(path).expanduser(), kind, streaming)
    if name == BUILT_IN_IMAGES and kind == "images":
        digits = open_digits()
        return Splits({"train": digits.to_iterable_dataset(num_shards=8) if streaming else digits})
    if name in known:
        return _open_hub(name, known[name], streaming)
    local = Path(name).expanduser()
    if local.exists():
        return _open_local(local, kind, streaming)
    if is_hub_id(name):
        return _open_hub(name, HubDataset(name), streaming)
    if "/" in name or "\\" in name or local.suffix or name.startswith("~"):
        raise CrateError(f"no such file or folder: {local}")
    raise unknown_name("dataset", name, {"images": dataset_names(), "text": text_names()}.get(kind, [*known]))


def is_hub_id(name: str) -> bool:
    """Return whether a name can only be `owner/name` on the hub."""
    is_file = Path(name).exists() or Path(name).suffix in (*TABLES, ".txt", ".md")
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name)) and not is_file


def choose_splits(splits: Mapping[str, Any]) -> tuple[Any, Any | None]:
    """Return the splits to train and to evaluate on (`test` before `validation`); a lone split is for training."""
    train = splits.get("train")
    if train is None:
        return next(iter(splits.values())), None
    return train, splits.get("test", splits.get("validation"))


def check_share(name: str, share: float) -> None:
    """Refuse a share that is outside (0, 1]."""
    if not 0 < share <= 1:
        raise CrateError(f"`{name}` must lie in (0, 1] (got {share})")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _open_hub(name: str, source: HubDataset, streaming: bool) -> Splits:
    import datasets

    chosen = (source.id,) if source.config is None else (source.id, source.config)
    try:
        if source.splits is None:
            return Splits(datasets.load_dataset(*chosen, streaming=streaming), hub=source)
        splits = {
            split: datasets.load_dataset(*chosen, split=there, streaming=streaming)
            for split, there in source.splits.items()
        }
        return Splits(splits, hub=source)
    except Exception as error:  # no network, unknown, gated or damaged: the advice is the same
        problem = f"{name!r} is not a local path and cannot be loaded from the hub"
        if name != source.id:
            problem = f"cannot load {name!r} ({source.id} on the Hugging Face hub)"
        raise CrateError(f"{problem}; use the path of a local copy [{first_line(error)}]") from error


def _hub_version(source: HubDataset, split: str) -> str | None:
    """Return the commit that a stream comes from, or None if the hub cannot be asked."""
    from huggingface_hub import HfApi

    try:
        revision = HfApi().dataset_info(source.id).sha
    except Exception:  # without it, the text is only tokenized again
        return None
    return f"{source.id} {source.config} {split} {revision}" if revision else None


def _open_local(path: Path, kind: Kind, streaming: bool) -> Splits:
    if path.is_file():
        if kind != "text" and path.suffix.lower() not in _READABLE[kind]:
            raise CrateError(f"cannot read {path} as {kind}; use a folder or one of {' '.join(_READABLE[kind])}")
        files = {"train": [path]}
    elif not path.is_dir():
        raise CrateError(f"no such file or folder: {path}")
    elif (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        saved = _open_saved(path)
        return Splits(_streams(saved) if streaming and kind == "images" else saved)
    elif kind == "images" and any(is_idx(entry) for entry in path.iterdir()):
        return Splits(_streams(open_idx(path)) if streaming else open_idx(path))
    else:
        files = _find_files(path, kind)
        if kind == "images" and not files:
            folders = _open_class_folders(path)
            return Splits(_streams(folders) if streaming else folders)
    if next(iter(files.values()))[0].suffix.lower() not in TABLES:
        return Splits(files, files)
    return Splits(_open_tables(files, streaming), files)


def _streams(splits: Mapping[str, Any]) -> dict[str, Any]:
    return {
        split: dataset.to_iterable_dataset(num_shards=min(64, max(len(dataset), 1)))
        for split, dataset in splits.items()
    }


def _open_saved(path: Path) -> dict[str, Any]:
    import datasets

    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:  # a damaged file can raise anything; the advice is the same
        raise CrateError(f"cannot read the saved dataset {path}: {first_line(error)}") from error
    return dict(saved) if isinstance(saved, datasets.DatasetDict) else {"train": saved}


def _open_tables(files: Mapping[str, Sequence[Path]], streaming: bool) -> dict[str, Any]:
    import datasets

    suffixes = {path.suffix.lower() for paths in files.values() for path in paths}
    kinds = [suffix for suffix in TABLES if suffix in suffixes]
    if len(kinds) > 1:
        raise CrateError(f"{next(iter(files.values()))[0].parent} mixes {' and '.join(kinds)} files; keep one type")
    options, splits = _OPTIONS.get(kinds[0], {}), {}
    for split, paths in files.items():  # one by one: loaded together, all would get the first file's class names
        names = [str(path) for path in paths]
        try:
            splits[split] = datasets.load_dataset(
                TABLES[kinds[0]], data_files=names, split="train", streaming=streaming, **options
            )
        except Exception as error:  # a damaged file can raise anything; the advice is the same
            raise CrateError(f"cannot read {', '.join(names)}: {first_line(error.__cause__ or error)}") from error
    return splits


def _find_files(folder: Path, kind: Kind) -> dict[str, list[Path]]:
    """Return the tables, or the plain text files, of a folder by split.

    `datasets` can infer splits too, but it silently leaves out files whose names say nothing and has no word for
    `t10k`, GLUE's two validation sets or a folder of documents of which one is called `test-driven.md`.
    """
    files = [Path(file) for file in _files_below(folder, _READABLE[kind])]
    files = [file for file in files if file.stem.lower() not in _ABOUT] or files
    if not files:
        if kind == "images":
            return {}
        raise CrateError(f"no {kind} below {folder}; known file types are {' '.join(_READABLE[kind])}")
    tables = [file for file in files if file.suffix.lower() in TABLES]
    if tables and len(tables) < len(files):
        text = next(file for file in files if file not in tables)
        raise CrateError(f"{folder} has a table, {tables[0].name}, and plain text, {text.name}; name the file to read")
    words = [_split_word(folder, file, kind) for file in files]
    if not tables:  # names of documents tell splits only if all of them do, or if one is just called train
        plain = any("train" in (file.stem.lower(), *file.relative_to(folder).parts[:-1]) for file in files)
        words = words if plain or (all(words) and "train" in words) else [None] * len(files)
    if None in words and len({*words}) > 1:
        unknown = files[words.index(None)]
        raise CrateError(f"cannot tell the split of {unknown}; put train, validation or test in its name")
    splits: dict[str, list[Path]] = {}
    for word, file in zip(words, files, strict=True):
        splits.setdefault(word or "train", []).append(file)
    return {split: paths for split, paths in splits.items() if not split.startswith("test_")}  # GLUE's have no labels


def _split_word(folder: Path, file: Path, kind: Kind) -> str | None:
    """Return the split that the name of a file, or of a folder it is in, tells."""
    words = re.split(r"[^a-z0-9]+", str(file.relative_to(folder)).lower())
    split = next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None)
    part = next((word for word in ("mismatched", "matched") if word in file.stem.lower()), None)
    return f"{split}_{part}" if split and part and kind == "sentences" else split


def _files_below(folder: Path, suffixes: tuple[str, ...]) -> list[str]:
    """Return the paths of files with one of the suffixes in a fixed order, without hidden ones."""
    paths = []
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = sorted(name for name in files if not name.startswith(".") and name.lower().endswith(suffixes))
        paths += [os.path.join(parent, name) for name in names]
    return paths


def _subfolders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _open_class_folders(root: Path) -> dict[str, Any]:
    """Open folders `[split/]class/…/image`.

    The `imagefolder` reader of `datasets` is not used, because it names classes after the innermost folder and merges
    those of all splits, so that a class without training images goes unnoticed.
    """
    splits = {_SPLIT_WORDS[sub.name.lower()]: sub for sub in _subfolders(root) if sub.name.lower() in _SPLIT_WORDS}
    if "train" not in splits or not _subfolders(splits["train"]):  # no splits, or "train" is itself a class
        splits = {"train": root}
    names = [sub.name for sub in _subfolders(splits["train"])]
    return {split: _open_classes(folder, names) for split, folder in splits.items()}


def _open_classes(root: Path, names: list[str]) -> Any:
    import datasets

    images = {folder: _files_below(folder, _IMAGE_SUFFIXES) for folder in _subfolders(root)}
    if not images:
        loose = _files_below(root, _IMAGE_SUFFIXES)
        advice = "put the images of each class into a folder of their own" if loose else "it has no images either"
        raise CrateError(f"{root} has no class folders; {advice}")
    if not any(images.values()):
        raise CrateError(f"no images below {root}; known file types are {' '.join(_IMAGE_SUFFIXES)}")
    for folder, files in images.items():
        if not files:
            raise CrateError(f"class folder {folder} has no images; fill it or remove it")
        if folder.name not in names:
            raise CrateError(f"{root} has class {folder.name!r}, which the training folder does not have")
    features = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=names)})
    paths = [{"bytes": None, "path": file} for files in images.values() for file in files]
    labels = [label for folder, files in images.items() for label in [names.index(folder.name)] * len(files)]
    return datasets.Dataset.from_dict({"image": paths, "label": labels}, features=features)
