"""Which columns of a table hold text."""

from __future__ import annotations

from typing import Any

from ..errors import CrateError

_TEXT_NAMES = ("text", "content", "sentence")


def text_columns(rows: Any) -> tuple[list[str], list[str]]:
    """The columns of rows or of a stream: all of them, and those with strings."""
    if rows.features is not None:
        types = {name: getattr(feature, "dtype", "") for name, feature in rows.features.items()}
        strings = [name for name, kind in types.items() if kind in ("string", "large_string", "string_view")]
        return list(types), strings
    first: dict[str, Any] = next(iter(rows), {})  # a stream that does not know its types
    return list(first), [name for name, value in first.items() if isinstance(value, str)]


def find_text_column(source: str, rows: Any, wanted: str | None) -> str:
    """The column asked for, else one with a usual name, else the only one with strings."""
    columns, strings = text_columns(rows)
    if wanted is not None:
        if wanted not in columns:
            raise CrateError(f"{source} has no column {wanted!r} (text_column); its columns: {', '.join(columns)}")
        if wanted not in strings:
            texts = f"those with text: {', '.join(strings)}" if strings else "none of its columns does"
            raise CrateError(f"column {wanted!r} of {source} holds no text; {texts}")
        return wanted
    usual = [name for name in _TEXT_NAMES if name in strings]
    if not usual and len(strings) != 1:
        what = "several columns with text" if strings else "no column with text"
        raise CrateError(f"{source} has {what}; name one with text_column, out of: {', '.join(columns)}")
    return usual[0] if usual else strings[0]
