"""Which columns hold the sentences, and which the label."""

from __future__ import annotations

from typing import Any

from ..errors import CrateError
from .text_columns import text_columns

_USUAL = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text1", "text2"),
    ("text", "text_pair"),
    ("sentence",),
    ("text",),
    ("question",),
)
_LABELS = ("label", "labels", "class", "target", "score", "similarity")


def find_sentence_columns(
    source: str, rows: Any, wanted: tuple[str, ...] | None, hint: tuple[str, ...] | None
) -> tuple[str, ...]:
    """One column or two: those asked for, else a task's own, else by usual names, else the only one with text."""
    columns, strings = text_columns(rows)
    if wanted is not None and len(wanted) > 2:
        raise CrateError(f"columns names {len(wanted)} columns ({', '.join(wanted)}); give one or two")
    chosen = wanted or hint
    if chosen is None:
        free = [name for name in strings if name not in _LABELS]
        chosen = next((names for names in _USUAL if all(name in free for name in names)), None)
        if chosen is None and len(free) == 1:
            chosen = (free[0],)
        if chosen is None:
            listed = ", ".join(columns)
            raise CrateError(
                f"{source}: cannot tell which columns hold the text; name one or two with columns: {listed}"
            )
    for name in chosen:
        if name not in columns:
            raise CrateError(f"{source} has no column {name!r} (columns); it has: {', '.join(columns)}")
        if name not in strings:
            raise CrateError(
                f"column {name!r} of {source} holds no text; name others with columns: {', '.join(columns)}"
            )
    return chosen


def find_label_column(source: str, rows: Any, wanted: str | None, texts: tuple[str, ...]) -> str:
    """The label column: the one asked for, else the one with named classes, else by usual names."""
    import datasets

    columns = list(rows.features)
    named = [name for name in columns if isinstance(rows.features[name], datasets.ClassLabel)]
    fits = [wanted] if wanted is not None else [*named, *(name for name in _LABELS if name in columns)]
    fits = [name for name in fits if name in columns and name not in texts]
    if not fits:
        lead = f"no label column {wanted!r}" if wanted else "no label column"
        raise CrateError(f"{source} has {lead}; name one with label_column, out of: {', '.join(columns)}")
    return fits[0]


def is_number_column(rows: Any, column: str) -> bool:
    """Whether labels are fractions."""
    return str(getattr(rows.features[column], "dtype", "")).startswith("float")
