"""Running text by name, path or hub id, as documents that are read again each time they are iterated, in pieces."""

from __future__ import annotations

import codecs
import hashlib
import io
import itertools
import math
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .._files import is_utf8
from ..errors import CrateError, unknown_name
from .catalog import BUILT_IN_TEXT, TEXTS
from .columns import find_text_column
from .fingerprint import Fingerprint, fingerprint, text_fingerprint
from .sources import Seed, Splits, check_arguments, check_share, choose_splits, file_key, hashed, open_splits, read_rows

PYDOC_SHARE = 0.1  # share of the built-in text that is held out
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
            advice = "convert it, for example with iconv -f latin1 -t utf-8"
            raise CrateError(f"{self.path} is not UTF-8 near byte {position + error.start}; {advice}") from error
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


@dataclass(frozen=True)
class TextData:
    """Documents for training and validation, not yet read."""

    name: str
    train: Documents
    validation: Documents
    text_column: str | None
    """Column of a table that holds the text; None for text files."""
    streaming: bool = False
    """Whether tables or the hub are read as a stream, without a copy on disk."""
    test: Documents | None = None
    """Documents for the final evaluation, if the source has them besides those for validation."""
    whole: bool = False
    """Whether `validation` is all of the text, because the source has no splits and none was held out."""

    @property
    def fingerprint(self) -> Fingerprint:
        """Plain values that change with the text or its splits; of long texts, the beginning and the size count.

        Store it with a run and compare it with `describe_change` when the run is resumed.
        """
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        parts = {name: documents for name, documents in splits.items() if documents is not None}
        return fingerprint(None, {name: text_fingerprint(part.pieces(), part.size()) for name, part in parts.items()})

    def split(self, name: str) -> Documents:
        """Return a split by name; `all` stands for all of them, one after the other."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        if name == "all":
            return JoinedDocuments(part for part in splits.values() if part is not None)
        if name not in splits:
            raise unknown_name("split", name, (*splits, "all"))
        documents = splits[name]
        if documents is None:
            raise CrateError(f"{self.name} has no {name} split; use `split='validation'` or `split='all'`")
        return documents


@check_arguments
def load_text(
    name: str,
    *,
    path: str | Path | None = None,
    text_column: str | None = None,
    separate: str = "document",
    validation_share: float | None = None,
    split_seed: Seed = 0,
    streaming: bool = False,
) -> TextData:
    """Open a text by a short name (`text_names()`), a local path or a hub id `owner/name`, looked up in this order.

    `path` is where the files of a known text are. A text file is one document, or one per `line` or `paragraph`
    (`separate`); a row of a table is one document. Files named train, valid and test are the splits. If there is a
    single split, `validation_share` of its documents (default 0.05) is held out by `split_seed`; of fewer than 1/share
    text files, the end of each is held out instead. A share of 1 makes everything validation, to evaluate a trained
    model. The built-in `pydoc` has a fixed split. Text files are never copied; `streaming` is for tables and the hub,
    and reads a single split once for each of its two parts.
    """
    if separate not in SEPARATE:
        raise unknown_name("way to separate documents", separate, SEPARATE)
    if validation_share is not None:
        check_share("validation_share", validation_share)
    if name == BUILT_IN_TEXT and path is None:
        train, validation = map(TextDocuments, pydoc_topics())
        if validation_share == 1:
            train, validation = TextDocuments([]), TextDocuments([*train.texts, *validation.texts])
        return TextData(name, train, validation, None, whole=validation_share == 1)
    opened = open_splits(name, kind="text", path=path, streaming=streaming)
    splits, column = _documents(name, opened, text_column, separate)
    for split, documents in splits.items():
        if not any(text.strip() for text, _ in documents.pieces()):
            raise CrateError(f"{name} has no text in its {split} split" if len(splits) > 1 else f"{name} has no text")
    parts = choose_splits(name, splits, validation_share == 1)
    if "test" in parts:
        train, test = parts.get("train", TextDocuments([])), parts["test"] if "validation" in parts else None
        validation, whole = parts.get("validation", parts["test"]), len(parts) == 1
        return TextData(name, train, validation, column, streaming, test, whole)
    share = validation_share or (TEXTS[name].validation_share if name in TEXTS else 0.05)
    return TextData(name, *_hold_out(name, parts["train"], share, split_seed), column, streaming, whole=share == 1)


def _documents(name: str, opened: Splits, column: str | None, separate: str) -> tuple[dict[str, Documents], str | None]:
    """Return the documents by split, and the column that holds them."""
    if all(isinstance(files, list) for files in opened.values()):
        if column is not None:
            raise CrateError(f"text.text_column is for tables (got {column!r}), but {name} is plain text; leave it out")
        return {split: FileDocuments([*map(Span, files)], separate) for split, files in opened.items()}, None
    for split, dataset in opened.items():
        column = find_text_column(name if len(opened) == 1 else f"the {split} split of {name}", dataset, column)
    rows = {split: RowDocuments(opened[split], str(column), partial(opened.version, split)) for split in opened}
    return dict(rows), column


def _hold_out(name: str, documents: Documents, share: float, seed: int) -> tuple[Documents, Documents]:
    if share == 1:
        return TextDocuments([]), documents
    if isinstance(documents, FileDocuments) and documents.separate == "document" and len(documents.spans) < 1 / share:
        parts = [span.split_tail(share) for span in documents.spans]
        train, validation = (FileDocuments([part[side] for part in parts], "document") for side in (0, 1))
        if not any(text.strip() for text, _ in train.pieces()):
            raise CrateError(f"{name} is too short to hold a part out; add more text or a validation file")
        return train, validation
    ends = (end for _, end in documents.pieces() if end)
    count = sum(itertools.islice(ends, math.ceil(1 / share)))  # no need to count further
    if count == 1:
        raise CrateError(f"{name} has only one document, so none can be held out; add a validation file")
    share = max(share, 1 / count)
    return DocumentSplit(documents, share, seed, held=False), DocumentSplit(documents, share, seed, held=True)


def pydoc_topics() -> tuple[list[str], list[str]]:
    """Return the topics of Python's `help()`, chapters of the language reference, for training and validation.

    Some topics are sections of others (`if` of `compound`), so topics that share a paragraph stay in one split: no
    validation text was seen in training. The split depends on the names only, so that versions of Python, whose texts
    differ a little, agree.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        advice = "install its standard library or use another text"
        raise CrateError(f"this Python comes without pydoc_data; {advice}") from error
    budget = PYDOC_SHARE * sum(map(len, topics.values()))
    held: set[str] = set()
    for group in sorted(_connected(topics), key=lambda group: hashlib.sha256(min(group).encode()).hexdigest()):
        size = sum(len(topics[name]) for name in group)
        if size <= budget:
            held |= group
            budget -= size
    names = sorted(topics)
    return [topics[name] for name in names if name not in held], [topics[name] for name in names if name in held]


def _connected(topics: dict[str, str]) -> list[set[str]]:
    """Return groups of topics that share paragraphs; short ones such as "See also:" do not count."""
    users: dict[str, set[str]] = defaultdict(set)
    for name, text in topics.items():
        for paragraph in re.split(r"\n\s*\n", text):
            words = " ".join(paragraph.split())
            if len(words) >= 60:
                users[words].add(name)
    groups = {name: {name} for name in topics}
    for sharing in users.values():
        joined = set().union(*(groups[name] for name in sharing))
        groups.update(dict.fromkeys(joined, joined))
    return list({id(group): group for group in groups.values()}.values())
