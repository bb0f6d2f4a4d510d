"""What an evaluation of a classifier found, and how it is written down."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from .._files import atomic_write
from .picture import confusion_picture

_LARGEST_IN_JSON = 100

ClassAccuracy = TypedDict("ClassAccuracy", {"class": str, "images": int, "accuracy": float | None})
"""One class: how many images it has, and the share that was recognised (None without images)."""


@dataclass(frozen=True, eq=False)
class ClassificationReport:
    """Shares lie in [0, 1]. Corrupt images are in no figure but `corrupt`."""

    data: str
    """Name of the dataset."""
    split: str
    """Which part of it."""
    images: int
    """Images measured."""
    corrupt: tuple[str, ...]
    """Names of the images that could not be read."""
    loss: float
    """Mean cross-entropy, in nats, without label smoothing or penalties."""
    top1: float
    """Share of images whose highest logit is that of their class."""
    top5: float | None
    """Share of images whose class is among the five highest; None up to five classes, where it could only be 1."""
    per_class: list[ClassAccuracy]
    """Images and top-1 accuracy of each class, in the order of `classes`."""
    confusion: NDArray[np.int64] | None
    """Images of class i (row) taken for class j (column), (C, C); None where C is too large to keep it."""
    classes: tuple[str, ...]
    """Names of the classes."""
    real_top1: float | None
    """Top-1 by the ReaL labels; None unless they were given."""
    seconds: float
    """Time of the pass, loading included."""
    images_per_second: float
    """Images measured over `seconds`."""

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values; the confusion matrix for at most 100 classes, `save` writes any."""
        values: dict[str, Any] = {
            "data": self.data,
            "split": self.split,
            "images": self.images,
            "corrupt": list(self.corrupt),
            "loss": self.loss if math.isfinite(self.loss) else None,  # JSON has no infinity
            "top1": self.top1,
            "top5": self.top5,
            "real_top1": self.real_top1,
            "seconds": self.seconds,
            "images_per_second": self.images_per_second,
            "classes": list(self.classes),
            "per_class": [dict(row) for row in self.per_class],
        }
        if self.confusion is not None and len(self.classes) <= _LARGEST_IN_JSON:
            values["confusion"] = self.confusion.tolist()
        return values

    def save(self, directory: str | Path) -> list[Path]:
        """Write metrics.json, per_class.csv, confusion.csv and confusion.png; gives the paths.

        Each file appears whole or not at all, and metrics.json last: where it lies, the others are of the same run.
        """
        folder = Path(directory)
        columns = list(ClassAccuracy.__annotations__)
        body = [["" if value is None else value for value in row.values()] for row in self.per_class]
        written = [_write_csv(folder / "per_class.csv", columns, body)]
        if self.confusion is not None:
            rows = ([name, *counts] for name, counts in zip(self.classes, self.confusion.tolist(), strict=True))
            written.append(_write_csv(folder / "confusion.csv", ["true \\ predicted", *self.classes], rows))
            written.append(confusion_picture(self.confusion, self.classes, folder / "confusion.png"))
        with atomic_write(folder / "metrics.json") as draft:
            draft.write_text(json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return [*written, folder / "metrics.json"]


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    with atomic_write(path) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    return path
