"""Opened data: named splits of images, labeled sentences or running text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import CrateError, unknown_name
from .classes import ClassMap, match_classes
from .columns import column_array, label_indices, map_labels
from .documents import Documents, JoinedDocuments
from .fingerprint import Fingerprint, stream_fingerprint, table_fingerprint, text_fingerprint


@dataclass(frozen=True)
class OpenedData:
    """Named splits of a dataset, with every label checked and encoded.

    A split is a `datasets.Dataset`, an `IterableDataset` when streaming, or `Documents` for running text.
    """

    name: str
    splits: Mapping[str, Any]
    """The splits by name: `train` and others, such as `test`, `validation` or MNLI's `validation_matched`."""
    columns: tuple[str, ...] = ()
    """Column of the images or texts, both columns of pairs of sentences; empty for text files."""
    label_column: str = ""
    """Column of the labels: class indices (integers) or numbers (floats). Empty for running text."""
    classes: tuple[str, ...] | None = None
    """Class names; None for numbers and running text."""
    streaming: bool = False
    """Whether the splits are read as streams, without a copy on disk."""
    whole: bool = False
    """Whether `validation` is all of a text, because the source has no splits and none was held out."""

    @property
    def train(self) -> Any:
        """The training split; empty if all of the data is for evaluation."""
        return self.splits["train"]

    @property
    def validation(self) -> Any:
        """The validation split, or None."""
        return self.splits.get("validation")

    @property
    def test(self) -> Any:
        """The test split, or None."""
        return self.splits.get("test")

    @property
    def held_out(self) -> list[str]:
        """Names of the validation splits; of the test split if there are none."""
        return [name for name in self.splits if name.startswith("validation")] or ["test"]

    @property
    def column(self) -> str:
        """The only column, or the first of two; empty for text files."""
        return next(iter(self.columns), "")

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class names; none for numbers and running text."""
        return self.classes or ()

    @property
    def total(self) -> int | None:
        """Number of images or sentences in all splits; None if it cannot be known without reading them."""
        return None if self.streaming else sum(map(len, self.splits.values()))

    @property
    def fingerprint(self) -> Fingerprint:
        """Plain values that change with the classes or with the number, order, labels or content of the rows.

        Store it with a run and compare it with `describe_change` when the run is resumed. It holds for copies in
        another folder too. Of large data and streams a sample is read; see `table_fingerprint`.
        """
        splits = self.splits if not (self.label_column and self.streaming) else {"train": self.train}
        values = {name: self._fingerprint(part) for name, part in splits.items()}
        return {"classes": None if self.classes is None else list(self.classes), "splits": values}

    def _fingerprint(self, part: Any) -> Fingerprint:
        if isinstance(part, Documents):
            return text_fingerprint(part.pieces(), part.size())
        if self.streaming:
            return stream_fingerprint(part, (*self.columns, self.label_column))
        return table_fingerprint(part, self.columns, column_array(part, self.label_column))

    def split(self, name: str) -> Any:
        """Return a split by name; `all` stands for all of them, one after the other."""
        import datasets

        parts = list(self.splits.values())
        if name == "all" and isinstance(parts[0], Documents):
            return JoinedDocuments(parts)
        if name == "all":
            return datasets.concatenate_datasets([part for part in parts if self.streaming or len(part)])
        if name in ("train", "test", "validation") and isinstance(parts[0], Documents) and name not in self.splits:
            raise CrateError(f"{self.name} has no {name} split; use `split='validation'` or `split='all'`")
        if name not in self.splits:
            raise unknown_name("split", name, (*self.splits, "all"))
        return self.splits[name]

    def with_splits(self, **splits: Any) -> OpenedData:
        """Return the data with other rows in some splits."""
        return replace(self, splits={**self.splits, **splits})

    def with_classes(self, split: str, model: Sequence[str], labels: ClassMap = None) -> OpenedData:
        """Return the data with the classes of a model in place of their own, matched by name; see `match_classes`.

        Only the classes that occur in the `split` must have a match; labels of others are -1.
        """
        if self.classes is None:
            return self
        column = self.label_column
        present = None if self.streaming else np.unique(label_indices(self.split(split), column))
        indices = match_classes(self.name, self.classes, model, labels, present)
        mapped = dict(self.splits)
        if indices != list(range(len(self.classes))):
            mapped = {name: map_labels(part, column, indices.__getitem__) for name, part in mapped.items()}
        return replace(self, classes=tuple(model), splits=mapped)
