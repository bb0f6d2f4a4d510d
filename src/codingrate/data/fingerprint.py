"""Fingerprints of opened data: plain values that a run stores, so that changed data are noticed when it is resumed."""

from __future__ import annotations

import hashlib
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import CrateError
from .classes import list_names
from .columns import image_paths
from .sources import read_rows

Fingerprint = dict[str, Any]
"""`classes` (names, or None) and `splits`: for each, `rows` (None for streams), `labels` and `content` as hashes, and
`complete`, which is False if the content was sampled."""

BUDGET = 2**28
"""Bytes of a split that are hashed; a larger one is sampled evenly. It takes about half a second."""
_LARGEST_FILE = 2**26  # bytes of one image that are read
_ROWS = 64  # rows read at a time, and rows of a stream that are read at all


def table_fingerprint(dataset: Any, columns: Sequence[str], labels: Any) -> Fingerprint:
    """Return the fingerprint of a split: its rows in order, with images or texts in `columns`.

    Up to `BUDGET` bytes are read. Of a larger split they are rows at equal distances, together with the sizes of all
    image files.
    """
    rows, content = len(dataset), hashlib.sha256()
    few = np.unique(np.linspace(0, max(rows - 1, 0), min(rows, _ROWS)).astype(np.int64)).tolist()
    average = sum(map(len, _contents(dataset, columns, few))) / max(len(few) * len(columns), 1)
    count = int(min(rows, max(BUDGET // max(average * len(columns), 1), 1)))
    for part in _contents(dataset, columns, np.linspace(0, rows - 1, count).astype(np.int64).tolist()):
        content.update(len(part).to_bytes(8, "little") + part)
    if count < rows:
        for path in image_paths(dataset, columns[0]):
            if os.path.isfile(path):
                content.update(os.path.getsize(path).to_bytes(8, "little"))
    return _split(rows, zlib.crc32(np.ascontiguousarray(labels).tobytes()), content.hexdigest(), count == rows)


def stream_fingerprint(stream: Any, columns: Sequence[str]) -> Fingerprint:
    """Return the fingerprint of a stream, which covers its first rows."""
    content = hashlib.sha256()
    for row in read_rows("the stream", itertools.islice(stream, _ROWS)):
        for column in columns:
            content.update(_content(row[column]))
    return _split(None, None, content.hexdigest(), False)


def text_fingerprint(pieces: Iterable[tuple[str, bool]], size: int | None) -> Fingerprint:
    """Return the fingerprint of documents: a hash of their first `BUDGET` characters and of the `size` of the source.

    The number of documents is known if they are read to the end.
    """
    content, read, documents = hashlib.sha256(str(size).encode()), 0, 0
    for text, end in pieces:
        content.update(text.encode() + b"\0" * end)
        read, documents = read + len(text), documents + end
        if read >= BUDGET:
            return _split(None, None, content.hexdigest(), False)
    return _split(documents, None, content.hexdigest(), True)


def describe_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Return what changed between two fingerprints as part of a sentence, or None if nothing did.

    The first difference of this order is told: classes, splits, numbers of rows, labels, content.
    """
    old, new = (part.get("classes") or [] for part in (before, after))
    if old != new:
        return _describe_classes(old, new)
    splits = [part.get("splits") or {} for part in (before, after)]
    if list(splits[0]) != list(splits[1]):
        names = [", ".join(part) or "none" for part in splits]
        return f"the splits were {names[0]} and are {names[1]}"
    for key, name in (("rows", "rows"), ("labels", "labels"), ("content", "content")):
        for split, facts in splits[0].items():
            then, now = facts.get(key), splits[1][split].get(key)
            if then != now and key == "rows":
                return f"the {split} split had {_number(then)} rows and has {_number(now)}" + " rows" * (now is None)
            if then != now:
                return f"the {name} of the {split} split changed"
    return None


def _describe_classes(old: Sequence[str], new: Sequence[str]) -> str:
    gone, added = ([name for name in one if name not in other] for one, other in ((old, new), (new, old)))
    if len(gone) == len(added) == 1:
        return f"class {gone[0]!r} is now called {added[0]!r}"
    changes = [f"{word}: {list_names(names)}" for word, names in (("removed", gone), ("added", added)) if names]
    return f"classes {'; '.join(changes)}" if changes else "the order of the classes changed"


def _number(count: Any) -> str:
    return f"{count:,}" if isinstance(count, int) else "an unknown number of"


def _split(rows: int | None, labels: int | None, content: str, complete: bool) -> Fingerprint:
    return {"rows": rows, "labels": labels, "content": content, "complete": complete}


def _contents(dataset: Any, columns: Sequence[str], rows: Sequence[int]) -> Iterator[bytes]:
    batches = (dataset[rows[start : start + _ROWS]] for start in range(0, len(rows), _ROWS))
    for batch in read_rows("the data", batches):
        for values in zip(*(batch[column] for column in columns), strict=True):
            yield from map(_content, values)


def _content(value: Any) -> bytes:
    """Return the bytes of an image, read from its file if need be, or of a text."""
    if isinstance(value, Mapping):
        path = value.get("path")
        if value.get("bytes") is None and path and os.path.isfile(path):
            try:
                with open(path, "rb") as file:
                    return file.read(_LARGEST_FILE)
            except OSError as error:
                raise CrateError(f"cannot read {path}: {error.strerror or error}") from error
        value = value.get("bytes") or path or b""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    return value if isinstance(value, bytes) else repr(value).encode()
