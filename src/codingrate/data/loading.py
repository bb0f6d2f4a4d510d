"""Rows to batches: decoding and cropping for torch's DataLoader, unreadable images named instead of raised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from ..errors import CrateError
from .augment import Augment
from .crops import crop_for_evaluation, crop_for_training, sample_generator
from .decode import UnreadableImageError, decode_image
from .sources import ImageData
from .splits import image_key


class Row(TypedDict):
    """One image; `corrupt` names it when it could not be read, and then its pixels mean nothing."""

    image: Tensor
    label: int
    corrupt: str | None


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


class _Reader:
    """Value of the image column → Row. The epoch lies in shared memory, so that workers that outlive it follow."""

    def __init__(self, augment: Augment, train: bool, seed: int) -> None:
        if seed < 0:
            raise CrateError(f"seed must not be negative, not {seed}")
        self.augment, self.train, self.seed = augment, train, seed
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __call__(self, value: Any, label: int, key: int, name: str) -> Row:
        augment = self.augment
        try:
            image = decode_image(value, augment.channels)
        except UnreadableImageError:
            path = value.get("path") if isinstance(value, dict) else None
            blank = torch.zeros(augment.channels, augment.image_size, augment.image_size, dtype=torch.uint8)
            return {"image": blank, "label": -1, "corrupt": path or name}
        if self.train:
            image = crop_for_training(image, augment, sample_generator(self.seed, int(self.epoch), key))
        else:
            image = crop_for_evaluation(image, augment)
        pixels = torch.from_numpy(np.array(image))  # (height, width) or (height, width, 3)
        pixels = pixels.unsqueeze(0) if augment.channels == 1 else pixels.permute(2, 0, 1)
        return {"image": pixels, "label": label, "corrupt": None}


class ImageRows(Dataset[Row]):
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
        self.rows, self.image_column, self.label_column = rows, image_column, label_column
        self.read = _Reader(augment, train, seed)

    def set_epoch(self, epoch: int) -> None:
        """New crops for a new pass; call it before the loader is iterated."""
        self.read.epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Row]:
        """A batch of rows in one look-up, which the DataLoader asks for when it can."""
        indices = [range(len(self.rows))[index] for index in indices]
        found = self.rows[indices]
        images, labels = found[self.image_column], found[self.label_column]
        return [
            self.read(image, label, index, f"row {index}")
            for image, label, index in zip(images, labels, indices, strict=True)
        ]


class ImageStream(IterableDataset[Row]):
    """The same for streams: one part per process, one part of that per worker, no row read twice in an epoch.

    Crops depend on the image, not on who reads it; the order depends on the number of processes and workers, and is
    shuffled within a buffer when training.
    """

    def __init__(
        self,
        rows: Any,
        augment: Augment,
        *,
        train: bool,
        classes: int,
        seed: int = 0,
        image_column: str = "image",
        label_column: str = "label",
        rank: int = 0,
        world_size: int = 1,
        shuffle_buffer: int = 1000,
    ) -> None:
        from datasets.distributed import split_dataset_by_node

        if train and shuffle_buffer > 1:
            rows = rows.shuffle(seed=seed, buffer_size=shuffle_buffer)
        self.rows = split_dataset_by_node(rows, rank, world_size) if world_size > 1 else rows
        self.image_column, self.label_column, self.classes = image_column, label_column, classes
        self.read = _Reader(augment, train, seed)

    def set_epoch(self, epoch: int) -> None:
        """New order and crops for a new pass; call it before the loader is iterated."""
        self.rows.set_epoch(epoch)
        self.read.epoch.fill_(epoch)

    def __iter__(self) -> Iterator[Row]:
        for place, row in enumerate(self.rows):
            label = row[self.label_column]
            if label is None or not 0 <= label < self.classes:
                raise CrateError(f"label {label} in column {self.label_column!r} is outside the {self.classes} classes")
            value = row[self.image_column]
            yield self.read(value, int(label), image_key(value), f"row {place} of a stream")


def torch_dataset(
    data: ImageData,
    augment: Augment,
    *,
    train: bool,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    shuffle_buffer: int = 1000,
) -> ImageRows | ImageStream:
    """The training or test rows of `data`, cropped for training or evaluation, for a DataLoader with `collate`.

    Streams are cut by process here; random access leaves that to the sampler.
    """
    rows = data.train if train else data.test
    if not data.streaming:
        return ImageRows(
            rows, augment, train=train, seed=seed, image_column=data.image_column, label_column=data.label_column
        )
    return ImageStream(
        rows,
        augment,
        train=train,
        classes=len(data.classes),
        seed=seed,
        image_column=data.image_column,
        label_column=data.label_column,
        rank=rank,
        world_size=world_size,
        shuffle_buffer=shuffle_buffer,
    )
