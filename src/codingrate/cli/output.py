"""Output of verbs: tables for people, JSON for programs, progress bars and notes on standard error."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from .._distributed import first_process
from .._progress import progress as progress

if TYPE_CHECKING:
    from ..runs import Run
    from ..runs.folder import Checkpoint


SHORT = 30
"""Number of characters up to which the cell of a table stays on one line."""


def _checkpoint(text: str) -> Checkpoint:
    """Parse `last`, `best` or the number of a training step."""
    if text in ("last", "best"):
        return text  # type: ignore[return-value]
    if re.fullmatch("[0-9]{1,18}", text):
        return int(text)
    raise typer.BadParameter(f"{text!r} must be last, best or a training step")


Json = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
RunArgument = Annotated[str, Argument(metavar="RUN", help="Run folder, or the folder of a saved model.")]
ModelArgument = Annotated[
    str, Argument(metavar="MODEL", help="Run folder, folder of a saved model, checkpoint file, or model name.")
]
CheckpointOption = Annotated[
    Any,
    Option(
        parser=_checkpoint,
        metavar="last|best|STEP",
        help="Model of the run: last, best, or that of a training step.",
    ),
]
DataOption = Annotated[
    str | None, Option(help="Dataset: a built-in name, a local path or a hub id. Default: the run's.")
]


class MaskRule(str, Enum):
    """Rules of MaskCut."""

    symmetric = "symmetric"
    cutler = "cutler"


RuleOption = Annotated[
    MaskRule, Option("--rule", help="MaskCut: independent of the eigenvector's sign, or as CutLER's release.")
]
CompareOption = Annotated[
    list[str] | None,
    Option("--compare", help="Another model to show below this one in one picture; can be repeated."),
]
LayerOption = Annotated[
    list[str] | None,
    Option(
        "--layer",
        metavar="N|all",
        help="Layer, numbered from 1, or from the end if negative; can be repeated, or all. "
        "Default: inspect: all; otherwise -2 (CRATE), -1 (ViT).",
        show_default=False,
    ),
]
BatchSize = Annotated[int, Option("--batch-size", min=1, max=2**20, help="Samples per forward pass.")]
PathOption = Annotated[str | None, Option(help="Local folder of the dataset that --data names.")]


def open_run(source: str) -> Run:
    """Open a run whose methods show progress bars."""
    from ..runs import Run

    return Run(source, progress=progress)


def layer_option(run: Run, checkpoint: Checkpoint, layers: Sequence[str] | None) -> list[int] | None:
    """Return the indices of the layers that --layer numbers from 1; None if it was not given."""
    from ..inspection import layer_numbers

    return None if not layers else layer_numbers(layers, run.loaded(checkpoint).config.num_hidden_layers)


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    from .._files import to_plain

    print(json.dumps(to_plain(value), indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is aligned to the left, the others to the right.

    Columns with long cells are folded to fit the terminal, and headers too. Numbers and other short cells never are.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    table, console = Table(), Console(markup=False, emoji=False)
    widths = [max((cell_len(row[index]) for row in rows), default=0) for index in range(len(columns))]
    borders = 3 * len(columns) + 1
    if sum(map(max, widths, map(cell_len, columns))) + borders > console.width:
        columns = [
            textwrap.fill(name, max(width, 8), break_long_words=False)
            for name, width in zip(columns, widths, strict=True)
        ]
    headers = [max(map(cell_len, name.split("\n"))) for name in columns]
    narrowest = [max(pair) if pair[0] <= SHORT else SHORT // 2 for pair in zip(widths, headers, strict=True)]
    for index, (column, width) in enumerate(zip(columns, widths, strict=True)):
        table.add_column(column, justify="right" if index else "left", no_wrap=width <= SHORT, overflow="fold")
    for row in rows:
        table.add_row(*row)
    print(title)
    console.width = max(console.width, sum(narrowest) + borders)
    console.print(table)


def print_indented(text: str, first: str = "    ", rest: str = "    ") -> None:
    """Print a text as a paragraph that fits the terminal."""
    width = min(shutil.get_terminal_size().columns, 100)
    print(textwrap.fill(text, width, initial_indent=first, subsequent_indent=rest))


def save_report(report: Any, folder: Path, *options: Any) -> Path:
    """Save a report; of several processes, the first does it."""
    if first_process():
        report.save(folder, *options)
    return folder


def print_note(text: str) -> None:
    """Print a note on standard error."""
    if first_process():
        print(f"note: {text}", file=sys.stderr)


def thousands(value: float) -> str:
    """Format a large number with a unit: 22.80 M, 10.00 G."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f}"


def percent(value: float | None) -> str:
    """Format a share as a percentage; None as an empty string."""
    return "" if value is None else f"{value:.2%}"
