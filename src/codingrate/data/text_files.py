"""Plain text on disk: read in pieces, whatever the size of the file, and cut into documents."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import CrateError
from .tables import by_split, split_word

TEXT_SUFFIXES = (".txt", ".text", ".md", ".markdown", ".rst", ".tex", ".tokens", ".raw")
PIECE = 2**16
"""Characters a document is cut into pieces at, about."""

Piece = tuple[str, bool]
"""A part of a document, and whether it is its last."""

_WORD_END = re.compile(r"[^\W\d_](?=[ \n])")
_WINDOW = 2**12


@dataclass(frozen=True)
class Span:
    """A text file, or the bytes of it from `start` to before `end`."""

    path: Path
    start: int = 0
    end: int | None = None


def cut_place(text: str) -> int:
    """Where to cut a text that is longer than a piece: between a letter and the white space after it, where every
    byte-level BPE starts a new token, so that the ids are those of the uncut text. Text without spaces is cut anywhere.
    """
    near = max(PIECE - _WINDOW, 0)
    ends = [match.end() for match in _WORD_END.finditer(text, near, PIECE + 1)]
    return ends[-1] if ends else PIECE


def read_text(span: Span) -> Iterator[str]:
    """The decoded text in pieces; line ends become \\n, a byte-order mark goes."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
    place, end = span.start, span.end
    try:
        with span.path.open("rb") as file:
            file.seek(place)
            while True:
                raw = file.read(PIECE if end is None else min(PIECE, end - place))
                if b"\0" in raw:
                    raise CrateError(f"{span.path} is no plain text (zero bytes); give text in UTF-8")
                text = decoder.decode(raw, final=not raw)
                yield text.removeprefix("\ufeff") if place == 0 else text
                place += len(raw)
                if not raw:
                    return
    except UnicodeDecodeError as error:
        raise CrateError(
            f"{span.path} is not UTF-8 near byte {place + error.start}; convert it, as with iconv -f latin1 -t utf-8"
        ) from error
    except OSError as error:
        raise CrateError(f"cannot read {span.path}: {error.strerror or error}") from error


def whole(chunks: Iterator[str]) -> Iterator[Piece]:
    """All of a text as one document."""
    held = ""
    for chunk in chunks:
        held += chunk
        while len(held) > PIECE:
            place = cut_place(held)
            yield held[:place], False
            held = held[place:]
    yield held, True


def in_memory(text: str) -> Iterator[Piece]:
    """A text that is at hand, as one document."""
    if len(text) <= PIECE:
        return iter(((text, True),))
    return whole(text[start : start + PIECE] for start in range(0, len(text), PIECE))


def lines(chunks: Iterator[str]) -> Iterator[Piece]:
    """Every line is a document, blank ones too, as in the usual evaluation of WikiText."""
    held = ""
    for chunk in chunks:
        *done, held = (held + chunk).split("\n")
        for line in done:
            yield line, True
        while len(held) > PIECE:
            place = cut_place(held)
            yield held[:place], False
            held = held[place:]
    if held:
        yield held, True


def paragraphs(chunks: Iterator[str]) -> Iterator[Piece]:
    """Documents stand between blank lines."""
    held, begun, fresh = "", False, True
    for text, end in lines(chunks):
        if fresh and end and not text.strip():
            if held or begun:
                yield held.rstrip("\n"), True
            held, begun = "", False
        else:
            held += text + "\n" * end
            while len(held) > PIECE:
                place = cut_place(held)
                yield held[:place], False
                held, begun = held[place:], True
        fresh = end
    if held or begun:
        yield held.rstrip("\n"), True


SEPARATE: dict[str, Callable[[Iterator[str]], Iterator[Piece]]] = {
    "document": whole,
    "line": lines,
    "paragraph": paragraphs,
}
"""What is a document in a text file: all of it, a line, a paragraph."""


def tail(span: Span, share: float) -> tuple[Span, Span]:
    """A file without its last `share`, and that rest; cut after a line, else after a space, else between letters."""
    size = span.path.stat().st_size
    place = int(size * (1 - share))
    low = place - min(place, size - place, PIECE)  # looking no further back than the rest is long
    with span.path.open("rb") as file:
        file.seek(low)
        before = file.read(place - low + 1)
    ends = [before[:-1].rfind(mark) + 1 for mark in (b"\n", b" ")]
    cut = next((end for end in ends if end), place - low)
    while 0 < cut < len(before) and before[cut] & 0xC0 == 0x80:  # inside a character of several bytes
        cut -= 1
    return Span(span.path, 0, low + cut), Span(span.path, low + cut, None)


def split_files(folder: Path, files: list[Path]) -> dict[str, list[Path]]:
    """Text files by split. A folder of documents may hold one called `test-driven.md`: names speak of splits only if
    all do, or if one is plainly called train.
    """
    named = [split_word(folder, file) for file in files]
    plain = any("train" in (file.stem.lower(), *file.relative_to(folder).parts[:-1]) for file in files)
    return by_split(folder, files) if plain or (all(named) and "train" in named) else {"train": files}
