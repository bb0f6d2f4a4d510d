"""Gray images that come as arrays: the idx files of the MNIST family and scikit-learn's digits."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CrateError

_IMAGES, _LABELS = 0x803, 0x801  # magic numbers: unsigned bytes in three dimensions, in one
_SPLITS = {"train": "train", "t10k": "test", "test": "test"}  # prefix of the file name → split


def is_idx(path: Path) -> bool:
    """Return whether a file name is that of an idx file, compressed or not."""
    return "idx3-ubyte" in path.name or "idx1-ubyte" in path.name


def _read_idx(path: Path, magic: int) -> NDArray[np.uint8]:
    """Read the array of an idx file: magic number, one big-endian size per dimension, then the bytes."""
    header = struct.Struct(f">{1 + (magic & 0xFF)}I")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        actual, *shape = header.unpack_from(raw)
        if actual != magic:
            raise ValueError(f"magic number {actual:#010x}, expected {magic:#010x}")
        return np.frombuffer(raw, np.uint8, offset=header.size).reshape(shape)
    except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
        raise CrateError(f"cannot read {path} as an idx file: {error}; download it again") from error


def _idx_file(folder: Path, prefix: str, kind: str) -> Path | None:
    stem, end = f"{prefix}-{kind}", {"images": "idx3-ubyte", "labels": "idx1-ubyte"}[kind]
    paths = (folder / f"{stem}{joint}{end}{packed}" for joint in "-." for packed in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def open_idx(folder: Path) -> dict[str, Any]:
    """Return the splits of a folder with `train-images-idx3-ubyte[.gz]`, `train-labels-idx1-ubyte[.gz]`, `t10k-…`."""
    splits = {}
    for prefix, split in _SPLITS.items():
        images, labels = _idx_file(folder, prefix, "images"), _idx_file(folder, prefix, "labels")
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            missing = f"{prefix}-images-idx3-ubyte" if images is None else f"{prefix}-labels-idx1-ubyte"
            raise CrateError(f"{folder} has no {missing}[.gz] beside {(images or labels).name}")  # type: ignore[union-attr]
        pixels, classes = _read_idx(images, _IMAGES), _read_idx(labels, _LABELS)
        if len(pixels) != len(classes):
            raise CrateError(f"{images} has {len(pixels)} images, but {labels.name} has {len(classes)} labels")
        splits[split] = _dataset(pixels, classes)
    if "train" not in splits:
        raise CrateError(f"{folder} has no train-images-idx3-ubyte[.gz]")
    return splits


def _dataset(pixels: NDArray[np.uint8], labels: NDArray[Any]) -> Any:
    """Return a dataset of gray images (n, height, width), stored as PGM: a header before the raw bytes."""
    import datasets

    header = b"P5 %d %d 255\n" % (pixels.shape[2], pixels.shape[1])
    images = [{"bytes": header + image.tobytes(), "path": None} for image in pixels]
    features = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.Value("int64")})
    return datasets.Dataset.from_dict({"image": images, "label": labels.astype(np.int64)}, features=features)


def open_digits() -> Any:
    """Return scikit-learn's 1,797 handwritten digits of 8×8 pixels, their 17 gray levels scaled to 0…255."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return _dataset(np.rint(bunch.images * (255 / 16)).astype(np.uint8), bunch.target)
