"""The tab that watches a run while it trains."""

from __future__ import annotations

from typing import Any

import gradio as gr
import pandas as pd

from ..._chart import BLUE, COLORS, GRAY, ORANGE, Series, line_chart
from .. import draw
from ..library import Library
from ..monitor import Progress, read_progress
from .common import guarded, piece

SECONDS = 3.0
"""Time between two readings of the metrics."""
HIDDEN = (
    "learning_rate",
    "grad_norm",
    "weight_decay",
    "total",
    "images",
    "tokens",
    "samples",
    "first_unreadable",
    "unreadable",
)


def thinned(table: pd.DataFrame, rows: int = 200) -> pd.DataFrame:
    """Return at most so many rows of a table, spread evenly, with the last one."""
    if len(table) <= rows:
        return table
    return table.iloc[[round(i * (len(table) - 1) / (rows - 1)) for i in range(rows)]]


def metric_charts(progress: Progress) -> list[str]:
    """Return a chart for each metric: of the training batches and of the evaluations; one value is only a number."""
    training, evaluations = thinned(progress.training), progress.evaluations
    columns = [c for c in (*training.columns, *evaluations.columns) if c not in ("step", "epoch", *HIDDEN)]
    charts, single = [], {}
    for column in dict.fromkeys(columns):
        series = []
        for name, table, color in (("training", training, GRAY), ("evaluation", evaluations, BLUE)):
            if column in table:
                part = table[["step", column]].dropna()
                series.append(Series(name, part["step"].tolist(), part[column].tolist(), color))
        share = column in ("top1", "top5", "accuracy")
        values = [value for one in series for value in one.y]
        if len(values) == 1:
            single[column] = f"{values[0]:.2%}" if share else f"{values[0]:.4g}"
        else:
            charts.append(line_chart(series, column, x_label="step", percent=share))
    if single:
        charts.insert(0, draw.note("Measured once: " + ", ".join(f"{name} {text}" for name, text in single.items())))
    return charts


def layer_charts(progress: Progress) -> list[str]:
    """Return the layer-wise measures at the first, the middle and the last measurement."""
    table = progress.layers
    if table.empty:
        return []
    steps = sorted(table["step"].unique())
    chosen = list(dict.fromkeys([steps[0], steps[len(steps) // 2], steps[-1]]))
    colors = dict(zip(chosen, (GRAY, ORANGE, BLUE) if len(chosen) == 3 else COLORS, strict=False))
    charts = []
    for column, (title, share) in draw.CURVE_TITLES.items():
        series = [
            Series(f"step {step}", part["layer"].tolist(), part[column].tolist(), colors[step])
            for step in chosen
            for part in [table[table["step"] == step]]
            if column in part
        ]
        if series:  # a run of an earlier version has other measures
            charts.append(line_chart(series, title, percent=share))
    return charts


class TrainingTab:
    """Components of the tab; the name of the run in the browser is its whole state."""

    def __init__(self, library: Library) -> None:
        self.library = library
        names = library.runs()
        with gr.Column(elem_classes="cx-card"):
            self.name = gr.Dropdown(names, value=names[0], label="Run", interactive=True, elem_id="cx-run")
            self.status = piece(elem_id="cx-status")
        with gr.Column(elem_classes="cx-card"):
            self.metrics = piece(elem_id="cx-metrics")
        with gr.Column(elem_classes="cx-card"):
            self.layers = piece()
        self.timer = gr.Timer(SECONDS)
        self.outputs: list[Any] = [self.status, self.metrics, self.layers]
        options: Any = {"show_progress": "hidden", "concurrency_id": "training"}
        self.timer.tick(guarded(self.show), [self.name], self.outputs, **options)
        self.name.input(guarded(self.show), [self.name], self.outputs, **options)

    def show(self, name: str) -> tuple[str, str, str]:
        """Read the metrics of a run and draw them."""
        entry = self.library.entry(name)
        progress = read_progress(entry.run)
        state = "finished" if progress.finished else "training, refreshed every few seconds"
        if entry.run.published:
            state = "finished; a published model keeps no history but the metrics of its evaluations"
        title = draw.heading(name, f"Step {progress.step:,}, epoch {progress.epoch:.1f}: {state}.")
        metrics = metric_charts(progress)
        charts = "".join(f"<div>{chart}</div>" for chart in metrics)
        shown = f'<div class="cx-charts">{charts}</div>' if metrics else draw.note("There are no metrics yet.")
        layers = layer_charts(progress)
        below = draw.note("Layers were not measured during this run; train with run.layerwise_epochs=1 to see them.")
        if layers:
            caption = "Measured on test images: both are predicted to fall with depth, more so after training."
            parts = "".join(f"<div>{chart}</div>" for chart in layers)
            below = draw.heading("Layers during training", caption) + f'<div class="cx-charts">{parts}</div>'
        return title, draw.heading("Metrics", "Hover for values.") + shown, below

    def load(self) -> tuple[str, str, str]:
        """Show the first run."""
        return self.show(self.library.runs()[0])
