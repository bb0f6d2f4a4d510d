"""One pass of an image classifier over a split: loss, top-1 and top-5, accuracy per class, confusions, ReaL."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..data import Augment, CorruptImages, ImageData
from ..errors import CrateError
from ..models.modes import evaluating
from ._images import batches, check_input, check_numbers, empty, split_rows
from ._tally import Tally
from .imagenet_real import match_real_labels, real_accuracy
from .inputs import match_dtype, move_to_device
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
    takes so many images of the split, as many of each class as its share; of a stream, the
    first. `progress` hears after each batch how many images it held. `real_labels` is ImageNet's real.json. A share
    of unreadable images above `max_corrupt` is an error, fewer are named in the report.
    """
    _check_head(model, data)
    check_input(model, augment)
    check_numbers(batch_size, workers, limit)
    rows, chosen = split_rows(data, split, limit)
    fitting = None if real_labels is None else match_real_labels(data, rows, real_labels)
    if chosen is not None:
        rows = rows.select(chosen)
        fitting = None if fitting is None else [fitting[index] for index in chosen]
    place = move_to_device(model, device)
    corrupt, tally = CorruptImages(max_corrupt), Tally(len(data.classes))
    images = batches(data, rows, augment, corrupt, place=place, batch_size=batch_size, workers=workers)
    readable: list[bool] = []
    start = time.perf_counter()
    with evaluating(model), torch.inference_mode():
        for pixels, labels, good in images:
            if any(good):
                tally.add(_logits(model, pixels, len(data.classes)), labels)
            readable += good
            if progress is not None:
                progress(len(good))
    seconds = time.perf_counter() - start
    if not readable:
        raise empty(data, split)
    names, guesses = corrupt.finish(), np.concatenate(tally.predictions)
    real = None if fitting is None else real_accuracy(guesses, [fitting[i] for i in np.flatnonzero(readable)])
    return tally.report(data, split, names, real, seconds)


def _check_head(model: nn.Module, data: ImageData) -> None:
    """Refuse by the model's config, where it has one, what would only break or mislead later."""
    labels, classes = getattr(getattr(model, "config", None), "num_labels", None), len(data.classes)
    if labels == 0:
        raise CrateError("the model has no head (num_labels=0); train or probe one before classifying with it")
    if labels is not None and labels != classes:
        raise CrateError(f"the model tells {labels} classes apart, but {data.name} has {classes}")


def _logits(model: nn.Module, pixels: Tensor, classes: int) -> Tensor:
    logits: Tensor = model(pixel_values=match_dtype(model, pixels)).logits
    if logits.shape != (len(pixels), classes):
        raise CrateError(f"the model gives logits {tuple(logits.shape)}; expected {(len(pixels), classes)}")
    if logits.isnan().any():
        raise CrateError("the model gives logits that are not numbers: its training diverged or its file is damaged")
    return logits.float()
