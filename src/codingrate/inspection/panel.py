"""One thing a report shows: a figure, what the paper expects of it, what was measured here, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Panel:
    """A figure with its sentences and its table."""

    name: str
    """Stem of its files and its anchor on the page: lower case, hyphens."""
    title: str
    """What is shown, in a few words."""
    expected: str
    """What the paper predicts and where, a sentence; empty where it says nothing."""
    measured: str
    """What was measured here, a sentence with its figures."""
    draw: Callable[[Figure], None] | None = None
    """Draws on an empty figure, whose size it sets; black ink on nothing, so that a page may turn it for dark."""
    table: pd.DataFrame | None = None
    """The numbers behind it."""
