"""Open the splits of a dataset by short name, local path or hub id: images, text and labeled sentences."""

from __future__ import annotations

import contextlib
import csv
import functools
import glob
import gzip
import hashlib
import inspect
import itertools
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, validate_call
from typing_extensions import ParamSpec

from .._files import as_path, is_hub_id, is_utf8
from ..errors import CrateError, unknown_name, validation_error
from .catalog import BUILT_IN_IMAGES, HUB_DATASETS, HubDataset, dataset_names, text_names

Kind = Literal["images", "text", "sentences"]
P = ParamSpec("P")
R = TypeVar("R")

LARGEST_INFLATION = 100
"""Largest ratio between the inflated and the stored size of a file; what inflates further is taken as an attack."""

TEXT_SUFFIXES = (".txt", ".text", ".md", ".markdown", ".rst", ".tex", ".tokens", ".raw")

TABLES = {
    ".parquet": "parquet", ".arrow": "arrow", ".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv",
    ".tsv": "csv",
}  # fmt: skip
"""Suffixes of tables, and the reader of `datasets` for each."""

ARCHIVE = ".tar"
"""Suffix of archives in the format of webdataset: NAME.png, or another image, and NAME.cls with the class index."""
_READERS = {**TABLES, ARCHIVE: "webdataset"}
_READABLE: dict[str, tuple[str, ...]] = {
    "images": (".parquet", ".arrow", ARCHIVE),  # the tables that can hold images
    "text": (*TABLES, *TEXT_SUFFIXES),
    "sentences": tuple(TABLES),
}
IMAGE_SUFFIXES = (
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
    ".parquet": {"batch_size": 1000},  # rows in memory at a time; by default, a row group of any size
    ".csv": _CSV,
    ".tsv": {**_CSV, "sep": "\t", "quoting": csv.QUOTE_NONE},  # GLUE's own files contain stray quotes
}


class Splits(dict[str, Any]):
    """Splits by name, each a `datasets.Dataset`, an `IterableDataset` or, for plain text, a list of files."""

    def __init__(self, splits: Mapping[str, Any], version: Callable[[str], str | None] = lambda split: None) -> None:
        super().__init__(splits)
        self._version = version

    def version(self, split: str) -> str | None:
        """Return a hash that changes with the contents of a split, or None if that cannot be known."""
        return getattr(self[split], "_fingerprint", None) or self._version(split)


Seed = Annotated[int, Field(ge=0, lt=2**32)]


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that arguments of a wrong type are errors of one line."""
    validated: Callable[..., R] = validate_call(function)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        named = signature.bind(*args, **kwargs).arguments  # so that the error has the name of the argument
        try:
            return validated(**named)
        except ValidationError as error:
            raise CrateError(f"{function.__name__}: {validation_error(error)}") from None

    return call


def open_splits(name: str, *, kind: Kind, path: str | Path | None = None, streaming: bool = False) -> Splits:
    """Open a dataset by a short name, a local path or a hub id `owner/name`, looked up in this order.

    `path` is where the files of a known dataset are, if they are not to come from the hub. `./name` is always a path.
    Splits are called train, validation and test.
    """
    if kind not in HUB_DATASETS:
        raise unknown_name("kind of data", kind, HUB_DATASETS)
    known, local = HUB_DATASETS[kind], as_path(name, "data")
    name = os.fspath(name)
    if path is not None:
        if name not in known:
            raise CrateError(f"`path` is for {', '.join(known)}, not for {name!r}; use the path itself as the name")
        return _open_local(as_path(path, "`path`"), kind, streaming)
    if name == BUILT_IN_IMAGES and kind == "images":
        digits = _open_digits()
        return Splits({"train": digits.to_iterable_dataset(num_shards=8) if streaming else digits})
    if name in known:
        return _open_hub(name, known[name], streaming)
    if os.path.exists(local):  # unlike Path.exists, False for a name that is too long
        return _open_local(local, kind, streaming)
    if is_hub_id(name):
        return _open_hub(name, HubDataset(name), streaming)
    if "/" in name or "\\" in name or local.suffix or name.startswith((".", "~")):
        raise CrateError(f"no such file or folder: {local}")
    raise unknown_name("dataset", name, {"images": dataset_names(), "text": text_names()}.get(kind, [*known]))


def choose_splits(name: str, splits: Mapping[str, Any], whole: bool = False) -> dict[str, Any]:
    """Return the splits `train`, `test` and `validation`, as far as there are any.

    If there is only a validation split, it is returned as `test`. A lone split under another name is for training, or
    for testing if the `whole` dataset is for evaluation.
    """
    test, *rest = [splits[split] for split in ("test", "validation") if split in splits] or [None]
    held = {"test": test, "validation": next(iter(rest), None)}
    held = {split: part for split, part in held.items() if part is not None}
    if "train" in splits:
        return {"train": splits["train"], **held}
    if whole and held:
        return held
    if held or len(splits) > 1:
        raise CrateError(f"{name} has no training split, only {', '.join(splits)}; add one, or name a split train")
    return {"test" if whole else "train": next(iter(splits.values()))}


def check_share(name: str, share: float) -> None:
    """Refuse a share that is not a number in (0, 1]."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise CrateError(f"`{name}` must lie in (0, 1] (got {share!r})")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def reading(source: str) -> Iterator[None]:
    """Turn any error while a file is read into an error of one line; a damaged file can raise anything."""
    try:
        yield
    except CrateError:
        raise
    except Exception as error:
        raise CrateError(f"cannot read {source}: {first_line(error.__cause__ or error)}") from error


def read_rows(source: str, rows: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows of a dataset or stream; damage that shows only while reading becomes an error of one line."""
    with reading(source):
        yield from rows


def file_key(paths: Iterable[Path]) -> str:
    """Return a hash of the path, size and dates of files, which changes when one is edited or replaced."""
    stats = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError as error:
            raise CrateError(f"cannot read {path}: {error.strerror or error}") from error
        stats.append([str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns])
    return hashed(stats)


def hashed(*parts: Any) -> str:
    """Return a hash of values that JSON can hold."""
    return hashlib.sha256("".join(json.dumps(part) + "\n" for part in parts).encode()).hexdigest()


def _open_hub(name: str, source: HubDataset, streaming: bool) -> Splits:
    import datasets

    chosen = (source.id,) if source.config is None else (source.id, source.config)
    load = functools.partial(datasets.load_dataset, *chosen, streaming=streaming, revision=source.revision)
    try:
        _look_up(source)
        splits = load() if source.splits is None else {own: load(split=hub) for own, hub in source.splits.items()}
        return Splits(splits, functools.partial(_hub_version, source))
    except Exception as error:  # no network, unknown, gated or damaged: the advice is the same
        problem = f"{name!r} is not a local path and cannot be loaded from the hub"
        if name != source.id:
            problem = f"cannot load {name!r} ({source.id} on the Hugging Face hub)"
        raise CrateError(f"{problem}; use the path of a local copy [{first_line(error)}]") from error


def _look_up(source: HubDataset) -> None:
    """Ask the hub once for a dataset that is not in the cache; `datasets` would ask six times, with growing pauses."""
    from datasets import config
    from datasets.naming import camelcase_to_snakecase
    from huggingface_hub import HfApi, constants

    owner, _, name = source.id.partition("/")
    downloaded = os.path.join(constants.HF_HUB_CACHE, f"datasets--{owner}--{name}")
    prepared = os.path.join(config.HF_DATASETS_CACHE, f"{owner}___{camelcase_to_snakecase(name)}")
    if not os.path.isdir(downloaded) and not os.path.isdir(prepared):
        HfApi().dataset_info(source.id, revision=source.revision, timeout=10)


def _hub_version(source: HubDataset, split: str) -> str | None:
    """Return the commit that a stream comes from, or None if the hub cannot be asked."""
    from huggingface_hub import HfApi

    try:
        revision = HfApi().dataset_info(source.id, revision=source.revision).sha
    except Exception:  # without it, the text is only tokenized again
        return None
    return f"{source.id} {source.config} {split} {revision}" if revision else None


def _open_local(path: Path, kind: Kind, streaming: bool) -> Splits:
    if path.is_file() and kind != "text" and path.suffix.lower() not in _READABLE[kind]:
        raise CrateError(f"cannot read {path} as {kind}; use a folder or one of {' '.join(_READABLE[kind])}")
    if not os.path.isfile(path) and not os.path.isdir(path):
        raise CrateError(f"no such file or folder: {path}")
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        opened = _open_saved(path)
    elif kind == "images" and (any(path.glob("*idx3-ubyte*")) or any(path.glob("*idx1-ubyte*"))):
        opened = _open_idx(path)
    elif files := ({"train": [path]} if path.is_file() else _find_files(path, kind)):
        is_text = next(iter(files.values()))[0].suffix.lower() not in _READERS
        return Splits(files if is_text else _open_tables(files, streaming), lambda split: file_key(files[split]))
    else:
        opened = _open_class_folders(path)
    if streaming and kind == "images":
        shards = {split: min(64, max(len(dataset), 1)) for split, dataset in opened.items()}
        opened = {split: dataset.to_iterable_dataset(shards[split]) for split, dataset in opened.items()}
    return Splits(opened)


def _open_saved(path: Path) -> dict[str, Any]:
    import datasets

    with reading(f"the saved dataset {path}"):
        saved = datasets.load_from_disk(str(path))
        splits = dict(saved) if isinstance(saved, datasets.DatasetDict) else {"train": saved}
        for dataset in splits.values():
            dataset.data.table.validate(full=True)  # offsets out of range would end the process
    return {split: dataset.with_format(None) for split, dataset in splits.items()}


def _open_tables(files: Mapping[str, Sequence[Path]], streaming: bool) -> dict[str, Any]:
    import datasets

    suffixes = {path.suffix.lower() for paths in files.values() for path in paths}
    kinds = [suffix for suffix in _READERS if suffix in suffixes]
    if len(kinds) > 1:
        raise CrateError(f"{next(iter(files.values()))[0].parent} mixes {' and '.join(kinds)} files; keep one type")
    options, splits = _OPTIONS.get(kinds[0], {}), {}
    for split, paths in files.items():  # one by one: loaded together, all would get the first file's class names
        names = [str(path) for path in paths]
        with reading(", ".join(names)):
            for path in paths:
                _check_inflation(path)
            splits[split] = datasets.load_dataset(
                _READERS[kinds[0]],
                data_files=[*map(glob.escape, names)],
                split="train",
                streaming=streaming,
                **options,
            )
    return splits


def _check_inflation(path: Path) -> None:
    """Refuse a table that is compressed as a whole, which `datasets` would unpack, or that would grow out of bounds."""
    from datasets.utils.extract import Extractor

    packed = Extractor.infer_extractor_format(path)
    if packed and path.suffix.lower() != f".{packed}":
        raise CrateError(f"{path} is a {packed} archive, not a {path.suffix} file; unpack it first")
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet

        metadata, size = parquet.read_metadata(path), path.stat().st_size
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        inflated = max(metadata.num_rows, sum(group.total_byte_size for group in groups))
        if inflated > LARGEST_INFLATION * max(size, 2**20):
            raise CrateError(f"{path} has {size:,} bytes and would grow to {inflated:,}; write it without compression")


def _find_files(folder: Path, kind: Kind) -> dict[str, list[Path]]:
    """Return the tables, or the plain text files, of a folder by split.

    `datasets` can infer splits too, but it silently leaves out files whose names say nothing and has no word for
    `t10k`, GLUE's two validation sets or a folder of documents of which one is called `test-driven.md`.
    """
    files = [Path(file) for file in _files_below(folder, _READABLE[kind])]
    files = [file for file in files if file.stem.lower() not in _ABOUT] or files
    if any(entry.is_dir() for entry in _visible(folder)):  # archives beside folders are often what those came from
        files = [file for file in files if file.suffix.lower() != ARCHIVE]
    if not files:
        if kind == "images":
            return {}
        raise CrateError(f"no {kind} below {folder}; known file types are {' '.join(_READABLE[kind])}")
    tables = [file for file in files if file.suffix.lower() in _READERS]
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


def _files_below(folder: Path, suffixes: tuple[str, ...], seen: Iterable[tuple[int, int]] = ()) -> list[str]:
    """Return the paths of files with one of the suffixes in a fixed order, without hidden ones.

    Links to folders are followed, but no folder is read twice, nor one of those already `seen`.
    """
    paths: list[str] = []
    waiting, seen = [folder], set(seen)
    while waiting:
        parent = waiting.pop()
        if (identity := _identity(parent)) in seen:
            continue
        seen.add(identity)
        entries = _visible(parent)
        waiting += [Path(entry.path) for entry in reversed(entries) if entry.is_dir()]
        for entry in entries:
            if entry.name.lower().endswith(suffixes) and not entry.is_dir():
                if not entry.is_file() and os.path.exists(entry.path):  # a pipe would never end
                    raise CrateError(f"{entry.path} is not a regular file; remove it")
                paths.append(entry.path)
    return paths


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder in order of names, without hidden entries; refuse names that no table can hold."""
    try:
        with os.scandir(folder) as scan:
            entries = sorted((entry for entry in scan if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise CrateError(f"cannot read {folder}: {error.strerror or error}") from error
    for entry in entries:
        if not is_utf8(entry.name):
            raise CrateError(f"the name {entry.name!a} in {folder} is not UTF-8; rename the file or folder")
    return entries


def _subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, without links to itself or to a folder around it."""
    around = set(map(_identity, (real := folder.resolve(), *real.parents)))
    folders = (Path(entry.path) for entry in _visible(folder) if entry.is_dir())
    return [path for path in folders if _identity(path) not in around]


def _identity(folder: Path) -> tuple[int, int]:
    """Return a value that is the same for a folder and for links to it."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _open_class_folders(root: Path) -> dict[str, Any]:
    """Open folders `[split/]class/…/image`.

    The `imagefolder` reader of `datasets` is not used, because it names classes after the innermost folder and merges
    those of all splits, so that a class without training images goes unnoticed.
    """
    folders = _subfolders(root)
    splits = {_SPLIT_WORDS[sub.name.lower()]: sub for sub in folders if sub.name.lower() in _SPLIT_WORDS}
    only_held = "train" not in splits and len(splits) == len(folders)  # held-out data, such as a lone test folder
    lead = splits.values() if only_held else [splits[split] for split in ("train",) if split in splits]
    if not lead or not all(map(_subfolders, lead)):  # no splits, or "train" is itself a class
        splits = {"train": root}
    return {split: _open_classes(folder) for split, folder in splits.items()}


def _open_classes(root: Path) -> Any:
    classes: dict[tuple[int, int], Path] = {}
    for folder in sorted(_subfolders(root), key=Path.is_symlink):  # a link to another class adds nothing
        classes.setdefault(_identity(folder), folder)
    read = {*classes, _identity(root)}
    ordered = sorted(classes.items(), key=lambda item: item[1].name)
    images = {folder: _files_below(folder, IMAGE_SUFFIXES, read - {own}) for own, folder in ordered}
    if not images:
        loose = _files_below(root, IMAGE_SUFFIXES)
        advice = "put the images of each class into a folder of their own" if loose else "it has no images either"
        raise CrateError(f"{root} has no class folders; {advice}")
    if not any(images.values()):
        raise CrateError(f"no images below {root}; known file types are {' '.join(IMAGE_SUFFIXES)}")
    for folder, files in images.items():
        if not files:
            raise CrateError(f"class folder {folder} has no images; fill it or remove it")
    labels = (label for label, files in enumerate(images.values()) for _ in files)
    return image_dataset(itertools.chain.from_iterable(images.values()), labels, [folder.name for folder in images])


def _read_idx(folder: Path, name: str, dimensions: int) -> tuple[Path, NDArray[np.uint8]] | None:
    """Find and read an idx file: magic number, one big-endian size per dimension, then the bytes."""
    ends = (f"{joint}idx{dimensions}-ubyte{packed}" for joint in "-." for packed in ("", ".gz"))
    path = next((path for path in (folder / f"{name}{end}" for end in ends) if path.is_file()), None)
    if path is None:
        return None
    header = struct.Struct(f">{1 + dimensions}I")
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            magic, *shape = header.unpack(file.read(header.size))
            if magic != 0x800 + dimensions:  # 8 stands for unsigned bytes
                raise ValueError(f"magic number {magic:#010x}, expected {0x800 + dimensions:#010x}")
            count, stored = math.prod(shape), path.stat().st_size
            if count > LARGEST_INFLATION * max(stored, 2**20) or 0 in shape[1:]:
                raise ValueError(f"its header declares {' × '.join(map(str, shape))} bytes, the file has {stored}")
            raw = file.read(count + 1)
        if len(raw) != count:
            raise ValueError(f"it has {'fewer' if len(raw) < count else 'more'} bytes than its header declares")
        return path, np.frombuffer(raw, np.uint8).reshape(shape)
    except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
        raise CrateError(f"cannot read {path} as an idx file: {error}; download it again") from error


def _open_idx(folder: Path) -> dict[str, Any]:
    """Return the splits of a folder with `train-images-idx3-ubyte[.gz]`, `train-labels-idx1-ubyte[.gz]`, `t10k-…`."""
    splits = {}
    for prefix, split in (("train", "train"), ("t10k", "test"), ("test", "test")):
        images, labels = _read_idx(folder, f"{prefix}-images", 3), _read_idx(folder, f"{prefix}-labels", 1)
        if images and labels:
            if len(images[1]) != len(labels[1]):
                raise CrateError(
                    f"{images[0]} has {len(images[1])} images, but {labels[0].name} has {len(labels[1])} labels"
                )
            splits[split] = _gray_images(images[1], labels[1])
        elif images or labels:
            missing = f"{prefix}-labels-idx1-ubyte" if images else f"{prefix}-images-idx3-ubyte"
            raise CrateError(f"{folder} has no {missing}[.gz] beside {(images or labels)[0].name}")  # type: ignore[index]
    if not splits:
        raise CrateError(f"{folder} has no train-images-idx3-ubyte[.gz] and no t10k-images-idx3-ubyte[.gz]")
    return splits


def image_dataset(images: Iterable[bytes | str], labels: Iterable[int], names: Sequence[str] | None = None) -> Any:
    """Return a dataset of images, each the content or the path of a file, with class names if there are any."""
    import datasets

    label = datasets.Value("int64") if names is None else datasets.ClassLabel(names=[*names])
    features = datasets.Features({"image": datasets.Image(decode=False), "label": label})
    return datasets.Dataset.from_dict({"image": [*images], "label": [*labels]}, features=features)


def _gray_images(pixels: NDArray[np.uint8], labels: NDArray[Any]) -> Any:
    """Return a dataset of gray images (n, height, width), stored as PGM: a header before the raw bytes."""
    header = b"P5 %d %d 255\n" % (pixels.shape[2], pixels.shape[1])
    return image_dataset((header + image.tobytes() for image in pixels), labels.tolist())


def _open_digits() -> Any:
    """Return scikit-learn's 1,797 handwritten digits of 8×8 pixels, their 17 gray levels scaled to 0…255."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return _gray_images(np.rint(bunch.images * (255 / 16)).astype(np.uint8), bunch.target)
