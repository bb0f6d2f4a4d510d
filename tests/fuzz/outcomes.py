"""What may come of bad input: correct handling or an error of one line, and nothing written elsewhere."""

from __future__ import annotations

import contextlib
import os
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codingrate.data import UnreadableImageError
from codingrate.errors import CrateError

SEEDS = st.integers(0, 2**32 - 1)


def counts(few: int, many: int) -> Any:
    """Parametrize a test by the number of its cases: some in every run, many in the slow one."""
    slow = pytest.param(many, id="many", marks=pytest.mark.slow)
    return pytest.mark.parametrize("count", [pytest.param(few, id="few"), slow])


def fuzz(count: int, *values: Any, **strategies: Any) -> Callable[[Callable[..., None]], None]:
    """Call the decorated function at once with `count` cases, the same in every run."""
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    fixed = settings(
        max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=quiet
    )  # fmt: skip
    return lambda check: fixed(given(*values, **strategies)(check))()


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return "ok", or "refused" if the call raises an error of one line; fail on other exceptions and on warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ResourceWarning)  # pandas leaves files open after an error
            call(*args, **kwargs)
    except (CrateError, UnreadableImageError) as error:
        if isinstance(error, CrateError) and (len(str(error).splitlines()) != 1 or len(str(error)) >= 5000):
            raise AssertionError(f"not one line, or too long: {str(error)[:200]!r}") from error
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


DAMAGE: list[Callable[[bytes, random.Random], bytes]] = [
    lambda part, draw: bytes([part[0] ^ 1 << draw.randrange(8)]) + part[1:],
    lambda part, draw: bytes([draw.choice((0, 0x7F, 0x80, 0xFF, 0x0A, 0x22, 0x2C))]) + part[1:],
    lambda part, draw: draw.randbytes(len(part)),
    lambda part, draw: draw.choice((b"\xff", b"\0")) * len(part),
    lambda part, draw: b"",
    lambda part, draw: part + part,
]
"""A flipped bit, another byte, other bytes, equal bytes, no bytes, and the same bytes twice."""


def mutated(content: bytes, seed: int) -> bytes:
    """Return a damaged copy of a file: some of its parts are changed, or its end is cut."""
    draw, data = random.Random(seed), bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        if data:
            start = draw.randrange(len(data))
            end = start + draw.choice((1, 2, 4, 16, 100))
            kind = draw.randrange(len(DAMAGE) + 1)
            part = slice(start, end) if kind < len(DAMAGE) else slice(max(start, 1), None)
            data[part] = DAMAGE[kind](bytes(data[part]), draw) if kind < len(DAMAGE) else b""
    return bytes(data)


def fuzz_files(count: int, folder: Path, read: Callable[[Path], Any]) -> None:
    """Damage one file of a folder at a time: reading succeeds or is refused in one line, and writes nothing there."""
    files, seen = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}, set()
    assert outcome(read, folder) == "ok"

    @fuzz(count, target=st.sampled_from([*files]), seed=SEEDS)
    def check(target: Path, seed: int) -> None:
        for path, content in files.items():
            path.write_bytes(mutated(content, seed) if path == target else content)
        with unchanged(folder):
            seen.add(outcome(read, folder))

    assert "refused" in seen or count < 20
