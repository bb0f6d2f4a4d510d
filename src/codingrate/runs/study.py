"""Train the grid of a study, run after run, and collect one table: mean and standard deviation over seeds."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch

from .. import inspection
from .._distributed import first_process, on_first
from .._files import atomic_write, write_json, write_text
from .._fonts import plot_label
from .._report import Report, Table
from ..errors import CrateError, check_positive
from ..models.base import CratePreTrainedModel
from ..models.counts import forward_flops
from ..recipes import fitted_like
from ..recipes.study import Study, load_study
from ..tasks.base import OpenProgress
from .folder import no_progress
from .interruption import TrainingStopped
from .run import Run
from .training import train


@dataclass(frozen=True, eq=False)
class StudyReport(Report):
    """The results of a study."""

    name: str
    what: str
    metric: str
    """The metric that the figure shows, the one that decides which model is the best."""
    command: str
    """The command that trains these runs."""
    version: str
    """Version of this package that trained them; several, separated by commas, if they differ."""
    runs: pd.DataFrame
    """One line per row and seed: the metrics of the last model, parameters, FLOPs of a forward pass, and seconds."""
    planned: int = 0
    """Number of runs of the whole study."""
    layers: pd.DataFrame | None = None
    """The table of `inspection.layerwise` with controls for every run, if the study measures layers."""

    @property
    def table(self) -> pd.DataFrame:
        """One line per row: number of seeds, mean and standard deviation (`…_std`) of each metric over seeds."""
        groups = self.runs.drop(columns="seed").groupby("row", sort=False)
        table = pd.DataFrame({"seeds": groups.size()})
        for name in self.runs.columns.drop(["row", "seed"]):
            table[name] = groups[name].mean()
            if name not in ("parameters", "flops", "seconds"):
                table[f"{name}_std"] = groups[name].std(ddof=1)
        return table.reset_index()

    def to_dict(self) -> dict[str, Any]:
        """Return the table and the runs as plain values."""
        about = {name: getattr(self, name) for name in ("name", "what", "metric", "command", "version")}
        return {**about, "table": self.table.to_dict("records"), "runs": self.runs.to_dict("records")}

    def cells(self, metrics: Sequence[str] = ()) -> tuple[list[str], list[list[str]]]:
        """Return the titles and the rows of the table as text, with mean ± standard deviation in one cell.

        `metrics` are the ones to show. Default: all.
        """
        table, rows = self.table, []
        metrics = metrics or [name for name in self.runs.columns if f"{name}_std" in table]
        for _, line in table.iterrows():
            spread = ["" if pd.isna(line[f"{name}_std"]) else f" ± {line[f'{name}_std']:.4f}" for name in metrics]
            means = [f"{line[name]:.4f}{error}" for name, error in zip(metrics, spread, strict=True)]
            size = [f"{line['parameters']:,.0f}", f"{line['flops'] / 1e6:,.1f} M", f"{line['seconds']:,.0f} s"]
            rows.append([str(line["row"]), str(line["seeds"]), *means, *size])
        return ["row", "seeds", *metrics, "parameters", "FLOPs", "time"], rows

    def markdown(self) -> str:
        """Return the table as Markdown, followed by its command, version and seeds."""
        titles, rows = self.cells()
        lines = [titles, ["---"] * len(titles), *rows]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        seeds = ", ".join(str(seed) for seed in sorted(set(self.runs["seed"])))
        return f"{table}\n`{self.command}`, codingrate {self.version}, seeds {seeds}.\n"

    def save(self, folder: str | Path) -> Path:
        """Write table.md, table.csv, runs.csv, study.json and figure.png to a folder; return the folder.

        A study that measures layers also has layers.csv and frontier.png.
        """
        folder = Path(folder)
        write_text(folder / "table.md", f"{self.what}\n\n{self.markdown()}")
        write_text(folder / "table.csv", self.table.to_csv(index=False))
        write_text(folder / "runs.csv", self.runs.to_csv(index=False))
        figures = {"figure": self._figure}
        if self.layers is not None:
            write_text(folder / "layers.csv", self.layers.to_csv(index=False))
            figures["frontier"] = self._frontier
        write_json(folder / "study.json", self.to_dict())
        for name, draw in figures.items():
            with atomic_write(folder / f"{name}.png") as draft:
                draw().savefig(draft, format="png", dpi=144)
        return folder

    def _figure(self) -> Any:
        """Draw the metric of each row: a bar for the mean, a line for its standard deviation, a dot for each seed."""
        from matplotlib.figure import Figure

        table = self.table
        figure = Figure(figsize=(8, 1 + 0.4 * len(table)), layout="constrained")
        axes = figure.add_subplot()
        places = {row: place for place, row in enumerate(table["row"])}
        axes.barh(range(len(table)), table[self.metric], xerr=table[f"{self.metric}_std"].fillna(0), color="#56b4e9")
        axes.plot(self.runs[self.metric], self.runs["row"].map(places), "o", color="black", markersize=3)
        axes.set_yticks(range(len(table)), [plot_label(row) for row in places])
        axes.invert_yaxis()
        axes.set_xlabel(f"{self.metric}: mean and standard deviation over seeds")
        return figure

    def _frontier(self) -> Any:
        """Draw the metric of each row against the alignment of its attention, with standard deviations over seeds."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.add_subplot()
        for (_, line), marker in zip(self.table.fillna(0).iterrows(), itertools.cycle("osD^vPX*<>ph")):
            (x, y), (x_error, y_error) = (
                (line[f"alignment{end}"], line[f"{self.metric}{end}"]) for end in ("", "_std")
            )
            axes.errorbar(x, y, y_error, x_error, marker, markersize=7, elinewidth=0.7, label=plot_label(line["row"]))
        axes.axvline(0, color="gray", linewidth=0.5)
        axes.set_xlabel("cosine of attention's update with the descent of $R^c$, smallest over layers")
        figure.legend(loc="outside right upper", fontsize="small")
        axes.set_ylabel(self.metric)
        return figure

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the table of the metric that decides."""
        yield Table(title or self.what, *self.cells([self.metric]))


def run_study(
    study: str | Path,
    output: str | Path | None = None,
    overrides: Iterable[str] = (),
    *,
    shard: tuple[int, int] | None = None,
    jobs: int = 1,
    progress: OpenProgress | None = None,
) -> StudyReport:
    """Train every row of a study with every seed, and return the table, which is also written to `output`.

    Args:
        study: Name of a shipped study, or a YAML file.
        output: Folder that holds a run folder for each row and seed. Default: `runs/studies/NAME`. A second call skips
            the runs that are finished and resumes those that were interrupted.
        overrides: Changes of all runs.
        shard: `(i, n)`, counted from 1, trains only every n-th run from the i-th on, and returns the table of all runs
            that are finished by then. It is not written: a call without a shard does that when all are finished.
        jobs: Number of processes on this machine that train runs at the same time, each a shard of its own.
        progress: Opens a progress bar.
    """
    plan, name = load_study(str(study)), Path(study).stem
    folder = Path("runs") / "studies" / name if output is None else Path(output)
    overrides = tuple(overrides)
    cells = [(row, seed) for row in plan.settings for seed in plan.seeds]
    number, count = shard or (1, 1)
    if not 1 <= number <= count <= len(cells):
        raise CrateError(f"shard {number}/{count}: give I/N with I from 1 to N, and N up to {len(cells)}, the runs")
    check_positive(jobs=jobs)
    if jobs > 1 and shard is not None:
        raise CrateError("a shard is trained run after run; leave out the shard or the jobs")
    if jobs > 1:
        _train_in_jobs(str(study), folder, overrides, min(jobs, len(cells)))
    own = cells[number - 1 :: count]
    with (progress or no_progress)(f"study {name}", len(own)) as advance:
        for row, seed in own:
            _trained(plan, row, seed, folder, overrides, name)
            advance(1)
    lines, tables, metric, versions = [], [], "", set()
    for row, seed in cells:
        run = _finished(plan, row, seed, folder, overrides)
        if run is not None:
            metric = run.task.best_metric or "loss"
            line: dict[str, Any] = {"row": row, "seed": seed, **run.metrics}
            if plan.measure_layers:
                tables.append(_layers(run, plan.measure_layers).assign(row=row, seed=seed))
                line |= summarize_layers(tables[-1])
            lines.append({**line, **_size(run.model()), "seconds": run.seconds})
            versions.add(run.version or "of unknown version")
    command, version = shlex.join(["crate", "study", str(study), *overrides]), ", ".join(sorted(versions))
    layers = pd.concat(tables, ignore_index=True) if tables else None
    report = StudyReport(name, plan.what, metric, command, version, pd.DataFrame(lines), len(cells), layers)
    if shard is None and first_process():
        report.save(folder)
    return report


def _layers(run: Run, samples: int) -> pd.DataFrame:
    """Return the layer-wise measures of a finished run, with controls; they are kept in its folder."""
    path = cast(Path, run.folder) / "layers.json"
    if not path.is_file():
        model = run.model()
        batches = run.task.batches(model, None, split=None, limit=samples, batch_size=64)
        write_json(path, inspection.layerwise(model, batches, controls=True).to_dict("records"))
    return pd.DataFrame(json.loads(path.read_text(encoding="utf-8")))


def summarize_layers(table: pd.DataFrame) -> dict[str, float]:
    """Return what attention does in a model, from its layer-wise measures with controls.

    `alignment` is the smallest over layers, `change` the mean relative change of the normalized R^c by attention, and
    `beaten` the share of pairs of a layer and a control in which R^c after attention is lower than after the control.
    `reduction` (normalized ΔR) and `hoyer` are those of the last layer.
    """
    gaps = table[[column for column in table if column.startswith("gap_") and not column.endswith("_std")]]
    return {
        "alignment": float(table["alignment"].min()),
        "change": float((table["change"] / table["before_normalized"]).mean()),
        "beaten": float((gaps < 0).to_numpy()[gaps.notna().to_numpy()].mean()),
        "reduction": float(table["reduction_normalized"].iloc[-1]),
        "hoyer": float(table["hoyer"].iloc[-1]),
    }


def _train_in_jobs(study: str, folder: Path, overrides: tuple[str, ...], jobs: int) -> None:
    """Train a study in several processes, each a shard; an error or a signal ends them after their current steps."""
    call = [sys.executable, "-m", "codingrate", "study", study, *overrides, "--output", str(folder), "--json"]
    started: list[subprocess.Popen[str]] = []
    with ExitStack() as stack:
        stack.enter_context(_exit_on_sigterm())
        logs = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(jobs)]
        stack.callback(_stop, started)
        for number, log in enumerate(logs, 1):
            shard = [*call, "--shard", f"{number}/{jobs}"]  # in a session of its own: a terminal's Ctrl-C comes once
            options: Any = {"stdout": subprocess.DEVNULL, "stderr": log, "text": True, "start_new_session": True}
            started.append(subprocess.Popen(shard, **options))
        while any(job.poll() is None for job in started):
            if any(job.returncode for job in started):
                break
            time.sleep(0.1)
        for job, log in zip(started, logs, strict=True):
            if job.returncode:
                log.seek(0)
                errors = [line for line in log.read().splitlines() if line.startswith("crate: ")]
                message = errors[-1].removeprefix("crate: ") if errors else f"exit code {job.returncode}"
                raise CrateError(f"a process of the study has failed: {message}")


def _stop(jobs: list[subprocess.Popen[str]]) -> None:
    """End jobs that are still running, with a checkpoint of their runs."""
    for job in jobs:
        if job.poll() is None:
            job.terminate()
    for job in jobs:
        job.wait()


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise an exception inside the block, so that it is cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


AGREEMENT = 1e-4
"""Largest relative difference of a metric that is computed again: the digits that tables show."""


@dataclass(frozen=True)
class StudyCheck(Report):
    """One run of a study's table, trained again."""

    name: str
    row: str
    seed: int
    version: str
    """Version of this package that trained the runs of the table."""
    recorded: dict[str, float]
    """Metrics in the table."""
    recomputed: dict[str, float]
    """Metrics of the new run, under the same names."""

    @property
    def different(self) -> list[str]:
        """Names of the metrics that do not agree."""
        close = {
            name: math.isclose(value, self.recomputed.get(name, math.nan), rel_tol=AGREEMENT, abs_tol=AGREEMENT)
            for name, value in self.recorded.items()
        }
        return [name for name, agrees in close.items() if not agrees]

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield both values of every metric."""
        about = f"{self.name}: row {self.row!r}, seed {self.seed}, trained with codingrate {self.version}"
        rows = [(key, f"{value:.6g}", f"{self.recomputed[key]:.6g}") for key, value in self.recorded.items()]
        yield Table(title or about, ("metric", "in the table", "trained again"), rows)


def check_study(study: str | Path, output: str | Path | None = None, *, draw: int = 0) -> StudyCheck:
    """Train one run of a finished study again, in a temporary folder, and compare its metrics with the table's.

    `output` is the folder of the study. Default: `runs/studies/NAME`. The run is drawn at random by `draw`; its recipe
    is the one in its run folder. On one machine with one number of threads the metrics are equal; elsewhere rounding
    may make training differ by more than a table shows.
    """
    plan, name = load_study(str(study)), Path(study).stem
    folder = Path("runs") / "studies" / name if output is None else Path(output)
    try:
        table = json.loads((folder / "study.json").read_text(encoding="utf-8"))
        lines, version = table["runs"], table.get("version", "of unknown version")
    except (OSError, ValueError, KeyError) as error:
        raise CrateError(f"{folder}: there is no table of a finished study; run crate study {name} first") from error
    line = random.Random(draw).choice(lines)
    row, seed = line["row"], line["seed"]
    if row not in plan.settings:
        raise CrateError(f"{folder}: the table has the row {row!r}, which the study does not have; use the same study")
    stored = _run_folder(folder, row, seed)
    recipe = (Run(stored).recipe if stored.is_dir() else None) or plan.recipe_of(row, seed)
    with tempfile.TemporaryDirectory() as place:
        metrics = train(recipe, Path(place) / "run", quiet=True).metrics
    recorded = {key: value for key, value in line.items() if key in metrics}
    return StudyCheck(name, row, seed, version, recorded, {key: metrics[key] for key in recorded})


def _run_folder(folder: Path, row: str, seed: int) -> Path:
    """Return the folder of one run of a study."""
    part = re.sub(r"[^\w.=-]+", "-", row)[:200].strip("-.")  # no name leads out of the folder
    if not part:
        raise CrateError(f"row {row!r} of the study has a name without letters and digits; rename it")
    return folder / part / f"seed-{seed}"


def _finished(plan: Study, row: str, seed: int, folder: Path, overrides: tuple[str, ...]) -> Run | None:
    """Return the run of a row and a seed if it is finished; refuse a run with another recipe."""
    path = _run_folder(folder, row, seed)
    if not (path / "recipe.yaml").is_file():
        return None
    run = Run(path)
    if run.recipe is None or run.recipe != fitted_like(plan.recipe_of(row, seed, overrides), run.recipe):
        raise CrateError(f"{path}: the run there has another recipe; use another `output`")
    return run if run.finished else None


def _trained(plan: Study, row: str, seed: int, folder: Path, overrides: tuple[str, ...], name: str) -> None:
    """Train the run of a row and a seed, or the rest of it, if it is not finished."""
    path, recipe = _run_folder(folder, row, seed), plan.recipe_of(row, seed, overrides)

    def state() -> tuple[bool, bool]:
        return _finished(plan, row, seed, folder, overrides) is not None, (path / "recipe.yaml").is_file()

    finished, started = on_first(state)  # several processes that train a run together must agree
    if finished:
        return
    try:
        train(recipe, path, resume=started, quiet=True)
    except TrainingStopped as stopped:
        stopped.args = (f"stopped in row {row!r}, seed {seed}; continue with the same command: crate study {name}",)
        raise


def _size(model: CratePreTrainedModel) -> dict[str, int]:
    """Return the number of parameters, and of operations for one image or one text of full length."""
    with torch.device("meta"):
        flops = forward_flops(type(model)(model.config))
    return {"parameters": model.num_parameters(), "flops": flops}
