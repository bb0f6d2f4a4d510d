"""Images that cannot be decoded: found once over a whole dataset, and left out from then on."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .augment import Augment
from .columns import image_paths
from .image_batches import EvaluationBatches
from .opened import OpenedData


@dataclass
class UnreadableImages:
    """The images of a dataset that cannot be decoded, by name.

    A file is named by its path below the folder `root`, so that the names hold for a copy of the folder, also without
    these files. A row of a table is named by its number and its split.
    """

    root: str
    names: Collection[str] = ()

    def find(self, splits: Mapping[str, Any], image: str, label: str, augment: Augment, **options: Any) -> None:
        """Decode every image of the splits `train` and `test`, and name those that cannot be decoded.

        The options are those of `EvaluationBatches`; more of them than `max_corrupt` allows are an error.
        """
        parts = {split: splits[split] for split in ("train", "test") if split in splits}
        data = OpenedData(self.root, parts, (image,), label)
        batches = EvaluationBatches(data, augment, split="all", **options)
        for _ in batches.map(lambda batch: None):
            pass
        rows = [(split, row) for split, part in parts.items() for row in range(len(part))]
        bad = (rows[index] for index in np.flatnonzero(~np.array(batches.readable)))
        self.names = [self._name(split, row, parts[split][row][image]) for split, row in bad]

    def leave_out(self, splits: Mapping[str, Any], image: str) -> dict[str, Any]:
        """Return the splits without the named images."""
        return {split: self._readable(split, part, image) for split, part in splits.items()}

    def _readable(self, split: str, part: Any, image: str) -> Any:
        if not self.names:
            return part
        paths = image_paths(part, image)
        names = ({_row_name(split, row), path and self._below(path)} for row, path in enumerate(paths))
        return part.select([row for row, own in enumerate(names) if own.isdisjoint(self.names)])

    def _name(self, split: str, row: int, value: Any) -> str:
        path = value.get("path") if isinstance(value, Mapping) and not value.get("bytes") else None
        return self._below(path) if path else _row_name(split, row)

    def _below(self, path: str) -> str:
        return os.path.relpath(path, os.path.expanduser(self.root))


def _row_name(split: str, row: int) -> str:
    return f"row {row} of {split}"
