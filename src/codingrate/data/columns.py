"""Find the columns of images, texts and labels in a dataset, and turn labels into class indices or numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CrateError
from .classes import list_names
from .sources import read_rows

_LABEL_NAMES = ("label", "labels", "fine_label", "cls", "class", "target", "score", "similarity")
_USUAL = {
    "image": ("Image", ("image", "img", "jpg", "jpeg", "png", "webp", "pixels", "pixel_values")),
    "label": ("ClassLabel", _LABEL_NAMES),
}  # the type of `datasets`, and the usual names of a column
_TEXT_NAMES = ("text", "content", "sentence")
_SENTENCE_NAMES = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"),
    ("text1", "text2"), ("text", "text_pair"), ("sentence",), ("text",), ("question",),
)  # fmt: skip

Indices = NDArray[np.int64]


def find_column(
    kind: str, source: str, features: Mapping[str, Any], wanted: str | None, hint: str | None = None
) -> str:
    """Return the image or label column: `wanted`, else the known dataset's `hint`, else one by type, else by name."""
    import datasets

    feature_type, usual = getattr(datasets, _USUAL[kind][0]), _USUAL[kind][1]
    typed = [name for name, feature in features.items() if isinstance(feature, feature_type)]
    chosen = next((name for name in ((wanted,) if wanted else (hint, *typed, *usual)) if name in features), None)
    if chosen is None:
        missing = f"{kind} column {wanted!r}" if wanted else f"{kind} column"
        raise CrateError(f"{source} has no {missing}; set data.{kind}_column to one of: {', '.join(features)}")
    return chosen


def _text_columns(dataset: Any) -> tuple[list[str], list[str]]:
    """Return all columns of a dataset or stream, and those with strings."""
    if dataset.features is None:  # a stream that does not know its types
        first: Mapping[str, Any] = next(read_rows("the stream", dataset), {})
        types = {name: "string" if isinstance(value, str) else "" for name, value in first.items()}
    else:
        types = {name: getattr(feature, "dtype", "") for name, feature in dataset.features.items()}
    return list(types), [name for name, kind in types.items() if kind in ("string", "large_string", "string_view")]


def find_text_column(source: str, dataset: Any, wanted: str | None) -> str:
    """Return the column with running text: `wanted`, else one with a usual name, else the only one with strings."""
    columns, strings = _text_columns(dataset)
    if wanted is not None:
        return _check_text(source, "text.text_column", wanted, columns, strings)
    usual = [name for name in _TEXT_NAMES if name in strings] or strings
    if len(strings) != 1 and usual is strings:
        problem = "several columns with text" if strings else "no column with text"
        raise CrateError(f"{source} has {problem}; set text.text_column to one of: {', '.join(strings or columns)}")
    return usual[0]


def find_sentence_columns(
    source: str, dataset: Any, wanted: tuple[str, ...] | None, hint: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Return one or two columns: `wanted`, else the task's `hint`, else by usual names, else the only one with text."""
    columns, strings = _text_columns(dataset)
    if wanted is not None and len(wanted) > 2:
        raise CrateError(f"text.columns takes one or two names (got {len(wanted)}: {', '.join(wanted)})")
    free = [name for name in strings if name not in _LABEL_NAMES]
    usual = (names for names in _SENTENCE_NAMES if {*names} <= {*free})
    chosen = wanted or hint or next(usual, free if len(free) == 1 else None)
    if chosen is None:
        if not strings:
            raise CrateError(f"{source} has no column with text; its columns are {', '.join(columns)}")
        raise CrateError(
            f"cannot tell which columns of {source} have the text; "
            f"set text.columns to one or two of: {', '.join(free or strings)}"
        )
    return tuple(_check_text(source, "text.columns", name, columns, strings) for name in chosen)


def _check_text(source: str, option: str, name: str, columns: Sequence[str], strings: Sequence[str]) -> str:
    """Return the name of a column if it exists and holds text."""
    if name not in columns:
        raise CrateError(f"{source} has no column {name!r}; set {option} to one of: {', '.join(strings or columns)}")
    if name not in strings:
        texts = f"set {option} to one of: {', '.join(strings)}" if strings else "no other column does either"
        raise CrateError(f"column {name!r} of {source} does not hold text; {texts}")
    return name


def check_texts(source: str, dataset: Any, columns: Sequence[str], label: str) -> None:
    """Refuse a dataset without rows, without one of the columns, or with a row without text."""
    for key, names in (("text.columns", columns), ("data.label_column", (label,))):
        for name in names:
            if name not in dataset.features:
                known = ", ".join(dataset.features)
                raise CrateError(f"{source} has no column {name!r}; set {key} to one that every split has, of: {known}")
    if len(dataset) == 0:
        raise CrateError(f"{source} has no rows")
    for name in columns:
        missing = _arrow(dataset, name).is_null().to_numpy()
        if missing.any():
            raise CrateError(f"{source} has no text in row {np.argmax(missing)} of column {name!r}; fill or remove it")


def select_undecoded(dataset: Any, column: str, label: str) -> Any:
    """Return images and labels only, and the images as bytes or paths, so that a damaged one can be counted."""
    import datasets
    from datasets.features.features import require_decoding

    dataset = dataset.select_columns([column, label])
    feature = (dataset.features or {}).get(column)
    is_file = isinstance(feature, datasets.Value) and feature.dtype in ("string", "binary", "large_binary")
    is_struct = isinstance(feature, dict) and set(feature) == {"bytes", "path"}
    is_image = isinstance(feature, datasets.Image) or is_file or is_struct
    for name, part in (dataset.features or {}).items():  # `datasets` would open images in lists by itself
        if require_decoding(part, ignore_decode_attribute=True) and (name == label or not is_image):
            kind = "a label" if name == label else "one image"
            raise CrateError(f"column {name!r} must hold {kind} per row, not {type(part).__name__}")
    return dataset.cast_column(column, datasets.Image(decode=False)) if is_image else dataset


def label_names(dataset: Any, column: str) -> tuple[str, ...] | None:
    """Return the class names that a label column carries, or None."""
    import datasets

    feature = (dataset.features or {}).get(column)
    return tuple(feature.names) if isinstance(feature, datasets.ClassLabel) and feature.names else None


def common_names(splits: Mapping[str, Any], column: str, whole: bool = False) -> tuple[str, ...] | None:
    """Return the class names that the training split carries, or all splits of a `whole` dataset for evaluation."""
    carried = [label_names(part, column) for part in (splits.values() if whole else [splits["train"]])]
    return None if None in carried else tuple(dict.fromkeys(name for names in carried for name in names or ()))


def _arrow(dataset: Any, column: str) -> Any:
    """Return a whole column as an Arrow array, with texts that are UTF-8."""
    import pyarrow

    values = dataset.select_columns([column]).with_format("arrow")[:][column]
    try:
        values.validate(full=True)
    except pyarrow.ArrowInvalid as error:
        raise CrateError(f"column {column!r} is damaged: {error}; use text in UTF-8") from error
    return values


def _check_label(source: str, column: str, label: Any) -> None:
    """Refuse a label that cannot stand for a class."""
    value = f"{source} has label {label!r:.40} in column {column!r}"
    if label is None:
        raise CrateError(f"{source} has rows without a label in column {column!r}")
    if not isinstance(label, (int, str)):
        raise CrateError(f"{value}, of type {type(label).__name__}; use integers or strings")
    if label == -1:
        raise CrateError(f"{value}, which means unlabeled (as in GLUE's test files); use rows with labels")
    if isinstance(label, int) and label < 0:
        raise CrateError(f"{value}; labels must not be negative")


def _distinct_labels(source: str, dataset: Any, column: str, streaming: bool) -> set[int | str]:
    """Return the distinct labels of a dataset or stream."""
    if streaming:
        values: Any = (row[column] for row in read_rows(source, dataset.select_columns([column])))
    else:
        values = _arrow(dataset, column).unique().to_pylist()
    labels = set()
    for label in values:
        _check_label(source, column, label)
        labels.add(int(label) if isinstance(label, bool) else label)
    return labels


@dataclass(frozen=True)
class LabelEncoder:
    """Map a label, or the name that a label stands for, to its class index; other labels are errors."""

    source: str
    column: str
    index: Mapping[Any, int]
    """Class index of every label or name."""
    names: Sequence[str] | None
    """Names that the labels stand for, if the column carries them."""
    problem: str
    """The words that say what is wrong with a label that has no class."""

    def __call__(self, label: Any) -> int:
        _check_label(self.source, self.column, label)
        if self.names is not None and label < len(self.names):
            if self.names[label] not in self.index:
                classes = list_names([str(known) for known in self.index if isinstance(known, str)])
                raise CrateError(
                    f"{self.source} has class {self.names[label]!r}, but the training classes are {classes}"
                )
            return self.index[self.names[label]]
        if self.names is not None or label not in self.index:
            problem = self.problem if self.names is None else f"is outside its {len(self.names)} classes"
            raise CrateError(f"{self.source} has label {label!r} in column {self.column!r}, which {problem}")
        return self.index[label]


def _map_row(row: Mapping[str, Any], column: str, encode: Callable[[Any], int]) -> dict[str, int]:
    return {column: encode(row[column])}


def map_labels(dataset: Any, column: str, encode: Callable[[Any], int], classes: Sequence[str] | None = None) -> Any:
    """Return a dataset or stream with encoded labels; of a table, every distinct label is encoded once."""
    import datasets
    from pyarrow import compute

    feature = datasets.Value("int64") if classes is None else datasets.ClassLabel(names=[*classes])
    if isinstance(dataset, datasets.IterableDataset):
        features = dataset.features and datasets.Features({**dataset.features, column: datasets.Value("int64")})
        return dataset.map(partial(_map_row, column=column, encode=encode), features=features)
    if len(dataset) == 0:  # columns cannot be added to no rows
        return dataset
    values = _arrow(dataset, column)
    distinct = values.unique()
    encoded = [encode(label) for label in distinct.to_pylist()]
    if dataset.features[column] == feature and encoded == distinct.to_pylist():
        return dataset
    labels = np.array(encoded, np.int64)[compute.index_in(values, value_set=distinct).to_numpy()]
    return dataset.remove_columns([column]).add_column(column, labels, feature=feature)


def encode_classes(
    name: str,
    splits: Mapping[str, Any],
    column: str,
    classes: tuple[str, ...] | None,
    streaming: bool = False,
    whole: bool = False,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return splits with class indices as labels, and the class names; labels with names are matched by name.

    Without known `classes` they are the distinct labels of the training split. If the `whole` dataset is for
    evaluation, they are those of all splits, and one class is enough. Streams are encoded as they are read.
    """
    sources = {split: f"the {split} split of {name}" for split in splits}
    for split, part in splits.items():
        if not streaming and len(part) == 0:
            raise CrateError(f"{sources[split]} has no rows")
    if classes is None:
        occurring: set[int | str] = set()
        for split in splits if whole else ["train"]:
            part = splits[split]
            occurring.update(label_names(part, column) or _distinct_labels(sources[split], part, column, streaming))
        found = sorted(occurring, key=lambda label: (isinstance(label, str), label))
        classes, problem = tuple(map(str, found)), "does not occur in training"
        index = {label: number for number, label in enumerate(found)}
    else:
        problem = f"is outside its {len(classes)} classes"
        index = {i: i for i in range(len(classes))} | {label: number for number, label in enumerate(classes)}
    if len(classes) < 2 and not whole:
        only = ", ".join(map(repr, classes))
        raise CrateError(f"{name} has one class only ({only}); classification needs two or more")
    encoded = {}
    for split, part in splits.items():
        names = label_names(part, column)
        encode = LabelEncoder(sources[split], column, index, names, problem)
        for label in range(len(names or ()) if streaming else 0):  # classes of other splits are refused at once
            encode(label)
        encoded[split] = map_labels(part, column, encode, classes)
    return encoded, classes


def encode_numbers(name: str, splits: Mapping[str, Any], column: str) -> dict[str, Any]:
    """Return splits with finite floats as labels."""
    import datasets

    encoded = {}
    for split, dataset in splits.items():
        labels = _arrow(dataset, column).to_pylist()
        values = np.full(len(labels), np.nan)
        for row, label in enumerate(labels):
            with contextlib.suppress(TypeError, ValueError):
                values[row] = float(label)
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


def column_array(dataset: Any, column: str) -> NDArray[Any]:
    """Return a column of numbers."""
    values: NDArray[Any] = _arrow(dataset, column).to_numpy()
    return values


def image_paths(dataset: Any, column: str) -> list[str]:
    """Return the path of each image of a dataset, "" for images without one, and do not read the images."""
    flat = dataset.select_columns([column]).flatten()
    if f"{column}.path" not in flat.column_names:
        return [""] * len(dataset)
    return [path or "" for path in flat[f"{column}.path"]]


def label_indices(dataset: Any, column: str) -> Indices:
    """Return a column of class indices; a column of numbers counts as one class."""
    labels = column_array(dataset, column)
    return labels if labels.dtype.kind == "i" else np.zeros(len(labels), np.int64)


def has_labels(dataset: Any, column: str) -> bool:
    """Return whether a dataset has a label in every row; published test splits often have -1 instead."""
    if column not in dataset.features:
        return False
    labels = _arrow(dataset, column)
    return labels.null_count == 0 and not (labels.to_numpy() == -1).any()


def hold_out(name: str, dataset: Any, column: str, share: float, seed: int) -> tuple[Any, Any]:
    """Split a dataset class by class into training and held-out rows; a share of 1 holds out all of them."""
    if share == 1:
        return dataset.select([]), dataset
    train, held = stratified_split(label_indices(dataset, column), share, seed)
    if len(held) == 0:
        raise CrateError(f"{name} has too few rows to hold one out of a class; add a test or validation split")
    return dataset.select(train), dataset.select(held)
