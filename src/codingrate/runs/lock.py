"""The lock of a run folder: one process at a time trains in it."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import CrateError

LOCK = ".lock"
"""File of the lock; it names the process that holds it. The lock itself is kept by the operating system, so it ends
with the process, also if that is killed."""

_held: set[int] = set()


def _close_inherited() -> None:
    """Close the locks in a forked process, such as a loader worker, which could outlive a killed run."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_inherited)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder inside the block; create the folder, and remove it if it is still empty after."""
    new = not os.path.exists(folder)
    try:
        descriptor = _acquire(folder)
    except (FileExistsError, NotADirectoryError):
        raise CrateError(f"{folder}: is a file; use another `output`") from None
    except OSError as error:
        raise CrateError(f"cannot write {folder}: {error.strerror}; use another `output`") from error
    _held.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _held:  # in a forked process it is not
            _held.remove(descriptor)
            with suppress(OSError):  # the folder may have been removed
                (folder / LOCK).unlink()
                if new:
                    folder.rmdir()
            os.close(descriptor)


def _acquire(folder: Path) -> int:
    """Return the open and locked lock file of a folder."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:  # another process has just removed the folder
            continue
        try:
            _lock(descriptor, folder)
            if os.path.samestat(os.fstat(descriptor), os.stat(folder / LOCK)):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
                return descriptor
        except FileNotFoundError:  # another process has just removed the file
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CrateError(
            f"{folder}: {_holder(descriptor)} is training in this folder; wait for it or use another `output`"
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        note = "%s: the file system has no locks; do not start a second run in this folder"
        logging.getLogger("codingrate").warning(note, folder)


def _holder(descriptor: int) -> str:
    """Return the name of the process that holds a lock; it may take a moment until that has written it."""
    for _ in range(20):
        if name := os.pread(descriptor, 200, 0).decode(errors="replace"):
            return name
        time.sleep(0.05)
    return "another process"
