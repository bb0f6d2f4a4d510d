"""Splits that come out the same everywhere: which rows are for learning and which for measuring."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPLIT_WORDS = {
    "train": "train", "training": "train",
    "test": "test", "testing": "test", "t10k": "test",
    "val": "validation", "valid": "validation", "validation": "validation", "dev": "validation", "eval": "validation",
}  # fmt: skip
"""What a folder or a part of a file name says about its split."""

Indices = NDArray[np.int64]


def choose_splits(splits: Mapping[str, Any]) -> tuple[Any, Any | None]:
    """Training and test rows out of what a source offers: `test` goes before `validation`, a lone split is training."""
    train = splits.get("train")
    if train is None:
        train = next(iter(splits.values()))
        return train, None
    return train, splits.get("test", splits.get("validation"))


def stratified_split(labels: NDArray[np.int64], share: float, seed: int) -> tuple[Indices, Indices]:
    """Row indices for training and test, both ascending, `share` of every class (at least one row of each) in test.

    A class with a single row stays in training. Draws come from numpy's frozen RandomState, so that a split
    never changes with the version.
    """
    draw = np.random.RandomState(seed)
    test: list[Indices] = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        test.append(draw.permutation(rows)[:count])
    held = np.sort(np.concatenate(test)) if test else np.zeros(0, np.int64)
    return np.setdiff1d(np.arange(len(labels)), held), held.astype(np.int64)


def image_key(value: object) -> int:
    """A number that goes with an image wherever it is read: of its bytes, else of its class folder and file name.

    A stream has no row numbers that survive another number of workers; this takes their place.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path") or b""
    if isinstance(value, str):
        value = "/".join(value.replace("\\", "/").split("/")[-2:]).encode()
    return zlib.crc32(value if isinstance(value, bytes) else repr(value).encode())


class HeldOut:
    """Which rows of a stream are for testing: a hash of the image says it, not its place in the stream."""

    def __init__(self, column: str, share: float, seed: int, keep: bool) -> None:
        self.column, self.share, self.seed, self.keep = column, share, seed, keep

    def __call__(self, row: Mapping[str, Any]) -> bool:
        mixed = zlib.crc32(b"%d" % image_key(row[self.column]), self.seed & 0xFFFFFFFF)
        return (mixed / 2**32 < self.share) is self.keep
