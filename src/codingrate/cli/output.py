"""Output of verbs: tables for people, JSON for programs, progress bars and notes on standard error."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from .._distributed import first_process
from .._progress import progress as progress

if TYPE_CHECKING:
    from .._report import Table
    from ..runs import Run
    from ..runs.folder import Checkpoint


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


RuleOption = Annotated[
    Literal["symmetric", "cutler"],
    Option("--rule", help="MaskCut: independent of the eigenvector's sign, or as CutLER's release."),
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


def emit(as_json: bool, values: Any, parts: Iterable[Table | str] = ()) -> None:
    """Print a result: `values` as one JSON document, or for people its tables and sentences, `Report.describe`."""
    if as_json:
        from .._files import to_plain

        print(json.dumps(to_plain(values), indent=2))
        return
    for part in parts:
        if isinstance(part, str):
            print(part)
        else:
            from rich.console import Console

            Console(markup=False, emoji=False).print(part, crop=False)


def paragraph(text: str, first: str = "    ", rest: str = "    ") -> str:
    """Return a text as a paragraph that fits the terminal."""
    width = min(shutil.get_terminal_size().columns, 100)
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=rest)


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
