"""The rows of a dataset in memory or on disk as a torch dataset."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from .columns import label_indices

T = TypeVar("T")


class LabeledRows(Dataset[T]):
    """Examples made of the labeled rows of a `datasets.Dataset` when they are read."""

    dataset: Any
    label_column: str

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class index of each row; zeros for numbers."""
        return label_indices(self.dataset, self.label_column)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> T:
        return self.__getitems__([index])[0]

    @abstractmethod
    def __getitems__(self, indices: list[int]) -> list[T]:
        """Return a batch of examples with a single look-up; the DataLoader calls this where it exists."""
