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
from .columns import encode_classes, find_column, hold_out, label_indices, label_names, select_undecoded
from .image_files import image_key
from .sources import check_share, choose_splits, image_dataset, is_hub_id, open_splits

DIGITS_SEED, DIGITS_SHARE = 0, 0.2  # the built-in digits have one split, whatever the seed of the run
PHOTOGRAPHS = ("temple", "flower")


@dataclass(frozen=True)
class ImageData:
    """Labeled images in a training and a test split."""

    name: str
    train: Any
    """Training split: `datasets.Dataset`, or `IterableDataset` when streaming."""
    test: Any
    classes: tuple[str, ...]
    """Class names; labels are indices into them."""
    image_column: str
    """Column with the images, as `{"bytes", "path"}` or nested lists of pixels."""
    label_column: str
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
    parts, known = choose_splits(splits), IMAGES.get(name)
    hints = (known.image_column, known.label_column) if known else (None, None)
    image, label = image_column or "", label_column or ""
    for split, part in parts.items():
        source = name if split == "train" else f"the test split of {name}"
        features = part.features or dict.fromkeys(next(iter(part), {}))  # a stream may not know its types
        image = find_column("image", source, features, image, hints[0])
        label = find_column("label", source, features, label, hints[1])
        parts[split] = select_undecoded(part, image, label)
    classes = label_names(parts["train"], label) or (known.classes if known else None)
    if streaming and classes is None and is_hub_id(name):
        raise CrateError(f"{name} has no class names, and its stream is too long to collect them; do not stream it")
    parts, classes = encode_classes(name, parts, label, classes, streaming)
    if not streaming:
        _check_classes(name, parts, label, classes)
    if "test" not in parts and streaming:
        belongs = partial(_belongs, column=image, share=test_share, seed=split_seed)
        parts = {split: parts["train"].filter(partial(belongs, split=split)) for split in ("train", "test")}
    elif "test" not in parts:
        parts["train"], parts["test"] = hold_out(name, parts["train"], label, test_share, split_seed)
    return ImageData(name, parts["train"], parts["test"], classes, image, label, streaming)


def _check_classes(name: str, parts: Mapping[str, Any], label: str, classes: tuple[str, ...]) -> None:
    """Refuse a training split with a single class, or one that lacks a class of the test split."""
    labels = {split: np.unique(label_indices(part, label)) for split, part in parts.items()}
    if len(labels["train"]) < 2:
        only = classes[int(labels["train"][0])]
        raise CrateError(f"{name} has one class only ({only!r}); classification needs two or more")
    unseen = np.setdiff1d(labels.get("test", labels["train"]), labels["train"])
    if len(unseen):
        raise CrateError(f"the test split of {name} has class {classes[int(unseen[0])]!r}, which has no training row")


def _belongs(row: Mapping[str, Any], column: str, share: float, seed: int, split: str) -> bool:
    """Return whether a row of a stream belongs to `train` or `test`, by a hash of its image."""
    mixed = zlib.crc32(b"%d" % image_key(row[column]), seed & 0xFFFFFFFF)
    return (mixed / 2**32 < share) is (split == "test")


def sample_photographs(side: int) -> ImageData:
    """Return 32 squares of `side` pixels from scikit-learn's two photographs, which are available offline.

    They are the center of each photograph and 15 overlapping parts of it at twice the scale, all in the test split.
    This is enough to see that a model works, but not to measure it.
    """
    from sklearn.datasets import load_sample_images

    if side < 1:
        raise CrateError(f"`side` must be at least 1 (got {side})")
    squares = [_squares(Image.fromarray(np.asarray(pixels)), side) for pixels in load_sample_images().images]
    header = b"P6 %d %d 255\n" % (side, side)
    images = [header + square.tobytes() for pair in zip(*squares, strict=True) for square in pair]  # in turn
    test = image_dataset(images, (number % 2 for number in range(len(images))), PHOTOGRAPHS)
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
