"""What every pass over images shares: rows of a split, batches of evaluation crops, a model set to evaluate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..data import Augment, BatchAugment, CorruptImages, ImageData, ImageExample, collate, torch_dataset
from ..errors import CrateError, unknown_name


def check_numbers(batch_size: int, workers: int, limit: int | None) -> None:
    """Refuse sizes that make no sense."""
    if batch_size < 1 or workers < 0 or (limit is not None and limit < 1):
        raise CrateError(f"batch_size {batch_size} and limit {limit} must be positive, workers {workers} not negative")


def check_input(model: nn.Module, augment: Augment) -> None:
    """Refuse by the model's config, where it has one, images it cannot read."""
    config = getattr(model, "config", None)
    channels = getattr(config, "num_channels", None)
    if channels is not None and channels != augment.channels:
        raise CrateError(f"augment.channels is {augment.channels}, but the model reads num_channels={channels}")
    patch = getattr(config, "patch_size", None)
    if isinstance(patch, int) and augment.image_size % patch:  # another size than in training is allowed
        raise CrateError(f"augment.image_size {augment.image_size} is not divisible by the model's patch_size {patch}")


def split_rows(data: ImageData, split: str, limit: int | None) -> tuple[Any, list[int] | None]:
    """The rows of a split, and which of them are wanted (None: all); a stream comes cut already."""
    splits = {"train": data.train, "test": data.test}
    if split not in splits:
        raise unknown_name("split", split, splits)
    rows = splits[split]
    if data.streaming:
        return (rows if limit is None else rows.take(limit)), None
    if len(rows) == 0:
        raise empty(data, split)
    if limit is None or limit >= len(rows):
        return rows, None
    by_class = np.argsort(np.asarray(rows[data.label_column]), kind="stable")  # in whatever order classes come
    return rows, sorted(by_class[np.arange(limit) * len(rows) // limit].tolist())


def empty(data: ImageData, split: str) -> CrateError:
    """The error for a split without images."""
    return CrateError(f"the {split} split of {data.name} has no images; choose the other split or another test_share")


def batches(
    data: ImageData,
    rows: Any,
    augment: Augment,
    corrupt: CorruptImages,
    *,
    place: torch.device,
    batch_size: int,
    workers: int,
) -> Iterator[tuple[Tensor, Tensor, list[bool]]]:
    """Normalised evaluation crops (batch, channels, side, side) on `place`, labels (batch,) on the CPU, and which of
    the rows read they are: `corrupt` counts the others, and may leave a batch empty.
    """
    dataset = torch_dataset(replace(data, test=rows), augment, train=False)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size, num_workers=workers, collate_fn=_collate, pin_memory=place.type == "cuda"
    )
    normalize = BatchAugment(augment).eval().to(place)
    for batch, good in loader:
        corrupt.add(batch)
        yield normalize(batch["pixel_values"].to(place, non_blocking=True)), batch["labels"], good


def _collate(rows: Sequence[ImageExample]) -> tuple[dict[str, Any], list[bool]]:
    """A batch, and which of its rows are in it: ReaL labels go by row, so a gap must be seen."""
    return collate(rows), [row["corrupt"] is None for row in rows]
