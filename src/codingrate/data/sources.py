"""One way to name a dataset of labelled images: a built-in name, a path, or a hub id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CrateError
from .catalogue import BUILT_IN, KNOWN, Known, dataset_names
from .columns import LabelEncoder, find_columns, label_names, label_values, names_of, without_decoding
from .hub import is_hub_id, local_path, open_hub
from .local import open_local
from .mnist_idx import open_digits
from .splits import HeldOut, choose_splits, stratified_split

DIGITS_SEED, DIGITS_SHARE = 0, 0.2  # the one split of the built-in digits, whatever seed the run has


@dataclass(frozen=True)
class ImageData:
    """Labelled images, split, their classes known, their images not yet decoded."""

    name: str
    """What the dataset was asked for by."""
    train: Any
    """Rows to learn from: `datasets.Dataset`, or `IterableDataset` when streaming."""
    test: Any
    """Rows to measure on, of the same kind."""
    classes: tuple[str, ...]
    """Class names; a row's label is an index into them."""
    image_column: str
    """Column with the image: `{"bytes", "path"}`, or nested lists of pixels."""
    label_column: str
    """Column with the class index."""
    streaming: bool = False
    """Whether rows are read as they come, without length or random access."""


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
    """Open a dataset by a short name (`dataset_names()`), a local path, or a hub id `owner/name`, looked up in this
    order; `./name` is always a path.

    `path` says where the files of a known dataset lie, so that its class names are kept without the hub. Where there
    is a single split, `test_share` of every class is held out by `split_seed` (1 makes every row a test row, to
    measure a trained model); streams are split by a hash of each image instead, not by class.
    """
    if not 0 < test_share <= 1:
        raise CrateError(f"test_share must lie in (0, 1], not {test_share}")
    known = KNOWN.get(name)
    if path is not None and known is None:
        raise CrateError(f"path goes with {', '.join(KNOWN)}, not with {name!r}; give the path itself as the name")
    if name in BUILT_IN:
        digits = open_digits()
        splits = {"train": digits.to_iterable_dataset(num_shards=8) if streaming else digits}
        split_seed, test_share = DIGITS_SEED, (1 if test_share == 1 else DIGITS_SHARE)
    else:
        splits = _open(name, path, known, streaming)
    train, test = choose_splits(splits)
    hints = (known.image, known.label) if known else (None, None)
    image, label = find_columns(name, train, image_column, label_column, hints)
    if test is not None:
        find_columns(f"the test split of {name}", test, image, label, hints)
    if streaming and known is None and label_names(train, label) is None and is_hub_id(name):
        raise CrateError(
            f"{name} carries no class names, and a hub stream is too long to look; use it without streaming"
        )
    prepare = _prepare_stream if streaming else _prepare_rows
    classes = known.class_names if known else None
    train, test, classes = prepare(name, train, test, image, label, classes, test_share, split_seed)
    if len(classes) < 2:
        raise CrateError(
            f"{name} has one class only ({', '.join(classes) or 'none'}); classification needs two or more"
        )
    return ImageData(name, train, test, classes, image, label, streaming)


def _open(name: str, path: str | Path | None, known: Known | None, streaming: bool) -> dict[str, Any]:
    if path is not None:
        return open_local(Path(path).expanduser(), streaming)
    if known is not None:
        splits = {"train": known.train, **({"test": known.test} if known.test else {})}
        return open_hub(name, known.hub, streaming, splits=splits)
    local = local_path(name, dataset_names())
    return open_hub(name, name, streaming) if local is None else open_local(local, streaming)


def _prepare_rows(
    name: str, train: Any, test: Any, image: str, label: str, known: tuple[str, ...] | None, share: float, seed: int
) -> tuple[Any, Any, tuple[str, ...]]:
    """Labels as indices (checked, every one), one tuple of classes, both splits there."""
    values = label_values(name, train, label)
    if len(values) == 0:
        raise CrateError(f"{name} has no training rows")
    classes, index = label_names(train, label) or known, None
    if classes is None:
        classes, index = names_of(name, values)
    code = LabelEncoder(name, label, classes, index)
    train, labels = _recode(train, image, label, classes, code.array(values))
    if len(np.unique(labels)) < 2:
        only = classes[int(labels[0])]
        raise CrateError(f"{name} has one class only ({only!r}); classification needs two or more")
    if test is None and share == 1:
        return train.select([]), train, classes
    if test is None:
        here, held = stratified_split(labels, share, seed)
        if len(held) == 0:
            raise CrateError(f"{name} has one row per class: none can be held out for testing; give a test split")
        return train.select(here), train.select(held), classes
    if (label_names(test, label) or classes) != classes:
        raise CrateError(f"{name} names its classes differently in training and test (column {label!r})")
    code.source = f"the test split of {name}"
    test, codes = _recode(test, image, label, classes, code.array(label_values(code.source, test, label)))
    unseen = np.setdiff1d(codes, labels)
    if len(unseen):
        raise CrateError(f"{code.source} has class {classes[int(unseen[0])]!r}, which no training row has")
    if len(codes) == 0:
        raise CrateError(f"{code.source} has no rows")
    return train, test, classes


def _recode(rows: Any, image: str, label: str, classes: tuple[str, ...], codes: Any) -> tuple[Any, Any]:
    import datasets

    if label_names(rows, label) is None:
        feature = datasets.ClassLabel(names=list(classes))
        rows = rows.remove_columns([label]).add_column(label, codes, feature=feature)
    return without_decoding(rows.select_columns([image, label]), image), codes


def _prepare_stream(
    name: str, train: Any, test: Any, image: str, label: str, known: tuple[str, ...] | None, share: float, seed: int
) -> tuple[Any, Any, tuple[str, ...]]:
    """As `_prepare_rows`; labels are checked as rows come by, and read once where they alone tell the classes."""
    classes, index = label_names(train, label) or known, None
    if classes is None:
        seen = {row[label] for row in train.select_columns([label])}
        if None in seen:
            raise CrateError(f"{name} has rows without a label in column {label!r}")
        classes, index = names_of(name, np.array(sorted(seen)))
    code = LabelEncoder(name, label, classes, index)
    streams = [
        without_decoding(rows.select_columns([image, label]), image) for rows in (train, test) if rows is not None
    ]
    if label_names(train, label) is None:
        streams = [rows.map(code) for rows in streams]
    if len(streams) == 2:
        return streams[0], streams[1], classes
    held = [streams[0].filter(HeldOut(image, share, seed, keep)) for keep in (False, True)]
    return held[0], held[1], classes
