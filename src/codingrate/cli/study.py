"""`crate study`: train a grid of runs and print one table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from ..errors import CrateError
from .output import Json, print_indented, print_json, print_table, progress


def study(
    name: Annotated[str | None, Argument(help="Name of a shipped study (see --list), or a YAML file.")] = None,
    overrides: Annotated[
        list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Overrides for every run: schedule.epochs=1.")
    ] = None,
    data: Annotated[str | None, Option(help="Dataset: a built-in name, a local path or a hub id.")] = None,
    output: Annotated[Path | None, Option(help="Folder of all runs. Default: runs/studies/NAME.")] = None,
    show_list: Annotated[bool, Option("--list", help="List the shipped studies.")] = False,
    as_json: Json = False,
) -> None:
    """Train every row of a study with several seeds, and print mean and standard deviation of each metric.

    Finished runs are skipped and an interrupted one continues, so that the same command can be given again.
    """
    from ..recipes import load_study, study_names

    if show_list:
        studies = {known: load_study(known) for known in study_names()}
        if as_json:
            print_json(studies)
            return
        for known, plan in studies.items():
            print(f"{known}: {len(plan.settings)} rows × {len(plan.seeds)} seeds, recipe {plan.recipe}")
            print_indented(plan.what)
        return
    if name is None:
        raise CrateError("which study? Give a name or a YAML file; crate study --list shows the shipped ones")
    load_study(name)  # refuses a mistake before torch is imported
    from ..runs import TrainingStopped, run_study

    changes = [*(overrides or []), *([f"data.name={json.dumps(data)}"] if data is not None else [])]
    try:
        report = run_study(name, output, changes, progress=progress)
    except TrainingStopped as stopped:
        print(f"crate: {stopped}", file=sys.stderr)
        raise typer.Exit(128 + stopped.signal) from None
    if as_json:
        print_json(report.to_dict())
        return
    print_table(report.what, *report.cells([report.metric]))
    print(f"results in {output or Path('runs') / 'studies' / Path(name).stem}")
