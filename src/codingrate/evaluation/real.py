"""ImageNet ReaL: every label that fits an image counts ("Are we done with ImageNet?", Beyer et al., 2020)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import ImageData
from ..errors import CrateError

_VALIDATION_FILE = re.compile(r"ILSVRC2012_val_(\d{8})")


def real_accuracy(predictions: Sequence[int] | NDArray[np.integer[Any]], labels: Sequence[Sequence[int]]) -> float:
    """Share of images whose predicted class is among their labels; images without any label are left out."""
    if len(predictions) != len(labels):
        raise CrateError(f"{len(predictions)} predictions, but ReaL labels of {len(labels)} images")
    right = [int(guess) in fitting for guess, fitting in zip(predictions, labels, strict=True) if len(fitting)]
    if not right:
        raise CrateError("none of these images has a ReaL label, so there is no ReaL accuracy")
    return sum(right) / len(right)


def read_real_labels(path: str | Path, images: int | None = None, classes: int | None = None) -> list[list[int]]:
    """The lists of real.json, in the order of the validation files; checked against the number of images and classes
    where these are given.
    """
    try:
        labels = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CrateError(f"cannot read the ReaL labels {path}: {error.strerror or error}") from error
    except ValueError as error:  # not JSON, or not even text
        raise CrateError(f"{path} is not JSON; the ReaL labels are the file real.json") from error
    if not isinstance(labels, list):
        raise CrateError(f"{path} holds a {type(labels).__name__} where ReaL labels are a list with a list per image")
    for place, fitting in enumerate(labels):
        if not isinstance(fitting, list) or any(type(label) is not int for label in fitting):
            raise CrateError(f"{path} has {str(fitting)[:40]!r} at place {place}; ReaL labels are lists of integers")
        for label in fitting:
            if label < 0 or (classes is not None and label >= classes):
                raise CrateError(f"{path} has label {label} at place {place}, outside the {classes or ''} classes")
    if images is not None and len(labels) != images:
        raise CrateError(f"{path} has labels of {len(labels)} images, the data set has {images}")
    return labels


def real_labels_of(data: ImageData, rows: Any, path: str | Path) -> list[list[int]]:
    """The ReaL labels of `rows`, one list each, in the order of the rows.

    real.json counts validation files by their number. Class folders and the hub keep them in another order, so the
    number in the file name decides (ILSVRC2012_val_00000001.JPEG is the first) and any part of the set will do; only
    rows without such names are taken to be all of the set, in its order.
    """
    if data.streaming:
        raise CrateError("ReaL labels go by row, and a stream has no rows to count; open the data without streaming")
    found = [_VALIDATION_FILE.search(name) for name in _names(rows, data.image_column)]
    if not any(found):
        return read_real_labels(path, len(rows), len(data.classes))
    labels, places = read_real_labels(path, classes=len(data.classes)), []
    for row, match in enumerate(found):
        if match is None:
            raise CrateError(f"row {row} of {data.name} has no name like ILSVRC2012_val_00000001, others have")
        places.append(int(match[1]) - 1)
        if not 0 <= places[-1] < len(labels):
            raise CrateError(f"{path} has labels of {len(labels)} images, the data set has {match[0]}")
    return [labels[place] for place in places]


def _names(rows: Any, column: str) -> list[str]:
    """File names of the rows ("" where there is none), without touching the bytes of the images."""
    flat = rows.select_columns([column]).flatten()
    if f"{column}.path" not in flat.column_names:
        return [""] * len(rows)
    return [Path(name or "").name for name in flat[f"{column}.path"]]
