"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import CrateError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the place of `path` once the block ends without error.

    Beside it, because a rename is atomic within one file system only.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
