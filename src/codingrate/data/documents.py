"""Running text as documents that are read again each time they are iterated, in pieces, so that any length fits."""

from __future__ import annotations

import codecs
import hashlib
import io
import itertools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._files import is_utf8
from ..errors import CrateError
from .sources import file_key, hashed, read_rows

PIECE = 2**16
"""Approximate length, in characters, of the pieces of a long document."""

Piece = tuple[str, bool]
"""Part of a document, and whether it is the last one."""

_WORD_END = re.compile(r"[^\W\d_](?=[ \n])")
_WINDOW = 2**12  # characters before the end of a piece in which to look for the end of a word
_ROWS = 64  # rows of a table read at a time


class Documents(ABC):
    """Text as a sequence of documents. Iterating yields whole documents; `pieces` never holds a long one in memory."""

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """Yield the parts of all documents in order, each with whether it is the last of its document."""

    @abstractmethod
    def key(self) -> str | None:
        """Return a hash that changes when the text does, or None if that cannot be known."""

    def size(self) -> int | None:
        """Return the size of the source in bytes or rows if it is known without reading it."""
        return None

    def __iter__(self) -> Iterator[str]:
        parts: list[str] = []
        for text, end in self.pieces():
            parts.append(text)
            if end:
                yield "".join(parts)
                parts = []


def check_text(text: Any) -> None:
    """Refuse what is not a text, or has lone surrogates, which cannot be encoded."""
    if not isinstance(text, str):
        raise CrateError(f"a text must be a string (got {text!r:.40}, a {type(text).__name__})")
    if not is_utf8(text):
        raise CrateError(f"a text has a lone surrogate, which UTF-8 cannot encode: {text!a:.40}")


class TextDocuments(Documents):
    """Documents in memory."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = texts

    def pieces(self) -> Iterator[Piece]:
        for text in self.texts:
            check_text(text)
            yield from _whole([text])

    def key(self) -> str:
        for text in self.texts:
            check_text(text)
        return hashed(*self.texts)


class RowDocuments(Documents):
    """A text column of a Hugging Face dataset or stream, one document per row; rows without text are left out."""

    def __init__(self, dataset: Any, column: str, version: Callable[[], str | None]) -> None:
        self.dataset, self.column, self.version = dataset, column, version

    def pieces(self) -> Iterator[Piece]:
        rows = self.dataset.select_columns([self.column]).iter(batch_size=_ROWS)
        for batch in read_rows(f"column {self.column!r}", rows):
            for text in batch[self.column]:
                if text is not None:
                    check_text(text)
                    yield from _whole([text])

    def size(self) -> int | None:
        return len(self.dataset) if hasattr(self.dataset, "__len__") else None

    def key(self) -> str | None:
        version = self.version()
        return None if version is None else hashed(self.column, version)


class JoinedDocuments(Documents):
    """Several parts of a text, one after the other."""

    def __init__(self, parts: Iterable[Documents]) -> None:
        self.parts = tuple(parts)

    def pieces(self) -> Iterator[Piece]:
        for part in self.parts:
            yield from part.pieces()

    def key(self) -> str | None:
        keys = [part.key() for part in self.parts]
        return None if None in keys else hashed(keys)


class DocumentSplit(Documents):
    """One of two parts of other documents: those that are held out (`held=True`), or the rest."""

    def __init__(self, documents: Documents, share: float, seed: int, held: bool) -> None:
        self.documents, self.share, self.seed, self.held = documents, share, seed, held

    def pieces(self) -> Iterator[Piece]:
        held = held_indices(self.share, self.seed)
        next_held, index = next(held), 0
        for text, end in self.documents.pieces():
            if (index == next_held) is self.held:
                yield text, end
            index += end
            while next_held < index:
                next_held = next(held)

    def size(self) -> int | None:
        return self.documents.size()

    def key(self) -> str | None:
        key = self.documents.key()
        return None if key is None else hashed(key, self.share, self.seed, self.held)


def held_indices(share: float, seed: int) -> Iterator[int]:
    """Yield the ascending indices of held-out documents: one in every 1/share, chosen at random within each such run.

    The split needs neither the number of documents nor all of them in memory, and covers the text evenly.
    """
    start = 0
    for run in itertools.count():
        end = math.ceil((run + 1) / share - 1e-9)  # lengths are integers, as equal as possible
        draw = int.from_bytes(hashlib.sha256(f"{seed} {run}".encode()).digest()[:4], "big")
        yield start + draw * (end - start) // 2**32
        start = end


@dataclass(frozen=True)
class Span:
    """A text file, or its bytes from `start` up to `end`."""

    path: Path
    start: int = 0
    end: int | None = None

    def read(self) -> Iterator[str]:
        """Yield the decoded text in chunks, with \\n as line end and without a byte-order mark."""
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
        position = self.start
        try:
            with self.path.open("rb") as file:
                file.seek(position)
                while True:
                    raw = file.read(PIECE if self.end is None else min(PIECE, self.end - position))
                    if b"\0" in raw:
                        raise CrateError(f"{self.path} is not plain text (it has zero bytes); use text in UTF-8")
                    text = decoder.decode(raw, final=not raw)
                    yield text.removeprefix("\ufeff") if position == 0 else text
                    position += len(raw)
                    if not raw:
                        return
        except UnicodeDecodeError as error:
            raise CrateError(
                f"{self.path} is not UTF-8 near byte {position + error.start}; "
                "convert it, for example with iconv -f latin1 -t utf-8"
            ) from error
        except OSError as error:
            raise CrateError(f"cannot read {self.path}: {error.strerror or error}") from error

    def split_tail(self, share: float) -> tuple[Span, Span]:
        """Split off the last `share` of the file: after a line, else after a space, else between characters."""
        size = self.path.stat().st_size
        target = int(size * (1 - share))
        low = target - min(target, size - target, PIECE)  # search back no further than the tail is long
        with self.path.open("rb") as file:
            file.seek(low)
            before = file.read(target - low + 1)
        ends = [before[:-1].rfind(mark) + 1 for mark in (b"\n", b" ")]
        cut = next((end for end in ends if end), target - low)
        while 0 < cut < len(before) and before[cut] & 0xC0 == 0x80:  # within a character of several bytes
            cut -= 1
        return Span(self.path, 0, low + cut), Span(self.path, low + cut, None)


class FileDocuments(Documents):
    """Text files; `separate` (a key of `SEPARATE`) says what a document is."""

    def __init__(self, spans: Sequence[Span], separate: str) -> None:
        self.spans, self.separate = tuple(spans), separate

    def pieces(self) -> Iterator[Piece]:
        for span in self.spans:
            yield from SEPARATE[self.separate](span.read())

    def size(self) -> int:
        return sum(span.path.stat().st_size for span in self.spans)

    def key(self) -> str:
        bounds = [[span.start, span.end] for span in self.spans]
        return hashed(self.separate, bounds, file_key(span.path for span in self.spans))


def _cut(text: str) -> Generator[Piece, None, str]:
    """Yield pieces of a long text until what is left is no longer than a piece; return the rest.

    A cut goes between a letter and the white space after it, where every byte-level BPE starts a new token, so that the
    ids are those of the uncut text. Text without spaces is cut anywhere.
    """
    start = 0
    while len(text) - start > PIECE:
        latest = start + PIECE
        ends = [match.end() for match in _WORD_END.finditer(text, latest - _WINDOW, latest + 1)]
        end = ends[-1] if ends else latest
        yield text[start:end], False
        start = end
    return text[start:]


def _whole(chunks: Iterable[str]) -> Iterator[Piece]:
    """Take all of a text as one document."""
    rest = ""
    for chunk in chunks:
        rest = yield from _cut(rest + chunk)
    yield rest, True


def _lines(chunks: Iterable[str]) -> Iterator[Piece]:
    """Take every line as a document, blank ones too, as in the usual evaluation of WikiText."""
    rest = ""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split("\n")
        yield from ((line, True) for line in lines)
        rest = yield from _cut(rest)
    if rest:
        yield rest, True


def _paragraphs(chunks: Iterable[str]) -> Iterator[Piece]:
    """Take the text between blank lines as a document."""
    rest, begun, new_line = "", False, True
    for text, end in _lines(chunks):
        if new_line and end and not text.strip():
            if rest or begun:
                yield rest.rstrip("\n"), True
            rest, begun = "", False
        else:
            begun = begun or len(rest) + len(text) + end > PIECE
            rest = yield from _cut(rest + text + "\n" * end)
        new_line = end
    if rest or begun:
        yield rest.rstrip("\n"), True


SEPARATE = {"document": _whole, "line": _lines, "paragraph": _paragraphs}
"""Ways to take the documents of a text file: the whole file, a line, a paragraph."""
