"""A guard against event loops that are left open: the garbage collector would report them in an unrelated test."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest


def open_event_loops() -> set[asyncio.AbstractEventLoop]:
    """Return the event loops of this process that are not closed, after what nobody holds has been collected."""
    gc.collect()
    return {one for one in gc.get_objects() if issubclass(type(one), asyncio.AbstractEventLoop) and not one.is_closed()}


@pytest.fixture(scope="module", autouse=True)
def _no_event_loop_is_left() -> Iterator[None]:
    """Fail in the file that opened a loop: here if something still holds it, else by the warning of its collection."""
    before = open_event_loops()
    yield
    left = open_event_loops() - before
    for loop in left:
        loop.close()
    assert not left
