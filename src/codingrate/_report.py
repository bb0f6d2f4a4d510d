"""The base class of every report: plain values for JSON, files in a folder, tables in a terminal or a notebook."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._files import to_plain, write_json

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

SHORT = 30
"""Number of characters up to which the cell of a table stays on one line."""


@dataclass(frozen=True)
class Table:
    """A table of texts with a title, for a terminal or a notebook; numbers are in all columns but the first."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table. Long cells are folded to fit the terminal, and headers too; short cells never are."""
        from rich.cells import cell_len
        from rich.table import Table as RichTable
        from rich.text import Text

        columns, table = self.columns, RichTable()
        widths = [max((cell_len(row[index]) for row in self.rows), default=0) for index in range(len(columns))]
        borders = 3 * len(columns) + 1
        if sum(map(max, widths, map(cell_len, columns))) + borders > options.max_width:
            columns = [
                textwrap.fill(name, max(width, 8), break_long_words=False)
                for name, width in zip(columns, widths, strict=True)
            ]
        headers = [max(map(cell_len, name.split("\n"))) for name in columns]
        narrowest = [max(pair) if pair[0] <= SHORT else SHORT // 2 for pair in zip(widths, headers, strict=True)]
        for index, (column, width) in enumerate(zip(columns, widths, strict=True)):
            justify: Any = "right" if index else "left"
            table.add_column(Text(column), justify=justify, no_wrap=width <= SHORT, overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        yield Text(self.title, no_wrap=True, overflow="ignore")
        yield from console.render(table, options.update_width(max(options.max_width, sum(narrowest) + borders)))

    def _repr_html_(self) -> str:
        lines = [("th", self.columns), *(("td", row) for row in self.rows)]
        cells = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in lines)
        rows = "".join(f"<tr>{line}</tr>" for line in cells)
        return f"<table><caption>{escape(self.title)}</caption>{rows}</table>"


class Report:
    """The result of a measurement, a frozen dataclass that can show itself and be saved."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values that JSON can hold."""
        return dict(to_plain(self))

    def save(self, folder: str | Path) -> Path:
        """Write `metrics.json`, and other files where a report has them, to a folder; return the folder."""
        return write_json(Path(folder) / "metrics.json", self.to_dict()).parent

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the tables and sentences that show the report to people; `title` says what was measured."""
        simple = {key: value for key, value in self.to_dict().items() if not isinstance(value, (dict, list))}
        yield Table(title or type(self).__name__, ("", "value"), [(key, str(value)) for key, value in simple.items()])

    def __rich__(self) -> Any:
        """Return what a terminal shows."""
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [Text(part) if isinstance(part, str) else part for part in self.describe()]
        return Group(*parts)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return "".join(
            f"<p>{escape(part)}</p>" if isinstance(part, str) else part._repr_html_() for part in self.describe()
        )


class EvaluationReport(Report):
    """A report with `metrics`: its numbers by name, without counts, which are integers, and times."""

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics by name."""
        times = ("seconds", "images_per_second")
        return {name: value for name, value in self.to_dict().items() if type(value) is float and name not in times}

    @property
    def part(self) -> str:
        """The words for the part that was measured, before the name of the data: all of them, or a split."""
        split, total = getattr(self, "split", None), getattr(self, "total", None)
        return "all of" if split == "all" or self.measured == total else f"{split} split of"

    @property
    def measured(self) -> int:
        """Number of samples that were read."""
        return sum(getattr(self, name, 0) for name in ("images", "unreadable"))


def counted(measured: int, total: int | None, unit: str, unreadable: int = 0) -> str:
    """Return how many samples of some data were measured, and how many could not be read."""
    count = f"{measured:,} {unit}" if total is None else f"{measured:,} of {total:,} {unit}"
    return f"{count} ({unreadable:,} could not be read)" if unreadable else count


def percent(value: float | None) -> str:
    """Format a share as a percentage; None as an empty string."""
    return "" if value is None else f"{value:.2%}"
