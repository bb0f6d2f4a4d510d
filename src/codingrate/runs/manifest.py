"""Manifests of checkpoints and saved models: sizes and checksums of files, which show whether they are damaged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .._files import file_checksum
from ..errors import CrateError

MANIFEST = "manifest.json"
_REQUIRED = ("model", "optimizer", "scheduler.pt", "rng_state", "trainer_state.json")
"""Beginnings of the names of files without which a run cannot be resumed."""


def write_manifest(folder: Path) -> None:
    """Write the sizes and checksums of all files in a folder to its manifest; a model card may change."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (MANIFEST, "README.md"))
    entries = {path.relative_to(folder).as_posix(): _describe(path) for path in files}
    (folder / MANIFEST).write_text(json.dumps({"files": entries}, indent=2), encoding="utf-8")


def check_manifest(folder: Path) -> None:
    """Refuse a saved model that is not as it was written. Models without a manifest, such as converted ones, pass."""
    if (folder / MANIFEST).is_file() and (problem := find_damage(folder, ())):
        raise CrateError(f"{folder}: {problem}; restore it, or remove {MANIFEST} if you changed the model on purpose")


def find_damage(folder: Path, required: Sequence[str] = _REQUIRED) -> str | None:
    """Return what is wrong with a checkpoint in a few words; None if it is as it was written."""
    if not (folder / MANIFEST).is_file():
        return f"{MANIFEST} is missing"
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        for start in required:
            if not any(name.startswith(start) for name in files):
                return f"{start} is missing"
        for name, entry in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != entry["size"]:
                return f"{name} has {path.stat().st_size:,} bytes instead of {entry['size']:,}"
            if _describe(path) != entry:
                return f"{name} has changed"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} cannot be read"
    return None


def _describe(path: Path) -> dict[str, int]:
    return {"size": path.stat().st_size, "crc32": file_checksum(path)}
