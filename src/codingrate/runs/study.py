"""Train the grid of a study, run after run, and collect one table: mean and standard deviation over seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from .._files import atomic_write, write_json, write_text
from .._fonts import plot_label
from .._report import Report
from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from ..models.counts import forward_flops
from ..recipes.study import Study, load_study
from .folder import Progress, no_progress
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
    runs: pd.DataFrame
    """One line per row and seed: the metrics of the last model, parameters, FLOPs of a forward pass, and seconds."""

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
        about = {"name": self.name, "what": self.what, "metric": self.metric}
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
        """Return the table as Markdown."""
        titles, rows = self.cells()
        lines = [titles, ["---"] * len(titles), *rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def save(self, folder: str | Path) -> Path:
        """Write table.md, table.csv, runs.csv, study.json and figure.png to a folder; return the folder."""
        folder = Path(folder)
        write_text(folder / "table.md", f"{self.what}\n\n{self.markdown()}")
        write_text(folder / "table.csv", self.table.to_csv(index=False))
        write_text(folder / "runs.csv", self.runs.to_csv(index=False))
        write_json(folder / "study.json", self.to_dict())
        with atomic_write(folder / "figure.png") as draft:
            self._figure().savefig(draft, format="png", dpi=144)
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

    def _repr_html_(self) -> str:
        return self.table.to_html(index=False)


def run_study(
    study: str | Path,
    output: str | Path | None = None,
    overrides: Iterable[str] = (),
    *,
    progress: Progress | None = None,
) -> StudyReport:
    """Train every row of a study with every seed, and return the table, which is also written to `output`.

    `output` holds a run folder for each row and seed. Default: `runs/studies/NAME`. A second call skips the runs that
    are finished and resumes the one that was interrupted. `overrides` apply to all runs.
    """
    plan, name = load_study(str(study)), Path(study).stem
    folder = Path("runs") / "studies" / name if output is None else Path(output)
    cells = [(row, seed) for row in plan.settings for seed in plan.seeds]
    lines, metric = [], ""
    with (progress or no_progress)(f"study {name}", len(cells)) as advance:
        for row, seed in cells:
            run = _trained(plan, row, seed, folder, tuple(overrides), name)
            metric = run.task.best_metric or "loss"
            lines.append({"row": row, "seed": seed, **run.metrics, **_size(run.model()), "seconds": run.seconds})
            advance(1)
    report = StudyReport(name, plan.what, metric, pd.DataFrame(lines))
    report.save(folder)
    return report


def _trained(plan: Study, row: str, seed: int, folder: Path, overrides: tuple[str, ...], name: str) -> Run:
    """Return the run of a row and a seed; train it, or the rest of it, if it is not finished."""
    part = re.sub(r"[^\w.=-]+", "-", row)[:200].strip("-.")  # no name leads out of the folder
    if not part:
        raise CrateError(f"row {row!r} of the study has a name without letters and digits; rename it")
    path = folder / part / f"seed-{seed}"
    recipe = plan.recipe_of(row, seed, overrides)
    if (path / "recipe.yaml").is_file():
        run = Run(path)
        if run.recipe != recipe:
            raise CrateError(f"{path}: the run there has another recipe; use another --output")
        if run.finished:
            return run
    try:
        return train(recipe, path, resume=(path / "recipe.yaml").is_file(), quiet=True)
    except TrainingStopped as stopped:
        stopped.args = (f"stopped in row {row!r}, seed {seed}; continue with the same command: crate study {name}",)
        raise


def _size(model: CratePreTrainedModel) -> dict[str, int]:
    """Return the number of parameters, and of operations for one image or one text of full length."""
    with torch.device("meta"):
        flops = forward_flops(type(model)(model.config))
    return {"parameters": model.num_parameters(), "flops": flops}
