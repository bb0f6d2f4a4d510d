"""GLUE: fine-tune a pre-trained text model on each task, as the paper's table does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._distributed import first_process, on_first
from .._files import write_json
from .._report import Report, Table
from ..data import GLUE
from ..errors import CrateError, unknown_name
from ..evaluation import glue_average
from ..recipes import Recipe, load_recipe
from .curves import glue_table, kept_steps, save_curves
from .folder import Checkpoint, check_same_recipe
from .run import Run
from .training import train

AFTER_MNLI = ("mrpc", "stsb", "rte")
"""Tasks that the paper also starts from the model fine-tuned on MNLI."""


@dataclass(frozen=True)
class GlueResult(Report):
    """Scores of the GLUE tasks that were run."""

    tasks: dict[str, dict[str, Any]]
    """For each task `metrics` (names), `splits` (scores), `seconds` and `new` (False if it was done before)."""
    average: dict[str, Any]
    """`average` of the paper's nine numbers if all are there, else `mean_of_tasks_run`; and how many `numbers`."""
    folder: Path

    @property
    def score(self) -> float:
        """The paper's average, or the mean of the tasks that were run."""
        return float(self.average.get("average", self.average.get("mean_of_tasks_run", 0.0)))

    def to_dict(self) -> dict[str, Any]:
        """Return the scores, their average and the folder."""
        return {"tasks": self.tasks, **self.average, "folder": str(self.folder)}

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the scores of each task and split, and their average."""
        rows = []
        for task, scores in self.tasks.items():
            main, *others = scores["metrics"]
            for split, values in scores["splits"].items():
                name = task if len(scores["splits"]) == 1 else f"{task}, {split.removeprefix('validation_')}"
                more = ", ".join(f"{other} {100 * values[other]:.1f}" for other in others)
                time = f"{scores['seconds']:.0f} s" if scores["new"] else "before"
                rows.append((name, main, f"{100 * values[main]:.1f}", more, f"{values['rows']:,}", time))
        yield Table(title or "GLUE", ("task", "metric", "score", "also", "sentences", "trained"), rows)
        kind = "average of nine numbers, as in the paper" if "average" in self.average else "mean of the tasks run"
        yield f"{kind}: {100 * self.score:.1f}"


def fine_tune_glue(
    run: Run,
    overrides: list[str] | None = None,
    *,
    data: Path | None = None,
    tasks: list[str] | None = None,
    after_mnli: bool = False,
    output: Path | None = None,
    checkpoint: Checkpoint = "last",
    quiet: bool = False,
) -> GlueResult:
    """Fine-tune a run's model on each task, and measure it. A second call continues where the first was stopped.

    `data` is a folder with one folder per task; without it, data come from the hub.
    """
    chosen, folder = choose_tasks(tasks, data), output or run.output_folder("glue")
    if after_mnli and any(task in AFTER_MNLI for task in chosen):
        if "mnli" not in chosen and not (folder / "mnli" / "scores.json").is_file():
            raise CrateError("`after_mnli` starts from the MNLI model, which is missing; add mnli to `tasks`")
        chosen = sorted(chosen, key=lambda task: task in AFTER_MNLI)  # MNLI comes first
    source = run.model_folder(checkpoint)
    overrides = list(overrides or [])
    if isinstance(checkpoint, int):  # a checkpoint of a training step has no tokenizer of its own
        overrides.insert(0, f"text.tokenizer={json.dumps(str(run.task.paths.tokenizer))}")
    results: dict[str, dict[str, Any]] = {}
    for task in chosen:
        later = after_mnli and task in AFTER_MNLI
        start = Run(folder / "mnli").model_folder("last") if later else source
        recipe = _recipe(task, start, data, overrides)
        results[task] = _fine_tune(recipe, folder / (f"{task}-after-mnli" if later else task), quiet)
    return GlueResult(results, _average(results), folder)


def glue_curve(
    run: Run, overrides: list[str] | None = None, *, output: Path | None = None, **options: Any
) -> list[tuple[int, GlueResult]]:
    """Fine-tune the model of every checkpoint that a run has kept, as `fine_tune_glue` does; return steps and results.

    `run.milestones` of a recipe keeps checkpoints. Curve and table are written to curve.png and curve.json. The
    paper's curve fine-tunes for three epochs with sequences of 512 tokens: `schedule.epochs=3 text.max_length=512`.
    """
    steps = kept_steps(run)
    if not steps:
        raise CrateError(f"{run.source}: has no checkpoints of training steps; train with run.milestones=[STEP, …]")
    folder = output or run.output_folder("glue-curve")
    results = [
        (step, fine_tune_glue(run, overrides, output=folder / f"step-{step}", checkpoint=step, **options))
        for step in steps
    ]
    table = glue_table([(step, result.average) for step, result in results])
    if first_process():
        save_curves({run.name: table}, folder / "curve.png", "GLUE score")
        write_json(folder / "curve.json", table.to_dict("records"))
    return results


def choose_tasks(tasks: list[str] | None, data: Path | None) -> list[str]:
    """Return the tasks in the paper's order: those asked for, or those that are available."""
    if data is not None and not data.is_dir():
        raise CrateError(f"`data={str(data)!r}`: no such folder; give one with a folder for each task, such as sst2")
    if tasks is None:
        available = [task for task in GLUE if (GLUE[task].in_average if data is None else (data / task).is_dir())]
        if not available:
            raise CrateError(f"`data={str(data)!r}`: there is no folder of a GLUE task; they are {', '.join(GLUE)}")
        return available
    if not tasks:
        raise CrateError("`tasks` is empty; give tasks such as sst2,mrpc, or leave it out")
    for task in tasks:
        if task not in GLUE:
            raise unknown_name("task", task, GLUE)
        if data is not None and not (data / task).is_dir():
            raise CrateError(
                f"`data={str(data)!r}`: there is no folder {task}; put its train and validation files there"
            )
    return [task for task in GLUE if task in tasks]


def _recipe(task: str, source: Path, data: Path | None, overrides: list[str]) -> Recipe:
    where = {"model.from": str(source), "data.name": task, "data.path": None if data is None else str(data / task)}
    return load_recipe("glue", [*(f"{key}={json.dumps(value)}" for key, value in where.items()), *overrides], task)


def _fine_tune(recipe: Recipe, folder: Path, quiet: bool) -> dict[str, Any]:
    """Fine-tune and measure, unless it was done before; the scores are kept in scores.json."""
    scores = folder / "scores.json"
    started, measured = on_first(lambda: ((folder / "recipe.yaml").is_file(), scores.is_file()))
    if measured:
        check_same_recipe(folder, recipe)
        try:
            return {**json.loads(scores.read_text(encoding="utf-8")), "new": False}
        except (ValueError, TypeError) as error:
            raise CrateError(f"{scores}: is damaged; remove it, and the task is measured again") from error
    run = train(recipe, folder, resume=started, quiet=quiet)
    report: Any = run.evaluate(batch_size=32)
    result = {
        "metrics": list(GLUE[recipe.data.name].metrics),
        "splits": report.splits,
        "seconds": run.seconds,
    }
    if first_process():
        write_json(scores, result)
    return {**result, "new": True}


def _average(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the paper's average if all of its nine numbers are there, else the mean of those that are."""
    first = {
        task: {split: scores[result["metrics"][0]] for split, scores in result["splits"].items()}
        for task, result in results.items()
    }
    if all(task in first for task, about in GLUE.items() if about.in_average):
        return {"average": glue_average(first), "numbers": 9}
    numbers = [value for splits in first.values() for value in splits.values()]
    return {"mean_of_tasks_run": sum(numbers) / len(numbers), "numbers": len(numbers)}
