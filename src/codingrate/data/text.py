"""One way to name a text: a built-in name, text files, tables with a text column, or a hub id."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ..errors import CrateError, unknown_name
from .documents import Documents, DocumentSplit, FileDocuments, TextDocuments
from .pydoc_topics import pydoc_topics
from .splits import choose_splits
from .text_files import SEPARATE, tail
from .text_sources import BUILT_IN_TEXT, KNOWN_TEXTS, open_text


@dataclass(frozen=True)
class TextData:
    """Text to learn from and to measure on, not yet read."""

    name: str
    """What the text was asked for by."""
    train: Documents
    """Documents to learn from."""
    validation: Documents
    """Documents to measure on while learning."""
    text_column: str | None
    """Column of a table that holds the text; None for text files."""
    streaming: bool = False
    """Whether the rows of a table or of the hub are read as they come, without a copy on disk."""
    test: Documents | None = None
    """Documents to measure on in the end, where the source has them beside those for validation."""


def load_text(
    name: str,
    *,
    path: str | Path | None = None,
    text_column: str | None = None,
    separate: str = "document",
    validation_share: float | None = None,
    split_seed: int = 0,
    streaming: bool = False,
) -> TextData:
    """Open a text by a short name (`text_names()`), a local path, or a hub id `owner/name`, looked up in this order.

    `path` says where the files of a known text lie. A text file is one document, or holds one per `line` or
    `paragraph` (`separate`); a row of a table is one. Files called train, valid and test are the splits. Where there is
    one split only, `validation_share` (0.05) of its documents are held out by `split_seed`, and of fewer than
    1/share text files the last part of each; a share of 1 makes all of it validation, to measure a trained model. The
    built-in `pydoc` has one split of its own. Text files are always read as they come; `streaming` is for tables and
    the hub, where a single split is then read once for each of the two parts.
    """
    if separate not in SEPARATE:
        raise unknown_name("way to separate documents", separate, SEPARATE)
    if validation_share is not None and not 0 < validation_share <= 1:
        raise CrateError(f"validation_share must lie in (0, 1], not {validation_share}")
    if path is not None and name not in KNOWN_TEXTS:
        known = ", ".join(KNOWN_TEXTS)
        raise CrateError(f"path goes with {known}, not with {name!r}; give the path itself as the name")
    if name == BUILT_IN_TEXT:
        train, validation = map(TextDocuments, pydoc_topics())
        if validation_share == 1:
            train, validation = TextDocuments([]), TextDocuments([*train.texts, *validation.texts])
        return TextData(name, train, validation, None)
    splits, column = open_text(name, path, text_column, separate, streaming)
    for split, documents in splits.items():
        if not any(text.strip() for text, _ in documents.pieces()):
            raise CrateError(f"{name} has no text in its {split} split" if len(splits) > 1 else f"{name} has no text")
    lone, held = choose_splits(splits)
    if held is not None:
        test = splits.get("test") if "validation" in splits else None
        return TextData(name, lone, splits.get("validation", held), column, streaming, test)
    share = validation_share or (KNOWN_TEXTS[name].share if name in KNOWN_TEXTS else 0.05)
    return TextData(name, *_hold_out(name, lone, share, split_seed), column, streaming)


def _hold_out(name: str, documents: Documents, share: float, seed: int) -> tuple[Documents, Documents]:
    if share == 1:
        return TextDocuments([]), documents
    if isinstance(documents, FileDocuments) and documents.separate == "document" and len(documents.spans) < 1 / share:
        parts = [tail(span, share) for span in documents.spans]
        train, validation = (FileDocuments([part[side] for part in parts], "document") for side in (0, 1))
        if not any(text.strip() for text, _ in train.pieces()):
            raise CrateError(f"{name} is too short to hold a part out; give more text, or a validation file")
        return train, validation
    count = _count(documents, math.ceil(1 / share))
    if count == 1:
        raise CrateError(f"{name} has one document only, so none can be held out; give a validation file")
    share = max(share, 1 / count)
    return DocumentSplit(documents, share, seed, False), DocumentSplit(documents, share, seed, True)


def _count(documents: Documents, enough: int) -> int:
    """How many documents there are, counting no further than `enough`."""
    count = 0
    for _, end in documents.pieces():
        count += end
        if count == enough:
            break
    return count
