"""Documents: text that is read anew every time it is asked for, long documents piece by piece."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import CrateError
from .text_files import SEPARATE, Piece, Span, in_memory, read_text

_ROWS = 64  # read at a time


class Documents(ABC):
    """Text, document by document. Iterating gives whole documents; `pieces` never holds a long one in memory."""

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """Parts of documents in order, each with whether it ends its document."""

    @abstractmethod
    def key(self) -> str | None:
        """A hash that changes when the text does; None if that cannot be known."""

    def __iter__(self) -> Iterator[str]:
        parts: list[str] = []
        for text, end in self.pieces():
            parts.append(text)
            if end:
                yield "".join(parts)
                parts = []


class TextDocuments(Documents):
    """Documents in memory."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def pieces(self) -> Iterator[Piece]:
        for text in self.texts:
            yield from in_memory(text)

    def key(self) -> str:
        return hashed(*self.texts)


class FileDocuments(Documents):
    """Text files; see `text_files.SEPARATE` for what is a document in them."""

    def __init__(self, spans: Sequence[Span], separate: str) -> None:
        self.spans, self.separate = tuple(spans), separate

    def pieces(self) -> Iterator[Piece]:
        for span in self.spans:
            yield from SEPARATE[self.separate](read_text(span))

    def key(self) -> str:
        places = [[span.start, span.end] for span in self.spans]
        return hashed(self.separate, places, file_key(span.path for span in self.spans))


class RowDocuments(Documents):
    """A text column of a Hugging Face dataset or stream; rows without text are left out."""

    def __init__(self, rows: Any, column: str, key: Callable[[], str | None]) -> None:
        self.rows, self.column, self._key = rows, column, key

    def pieces(self) -> Iterator[Piece]:
        for batch in self.rows.select_columns([self.column]).iter(batch_size=_ROWS):
            for text in batch[self.column]:
                if isinstance(text, str):
                    yield from in_memory(text)
                elif text is not None:
                    raise CrateError(f"column {self.column!r} holds {type(text).__name__}, not text: {text!r:.40}")

    def key(self) -> str | None:
        below = self._key()
        return None if below is None else hashed(self.column, below)


class DocumentSplit(Documents):
    """One of the two parts of documents that are split by their number."""

    def __init__(self, documents: Documents, share: float, seed: int, held: bool) -> None:
        self.documents, self.share, self.seed, self.held = documents, share, seed, held

    def pieces(self) -> Iterator[Piece]:
        places = held_places(self.share, self.seed)
        place, number = next(places), 0
        for text, end in self.documents.pieces():
            if (number == place) is self.held:
                yield text, end
            number += end
            while place < number:
                place = next(places)

    def key(self) -> str | None:
        below = self.documents.key()
        return None if below is None else hashed(below, self.share, self.seed, self.held)


def held_places(share: float, seed: int) -> Iterator[int]:
    """Numbers of the documents that are held out, ascending: one in every 1/share in a row, which one drawn by seed.

    So a split needs neither the number of documents nor their order in memory, and no part of the text is left out.
    """
    start = 0
    for turn in itertools.count():
        end = math.ceil((turn + 1) / share - 1e-9)  # the turns are whole numbers long, as even as can be
        draw = int.from_bytes(hashlib.sha256(f"{seed} {turn}".encode()).digest()[:4], "big")
        yield start + draw * (end - start) // 2**32
        start = end


def file_key(paths: Iterable[Path]) -> str:
    """Changes when a file is edited or replaced: path, size and dates of each."""
    found = []
    for path in paths:
        try:
            about = path.stat()
        except OSError as error:
            raise CrateError(f"cannot read {path}: {error.strerror or error}") from error
        found.append([str(path.resolve()), about.st_size, about.st_mtime_ns, about.st_ctime_ns])
    return hashed(found)


def hashed(*parts: Any) -> str:
    """A hash of values that JSON can hold."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part).encode() + b"\n")
    return digest.hexdigest()
