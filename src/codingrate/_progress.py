"""Progress bars on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ._distributed import first_process


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error, and yield a function that advances it. A total of 0 means unknown."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    quiet = not sys.stderr.isatty() or not first_process()
    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task(escape(description), total=total or None)
        yield lambda amount=1: bar.advance(task, amount)
