"""A probe of features by either method, and how what it found is written down."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._files import atomic_write
from ..errors import unknown_name
from .features import Features
from .knn import KS, knn_probe
from .logistic import STRENGTHS, logistic_probe

METHODS = ("logistic", "knn")


@dataclass(frozen=True)
class ProbeReport:
    """What a probe found; shares lie in [0, 1]."""

    method: str
    """`logistic` or `knn`."""
    metrics: dict[str, float | None]
    """`top1` and `top5` of the test images, `train_top1` of the training images; None where there is none."""
    chosen: dict[str, float]
    """The parameter that was chosen on the training images: `C` or `k`."""
    table: list[dict[str, Any]]
    """What the choice was made from, a row for each value."""
    images: dict[str, int]
    """Images learned from (`train`) and measured on (`test`)."""
    width: int
    """Numbers per image."""
    seconds: float
    """Time of the probe, without that of the features."""
    notes: tuple[str, ...] = ()
    """What a reader should know before trusting a figure."""
    about: dict[str, str] = field(default_factory=dict)
    """Whatever says where the features come from: run, data and the like."""

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {**dataclasses.asdict(self), "notes": list(self.notes)}

    def save(self, path: str | Path) -> Path:
        """Write the values to a JSON file, whole or not at all; gives the path."""
        with atomic_write(Path(path)) as draft:
            draft.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
        return Path(path)


def probe_features(
    train: Features,
    test: Features,
    method: str = "logistic",
    *,
    progress: Callable[[int], None] | None = None,
    about: Mapping[str, str] | None = None,
    **options: Any,
) -> ProbeReport:
    """Measure features by `logistic_probe` or `knn_probe`, whose options these are.

    `progress` hears of `probe_steps` in all; `about` is kept in the report.
    """
    start = time.perf_counter()
    chosen: dict[str, float]
    notes: list[str] = []
    if method == "knn":
        neighbours = knn_probe(train, test, progress=progress, **options)
        chosen, found = {"k": neighbours.k}, dataclasses.asdict(neighbours)
    elif method == "logistic":
        one = None if progress is None else lambda: progress(1)
        linear = logistic_probe(train, test, progress=one, **options)
        chosen, found = {"C": linear.C}, dataclasses.asdict(linear)
        stopped = [f"{row['C']:g}" for row in linear.table if not row["converged"]]
        notes += [f"not converged in cross-validation: C = {', '.join(stopped)}"] if stopped else []
        notes += [] if linear.converged else [f"the final fit, C = {linear.C:g}, did not converge"]
        grid = [row["C"] for row in linear.table]
        if len(grid) > 1 and linear.C in (grid[0], grid[-1]):
            notes.append(f"C = {linear.C:g} is at the edge of the grid")
    else:
        raise unknown_name("method", method, METHODS)
    return ProbeReport(
        method=method,
        metrics={name: found[name] for name in ("top1", "top5", "train_top1")},
        chosen=chosen,
        table=found["table"],
        images={"train": len(train), "test": len(test)},
        width=train.values.shape[1],
        seconds=time.perf_counter() - start,
        notes=tuple(notes),
        about=dict(about or {}),
    )


def probe_steps(train: int, test: int, method: str, options: Mapping[str, Any]) -> int:
    """How much `progress` will hear of a probe of so many images, for a bar."""
    if method == "knn":
        return test + (0 if len(options.get("ks") or KS) == 1 else train)
    return len(options.get("strengths") or STRENGTHS) * int(options.get("folds", 5)) + 1
