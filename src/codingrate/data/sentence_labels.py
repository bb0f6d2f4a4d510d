"""Labels of sentences: class indices or numbers, every one checked before training starts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CrateError
from .columns import LabelEncoder, label_names, label_values, names_of


def check_texts(source: str, rows: Any, columns: tuple[str, ...], texts: tuple[str, ...]) -> None:
    """Refuse rows that lack a column, or a sentence in one."""
    missing = [name for name in columns if name not in rows.features]
    if missing:
        raise CrateError(f"{source} has no column {missing[0]!r}; its columns: {', '.join(rows.features)}")
    if len(rows) == 0:
        raise CrateError(f"{source} has no rows")
    for name in texts:
        absent = _arrow(rows, name).is_null()
        if absent.to_numpy().any():
            first = int(np.argmax(absent.to_numpy()))
            raise CrateError(f"{source} has no text in row {first} of column {name!r}; fill it or leave the row out")


def class_labels(
    name: str, parts: dict[str, Any], column: str, known: tuple[str, ...] | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Rows with class indices, and the names of the classes: a task's own, else those of the training rows.

    Labels that carry names go by them, whatever their order in the file; bare numbers are a known task's indices.
    """
    import datasets

    values = {split: _classes(f"the {split} split of {name}", rows, column) for split, rows in parts.items()}
    classes, index = known or label_names(parts["train"], column), None
    if classes is None:
        classes, index = names_of(name, values["train"])
    if len(classes) < 2:
        raise CrateError(f"{name} has one class only ({classes[0]!r}); classification needs two or more")
    recoded = {}
    feature = datasets.ClassLabel(names=list(classes))
    for split, rows in parts.items():
        codes = LabelEncoder(f"the {split} split of {name}", column, classes, index).array(values[split])
        recoded[split] = rows.remove_columns([column]).add_column(column, codes, feature=feature)
    return recoded, classes


def _classes(source: str, rows: Any, column: str) -> NDArray[Any]:
    values, names = label_values(source, rows, column), label_names(rows, column)
    if values.dtype.kind == "i" and (values == -1).any():
        raise CrateError(
            f"{source} has label -1 in column {column!r}, which stands for none, as in GLUE's test files; "
            "use rows with labels"
        )
    if names is not None and values.max() >= len(names):
        raise CrateError(f"{source} has label {values.max()} in column {column!r}, outside its {len(names)} classes")
    return values if names is None else np.array(names)[values]


def number_labels(name: str, parts: dict[str, Any], column: str) -> dict[str, Any]:
    """Rows with labels as floats."""
    import datasets

    recoded = {}
    for split, rows in parts.items():
        values = _numbers(f"the {split} split of {name}", rows, column)
        recoded[split] = rows.remove_columns([column]).add_column(column, values, feature=datasets.Value("float64"))
    return recoded


def _numbers(source: str, rows: Any, column: str) -> NDArray[np.float64]:
    found = _arrow(rows, column).to_pylist()
    values = np.zeros(len(found))
    for row, label in enumerate(found):
        try:
            values[row] = float(label)
        except (TypeError, ValueError):
            values[row] = np.nan
        if not np.isfinite(values[row]):
            what = "no label" if label is None else f"label {label!r}, which is no number,"
            raise CrateError(f"{source} has {what} in row {row} of column {column!r}; regression needs one in each")
    return values


def _arrow(rows: Any, column: str) -> Any:
    return rows.select_columns([column]).with_format("arrow")[:][column]
