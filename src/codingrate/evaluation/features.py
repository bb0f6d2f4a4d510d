"""What a model makes of images, one row each: computed once, kept on disk, read back mapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import Augment, CorruptImages, ImageData
from ..errors import CrateError
from ..models import eval_mode
from ._feature_cache import Block, features_key, read_features, write_features
from ._images import as_read, batches, check_input, check_numbers, empty, placed, split_rows


@dataclass(frozen=True, eq=False)
class Features:
    """One row of features for every image that could be read, in the order of the split."""

    values: NDArray[np.float32]
    """(n, d); mapped from a file and read-only where there is a cache."""
    labels: NDArray[np.int64]
    """(n,), indices into `classes`."""
    classes: tuple[str, ...]
    """Names of the classes."""
    corrupt: tuple[str, ...] = ()
    """Names of the images that could not be read."""

    def __len__(self) -> int:
        return len(self.labels)


def extract_features(
    model: nn.Module,
    data: ImageData,
    augment: Augment,
    *,
    split: str = "train",
    cache: str | Path | None = None,
    batch_size: int = 256,
    workers: int = 0,
    device: torch.device | str | None = None,
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
    max_corrupt: float = 0.01,
) -> Features:
    """`model.features` of the evaluation crop of every image of a split, (n, d) in float32.

    With a `cache` folder the rows go to a file batch by batch and are mapped from it, so that no more than a batch is
    held in memory. What lies there is used again only for the same class, config and weights of the model, the same
    rows and files, and the same crops; streams cannot be told apart and are read anew. The other arguments are those
    of `classify`.
    """
    function: Any = getattr(model, "features", None)
    if not callable(function):
        raise CrateError(f"a {type(model).__name__} gives no features of images; probe a vision model")
    check_input(model, augment)
    check_numbers(batch_size, workers, limit)
    rows, chosen = split_rows(data, split, limit)
    rows = rows if chosen is None else rows.select(chosen)
    folder, key = None, ""
    if cache is not None:
        key = features_key(model, data, rows, split, augment)
        folder = Path(cache) / f"{split}-{key[:16]}"
        kept = None if data.streaming else read_features(folder, key)
        if kept is not None:
            return _kept(kept, data, max_corrupt, progress)
    corrupt, names = CorruptImages(max_corrupt), list[str]()
    place = placed(model, device)
    images = batches(data, rows, augment, corrupt, place=place, batch_size=batch_size, workers=workers)

    def blocks() -> Iterator[Block]:
        seen = 0
        for pixels, labels, good in images:
            if any(good):
                with torch.inference_mode():  # closed before each yield, as whoever reads on is not in it
                    features = function(as_read(model, pixels))
                yield _checked(features, len(labels)), labels.numpy()
            seen += len(good)
            if progress is not None:
                progress(len(good))
        if not seen:
            raise empty(data, split)
        names.extend(corrupt.finish())

    with eval_mode(model):
        if folder is None:
            values, labels = zip(*blocks(), strict=True)
            return Features(np.concatenate(values), np.concatenate(labels), data.classes, tuple(names))
        write_features(folder, key, blocks(), names)
    written = read_features(folder, key)
    if written is None:
        raise CrateError(f"{folder}: what was just written cannot be read back; give another cache folder")
    return _kept(written, data, 1.0, None)


def pixel_features(data: ImageData, augment: Augment, **options: Any) -> Features:
    """The pixels themselves, (n, channels·side²): what a probe finds without any model. Options as for a model's."""
    return extract_features(_Pixels(), data, augment, **options)


class _Pixels(nn.Module):
    def features(self, pixel_values: Tensor) -> Tensor:
        return pixel_values.flatten(1)


def _checked(features: Tensor, rows: int) -> NDArray[np.float32]:
    if features.ndim != 2 or len(features) != rows:
        raise CrateError(f"the model gives features {tuple(features.shape)}; expected ({rows}, width)")
    values: NDArray[np.float32] = np.ascontiguousarray(features.float().cpu().numpy())
    if not np.isfinite(values).all():
        raise CrateError("the model gives features that are not finite: its training diverged or its file is damaged")
    return values


def _kept(
    kept: tuple[NDArray[np.float32], NDArray[np.int64], list[str]],
    data: ImageData,
    max_corrupt: float,
    progress: Callable[[int], None] | None,
) -> Features:
    values, labels, names = kept
    corrupt = CorruptImages(max_corrupt)  # which may be stricter than when the features were made
    corrupt.count(len(labels), names)
    if progress is not None:
        progress(len(labels) + len(names))
    return Features(values, labels, data.classes, corrupt.finish())
