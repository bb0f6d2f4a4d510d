"""One pass of an image classifier over a split: loss, top-1 and top-5, accuracy per class, confusions, ReaL."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..data import Augment, Batch, BatchAugment, CorruptImages, ImageData, Row, collate, torch_dataset
from ..errors import CrateError, unknown_name
from ._tally import Tally
from .real import real_accuracy, real_labels_of
from .report import ClassificationReport


def classify(
    model: nn.Module,
    data: ImageData,
    augment: Augment,
    *,
    split: str = "test",
    batch_size: int = 64,
    workers: int = 0,
    device: torch.device | str | None = None,
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
    real_labels: str | Path | None = None,
    max_corrupt: float = 0.01,
) -> ClassificationReport:
    """Measure a model, whose output has `.logits` (batch, classes), on the evaluation crops of a split.

    The model runs in eval mode and is given back as it was; with a `device` it is moved there and stays. `limit`
    takes so many images spread evenly over the split, for class folders lie one after the other; of a stream, the
    first. `progress` hears after each batch how many images it held. `real_labels` is ImageNet's real.json. A share
    of unreadable images above `max_corrupt` is an error, fewer are named in the report.
    """
    _check_model(model, data, augment)
    if batch_size < 1 or workers < 0 or (limit is not None and limit < 1):
        raise CrateError(f"batch_size {batch_size} and limit {limit} must be positive, workers {workers} not negative")
    rows, chosen = _rows(data, split, limit)
    fitting = None if real_labels is None else real_labels_of(data, rows, real_labels)
    if chosen is not None:
        rows = rows.select(chosen)
        fitting = None if fitting is None else [fitting[index] for index in chosen]
    dataset = torch_dataset(replace(data, test=rows), augment, train=False)
    place = _place(model, device)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size, num_workers=workers, collate_fn=_collate, pin_memory=place.type == "cuda"
    )
    normalize = BatchAugment(augment).eval().to(place)
    corrupt, tally = CorruptImages(max_corrupt), Tally(len(data.classes))
    readable: list[bool] = []
    start = time.perf_counter()
    with _evaluating(model), torch.inference_mode():
        for batch, good in loader:
            corrupt.add(batch)
            if any(good):
                pixels = normalize(batch["pixel_values"].to(place, non_blocking=True))
                tally.add(_logits(model, pixels, len(data.classes)), batch["labels"])
            readable += good
            if progress is not None:
                progress(len(good))
    seconds = time.perf_counter() - start
    if not readable:
        raise _empty(data, split)
    names, guesses = corrupt.finish(), np.concatenate(tally.predictions)
    real = None if fitting is None else real_accuracy(guesses, [fitting[i] for i in np.flatnonzero(readable)])
    return tally.report(data, split, names, real, seconds)


def _check_model(model: nn.Module, data: ImageData, augment: Augment) -> None:
    """Refuse by the model's config, where it has one, what would only break or mislead later."""
    config, classes = getattr(model, "config", None), len(data.classes)
    labels = getattr(config, "num_labels", None)
    if labels == 0:
        raise CrateError("the model has no head (num_labels=0); train or probe one before classifying with it")
    if labels is not None and labels != classes:
        raise CrateError(f"the model tells {labels} classes apart, but {data.name} has {classes}")
    channels = getattr(config, "num_channels", None)
    if channels is not None and channels != augment.channels:
        raise CrateError(f"augment.channels is {augment.channels}, but the model reads num_channels={channels}")
    patch = getattr(config, "patch_size", None)
    if isinstance(patch, int) and augment.image_size % patch:  # another size than in training is allowed
        raise CrateError(f"augment.image_size {augment.image_size} is not divisible by the model's patch_size {patch}")


def _rows(data: ImageData, split: str, limit: int | None) -> tuple[Any, list[int] | None]:
    """The rows of a split, and which of them are wanted (None: all); a stream comes cut already."""
    splits = {"train": data.train, "test": data.test}
    if split not in splits:
        raise unknown_name("split", split, splits)
    rows = splits[split]
    if data.streaming:
        return (rows if limit is None else rows.take(limit)), None
    if len(rows) == 0:
        raise _empty(data, split)
    if limit is None or limit >= len(rows):
        return rows, None
    return rows, [index * len(rows) // limit for index in range(limit)]


def _empty(data: ImageData, split: str) -> CrateError:
    return CrateError(f"the {split} split of {data.name} has no images; choose the other split or another test_share")


def _collate(rows: Sequence[Row]) -> tuple[Batch, list[bool]]:
    """A batch, and which of its rows are in it: ReaL labels go by row, so a gap must be seen."""
    return collate(rows), [row["corrupt"] is None for row in rows]


def _place(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Where the model is, after moving it where it is asked to be."""
    try:
        if device is not None:
            model.to(torch.device(device))
    except (AssertionError, RuntimeError) as error:  # unknown, or not of this build of torch
        raise CrateError(f"cannot use device {str(device)!r}: {str(error).splitlines()[0]}") from error
    parameter = next(model.parameters(), None)
    return torch.device(device or "cpu") if parameter is None else parameter.device


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, and afterwards every module's own: a frozen body may be in eval mode within a model in training."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(model.training)  # drops what modules keep in eval mode
        for module, mode in modes:
            module.training = mode


def _logits(model: nn.Module, pixels: Tensor, classes: int) -> Tensor:
    dtype = next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), pixels.dtype)
    logits: Tensor = model(pixel_values=pixels.to(dtype)).logits
    if logits.shape != (len(pixels), classes):
        raise CrateError(f"the model gives logits {tuple(logits.shape)}; expected {(len(pixels), classes)}")
    if logits.isnan().any():
        raise CrateError("the model gives logits that are not numbers: its training diverged or its file is damaged")
    return logits.float()
