"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from .errors import CrateError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the place of `path` once the block ends without error.

    Beside it, because a rename is atomic within one file system only.
    """
    draft = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        draft.replace(path)
    except OSError as error:
        raise CrateError(
            f"cannot write {path}: {error.strerror or error}; free space or give another folder"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # gone by the rename, or never begun
            draft.unlink()


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """The same for a folder: an empty one beside `path` to fill; what lay at `path` is gone once it is in its place."""
    draft, old = (path.with_name(f".{path.name}.{uuid4().hex[:8]}.{kind}") for kind in ("new", "old"))
    try:
        draft.mkdir(parents=True)
        yield draft
        if path.exists():
            path.rename(old)  # a folder cannot be renamed over one that is not empty
        draft.rename(path)
    except OSError as error:
        raise CrateError(
            f"cannot write {path}: {error.strerror or error}; free space or give another folder"
        ) from error
    finally:
        for rest in (draft, old):
            shutil.rmtree(rest, ignore_errors=True)
