"""Evaluation crops of a split, batch by batch: the one way in which models read images outside of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..errors import CrateError, unknown_name
from .augment import Augment
from .decode import CorruptImages
from .loading import ImageExample, collate, torch_dataset
from .sources import ImageData
from .transforms import BatchAugment


@dataclass(frozen=True)
class ImageBatch:
    """The readable images of a batch."""

    pixel_values: Tensor
    """Normalized evaluation crops (batch, channels, side, side)."""
    labels: Tensor
    """Class indices (batch,), on the CPU."""
    readable: list[bool]
    """Whether each image that was read is in the batch."""


def image_batches(
    data: ImageData,
    augment: Augment,
    *,
    split: str = "test",
    limit: int | None = None,
    batch_size: int = 64,
    workers: int = 0,
    device: torch.device | str = "cpu",
    corrupt: CorruptImages | None = None,
) -> Iterator[ImageBatch]:
    """Yield the evaluation crops of a split.

    `limit` takes a number of images, as many of each class as its share; of a stream, the first ones. `corrupt` counts
    the images that cannot be read. A split without images is an error.
    """
    if batch_size < 1 or workers < 0 or (limit is not None and limit < 1):
        raise CrateError(f"batch_size {batch_size} and limit {limit} must be positive, workers {workers} not negative")
    dataset = torch_dataset(replace(data, test=split_samples(data, split, limit)), augment, train=False)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size,
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=torch.device(device).type == "cuda",
    )
    normalize = BatchAugment(augment).eval().to(device)
    empty = True
    for batch, readable in loader:
        empty = False
        if corrupt is not None:
            corrupt.add(batch)
        yield ImageBatch(normalize(batch["pixel_values"].to(device, non_blocking=True)), batch["labels"], readable)
    if empty:
        raise _empty(data, split)


def split_samples(data: ImageData, split: str, limit: int | None) -> Any:
    """Return the samples of a split, at most `limit` of them, balanced over classes."""
    splits = {"train": data.train, "test": data.test}
    if split not in splits:
        raise unknown_name("split", split, splits)
    samples = splits[split]
    if data.streaming:
        return samples if limit is None else samples.take(limit)
    if len(samples) == 0:
        raise _empty(data, split)
    if limit is None or limit >= len(samples):
        return samples
    by_class = np.argsort(np.asarray(samples[data.label_column]), kind="stable")
    return samples.select(sorted(by_class[np.arange(limit) * len(samples) // limit].tolist()))


def _collate(examples: Sequence[ImageExample]) -> tuple[dict[str, Any], list[bool]]:
    return collate(examples), [example["corrupt"] is None for example in examples]


def _empty(data: ImageData, split: str) -> CrateError:
    return CrateError(f"the {split} split of {data.name} has no images; use another split or another test_share")
