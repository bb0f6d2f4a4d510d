"""Where a text comes from: text files, tables, or the hub, split by split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import CrateError
from .documents import Documents, FileDocuments, RowDocuments, file_key
from .hub import local_path, open_hub
from .tables import TABLES, by_split, files_below, is_saved, open_saved, open_tables
from .text_columns import find_text_column
from .text_files import TEXT_SUFFIXES, Span, split_files

BUILT_IN_TEXT = "pydoc"


@dataclass(frozen=True)
class KnownText:
    """Where a well-known text lies on the hub."""

    hub: str
    """Hub id, `owner/name`."""
    config: str | None = None
    """Configuration there."""
    share: float = 0.05
    """Held out where the hub has a single split."""


KNOWN_TEXTS = {
    "wikitext": KnownText("Salesforce/wikitext", "wikitext-2-raw-v1"),
    "wikitext-2": KnownText("Salesforce/wikitext", "wikitext-2-raw-v1"),
    "wikitext-103": KnownText("Salesforce/wikitext", "wikitext-103-raw-v1"),
    "openwebtext": KnownText("Skylion007/openwebtext", share=0.0005),  # nanoGPT's share, not its very documents
}

_ASIDE = ("readme", "license", "dataset_info", "dataset_infos")  # files about a dataset, in its folder


def text_names() -> list[str]:
    """Every short name `load_text` understands, sorted."""
    return sorted((BUILT_IN_TEXT, *KNOWN_TEXTS))


def open_text(
    name: str, path: str | Path | None, text_column: str | None, separate: str, streaming: bool
) -> tuple[dict[str, Documents], str | None]:
    """Splits by name, and the column their text is in."""
    if path is not None:
        local: Path | None = Path(path).expanduser()
    else:
        local = None if name in KNOWN_TEXTS else local_path(name, text_names())
    keys: dict[str, Callable[[], str | None]] = {}
    if local is None:
        known = KNOWN_TEXTS.get(name, KnownText(name))
        rows = open_hub(name, known.hub, streaming, config=known.config)
        if streaming:
            keys = {split: partial(_stream_key, known, split) for split in rows}
    elif local.is_dir() and is_saved(local):
        rows = open_saved(local)
    else:
        files, tables = _files(local)
        if not tables:
            if text_column is not None:
                raise CrateError(f"text_column {text_column!r} goes with tables; {local} is plain text")
            return {split: FileDocuments([*map(Span, paths)], separate) for split, paths in files.items()}, None
        keys = {split: partial(file_key, paths) for split, paths in files.items()}
        if not streaming:  # what is read later is a copy of what lies there now
            keys = {split: partial(str, key()) for split, key in keys.items()}
        rows = open_tables(files, streaming)
    column = text_column
    for split, some in rows.items():
        column = find_text_column(name if len(rows) == 1 else f"the {split} split of {name}", some, column)
    documents: dict[str, Documents] = {}
    for split, some in rows.items():
        key = keys.get(split) or partial(getattr, some, "_fingerprint", None)
        documents[split] = RowDocuments(some, str(column), key)
    return documents, column


def _files(path: Path) -> tuple[dict[str, list[Path]], bool]:
    """The files at a path by split, and whether they are tables."""
    if path.is_file():
        return {"train": [path]}, path.suffix.lower() in TABLES
    if not path.is_dir():
        raise CrateError(f"no such file or folder: {path}")
    found = [Path(file) for file in files_below(path, (*TABLES, *TEXT_SUFFIXES))]
    found = [file for file in found if file.stem.lower() not in _ASIDE] or found
    tables = [file for file in found if file.suffix.lower() in TABLES]
    if not found:
        raise CrateError(f"no text below {path}; known are {' '.join((*TEXT_SUFFIXES, *TABLES))}")
    if not tables:
        return split_files(path, found), False
    if len(tables) < len(found):
        texts = next(file for file in found if file not in tables)
        raise CrateError(
            f"{path} holds a table, {tables[0].name}, and plain text, {texts.name}; name the file you mean"
        )
    return by_split(path, tables), True


def _stream_key(known: KnownText, split: str) -> str | None:
    """The commit a stream comes from, by which a copy of it is known again; None if the hub does not say."""
    from huggingface_hub import HfApi

    try:
        revision = HfApi().dataset_info(known.hub).sha
    except Exception:  # without it the text is only tokenised anew
        return None
    return f"{known} {split} {revision}" if revision else None
