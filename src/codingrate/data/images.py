"""Labeled images by name, path or hub id, split and with known classes, but not yet decoded."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..errors import CrateError
from .catalog import BUILT_IN_IMAGES, IMAGES
from .columns import (
    Indices,
    LabelEncoder,
    classes_of,
    encode_classes,
    find_image_columns,
    hold_out,
    label_names,
    without_decoding,
)
from .image_files import image_key
from .sources import check_share, choose_splits, is_hub_id, open_splits

DIGITS_SEED, DIGITS_SHARE = 0, 0.2  # the built-in digits have one split, whatever the seed of the run
PHOTOGRAPHS = ("temple", "flower")


@dataclass(frozen=True)
class ImageData:
    """Labeled images in a training and a test split."""

    name: str
    """Name, path or hub id that the dataset was opened by."""
    train: Any
    """Training split: `datasets.Dataset`, or `IterableDataset` when streaming."""
    test: Any
    """Test split of the same type."""
    classes: tuple[str, ...]
    """Class names; labels are indices into them."""
    image_column: str
    """Column with the images, as `{"bytes", "path"}` or nested lists of pixels."""
    label_column: str
    """Column with the class indices."""
    streaming: bool = False
    """Whether the splits are streams, without length and random access."""


def load_images(
    name: str,
    *,
    path: str | Path | None = None,
    split_seed: int = 0,
    test_share: float = 0.1,
    streaming: bool = False,
    image_column: str | None = None,
    label_column: str | None = None,
) -> ImageData:
    """Open labeled images by a short name (`dataset_names()`), a local path or a hub id, looked up in this order.

    `path` is where the files of a known dataset are; its class names are kept without the hub. If there is a single
    split, `test_share` of every class is held out by `split_seed`; a share of 1 makes every row a test row, to evaluate
    a trained model. Streams are split by a hash of each image instead of by class.
    """
    check_share("test_share", test_share)
    splits = open_splits(name, kind="images", path=path, streaming=streaming)
    if name == BUILT_IN_IMAGES:
        split_seed, test_share = DIGITS_SEED, (1 if test_share == 1 else DIGITS_SHARE)
    train, test = choose_splits(splits)
    known = IMAGES.get(name)
    hints = (known.image_column, known.label_column) if known else (None, None)
    image, label = find_image_columns(name, train, image_column, label_column, hints)
    parts = {"train": train}
    if test is not None:
        find_image_columns(f"the test split of {name}", test, image, label)
        parts["test"] = test
    parts = {split: without_decoding(part.select_columns([image, label]), image) for split, part in parts.items()}
    classes = label_names(train, label) or (known.classes if known else None)
    if streaming and classes is None and is_hub_id(name):
        raise CrateError(f"{name} has no class names, and its stream is too long to collect them; do not stream it")
    if streaming:
        parts, classes = _encode_streams(name, parts, label, classes)
        if test is None:
            is_held_out = partial(_is_held_out, column=image, share=test_share, seed=split_seed)
            parts["test"] = parts["train"].filter(partial(is_held_out, held=True))
            parts["train"] = parts["train"].filter(partial(is_held_out, held=False))
    else:
        parts, classes, labels = encode_classes(name, parts, label, classes)
        _check_classes(name, labels, classes)
        if test is None:
            parts["train"], parts["test"] = hold_out(name, parts["train"], labels["train"], test_share, split_seed)
    return ImageData(name, parts["train"], parts["test"], classes, image, label, streaming)


def _check_classes(name: str, labels: Mapping[str, Indices], classes: tuple[str, ...]) -> None:
    """Refuse a training split with a single class, or one that lacks a class of the test split."""
    if len(np.unique(labels["train"])) < 2:
        only = classes[int(labels["train"][0])]
        raise CrateError(f"{name} has one class only ({only!r}); classification needs two or more")
    unseen = np.setdiff1d(labels.get("test", labels["train"]), labels["train"])
    if len(unseen):
        raise CrateError(f"the test split of {name} has class {classes[int(unseen[0])]!r}, which has no training row")


def _encode_streams(
    name: str, parts: Mapping[str, Any], label: str, classes: tuple[str, ...] | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return streams that encode and check labels as they are read; collect the classes first if they are unknown."""
    train, index = parts["train"], None
    if classes is None:
        labels = {row[label] for row in train.select_columns([label])}
        if None in labels:
            raise CrateError(f"{name} has rows without a label in column {label!r}")
        classes, index = classes_of(name, np.array(sorted(labels)))
    if len(classes) < 2:
        raise CrateError(f"{name} has one class only ({', '.join(classes)}); classification needs two or more")
    if label_names(train, label) is not None:
        return dict(parts), classes
    encoder = LabelEncoder(name, label, classes, index)
    return {split: stream.map(encoder) for split, stream in parts.items()}, classes


def _is_held_out(row: Mapping[str, Any], column: str, share: float, seed: int, held: bool) -> bool:
    """Return whether a row of a stream is in the held-out part, or in the other one, by a hash of its image."""
    mixed = zlib.crc32(b"%d" % image_key(row[column]), seed & 0xFFFFFFFF)
    return (mixed / 2**32 < share) is held


def sample_photographs(side: int) -> ImageData:
    """Return 32 squares of `side` pixels from scikit-learn's two photographs, which are available offline.

    They are the center of each photograph and 15 overlapping parts of it at twice the scale, all in the test split.
    This is enough to see that a model works, but not to measure it.
    """
    import datasets
    from sklearn.datasets import load_sample_images

    if side < 1:
        raise CrateError(f"`side` must be at least 1 (got {side})")
    squares = [_squares(Image.fromarray(np.asarray(pixels)), side) for pixels in load_sample_images().images]
    header = b"P6 %d %d 255\n" % (side, side)
    images = [header + square.tobytes() for pair in zip(*squares, strict=True) for square in pair]  # in turn
    features = datasets.Features(
        {"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=[*PHOTOGRAPHS])}
    )
    columns = {
        "image": [{"bytes": image, "path": None} for image in images],
        "label": [number % 2 for number in range(len(images))],
    }
    test = datasets.Dataset.from_dict(columns, features=features)
    return ImageData("scikit-learn's two photographs", test.select([]), test, PHOTOGRAPHS, "image", "label")


def _squares(photograph: Image.Image, side: int) -> list[Image.Image]:
    whole, large = (_scaled(photograph, scale * side) for scale in (1, 2))
    corners = [(whole, (whole.width - side) // 2, (whole.height - side) // 2)]
    for top in np.linspace(0, large.height - side, 3).round().astype(int).tolist():
        for left in np.linspace(0, large.width - side, 5).round().astype(int).tolist():
            corners.append((large, left, top))
    return [image.crop((left, top, left + side, top + side)) for image, left, top in corners]


def _scaled(photograph: Image.Image, short: int) -> Image.Image:
    """Return the photograph with a short side of `short` pixels."""
    scale = short / min(photograph.size)
    width, height = (max(round(length * scale), short) for length in photograph.size)
    return photograph.resize((width, height), Image.Resampling.LANCZOS)
