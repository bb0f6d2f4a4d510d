"""Running text by name, path or hub id."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import defaultdict
from functools import partial
from pathlib import Path

from ..errors import CrateError, unknown_name
from .catalog import BUILT_IN_TEXT, TEXTS
from .columns import find_text_column
from .documents import SEPARATE, Documents, DocumentSplit, FileDocuments, RowDocuments, Span, TextDocuments
from .opened import OpenedData
from .sources import Seed, Splits, check_arguments, check_share, choose_splits, open_splits

PYDOC_SHARE = 0.1  # share of the built-in text that is held out


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
) -> OpenedData:
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
    whole = validation_share == 1
    if name == BUILT_IN_TEXT and path is None:
        train, validation = pydoc_topics()
        parts = ([], train + validation) if whole else (train, validation)
        return OpenedData(name, dict(zip(("train", "validation"), map(TextDocuments, parts), strict=True)), whole=whole)
    opened = open_splits(name, kind="text", path=path, streaming=streaming)
    splits, column = _documents(name, opened, text_column, separate)
    for split, documents in splits.items():
        if not any(text.strip() for text, _ in documents.pieces()):
            raise CrateError(f"{name} has no text in its {split} split" if len(splits) > 1 else f"{name} has no text")
    chosen = choose_splits(name, splits, whole)
    whole = whole and len(chosen) == 1
    if "test" not in chosen:
        share = validation_share or (TEXTS[name].validation_share if name in TEXTS else 0.05)
        chosen["train"], chosen["validation"] = _hold_out(name, chosen["train"], share, split_seed)
    elif "validation" not in chosen:
        chosen["validation"] = chosen.pop("test")
    chosen = {"train": TextDocuments([]), **chosen}
    splits = {split: chosen[split] for split in ("train", "validation", "test") if split in chosen}
    return OpenedData(name, splits, () if column is None else (column,), streaming=streaming, whole=whole)


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
        raise CrateError(
            "this Python comes without pydoc_data; install its standard library or use another text"
        ) from error
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
