"""Labeled images by name, path or hub id."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from .._files import is_hub_id
from ..errors import CrateError
from .catalog import BUILT_IN_IMAGES, IMAGES
from .columns import common_names, encode_classes, find_column, hold_out, label_indices, select_undecoded
from .image_files import image_key
from .opened import OpenedData
from .sources import Seed, check_arguments, check_share, choose_splits, image_dataset, open_splits, read_rows

DIGITS_SEED, DIGITS_SHARE = 0, 0.2  # the built-in digits have one split, whatever the seed of the run
PHOTOGRAPHS = ("temple", "flower")

LeaveOut = Callable[[dict[str, Any], str, str], dict[str, Any]]


@check_arguments
def load_images(
    name: str,
    *,
    path: str | Path | None = None,
    split_seed: Seed = 0,
    test_share: float = 0.1,
    streaming: bool = False,
    image_column: str | None = None,
    label_column: str | None = None,
    leave_out: LeaveOut | None = None,
) -> OpenedData:
    """Open labeled images by a short name (`dataset_names()`), a local path or a hub id, looked up in this order.

    `path` is where the files of a known dataset are; its class names are kept without the hub. If there is a single
    split, `test_share` of every class is held out by `split_seed`. A share of 1 opens data to evaluate a trained model:
    a single split is all test rows, one class is enough, and the columns need not be those that are given. Streams are
    split by a hash of each image instead of by class. `leave_out` removes images before a test split is held out; it is
    given the splits and the names of the image and the label column, and is not for streams.
    """
    check_share("test_share", test_share)
    splits, whole = open_splits(name, kind="images", path=path, streaming=streaming), test_share == 1
    if name == BUILT_IN_IMAGES:
        split_seed, test_share = DIGITS_SEED, (1 if whole else DIGITS_SHARE)
    parts, known = choose_splits(name, splits, whole), IMAGES.get(name)
    hints: tuple[str | None, str | None] = (known.image_column, known.label_column) if known else (None, None)
    if whole:
        hints, image_column, label_column = (image_column or hints[0], label_column or hints[1]), None, None
    image, label = image_column or "", label_column or ""
    for split, part in parts.items():
        source = name if len(parts) == 1 else f"the {split} split of {name}"
        features = part.features or dict.fromkeys(next(read_rows(source, part), {}))  # a stream may not know its types
        image = find_column("image", source, features, image, hints[0])
        label = find_column("label", source, features, label, hints[1])
        parts[split] = select_undecoded(part, image, label)
    classes = common_names(parts, label, whole) or (known.classes if known else None)
    if streaming and classes is None and is_hub_id(name):
        raise CrateError(f"{name} has no class names, and its stream is too long to collect them; do not stream it")
    parts, classes = encode_classes(name, parts, label, classes, streaming, whole)
    if leave_out is not None and not streaming:
        parts = leave_out(parts, image, label)
    if not streaming and not whole:
        _check_classes(name, parts, label, classes)
    if "train" not in parts:
        parts["train"] = parts["test"].take(0) if streaming else parts["test"].select([])
    if "test" not in parts and streaming:
        belongs = partial(_belongs, column=image, share=test_share, seed=split_seed)
        parts = {split: parts["train"].filter(partial(belongs, split=split)) for split in ("train", "test")}
    elif "test" not in parts:
        parts["train"], parts["test"] = hold_out(name, parts["train"], label, test_share, split_seed)
    parts = {split: parts[split] for split in ("train", "test", "validation") if split in parts}
    return OpenedData(name, parts, (image,), label, classes, streaming)


def _check_classes(name: str, parts: Mapping[str, Any], label: str, classes: tuple[str, ...]) -> None:
    """Refuse a training split with a single class, or one that lacks a class of another split."""
    labels = {split: np.unique(label_indices(part, label)) for split, part in parts.items()}
    if len(labels["train"]) < 2:
        only = classes[int(labels["train"][0])]
        raise CrateError(f"{name} has one class only ({only!r}); classification needs two or more")
    for split, values in labels.items():
        unseen = np.setdiff1d(values, labels["train"])
        if len(unseen):
            raise CrateError(
                f"the {split} split of {name} has class {classes[int(unseen[0])]!r}, which has no training row"
            )


def _belongs(row: Mapping[str, Any], column: str, share: float, seed: int, split: str) -> bool:
    """Return whether a row of a stream belongs to `train` or `test`, by a hash of its image."""
    mixed = zlib.crc32(b"%d" % image_key(row[column]), seed & 0xFFFFFFFF)
    return (mixed / 2**32 < share) is (split == "test")


def sample_photographs(side: int) -> OpenedData:
    """Return 32 squares of `side` pixels from scikit-learn's two photographs, which are available offline.

    They are the center of each photograph and 15 overlapping parts of it at twice the scale, all in the test split.
    This is enough to see that a model works, but not to measure it.
    """
    from sklearn.datasets import load_sample_images

    squares = [_squares(Image.fromarray(np.asarray(pixels)), side) for pixels in load_sample_images().images]
    header = b"P6 %d %d 255\n" % (side, side)
    images = [header + square.tobytes() for pair in zip(*squares, strict=True) for square in pair]  # in turn
    test = image_dataset(images, (number % 2 for number in range(len(images))), PHOTOGRAPHS)
    splits = {"train": test.select([]), "test": test}
    return OpenedData("scikit-learn's two photographs", splits, ("image",), "label", PHOTOGRAPHS)


def _squares(photograph: Image.Image, side: int) -> list[Image.Image]:
    factor = side / min(photograph.size)
    whole, large = (ImageOps.scale(photograph, scale * factor, Image.Resampling.LANCZOS) for scale in (1, 2))
    corners = [(whole, (whole.width - side) // 2, (whole.height - side) // 2)]
    for top in np.linspace(0, large.height - side, 3).round().astype(int).tolist():
        for left in np.linspace(0, large.width - side, 5).round().astype(int).tolist():
            corners.append((large, left, top))
    return [image.crop((left, top, left + side, top + side)) for image, left, top in corners]
