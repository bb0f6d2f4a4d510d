"""What may come of bad input: correct handling or an error of one line, and nothing written elsewhere."""

from __future__ import annotations

import contextlib
import os
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

from codingrate.data import UnreadableImageError
from codingrate.errors import CrateError


def cases(count: int) -> Any:
    """Settings of a fuzzer that tries `count` cases, the same in every run."""
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=quiet)


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return "ok", or "refused" if the call raises an error of one line; fail on other exceptions and on warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ResourceWarning)  # pandas leaves files open after an error
            call(*args, **kwargs)
    except (CrateError, UnreadableImageError) as error:
        line = str(error)
        if isinstance(error, CrateError):
            assert len(line.splitlines()) == 1, f"not one line: {line!r}"
            assert len(line) < 5000, f"too long: {line[:200]!r} …"
        return "refused"
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    return "ok"


@contextlib.contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Fail if the block creates, removes or changes anything below a folder."""
    before = _contents(folder)
    yield
    after = _contents(folder)
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    assert not changed, f"changed: {changed[:5]}"


def _contents(folder: Path) -> dict[str, tuple[int, int]]:
    paths = [os.path.join(parent, name) for parent, folders, files in os.walk(folder) for name in (*folders, *files)]
    stats = {path: os.lstat(path) for path in paths}
    return {path: (stat.st_size, 0 if os.path.isdir(path) else stat.st_mtime_ns) for path, stat in stats.items()}


def mutated(content: bytes, seed: int) -> bytes:
    """Return a damaged copy of a file: bits flipped, bytes set, parts removed, repeated or swapped, or its end cut."""
    draw, data = random.Random(seed), bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        if not data:
            break
        start = draw.randrange(len(data))
        part = slice(start, start + draw.choice((1, 2, 4, 16, 100)))
        kind = draw.randrange(7)
        if kind == 0:
            data[start] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[start] = draw.choice((0, 0x7F, 0x80, 0xFF, 0x0A, 0x22, 0x2C))
        elif kind == 2:
            data[part] = draw.randbytes(len(data[part]))
        elif kind == 3:
            data[part] = draw.choice((b"\xff", b"\0")) * len(data[part])
        elif kind == 4:
            del data[part]
        elif kind == 5:
            data[start:start] = data[part]
        else:
            del data[max(start, 1) :]
    return bytes(data)
