"""Layer-wise measures that a run recorded during training, as a table and a sentence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from ...errors import CrateError


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's metrics.jsonl; a line that was cut short when the process was killed is skipped."""
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def across_training(metrics: Path) -> pd.DataFrame:
    """Return the layer-wise measures in a run's metrics.jsonl, with a row per epoch and layer."""
    rows = []
    for line in read_metrics(metrics):
        if line["kind"] == "layerwise":
            rows += [{"epoch": line["epoch"] or 0.0, "step": line["step"], **layer} for layer in line["layers"]]
    if not rows:
        raise CrateError(f"{metrics}: has no layer-wise measures; train with run.layerwise_epochs=1")
    return pd.DataFrame(rows)


def describe_training(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> str:
    """Describe R^c and the non-zero share over depth after training, and in each layer before and after training."""
    measures = {"compression": "R^c", "nonzero": "the share of non-zero entries"}
    depth = [describe_trend(name, [row[key] for row in after]) for key, name in measures.items()]
    training = []
    for key, name in measures.items():
        lower = sum(a[key] < b[key] for b, a in zip(before, after, strict=True))
        training.append(f"{name} is lower after training in {lower} of {len(after)} layers")
    return f"with depth, {' and '.join(depth)}; {' and '.join(training)}."


def describe_trend(name: str, values: Sequence[float]) -> str:
    """Describe how a measure changes from layer to layer: "R^c falls in every layer (9.1 in the first …)"."""
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
