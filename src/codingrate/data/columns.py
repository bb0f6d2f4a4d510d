"""Find the columns of images, texts and labels in a dataset, and turn labels into class indices or numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CrateError

_IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "pixels", "pixel_values")
_LABEL_NAMES = ("label", "labels", "fine_label", "cls", "class", "target", "score", "similarity")
_TEXT_NAMES = ("text", "content", "sentence")
_SENTENCE_NAMES = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"),
    ("text1", "text2"), ("text", "text_pair"), ("sentence",), ("text",), ("question",),
)  # fmt: skip

Indices = NDArray[np.int64]


def _pick(source: str, kind: str, wanted: str | None, candidates: Iterable[str | None], columns: Sequence[str]) -> str:
    """Return the wanted column, or else the first candidate that exists."""
    chosen = next((name for name in ((wanted,) if wanted else candidates) if name in columns), None)
    if chosen is None:
        missing = f"{kind} column {wanted!r}" if wanted else f"{kind} column"
        raise CrateError(f"{source} has no {missing}; set {kind}_column to one of: {', '.join(columns)}")
    return chosen


def find_image_columns(
    source: str,
    dataset: Any,
    image: str | None,
    label: str | None,
    hints: tuple[str | None, str | None] = (None, None),
) -> tuple[str, str]:
    """Return image and label column: the given names, else the known dataset's `hints`, else by type, else by name."""
    import datasets

    features = dataset.features or dict.fromkeys(next(iter(dataset), {}))  # a stream may not know its types
    typed = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    image = _pick(source, "image", image, (hints[0], *typed, *_IMAGE_NAMES), list(features))
    return image, find_label_column(source, features, label, hints[1])


def find_label_column(source: str, features: Mapping[str, Any], wanted: str | None, hint: str | None = None) -> str:
    """Return the label column: `wanted`, else the known dataset's `hint`, else one with class names, else by name."""
    import datasets

    typed = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    return _pick(source, "label", wanted, (hint, *typed, *_LABEL_NAMES), list(features))


def _text_columns(dataset: Any) -> tuple[list[str], list[str]]:
    """Return all columns of a dataset or stream, and those with strings."""
    if dataset.features is not None:
        types = {name: getattr(feature, "dtype", "") for name, feature in dataset.features.items()}
        return list(types), [name for name, kind in types.items() if kind in ("string", "large_string", "string_view")]
    first: dict[str, Any] = next(iter(dataset), {})  # a stream that does not know its types
    return list(first), [name for name, value in first.items() if isinstance(value, str)]


def find_text_column(source: str, dataset: Any, wanted: str | None) -> str:
    """Return the column with running text: `wanted`, else one with a usual name, else the only one with strings."""
    columns, strings = _text_columns(dataset)
    if wanted is not None:
        _check_text(source, "text_column", wanted, columns, strings)
        return wanted
    usual = [name for name in _TEXT_NAMES if name in strings]
    if not usual and len(strings) != 1:
        problem = "several columns with text" if strings else "no column with text"
        raise CrateError(f"{source} has {problem}; set text_column to one of: {', '.join(columns)}")
    return usual[0] if usual else strings[0]


def find_sentence_columns(
    source: str, dataset: Any, wanted: tuple[str, ...] | None, hint: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Return one or two columns: `wanted`, else the task's `hint`, else by usual names, else the only one with text."""
    columns, strings = _text_columns(dataset)
    if wanted is not None and len(wanted) > 2:
        raise CrateError(f"`columns` takes one or two names (got {len(wanted)}: {', '.join(wanted)})")
    chosen = wanted or hint
    if chosen is None:
        free = [name for name in strings if name not in _LABEL_NAMES]
        usual = (names for names in _SENTENCE_NAMES if all(name in free for name in names))
        chosen = next(usual, (free[0],) if len(free) == 1 else None)
        if chosen is None:
            advice = f"set columns to one or two of: {', '.join(columns)}"
            raise CrateError(f"cannot tell which columns of {source} have the text; {advice}")
    for name in chosen:
        _check_text(source, "columns", name, columns, strings)
    return chosen


def _check_text(source: str, option: str, name: str, columns: Sequence[str], strings: Sequence[str]) -> None:
    if name not in columns:
        raise CrateError(f"{source} has no column {name!r} ({option}); its columns are {', '.join(columns)}")
    if name not in strings:
        texts = f"columns with text are {', '.join(strings)}" if strings else "no other column does either"
        raise CrateError(f"column {name!r} of {source} does not hold text; {texts}")


def check_texts(source: str, dataset: Any, columns: Sequence[str], label: str) -> None:
    """Refuse a dataset without rows, without one of the columns, or with a row without text."""
    for name in (*columns, label):
        if name not in dataset.features:
            raise CrateError(f"{source} has no column {name!r}; its columns are {', '.join(dataset.features)}")
    if len(dataset) == 0:
        raise CrateError(f"{source} has no rows")
    for name in columns:
        missing = _arrow(dataset, name).is_null().to_numpy()
        if missing.any():
            raise CrateError(f"{source} has no text in row {np.argmax(missing)} of column {name!r}; fill or remove it")


def without_decoding(dataset: Any, column: str) -> Any:
    """Return a dataset whose images stay bytes or paths, so that a damaged one can be counted instead of raising."""
    import datasets

    feature = (dataset.features or {}).get(column)
    is_file = isinstance(feature, datasets.Value) and feature.dtype in ("string", "binary", "large_binary")
    is_struct = isinstance(feature, dict) and set(feature) == {"bytes", "path"}
    if isinstance(feature, datasets.Image) or is_file or is_struct:
        return dataset.cast_column(column, datasets.Image(decode=False))
    return dataset


def label_names(dataset: Any, column: str) -> tuple[str, ...] | None:
    """Return the class names that a label column carries, or None."""
    import datasets

    feature = (dataset.features or {}).get(column)
    return tuple(feature.names) if isinstance(feature, datasets.ClassLabel) and feature.names else None


def _arrow(dataset: Any, column: str) -> Any:
    return dataset.select_columns([column]).with_format("arrow")[:][column]


def _label_values(source: str, dataset: Any, column: str) -> NDArray[Any]:
    """Return a label column as an array of integers or strings."""
    values = _arrow(dataset, column) if len(dataset) else None
    if values is None:
        raise CrateError(f"{source} has no rows")
    if values.null_count:
        raise CrateError(f"{source} has {values.null_count} rows without a label in column {column!r}")
    array = values.to_numpy()
    if array.dtype.kind in "biu":
        array = array.astype(np.int64)
        if (array == -1).any():
            raise CrateError(
                f"{source} has label -1 in column {column!r}, which means unlabeled (as in GLUE's test files); "
                "use rows with labels"
            )
        return array
    if isinstance(array[0], str):
        return array.astype(np.str_)
    raise CrateError(f"{source} has labels of type {values.type} in column {column!r}; use integers or strings")


def classes_of(source: str, values: Sequence[Any] | NDArray[Any]) -> tuple[tuple[str, ...], dict[Any, int]]:
    """Return the classes of labels without names: their distinct values in order, and the index of each."""
    distinct = sorted({value.item() if isinstance(value, np.generic) else value for value in np.unique(values)})
    if distinct and not isinstance(distinct[0], str) and distinct[0] < 0:
        raise CrateError(f"{source} has label {distinct[0]}; labels must not be negative")
    return tuple(map(str, distinct)), {value: index for index, value in enumerate(distinct)}


class LabelEncoder:
    """Map labels to class indices.

    With an `index` every label is looked up in it. Without one the classes are known: a string is a class name and an
    integer is already an index.
    """

    def __init__(self, name: str, column: str, classes: tuple[str, ...], index: Mapping[Any, int] | None) -> None:
        self.name, self.column, self.count, self.known = name, column, len(classes), index is None
        self.index = {name: number for number, name in enumerate(classes)} if index is None else dict(index)

    def encode(self, label: Any, source: str) -> int:
        """Return the class index of one label; `source` is named in errors."""
        if self.known and not isinstance(label, str) and label is not None:
            if 0 <= int(label) < self.count:
                return int(label)
        elif label in self.index:
            return self.index[label]
        problem = f"is outside its {self.count} classes" if self.known else "does not occur in training"
        raise CrateError(f"{source} has label {label!r} in column {self.column!r}, which {problem}")

    def encode_column(self, source: str, dataset: Any) -> Indices:
        """Return the class indices of a dataset's labels; labels with names are matched by name."""
        names = label_names(dataset, self.column)
        distinct, inverse = np.unique(_label_values(source, dataset, self.column), return_inverse=True)
        if names is not None and not 0 <= distinct[0] <= distinct[-1] < len(names):
            problem = f"which is outside its {len(names)} classes"
            raise CrateError(f"{source} has label {distinct[-1]} in column {self.column!r}, {problem}")
        labels = [value.item() if names is None else names[value] for value in distinct]
        return np.array([self.encode(label, source) for label in labels], np.int64)[inverse.reshape(-1)]

    def __call__(self, row: Mapping[str, Any]) -> dict[str, int]:
        """Encode the label of a stream's row."""
        return {self.column: self.encode(row[self.column], self.name)}


def encode_classes(
    name: str, splits: Mapping[str, Any], column: str, classes: tuple[str, ...] | None
) -> tuple[dict[str, Any], tuple[str, ...], dict[str, Indices]]:
    """Return splits with class indices as labels, the class names, and the indices by split.

    Without known `classes` they are the distinct labels of the training split.
    """
    import datasets

    index = None
    if classes is None:
        source = f"the train split of {name}"
        classes, index = classes_of(source, _label_values(source, splits["train"], column))
    if len(classes) < 2:
        raise CrateError(f"{name} has one class only ({classes[0]!r}); classification needs two or more")
    encoder, encoded, indices = LabelEncoder(name, column, classes, index), {}, {}
    for split, dataset in splits.items():
        indices[split] = encoder.encode_column(f"the {split} split of {name}", dataset)
        if label_names(dataset, column) != classes:
            feature = datasets.ClassLabel(names=list(classes))
            dataset = dataset.remove_columns([column]).add_column(column, indices[split], feature=feature)
        encoded[split] = dataset
    return encoded, classes, indices


def encode_numbers(name: str, splits: Mapping[str, Any], column: str) -> dict[str, Any]:
    """Return splits with finite floats as labels."""
    import datasets

    encoded = {}
    for split, dataset in splits.items():
        labels = _arrow(dataset, column).to_pylist()
        values = np.zeros(len(labels))
        for row, label in enumerate(labels):
            try:
                values[row] = float(label)
            except (TypeError, ValueError):
                values[row] = np.nan
            if not np.isfinite(values[row]):
                problem = "no label" if label is None else f"label {label!r}, which is not a number,"
                raise CrateError(f"the {split} split of {name} has {problem} in row {row} of column {column!r}")
        encoded[split] = dataset.remove_columns([column]).add_column(column, values, feature=datasets.Value("float64"))
    return encoded


def stratified_split(labels: Indices, share: float, seed: int) -> tuple[Indices, Indices]:
    """Return ascending row indices for training and test, with `share` of every class (at least one row) in test.

    A class with a single row stays in training. The draws come from numpy's frozen RandomState, so that a split never
    changes with the version.
    """
    draw = np.random.RandomState(seed)
    test: list[Indices] = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        test.append(draw.permutation(rows)[:count])
    held = np.sort(np.concatenate(test)) if test else np.zeros(0, np.int64)
    return np.setdiff1d(np.arange(len(labels)), held), held.astype(np.int64)


def hold_out(name: str, dataset: Any, labels: Indices, share: float, seed: int) -> tuple[Any, Any]:
    """Split a dataset class by class into training and held-out rows; a share of 1 holds out all of them."""
    if share == 1:
        return dataset.select([]), dataset
    train, held = stratified_split(labels, share, seed)
    if len(held) == 0:
        raise CrateError(f"{name} has too few rows to hold one out of a class; add a test or validation split")
    return dataset.select(train), dataset.select(held)
