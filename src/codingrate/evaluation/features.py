"""Features of images, one row per image: computed once, cached on disk, and memory-mapped when read again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .._distributed import first_process, main_process_first
from .._files import atomic_folder, file_checksum, read_sealed, write_sealed
from ..data import Augment, CorruptImages, EvaluationBatches, OpenedData
from ..data.columns import image_paths
from ..errors import CrateError
from ..models.base import eval_mode

_FORMAT = 3  # raise it when the files change, or when models compute other features from the same images
_SAVING_FIELDS = ("architectures", "dtype", "transformers_version")  # config fields that do not affect the features

Block = tuple[NDArray[np.float32], NDArray[np.int64]]  # features (batch, d) and labels (batch,)


@dataclass(frozen=True, eq=False)
class Features:
    """Features and labels of every image that could be read, in the order of the split."""

    values: NDArray[np.float32]  # (n, d); memory-mapped and read-only if they come from a cache
    labels: NDArray[np.int64]  # (n,), indices into `classes`
    classes: tuple[str, ...]  # names of the classes
    corrupt: tuple[str, ...] = ()  # names of the images that could not be read

    def __len__(self) -> int:
        return len(self.labels)


def extract_features(
    model: nn.Module,
    data: OpenedData,
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
    """Compute `model.features` of the evaluation crop of every image of a split, (n, d) in float32.

    With a `cache` folder, features are written to a file batch by batch and memory-mapped afterwards, so no more than
    one batch is held in memory. They are reused if the model's class, config and weights, the images and the crops are
    the same; streams cannot be compared and are always read again. `limit` takes a number of
    images, balanced over classes; `progress` is called after each batch with its number of images.
    """
    function: Any = getattr(model, "features", None)
    if not callable(function):
        raise CrateError(f"a {type(model).__name__} computes no image features; use a vision model")
    check_image_input(model, augment)
    batches = EvaluationBatches(
        data,
        augment,
        split=split,
        limit=limit,
        batch_size=batch_size,
        workers=workers,
        device=move_to_device(model, device),
        dtype=next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), None),
        progress=progress,
        max_corrupt=max_corrupt,
    )
    if cache is not None:
        key = _cache_key(model, data, batches.dataset, split, augment)
        folder = Path(cache) / f"{split}-{key[:16]}"
        with main_process_first():  # the first cannot write before the others have looked
            cached = None if data.streaming else _read_features(folder, key, data.class_names)
        if cached is not None:
            corrupt = CorruptImages(max_corrupt)  # the limit may be stricter than when the cache was written
            corrupt.count(len(cached), cached.corrupt)
            corrupt.finish()
            if progress is not None:
                progress(len(cached) + len(cached.corrupt))
            return cached

    def block(batch: tuple[Tensor, Tensor]) -> Block:
        pixels, labels = batch
        with torch.inference_mode():
            features = function(pixels)
        if features.ndim != 2 or len(features) != len(labels):
            shape = tuple(features.shape)
            raise CrateError(f"the model returned features of shape {shape}; expected ({len(labels)}, width)")
        values = np.ascontiguousarray(features.float().cpu().numpy())
        if not np.isfinite(values).all():
            raise CrateError("the model's features are not finite: its training diverged or its file is damaged")
        return values, labels.numpy()

    with eval_mode(model):
        blocks = batches.map(block)
        if cache is None:
            values, labels = zip(*blocks, strict=True)
            return Features(np.concatenate(values), np.concatenate(labels), data.class_names, batches.corrupt)
        if first_process():
            _write_features(folder, key, blocks, batches)
        else:
            deque(blocks, maxlen=0)  # computes its part of them
    with main_process_first():
        written = _read_features(folder, key, data.class_names)
    if written is None:
        raise CrateError(f"{folder}: the features just written cannot be read back; use another cache folder")
    return written


def pixel_features(data: OpenedData, augment: Augment, **options: Any) -> Features:
    """Return the pixels as features, (n, channels·side²): the baseline for a probe. Takes the options of a model's."""
    return extract_features(_Pixels(), data, augment, **options)


class _Pixels(nn.Module):
    def features(self, pixel_values: Tensor) -> Tensor:
        return pixel_values.flatten(1)


class BareFeatures(nn.Module):
    """The token that the head of a vision model reads, z_1 or the mean of all tokens, before any LayerNorm (paper)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def features(self, pixel_values: Tensor) -> Tensor:
        """Compute the features (batch, d) of images."""
        body: Any = self.model.crate
        states = body(pixel_values, output_hidden_states=(self.config.num_hidden_layers,)).hidden_states
        pooled: Tensor = body.pool(states[-1])
        return pooled


def move_to_device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Move the model to `device`, if one is given, and return the device the model is on."""
    try:
        if device is not None:
            model.to(torch.device(device))
    except (AssertionError, RuntimeError) as error:  # an unknown name, or a device this build of torch lacks
        raise CrateError(f"cannot use device {str(device)!r}: {str(error).splitlines()[0]}") from error
    parameter = next(model.parameters(), None)
    return torch.device(device or "cpu") if parameter is None else parameter.device


def check_image_input(model: nn.Module, augment: Augment) -> None:
    """Raise an error if the model's config, where it has one, does not fit the crops of `augment`."""
    config = getattr(model, "config", None)
    channels, patch = getattr(config, "num_channels", None), getattr(config, "patch_size", None)
    if channels is not None and channels != augment.channels:
        raise CrateError(f"augment.channels is {augment.channels}, but the model reads num_channels={channels}")
    if isinstance(patch, int) and augment.image_size % patch:  # another image size than in training is allowed
        raise CrateError(f"augment.image_size {augment.image_size} is not divisible by the model's patch_size {patch}")


def check_features(train: Features, test: Features) -> None:
    """Raise an error unless a classifier can be fitted to `train` and scored on `test`."""
    if train.classes != test.classes:
        both = " and ".join(f"{len(part.classes)} ({', '.join(part.classes[:3])}, …)" for part in (train, test))
        raise CrateError(f"training and test features have different classes: {both}; use splits of one dataset")
    for name, part in (("training", train), ("test", test)):
        if part.values.ndim != 2 or part.labels.shape != (len(part.values),):
            shapes = f"{part.values.shape} with {part.labels.shape}"
            raise CrateError(f"{name} features must be (n, d) with n labels, not {shapes}")
        if len(part) == 0 or part.values.shape[1] == 0:
            raise CrateError(f"the {name} features are empty; use a split with images")
        outside = part.labels[(part.labels < 0) | (part.labels >= len(part.classes))]
        if len(outside):
            raise CrateError(f"{name} label {outside[0]} is outside the {len(part.classes)} classes")
        with np.errstate(invalid="ignore"):  # ∞ − ∞
            total = part.values.sum(dtype=np.float64)  # finite if all are, and needs no copy of a memory-mapped file
        if not np.isfinite(total):
            raise CrateError(f"the {name} features are not all finite; the training of their model diverged")
    if train.values.shape[1] != test.values.shape[1]:
        widths = f"{train.values.shape[1]} and {test.values.shape[1]}"
        raise CrateError(f"training and test features have widths {widths}; compute both with one model")
    known = np.unique(train.labels)
    if len(known) < 2:
        only = train.classes[int(known[0])]
        raise CrateError(f"the training features are of one class only ({only!r}); a probe needs at least two")
    unseen = np.setdiff1d(test.labels, known)
    if len(unseen):
        name = test.classes[int(unseen[0])]
        raise CrateError(f"test class {name!r} has no training image; use more images or remove the class")


# cache


def _cache_key(model: nn.Module, data: OpenedData, dataset: Any, split: str, augment: Augment) -> str:
    """Return a hash of everything features depend on: the model with its weights, the images, the crops."""
    config: Any = getattr(model, "config", None)
    fields = config.to_dict() if hasattr(config, "to_dict") else {}
    facts = {
        "format": _FORMAT,
        "model": f"{type(model).__module__}.{type(model).__qualname__}",
        "config": {key: value for key, value in fields.items() if key[0] != "_" and key not in _SAVING_FIELDS},
        "data": [data.name, split, data.column, data.label_column, data.class_names],
        "rows": getattr(dataset, "_fingerprint", None),
        "crops": [augment.image_size, augment.channels, augment.interpolation, augment.evaluation_crop],
        "ratio": augment.evaluation_ratio if augment.evaluation_crop == "center" else None,
        "normalization": augment.normalization,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    for path in [] if data.streaming else filter(None, image_paths(dataset, data.column)):
        with contextlib.suppress(OSError):  # no such file: the dataset holds the image, and its fingerprint covers it
            status = os.stat(path)  # the fingerprint of class folders covers the names of files only
            digest.update(f"{path} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()


def _write_features(folder: Path, key: str, blocks: Iterable[Block], batches: EvaluationBatches) -> None:
    """Write blocks of features and labels as they come, as a whole; then the names of the images left out."""
    labels: list[NDArray[np.int64]] = []
    width = checksum = 0
    with atomic_folder(folder) as draft:
        with (draft / "values.bin").open("wb") as file:
            for values, block_labels in blocks:
                width = values.shape[1]
                file.write(values.data)
                checksum = zlib.crc32(values.data, checksum)
                labels.append(block_labels)
        all_labels = np.concatenate(labels)
        np.save(draft / "labels.npy", all_labels)
        checksums = [checksum, zlib.crc32(all_labels.data)]
        facts = {"key": key, "shape": [len(all_labels), width], "checksums": checksums, "corrupt": batches.corrupt}
        write_sealed(draft / "features.json", facts)


def _read_features(folder: Path, key: str, classes: tuple[str, ...]) -> Features | None:
    """Return the features of a folder, memory-mapped; None if there are none or if they are damaged, which is logged.

    The checksums take a quarter of a second per gigabyte once the files are in memory.
    """
    if not folder.is_dir():
        return None
    facts = read_sealed(folder / "features.json")
    try:
        if facts is not None and facts["key"] == key:
            labels = np.load(folder / "labels.npy")
            if [file_checksum(folder / "values.bin"), zlib.crc32(labels.data)] == facts["checksums"]:
                values = np.memmap(folder / "values.bin", np.float32, mode="r", shape=tuple(facts["shape"]))
                return Features(values, labels, classes, tuple(facts["corrupt"]))
    except (OSError, EOFError, ValueError):  # missing or truncated
        pass
    logging.getLogger("codingrate").info(f"{folder} is damaged; the features are computed again")
    return None
