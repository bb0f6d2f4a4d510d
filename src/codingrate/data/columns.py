"""Which column holds the image and which the class, and labels as indices into one tuple of class names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CrateError

_IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "pixels", "pixel_values")
_LABEL_NAMES = ("label", "labels", "fine_label", "cls", "class", "target")


def _pick(source: str, kind: str, wanted: str | None, hint: str | None, fits: list[str], columns: list[str]) -> str:
    if wanted is not None:
        if wanted not in columns:
            raise CrateError(f"{source} has no {kind} column {wanted!r}; its columns: {', '.join(columns)}")
        return wanted
    if hint in columns:
        return str(hint)
    if not fits:
        raise CrateError(f"{source} has no {kind} column; name one with {kind}_column, out of: {', '.join(columns)}")
    return fits[0]


def find_columns(
    source: str, rows: Any, image: str | None, label: str | None, hints: tuple[str | None, str | None]
) -> tuple[str, str]:
    """Image and label column: the ones asked for, else those a known dataset has, else by type, else by name."""
    import datasets

    features = rows.features or dict.fromkeys(next(iter(rows), {}))
    columns = list(features)
    images = [name for name in columns if isinstance(features[name], datasets.Image)]
    images += [name for name in _IMAGE_NAMES if name in columns]
    labels = [name for name in columns if isinstance(features[name], datasets.ClassLabel)]
    labels += [name for name in _LABEL_NAMES if name in columns]
    return (
        _pick(source, "image", image, hints[0], images, columns),
        _pick(source, "label", label, hints[1], labels, columns),
    )


def without_decoding(rows: Any, column: str) -> Any:
    """The rows with images left as bytes or path, so that a broken one breaks nothing before it can be counted."""
    import datasets

    feature = (rows.features or {}).get(column)
    is_file = isinstance(feature, datasets.Value) and feature.dtype in ("string", "binary", "large_binary")
    is_struct = isinstance(feature, dict) and set(feature) == {"bytes", "path"}
    if isinstance(feature, datasets.Image) or is_file or is_struct:
        return rows.cast_column(column, datasets.Image(decode=False))
    return rows


def label_names(rows: Any, column: str) -> tuple[str, ...] | None:
    """The class names the column itself carries, if it does."""
    import datasets

    feature = (rows.features or {}).get(column)
    return tuple(feature.names) if isinstance(feature, datasets.ClassLabel) and feature.names else None


def label_values(source: str, rows: Any, column: str) -> NDArray[Any]:
    """A label column as an array, of integers or of strings."""
    if len(rows) == 0:
        return np.zeros(0, np.int64)
    values = rows.select_columns([column]).with_format("arrow")[:][column]
    if values.null_count:
        raise CrateError(f"{source} has {values.null_count} rows without a label in column {column!r}")
    array = values.to_numpy()
    array = array.astype(np.int64) if array.dtype == np.bool_ else array
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if isinstance(array[0], str):
        return array.astype(np.str_)
    raise CrateError(f"{source} has labels of type {values.type} in column {column!r}; classes are integers or strings")


def names_of(source: str, values: Sequence[Any] | NDArray[Any]) -> tuple[tuple[str, ...], dict[Any, int]]:
    """Classes of labels that carry no names: their distinct values in order, and the index of each."""
    distinct = sorted({value.item() if isinstance(value, np.generic) else value for value in np.unique(values)})
    if distinct and not isinstance(distinct[0], str) and distinct[0] < 0:
        raise CrateError(f"{source} has label {distinct[0]}; labels must not be negative")
    return tuple(map(str, distinct)), {value: index for index, value in enumerate(distinct)}


class LabelEncoder:
    """Labels to class indices: through `index` where it knows them; a bare integer is an index already."""

    def __init__(self, source: str, column: str, classes: tuple[str, ...], index: Mapping[Any, int] | None) -> None:
        self.source, self.column, self.count, self.bare = source, column, len(classes), index is None
        self.index = {name: number for number, name in enumerate(classes)} if index is None else dict(index)

    def code(self, value: Any) -> int:
        """The class index of one label."""
        if self.bare and not isinstance(value, str) and value is not None:
            number = int(value)
            if 0 <= number < self.count:
                return number
        elif value in self.index:
            return self.index[value]
        known = f"outside its {self.count} classes" if self.bare else "which no training row has"
        raise CrateError(f"{self.source} has label {value!r} in column {self.column!r}, {known}")

    def array(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """The class indices of a column."""
        distinct, inverse = np.unique(values, return_inverse=True)
        return np.array([self.code(value.item()) for value in distinct], np.int64)[inverse.reshape(-1)]

    def __call__(self, row: Mapping[str, Any]) -> dict[str, int]:
        return {self.column: self.code(row[self.column])}
