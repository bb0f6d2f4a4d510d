"""Write files and folders atomically: a reader sees the old content or the new content, never half of it; tell paths
from other names."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from .errors import CrateError


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; the file replaces `path` when the block ends without an error.

    The temporary file lies beside `path`, because a rename is atomic only within one file system.
    """
    draft = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        draft.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):  # the rename has removed it, or it was never created
            draft.unlink()


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder to fill; it replaces the folder `path` when the block ends without an error."""
    draft, old = (path.with_name(f".{path.name}.{uuid4().hex[:8]}.{kind}") for kind in ("new", "old"))
    try:
        draft.mkdir(parents=True)
        yield draft
        if path.exists():
            path.rename(old)  # a folder cannot be renamed over one that is not empty
        draft.rename(path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        for rest in (draft, old):
            shutil.rmtree(rest, ignore_errors=True)


def _cannot_write(path: Path, error: OSError) -> CrateError:
    return CrateError(f"cannot write {path}: {error.strerror or error}; free space or give another folder")


def write_text(path: Path, text: str) -> Path:
    """Write a text file atomically and return its path."""
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write a value as JSON atomically (see `to_plain` for what it may contain) and return the path."""
    return write_text(path, json.dumps(to_plain(value), indent=2, ensure_ascii=False) + "\n")


def to_plain(value: Any) -> Any:
    """Convert a value to what JSON can hold: dataclasses and mappings to dicts, sequences and arrays to lists.

    JSON has no NaN and no infinity; both become null.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # numpy arrays and scalars, tensors
        return to_plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


_LOCAL_FOLDERS = ("checkpoints", "data", "dataset", "datasets", "images", "models", "outputs", "runs")
_FILE_SUFFIXES = (
    ".arrow", ".bin", ".csv", ".gz", ".jpeg", ".jpg", ".json", ".jsonl", ".md", ".ndjson", ".npy", ".npz", ".onnx",
    ".parquet", ".png", ".pt", ".pth", ".safetensors", ".tar", ".text", ".tsv", ".txt", ".yaml", ".yml", ".zip",
)  # fmt: skip


def is_hub_id(name: str) -> bool:
    """Return whether a name can be `owner/name` on the Hugging Face hub: it has this form and does not look local.

    A name looks local if it has the suffix of a file, or if its first part is a local folder or the usual name of one,
    such as data or runs. Such a path may be mistyped, but the hub is not asked for it.
    """
    path = Path(name)
    local = path.exists() or path.parent.is_dir() or path.parent.name.lower() in _LOCAL_FOLDERS
    is_file = path.suffix.lower() in _FILE_SUFFIXES
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name)) and not local and not is_file
