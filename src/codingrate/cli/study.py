"""`crate study`: train a grid of runs and print one table."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from ..errors import CrateError
from .output import Json, emit, paragraph, progress


def _shard(text: str) -> tuple[int, int]:
    """Parse I/N."""
    match = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} must be I/N, such as 3/8")
    return int(match[1]), int(match[2])


def study(
    name: Annotated[str | None, Argument(help="Name of a shipped study (see --list), or a YAML file.")] = None,
    overrides: Annotated[
        list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Overrides for every run: schedule.epochs=1.")
    ] = None,
    data: Annotated[str | None, Option(help="Dataset: a built-in name, a local path or a hub id.")] = None,
    output: Annotated[Path | None, Option(help="Folder of all runs. Default: runs/studies/NAME.")] = None,
    shard: Annotated[
        Any,  # (i, n)
        Option(
            parser=_shard, metavar="I/N", help="Train every N-th run from the I-th on, such as 3/8; write no table."
        ),
    ] = None,
    jobs: Annotated[int, Option(min=1, help="Runs that are trained at the same time on this machine.")] = 1,
    check: Annotated[
        bool, Option("--check", help="Train one run of the finished study again and compare it with the table.")
    ] = False,
    draw: Annotated[int, Option(min=0, help="Seed that chooses the run of --check.")] = 0,
    show_list: Annotated[bool, Option("--list", help="List the shipped studies.")] = False,
    as_json: Json = False,
) -> None:
    """Train every row of a study with several seeds, and print mean and standard deviation of each metric.

    With --shard, several calls share the runs, such as the tasks of a cluster's job array; the same command without
    --shard then writes the table. Finished runs are skipped and an interrupted one continues, so that the same command
    can be given again. With --check nothing is added: one run of the table is trained again, and the exit code is 1 if
    its metrics differ.
    """
    from ..recipes import load_study, study_names

    if show_list:
        studies = {known: load_study(known) for known in study_names()}
        lines = [
            f"{known}: {len(plan.settings)} rows × {len(plan.seeds)} seeds, recipe {plan.recipe}\n"
            + paragraph(plan.what)
            for known, plan in studies.items()
        ]
        emit(as_json, studies, lines)
        return
    if name is None:
        raise CrateError("which study? Give a name or a YAML file; crate study --list shows the shipped ones")
    load_study(name)  # refuses a mistake before torch is imported
    from ..runs import check_study, run_study

    if check:
        found = check_study(name, output, draw=draw)
        emit(as_json, found.to_dict(), found.describe())
        if found.different:
            print(f"crate: different: {', '.join(found.different)}", file=sys.stderr)
            raise typer.Exit(1)
        return
    changes = [*(overrides or []), *([f"data.name={json.dumps(data)}"] if data is not None else [])]
    report = run_study(name, output, changes, shard=shard, jobs=jobs, progress=progress)
    folder = output or Path("runs") / "studies" / Path(name).stem
    rest = f"{len(report.runs)} of {report.planned} runs are finished; crate study {name} writes the table"
    emit(as_json, report.to_dict(), [*report.describe(), f"results in {folder}" if shard is None else rest])
