"""Features on disk: under a key that says what they are of, written batch by batch, trusted only when whole."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .._files import atomic_folder
from ..data import Augment, ImageData

Block = tuple[NDArray[np.float32], NDArray[np.int64]]

_FORMAT = 1  # to be raised when the files change, or what models make of the same images
_ABOUT_THE_FILE = ("architectures", "dtype", "transformers_version")  # of a config: how it was saved, not what it does
_CHUNK = 2**26  # bytes looked at a time


def features_key(model: nn.Module, data: ImageData, rows: Any, split: str, augment: Augment) -> str:
    """A hash of everything features depend on: the model with its weights, the rows, the crops."""
    config: Any = getattr(model, "config", None)
    fields = config.to_dict() if hasattr(config, "to_dict") else {}
    about = {
        "format": _FORMAT,
        "model": f"{type(model).__module__}.{type(model).__qualname__}",
        "config": {key: value for key, value in fields.items() if key[0] != "_" and key not in _ABOUT_THE_FILE},
        "data": [data.name, split, data.image_column, data.label_column, data.classes],
        "rows": getattr(rows, "_fingerprint", None),
        "crops": [augment.image_size, augment.channels, augment.interpolation, augment.evaluation_crop],
        "ratio": augment.evaluation_ratio if augment.evaluation_crop == "center" else None,
        "normalization": augment.normalization,
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    if not data.streaming:
        _add_files(digest, rows, data.image_column)
    return digest.hexdigest()


def _add_files(digest: Any, rows: Any, column: str) -> None:
    """Size and date of every image file: the fingerprint of class folders knows their names only."""
    flat = rows.select_columns([column]).flatten()
    if f"{column}.path" not in flat.column_names:
        return
    for name in filter(None, flat[f"{column}.path"]):
        try:
            found = os.stat(name)
        except OSError:  # a bare name beside an image that lies in the row itself, which the fingerprint covers
            continue
        digest.update(f"{name} {found.st_size} {found.st_mtime_ns}".encode())


def write_features(folder: Path, key: str, blocks: Iterable[Block], corrupt: Sequence[str]) -> None:
    """Write blocks of rows as they come; the folder appears when all are there. `corrupt` is read at the end."""
    labels: list[NDArray[np.int64]] = []
    rows = width = check = 0
    with atomic_folder(folder) as draft:
        with (draft / "values.npy").open("wb") as file:
            for values, some in blocks:
                if not rows:
                    width = values.shape[1]
                    _write_header(file, 0, width)
                file.write(values.data)
                check = zlib.crc32(values.data, check)
                rows += len(values)
                labels.append(some)
            file.seek(0)
            _write_header(file, rows, width)  # only now is it known how many there are
        together = np.concatenate(labels)
        np.save(draft / "labels.npy", together)
        about = {
            "key": key,
            "shape": [rows, width],
            "checks": [check, zlib.crc32(together.data)],
            "corrupt": list(corrupt),
        }
        (draft / "features.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def _write_header(file: BinaryIO, rows: int, width: int) -> None:
    """numpy leaves room for the first axis to grow, so that the header is as long for no rows as for many."""
    shape = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(file, shape)


def read_features(folder: Path, key: str) -> tuple[NDArray[np.float32], NDArray[np.int64], list[str]] | None:
    """Values (mapped), labels and names of unreadable images; None unless all of it is there, whole and of this key."""
    try:
        about = json.loads((folder / "features.json").read_text(encoding="utf-8"))
        values = np.load(folder / "values.npy", mmap_mode="r")
        labels = np.load(folder / "labels.npy")
        if about["key"] != key or values.dtype != np.float32 or list(values.shape) != about["shape"]:
            return None
        if len(labels) != len(values) or _check(values, labels) != about["checks"]:
            return None
        return values, labels, list(about["corrupt"])
    except (OSError, EOFError, ValueError, KeyError, TypeError):  # missing, cut short, or not ours
        return None


def _check(values: NDArray[np.float32], labels: NDArray[np.int64]) -> list[int]:
    """Checksums; the values in pieces, so that a mapped file is never in memory as a whole."""
    check, step = 0, max(_CHUNK // max(values.strides[0], 1), 1)
    for start in range(0, len(values), step):
        check = zlib.crc32(np.ascontiguousarray(values[start : start + step]).data, check)
    return [check, zlib.crc32(labels.data)]
