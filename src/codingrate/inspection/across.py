"""Layers across training: the measures a run wrote down, as a table, a picture and a sentence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._files import atomic_write
from ..errors import CrateError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MEASURES = {"compression": "R^c", "nonzero": "the share of non-zero entries"}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; a last line cut short by a kill is left out."""
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def across_training(metrics: Path) -> pd.DataFrame:
    """The layer-wise measures in a run's metrics.jsonl: a row per epoch and layer."""
    import pandas as pd

    rows = []
    for line in read_metrics(metrics):
        if line["kind"] == "layerwise":
            rows += [{"epoch": line["epoch"] or 0.0, "step": line["step"], **layer} for layer in line["layers"]]
    if not rows:
        raise CrateError(f"{metrics}: has no layer-wise measures; train with run.layerwise_epochs=1")
    return pd.DataFrame(rows)


def picture(table: pd.DataFrame, path: Path) -> None:
    """Compression and sparsity of every layer, a curve per measured epoch from light to dark, as a file."""
    from matplotlib.figure import Figure

    figure = Figure()
    draw_epochs(figure, table)
    with atomic_write(path) as draft:
        figure.savefig(draft, dpi=150, format="png")


def draw_epochs(figure: Figure, table: pd.DataFrame) -> None:
    """The paper's figure across training (4.2): R^c and the non-zero share, a curve per measured epoch."""
    epochs = sorted(table["epoch"].unique())
    figure.set_size_inches(9, 3.6)
    figure.set_layout_engine("constrained")
    left, right = figure.subplots(1, 2)
    for axes, column, label in (
        (left, "compression", "$R^c(Z^{\\ell+1/2}\\,|\\,U^\\ell)$ after attention"),
        (right, "nonzero", "share of non-zero entries after ISTA"),
    ):
        for index, epoch in enumerate(epochs):
            shade = 0.25 + 0.75 * index / max(1, len(epochs) - 1)
            rows = table[table["epoch"] == epoch]
            name = "untrained" if epoch == 0 else f"epoch {epoch:g}"
            spread = rows[f"{column}_std"]
            axes.errorbar(rows["layer"], rows[column], spread, color=(0, 0.45, 0.7, shade), label=name, capsize=2)
        axes.set(xlabel="layer", title=label)
        axes.grid(alpha=0.3)
    right.set_ylim(bottom=0)
    right.legend(fontsize="small")


def verdict(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> str:
    """What did and did not fall, with depth in the trained model, and with training."""
    depth = [trend(name, [row[key] for row in after]) for key, name in MEASURES.items()]
    training = []
    for key, name in MEASURES.items():
        lower = sum(a[key] < b[key] for b, a in zip(before, after, strict=True))
        training.append(f"{name} is lower after training in {lower} of {len(after)} layers")
    return f"with depth, {' and '.join(depth)}; {' and '.join(training)}."


def trend(name: str, values: Sequence[float]) -> str:
    """What a measure does from layer to layer, in words: "R^c falls in every layer (9.1 in the first …)"."""
    if len(set(values)) == 1:
        return f"{name} is {values[0]:.3g} in {'every' if len(values) > 1 else 'the only'} layer"
    change = f"{values[0]:.3g} in the first layer, {values[-1]:.3g} in the last"
    steps = list(pairwise(values))
    falls, rises = sum(b < a for a, b in steps), sum(b > a for a, b in steps)
    if falls == len(steps):
        return f"{name} falls in every layer ({change})"
    if rises == len(steps):
        return f"{name} rises in every layer ({change})"
    return f"{name} falls in {falls} of {len(steps)} steps ({change})"
