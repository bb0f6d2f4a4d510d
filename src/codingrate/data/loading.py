"""Rows to batches for torch's DataLoader: random access or a stream, one crop of each image or several views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from ..errors import CrateError
from .augment import Augment
from .reading import ImageReader, Reader, Row, RowT, ViewReader, ViewRow
from .sources import ImageData
from .splits import image_key
from .views import Views


class Batch(TypedDict):
    """What the trainer gets: the readable images of a batch, and the names of the others."""

    pixel_values: Tensor
    labels: Tensor
    corrupt: list[str]


def collate(rows: Sequence[Row]) -> Batch:
    """Stack the readable rows; a batch of unreadable ones gives (0, channels, size, size)."""
    good = [row for row in rows if row["corrupt"] is None]
    pixels = (
        torch.stack([row["image"] for row in good]) if good else rows[0]["image"].new_empty(0, *rows[0]["image"].shape)
    )
    labels = torch.tensor([row["label"] for row in good], dtype=torch.long)
    return {"pixel_values": pixels, "labels": labels, "corrupt": [row["corrupt"] for row in rows if row["corrupt"]]}


class ViewBatch(TypedDict):
    """The same of rows with several views: for each size one tensor (views, batch, channels, side, side)."""

    views: list[Tensor]
    labels: Tensor
    corrupt: list[str]


def collate_views(rows: Sequence[ViewRow]) -> ViewBatch:
    """Stack the readable rows behind the views; a batch of unreadable ones gives (views, 0, channels, side, side)."""
    good = [row for row in rows if row["corrupt"] is None]
    groups = zip(*(row["views"] for row in good or rows[:1]), strict=True)
    views = [torch.stack(group, dim=1)[:, : len(good)] for group in groups]
    labels = torch.tensor([row["label"] for row in good], dtype=torch.long)
    return {"views": views, "labels": labels, "corrupt": [row["corrupt"] for row in rows if row["corrupt"]]}


class _Rows(Dataset[RowT]):
    """Random access to the images of a Hugging Face dataset through a reader."""

    def __init__(self, rows: Any, read: Reader[RowT], image_column: str, label_column: str) -> None:
        self.rows, self.image_column, self.label_column = rows, image_column, label_column
        self.read: Reader[RowT] = read

    def set_epoch(self, epoch: int) -> None:
        """New crops for a new pass; call it before the loader is iterated."""
        self.read.epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> RowT:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[RowT]:
        """A batch of rows in one look-up, which the DataLoader asks for when it can."""
        indices = [range(len(self.rows))[index] for index in indices]
        found = self.rows[indices]
        images, labels = found[self.image_column], found[self.label_column]
        return [
            self.read(image, label, index, f"row {index}")
            for image, label, index in zip(images, labels, indices, strict=True)
        ]


class ImageRows(_Rows[Row]):
    """Random access to the images of a Hugging Face dataset; the crop of row i in epoch e depends on nothing else."""

    def __init__(
        self,
        rows: Any,
        augment: Augment,
        *,
        train: bool,
        seed: int = 0,
        image_column: str = "image",
        label_column: str = "label",
    ) -> None:
        super().__init__(rows, ImageReader(augment, train, seed), image_column, label_column)


class ViewRows(_Rows[ViewRow]):
    """Random access to several crops of each image; those of row i in epoch e depend on nothing else."""

    def __init__(
        self,
        rows: Any,
        augment: Augment,
        views: Views,
        *,
        seed: int = 0,
        image_column: str = "image",
        label_column: str = "label",
    ) -> None:
        super().__init__(rows, ViewReader(augment, views, seed), image_column, label_column)


class _Stream(IterableDataset[RowT]):
    """The same for streams: one part per process, one part of that per worker, no row read twice in an epoch.

    Crops depend on the image, not on who reads it; the order depends on the number of processes and workers, and is
    shuffled within a buffer when training.
    """

    def __init__(
        self,
        rows: Any,
        read: Reader[RowT],
        *,
        train: bool,
        classes: int,
        image_column: str = "image",
        label_column: str = "label",
        rank: int = 0,
        world_size: int = 1,
        shuffle_buffer: int = 1000,
    ) -> None:
        from datasets.distributed import split_dataset_by_node

        if train and shuffle_buffer > 1:
            rows = rows.shuffle(seed=read.seed, buffer_size=shuffle_buffer)
        self.rows = split_dataset_by_node(rows, rank, world_size) if world_size > 1 else rows
        self.image_column, self.label_column, self.classes = image_column, label_column, classes
        self.read: Reader[RowT] = read

    def set_epoch(self, epoch: int) -> None:
        """New order and crops for a new pass; call it before the loader is iterated."""
        self.rows.set_epoch(epoch)
        self.read.epoch.fill_(epoch)

    def __iter__(self) -> Iterator[RowT]:
        for place, row in enumerate(self.rows):
            label = row[self.label_column]
            if label is None or not 0 <= label < self.classes:
                raise CrateError(f"label {label} in column {self.label_column!r} is outside the {self.classes} classes")
            value = row[self.image_column]
            yield self.read(value, int(label), image_key(value), f"row {place} of a stream")


class ImageStream(_Stream[Row]):
    """One crop of each image of a stream."""

    def __init__(self, rows: Any, augment: Augment, *, train: bool, seed: int = 0, **options: Any) -> None:
        super().__init__(rows, ImageReader(augment, train, seed), train=train, **options)


class ViewStream(_Stream[ViewRow]):
    """Several crops of each image of a stream."""

    def __init__(self, rows: Any, augment: Augment, views: Views, *, seed: int = 0, **options: Any) -> None:
        super().__init__(rows, ViewReader(augment, views, seed), train=True, **options)


def torch_dataset(
    data: ImageData,
    augment: Augment,
    *,
    train: bool,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    shuffle_buffer: int = 1000,
    views: Views | None = None,
) -> ImageRows | ImageStream | ViewRows | ViewStream:
    """The training or test rows of `data`, cropped for training or evaluation, for a DataLoader with `collate`.

    With `views`, training rows hold several crops each, for `collate_views`. Streams are cut by process here; random
    access leaves that to the sampler.
    """
    rows = data.train if train else data.test
    columns = {"image_column": data.image_column, "label_column": data.label_column}
    if not data.streaming and views is not None and train:
        return ViewRows(rows, augment, views, seed=seed, **columns)
    if not data.streaming:
        return ImageRows(rows, augment, train=train, seed=seed, **columns)
    share = {"rank": rank, "world_size": world_size, "shuffle_buffer": shuffle_buffer, "classes": len(data.classes)}
    if views is not None and train:
        return ViewStream(rows, augment, views, seed=seed, **columns, **share)
    return ImageStream(rows, augment, train=train, seed=seed, **columns, **share)
