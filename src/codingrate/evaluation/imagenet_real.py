"""ImageNet ReaL accuracy: every label that fits an image counts ("Are we done with ImageNet?", Beyer et al., 2020)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from ..data import OpenedData
from ..data.columns import image_paths
from ..errors import CrateError

_LABELS = TypeAdapter(list[list[Annotated[int, Field(strict=True, ge=0)]]])
_VALIDATION_FILE = re.compile(r"ILSVRC2012_val_(\d{8})")


def real_accuracy(predictions: Sequence[int] | NDArray[np.integer[Any]], labels: Sequence[Sequence[int]]) -> float:
    """Return the share of images whose predicted class is among their labels; images without labels are left out."""
    if len(predictions) != len(labels):
        raise CrateError(f"there are {len(predictions)} predictions, but ReaL labels for {len(labels)} images")
    correct = [int(guess) in valid for guess, valid in zip(predictions, labels, strict=True) if len(valid)]
    if not correct:
        raise CrateError("none of the images has a ReaL label; use images of ImageNet's validation set")
    return sum(correct) / len(correct)


def read_real_labels(path: str | Path, images: int | None = None, classes: int | None = None) -> list[list[int]]:
    """Read real.json: a list of labels per validation image, in the order of the file numbers.

    The number of images and the labels are checked against `images` and `classes` if these are given.
    """
    try:
        labels = _LABELS.validate_json(Path(path).read_bytes())
    except OSError as error:
        raise CrateError(f"cannot read the ReaL labels {path}: {error.strerror or error}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        where = f" at index {problem['loc'][0]}" if problem["loc"] else ""
        reason = f"{problem['msg']}{where}"
        raise CrateError(f"{path} is not a list of labels per image ({reason}); use real.json") from error
    for index, valid in enumerate(labels):
        if classes is not None and valid and max(valid) >= classes:
            raise CrateError(f"{path} has label {max(valid)} at index {index}, which is outside the {classes} classes")
    if images is not None and len(labels) != images:
        raise CrateError(f"{path} has labels for {len(labels)} images, but the dataset has {images}")
    return labels


def match_real_labels(data: OpenedData, dataset: Any, path: str | Path) -> list[list[int]]:
    """Return the ReaL labels of the images of `dataset`, in its order.

    real.json is ordered by the number of the validation file. Class folders and the hub use another order, so the
    number in the file name decides (ILSVRC2012_val_00000001.JPEG is the first), and any subset of the validation set
    works. A dataset without such names must be the whole validation set in its original order.
    """
    if data.streaming:
        raise CrateError("ReaL labels need the index of each image; open the data without streaming")
    matches = [_VALIDATION_FILE.search(Path(name).name) for name in image_paths(dataset, data.column)]
    if not any(matches):
        return read_real_labels(path, len(dataset), len(data.class_names))
    labels, indices = read_real_labels(path, classes=len(data.class_names)), []
    for row, match in enumerate(matches):
        if match is None:
            problem = "has no name like ILSVRC2012_val_00000001, but others do"
            raise CrateError(f"image {row} of {data.name} {problem}; remove it")
        indices.append(int(match[1]) - 1)
        if not 0 <= indices[-1] < len(labels):
            raise CrateError(f"{path} has labels for {len(labels)} images, but the dataset has {match[0]}")
    return [labels[index] for index in indices]
