"""Learning curves: the loss of runs against training steps, and the score of GLUE against pre-training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CrateError
from ..inspection import read_metrics
from .folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def learning_curve(run: RunFolder, metric: str = "loss") -> pd.DataFrame:
    """Return the values of a metric that a run logged: columns `step`, `split` (training or validation) and `value`.

    The training loss is logged every `run.log_steps`; all metrics of an evaluation are of the validation split.
    """
    import pandas as pd

    rows = []
    for line in read_metrics(run.metrics_file):
        for split, key, kind in (("training", metric, "training"), ("validation", f"eval_{metric}", "evaluation")):
            if line["kind"] == kind and line.get(key) is not None:
                rows.append({"step": line["step"], "split": split, "value": float(line[key])})
    if not rows:
        known = sorted({key.removeprefix("eval_") for line in read_metrics(run.metrics_file) for key in line})
        raise CrateError(f"{run.source}: logged no {metric!r}; known: {', '.join(known)}")
    return pd.DataFrame(rows)


def save_curves(curves: Mapping[str, pd.DataFrame], path: Path, metric: str = "loss") -> Path:
    """Write the curves of several runs as a picture (PNG or SVG by suffix); training is thin, validation has points."""
    from .._page import save_figure

    return save_figure(lambda canvas: _draw(canvas, curves, metric), path, "curves")


def _draw(figure: Figure, curves: Mapping[str, pd.DataFrame], metric: str) -> None:
    figure.set_size_inches(6.4, 4)
    figure.set_layout_engine("constrained")
    axes: Any = figure.subplots()
    for number, (name, table) in enumerate(curves.items()):
        for split, style in (("training", {"linewidth": 1, "alpha": 0.6}), ("validation", {"marker": "o"})):
            part = table[table["split"] == split]
            if len(part):
                label = f"{name}, {split}"
                axes.plot(part["step"], part["value"], color=f"C{number % 10}", markersize=3, label=label, **style)
    axes.set_xlabel("training step")
    axes.set_ylabel(metric)
    axes.legend()


def kept_steps(run: RunFolder) -> list[int]:
    """Return the steps of the checkpoints that a run has kept, in order: its milestones and the latest ones."""
    from .folder import checkpoints

    return [int(path.name.removeprefix("checkpoint-")) for path in checkpoints(run.checkpoints_folder)]


def glue_table(scores: Sequence[tuple[int, Mapping[str, Any]]]) -> pd.DataFrame:
    """Return GLUE's scores of several checkpoints as a curve: `step`, `split` (always validation) and `value`."""
    import pandas as pd

    rows = [
        {"step": step, "split": "validation", "value": average.get("average", average.get("mean_of_tasks_run"))}
        for step, average in scores
    ]
    return pd.DataFrame(rows)
