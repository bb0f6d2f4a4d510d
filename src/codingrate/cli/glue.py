"""`crate glue`: a pre-trained text model fine-tuned on each GLUE task, and the paper's table of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import CrateError, unknown_name
from .output import Json, print_json, print_table

if TYPE_CHECKING:
    from ..training import Recipe

AFTER_MNLI = ("mrpc", "stsb", "rte")
"""Tasks that the paper also starts from the model fine-tuned on MNLI."""


def glue(
    run: Annotated[Path, typer.Argument(help="A run folder, or that of a saved model.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value for every task, such as schedule.epochs=1.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with one folder per task (sst2, …); the hub if none.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Such as sst2,mrpc; all that --data has by default.")] = None,
    after_mnli: Annotated[
        bool, typer.Option("--after-mnli", help="MRPC, STS-B and RTE start from the MNLI model.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for a run of each task; RUN/glue.")] = None,
    which: Annotated[str, typer.Option(help="The run's best model or its last.")] = "last",
    as_json: Json = False,
) -> None:
    """Fine-tune on each task and print the paper's metrics. Called again, it goes on where it was stopped."""
    if which not in ("best", "last"):
        raise unknown_name("--which", which, ("best", "last"))
    chosen, place = _chosen(tasks, data), output or run / "glue"
    if after_mnli and any(task in AFTER_MNLI for task in chosen):
        if "mnli" not in chosen and not (place / "mnli" / "scores.json").is_file():
            raise CrateError("--after-mnli starts from the MNLI model, which is not there yet; add mnli to --tasks")
        chosen = sorted(chosen, key=lambda task: task in AFTER_MNLI)  # MNLI comes first
    from ..training import saved_model

    folder = saved_model(run, which)
    results: dict[str, dict[str, Any]] = {}
    for task in chosen:
        later = after_mnli and task in AFTER_MNLI
        source = saved_model(place / "mnli", "last") if later else folder
        recipe = _recipe(task, source, data, overrides or [])
        results[task] = _tuned(recipe, place / (f"{task}-after-mnli" if later else task), as_json)
    average = _average(results)
    if as_json:
        print_json({"run": str(run), "after_mnli": after_mnli, "tasks": results, **average, "folder": str(place)})
        return
    _show(results, average, f"{run}, {which} model, fine-tuned{' (after MNLI)' if after_mnli else ''}")
    print(f"runs in {place}")


def _chosen(tasks: str | None, data: Path | None) -> list[str]:
    """Tasks in the paper's order: those asked for, or those that are there."""
    from ..data import GLUE

    if data is not None and not data.is_dir():
        raise CrateError(f"--data {data}: no such folder; give one with a folder for each task, such as sst2")
    if tasks is not None:
        wanted = [task.strip().lower() for task in tasks.split(",") if task.strip()]
        for task in wanted:
            if task not in GLUE:
                raise unknown_name("task", task, GLUE)
            if data is not None and not (data / task).is_dir():
                raise CrateError(f"--data {data}: has no folder {task}; put its train and validation files there")
        if not wanted:
            raise CrateError("--tasks names no task; give some, such as sst2,mrpc, or leave it out")
        return [task for task in GLUE if task in wanted]
    found = [task for task in GLUE if (GLUE[task].in_average if data is None else (data / task).is_dir())]
    if not found:
        raise CrateError(f"--data {data}: has no folder of a GLUE task; such are {', '.join(GLUE)}")
    return found


def _recipe(task: str, source: Path, data: Path | None, overrides: list[str]) -> Recipe:
    from ..training import load_recipe

    where = {"model.from": str(source), "data.name": task, "data.path": None if data is None else str(data / task)}
    return load_recipe("glue", [*(f"{key}={json.dumps(value)}" for key, value in where.items()), *overrides], task)


def _tuned(recipe: Recipe, folder: Path, quiet: bool) -> dict[str, Any]:
    """Fine-tune unless it was done before, and measure; what was found is kept in scores.json."""
    from .._files import write_json
    from ..training import train
    from ..training.run import open_folder

    scores = folder / "scores.json"
    if scores.is_file():
        open_folder(folder, recipe, resume=True)  # refuses another recipe
        return {**json.loads(scores.read_text(encoding="utf-8")), "new": False}
    result = train(recipe, folder, resume=(folder / "recipe.yaml").is_file(), quiet=quiet)
    found = {"metrics": list(_metrics(recipe)), "splits": _scores(recipe, folder), "seconds": result.seconds}
    write_json(scores, found)
    return {**found, "new": True}


def _metrics(recipe: Recipe) -> tuple[str, ...]:
    from ..data import GLUE

    return GLUE[recipe.data.name].metrics


def _scores(recipe: Recipe, folder: Path) -> dict[str, dict[str, float]]:
    """The metrics of the last model on each development set."""
    from .evaluate_text import score_sets

    return score_sets(recipe, folder, folder / "model" / "last", batch=32)


def _average(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The paper's average where all its nine numbers are there, else the mean of those that are."""
    from ..data import GLUE
    from ..evaluation import glue_average

    first = {task: _first(result) for task, result in results.items()}
    if all(task in first for task, about in GLUE.items() if about.in_average):
        return {"average": glue_average(first), "numbers": 9}
    numbers = [value for found in first.values() for value in found.values()]
    return {"mean_of_tasks_run": sum(numbers) / len(numbers), "numbers": len(numbers)}


def _first(result: dict[str, Any]) -> dict[str, float]:
    """The metric the paper reports, by development set."""
    return {split: found[result["metrics"][0]] for split, found in result["splits"].items()}


def _show(results: dict[str, dict[str, Any]], average: dict[str, Any], title: str) -> None:
    rows = []
    for task, result in results.items():
        main, *others = result["metrics"]
        for split, found in result["splits"].items():
            name = task if len(result["splits"]) == 1 else f"{task}, {split.removeprefix('validation_')}"
            more = ", ".join(f"{other} {100 * found[other]:.1f}" for other in others)
            time = f"{result['seconds']:.0f} s" if result["new"] else "before"
            rows.append((name, main, f"{100 * found[main]:.1f}", more, f"{found['rows']:,}", time))
    print_table(title, ("task", "metric", "score", "also", "sentences", "trained"), rows)
    if "average" in average:
        print(f"average of nine numbers, as in the paper: {100 * average['average']:.1f}")
    else:
        print(f"mean of the tasks run: {100 * average['mean_of_tasks_run']:.1f}")
