"""Progress of a run that trains: the curves of its metrics, and of its layers if they are measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ..inspection import read_metrics
from ..runs import Run

_SPEED = ("runtime", "samples_per_second", "steps_per_second")


@dataclass(frozen=True, eq=False)
class Progress:
    """The state of a training run."""

    step: int
    epoch: float
    finished: bool
    training: pd.DataFrame
    """A row per log entry: `step` and the logged values."""
    evaluations: pd.DataFrame
    """A row per evaluation: `step` and the metrics."""
    layers: pd.DataFrame
    """A row per measurement and layer: `step`, `epoch`, `layer`, `compression`, `nonzero`; empty if not measured."""


def read_progress(run: Run) -> Progress:
    """Read the metrics of a run that may still be training; a line that is being written is left for the next time."""
    file: Path = run.metrics_file
    lines = read_metrics(file) if file.exists() else []
    training, evaluations, layers = [], [], []
    for line in lines:
        step, epoch = line["step"], line.get("epoch") or 0.0
        values = {
            key.removeprefix("eval_"): float(value)
            for key, value in line.items()
            if isinstance(value, (int, float)) and math.isfinite(value) and key not in ("step", "epoch")
        }
        values = {key: value for key, value in values.items() if key not in _SPEED}
        if line["kind"] == "layerwise":
            layers += [{"step": step, "epoch": epoch, **entry} for entry in line["layers"]]
        elif line["kind"] == "evaluation":
            evaluations.append({"step": step, "epoch": epoch, **values})
        elif line["kind"] not in ("end", "layerwise-train"):
            training.append({"step": step, "epoch": epoch, **values})
    last = lines[-1] if lines else {"step": 0, "epoch": 0.0}
    return Progress(
        step=int(last["step"]),
        epoch=float(last.get("epoch") or 0.0),
        finished=any(line["kind"] == "end" for line in lines),
        training=pd.DataFrame(training),
        evaluations=pd.DataFrame(evaluations),
        layers=pd.DataFrame(layers),
    )
