"""Pixels in memory as dataset rows: the built-in digits and the idx files of the MNIST family."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CrateError

Pixels = NDArray[np.uint8]

_IMAGES, _LABELS = 0x803, 0x801  # unsigned bytes in three dimensions, in one
_IDX_SPLITS = {"train": "train", "t10k": "test", "test": "test"}


def is_idx(path: Path) -> bool:
    """Whether a file name is that of an idx file, packed or not."""
    return "idx3-ubyte" in path.name or "idx1-ubyte" in path.name


def read_idx(path: Path, magic: int) -> Pixels:
    """The array in an idx file: magic number, one big-endian size per dimension, then the bytes."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise CrateError(f"cannot read {path}: {error}; fetch the file again") from error
    dimensions = magic & 0xFF
    header = 4 * (1 + dimensions)
    found = struct.unpack(">I", raw[:4])[0] if len(raw) >= 4 else 0
    if found != magic:
        raise CrateError(f"{path} is no idx file of this kind: magic number {found:#010x}, expected {magic:#010x}")
    if len(raw) < header:
        raise CrateError(f"{path} is cut short inside its header; fetch the file again")
    shape = struct.unpack(f">{dimensions}I", raw[4:header])
    if len(raw) - header != math.prod(shape):
        raise CrateError(
            f"{path} holds {len(raw) - header} bytes where its header promises {math.prod(shape)}; fetch the file again"
        )
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def _idx_file(folder: Path, split: str, kind: str) -> Path | None:
    dimensions = {"images": 3, "labels": 1}[kind]
    for joint in "-.":
        for packed in ("", ".gz"):
            path = folder / f"{split}-{kind}{joint}idx{dimensions}-ubyte{packed}"
            if path.is_file():
                return path
    return None


def open_idx(folder: Path) -> dict[str, Any]:
    """The splits of a folder with `train-images-idx3-ubyte[.gz]`, `train-labels-idx1-ubyte[.gz]`, `t10k-…`."""
    splits = {}
    for prefix, split in _IDX_SPLITS.items():
        images, labels = _idx_file(folder, prefix, "images"), _idx_file(folder, prefix, "labels")
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            missing = f"{prefix}-images-idx3-ubyte" if images is None else f"{prefix}-labels-idx1-ubyte"
            raise CrateError(f"{folder} has no {missing}[.gz] beside {(images or labels).name}")  # type: ignore[union-attr]
        pixels, classes = read_idx(images, _IMAGES), read_idx(labels, _LABELS)
        if len(pixels) != len(classes):
            raise CrateError(f"{images} has {len(pixels)} images, but {labels.name} has {len(classes)} labels")
        splits[split] = array_rows(pixels, classes)
    if "train" not in splits:
        raise CrateError(f"{folder} has no train-images-idx3-ubyte[.gz]")
    return splits


def array_rows(pixels: Pixels, labels: NDArray[Any]) -> Any:
    """A dataset of grey images (n, height, width). Stored as PGM: a header before the raw bytes, so packing costs
    nothing and every reader of images understands it.
    """
    import datasets

    header = b"P5 %d %d 255\n" % (pixels.shape[2], pixels.shape[1])
    images = [{"bytes": header + image.tobytes(), "path": None} for image in pixels]
    features = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.Value("int64")})
    return datasets.Dataset.from_dict({"image": images, "label": labels.astype(np.int64)}, features=features)


def open_digits() -> Any:
    """scikit-learn's 1,797 handwritten digits, 8×8, their 17 grey levels spread over 0…255."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return array_rows(np.rint(bunch.images * (255 / 16)).astype(np.uint8), bunch.target)
