"""Write files and folders atomically: a reader sees the old content or the new content, never half of it; tell paths
from other names."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
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
        raise _cannot_write(path, error.strerror or str(error)) from error
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
    except Exception as error:
        if (reason := write_problem(draft.parent, error)) is None:
            raise
        raise _cannot_write(path, reason) from error
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        for rest in (draft, old):
            shutil.rmtree(rest, ignore_errors=True)


def sweep_drafts(folder: Path, names: Iterable[str], seconds: float = 0.0) -> None:
    """Remove what killed processes left of atomic writes in a folder.

    `names` are patterns of the files and folders that were written. Drafts that have changed in the last `seconds` are
    kept; by default all are removed, so nothing may be writing these files and folders. A folder that was about to be
    replaced, and is not there any more, gets its old content back.
    """
    for name in names:
        for old in folder.glob(f".{name}.*.old"):
            path = old.with_name(old.name[1:].rsplit(".", 2)[0])
            if not path.exists():
                old.rename(path)
        for draft in (draft for kind in ("tmp", "new", "old") for draft in folder.glob(f".{name}.*.{kind}")):
            if time.time() - draft.stat().st_mtime < seconds:
                continue
            if draft.is_dir():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink(missing_ok=True)


def write_problem(folder: Path, error: Exception) -> str | None:
    """Return the system's reason for an error while files were written to a folder; None if it was another one.

    Libraries that write in another language hide it, so a small file shows whether the disk is full. What was written
    must still be there.
    """
    if isinstance(error, OSError):
        return error.strerror or str(error)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**20))
    except OSError as full:
        return full.strerror
    return None


def _cannot_write(path: Path, reason: str) -> CrateError:
    return CrateError(f"cannot write {path}: {reason}; free space or give another folder")


def write_text(path: Path, text: str) -> Path:
    """Write a text file atomically and return its path."""
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write a value as JSON atomically (see `to_plain` for what it may contain) and return the path."""
    return write_text(path, json.dumps(to_plain(value), indent=2, ensure_ascii=False) + "\n")


def write_sealed(path: Path, facts: Mapping[str, Any]) -> None:
    """Write facts as JSON with their checksum, for `read_sealed`."""
    plain = to_plain(facts)
    write_json(path, {**plain, "seal": _seal(plain)})


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return the facts that `write_sealed` wrote, or None if the file is damaged or of another origin."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return facts if facts.pop("seal") == _seal(facts) else None
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return None


def _seal(plain: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())


def file_checksum(path: Path) -> int:
    """Return the CRC-32 of a file's content, read in blocks (about 4 GB/s)."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(2**20):
            checksum = zlib.crc32(block, checksum)
    return checksum


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


_SURROGATE = re.compile("[\ud800-\udfff]")
_LOCAL_FOLDERS = ("checkpoints", "data", "dataset", "datasets", "images", "models", "outputs", "runs")
_FILE_SUFFIXES = (
    ".arrow", ".bin", ".csv", ".gz", ".jpeg", ".jpg", ".json", ".jsonl", ".md", ".ndjson", ".npy", ".npz", ".onnx",
    ".parquet", ".png", ".pt", ".pth", ".safetensors", ".tar", ".text", ".tsv", ".txt", ".yaml", ".yml", ".zip",
)  # fmt: skip


def as_path(value: Any, what: str) -> Path:
    """Return a path with ~ expanded; refuse other types and names that no text file could hold.

    The system hands over names that are not UTF-8 with lone surrogates, which can be neither printed nor saved.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise CrateError(f"{what} must be given as a path (got {value!r:.60}, a {type(value).__name__})")
    text = os.fsdecode(value)
    if not is_utf8(text):
        raise CrateError(f"the name {text!a} is not UTF-8; rename the file or folder")
    return Path(os.path.expanduser(text))  # unlike Path.expanduser, leaves the ~ of an unknown user


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded, that is, has no lone surrogates."""
    return not _SURROGATE.search(text)


def is_hub_id(name: str) -> bool:
    """Return whether a name can be `owner/name` on the Hugging Face hub: it has this form and does not look local.

    A name looks local if it has the suffix of a file, or if its first part is a local folder or the usual name of one,
    such as data or runs. Such a path may be mistyped, but the hub is not asked for it.
    """
    path = Path(name)
    local = os.path.exists(path) or os.path.isdir(path.parent) or path.parent.name.lower() in _LOCAL_FOLDERS
    is_file = path.suffix.lower() in _FILE_SUFFIXES
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name)) and not local and not is_file
