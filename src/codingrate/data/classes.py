"""Classes of labeled data: samples that are balanced over them, and their match with the classes of a model."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from ..errors import CrateError, unknown_name

ClassMap = str | Path | Mapping[str, str | int] | None
"""Model classes by data class: a mapping, a JSON file that holds one, or pairs such as `cat=tabby,dog=beagle`."""

_ENTRIES = TypeAdapter(dict[str, str | int])
_SHOWN = 3  # number of classes that a message shows


def balanced_indices(labels: NDArray[Any], count: int, seed: int = 0) -> list[int]:
    """Return `count` row indices in which classes take turns, each with rows drawn at random from `seed`.

    Every beginning of the result is balanced too: numbers of rows of two classes differ by at most one, except for
    classes that have no more rows. Constant labels give random rows. Neither the names nor the order of classes matter.
    """
    draw = np.random.RandomState(seed)  # frozen, so that a sample never changes with the version
    rows = draw.permutation(len(labels))
    classes, first, inverse = np.unique(np.asarray(labels)[rows], return_index=True, return_inverse=True)
    by_class = np.argsort(inverse, kind="stable")
    starts = np.searchsorted(inverse[by_class], np.arange(len(classes)))
    turn = np.empty(len(rows), np.int64)
    turn[by_class] = np.arange(len(rows)) - starts[inverse[by_class]]
    chosen: list[int] = rows[np.lexsort((first[inverse], turn))[:count]].tolist()
    return chosen


def read_class_map(labels: ClassMap) -> dict[str, str]:
    """Return the model class of every data class that is named in `labels`."""
    if labels is None:
        return {}
    if isinstance(labels, Mapping):
        return {str(name): str(target) for name, target in labels.items()}
    if Path(labels).suffix.lower() == ".json":
        try:
            entries = _ENTRIES.validate_json(Path(labels).expanduser().read_bytes())
        except OSError as error:
            raise CrateError(f"`labels={str(labels)!r}`: cannot read the file ({error.strerror or error})") from error
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise CrateError(
                f'`labels={str(labels)!r}`: must hold {{"data class": "model class", …}} ({problem})'
            ) from None
        return read_class_map(entries)
    pairs = [pair.partition("=") for pair in str(labels).split(",")]
    if not all(name.strip() and target.strip() for name, _, target in pairs):
        raise CrateError(f"`labels={str(labels)!r}`: give a JSON file, or pairs such as cat=tabby,dog=beagle")
    return {name.strip(): target.strip() for name, _, target in pairs}


def match_classes(
    data: str,
    classes: Sequence[str],
    model: Sequence[str],
    labels: ClassMap = None,
    present: Iterable[int] | None = None,
) -> list[int]:
    """Return for each class of the data the index of the model's class with the same name.

    `labels` maps data classes to model classes first; a number stands for a class index. Data whose classes are bare
    numbers, none of them a name of the model's, are taken as the model's indices. A model without class names takes
    the classes in their order. Both are logged. Only the classes that are `present` (indices; default: all) must have
    a match; the others get -1.
    """
    renamed = read_class_map(labels)
    for name in renamed:
        if name not in classes:
            raise unknown_name(f"class of {data} in `labels`", name, classes)
    if not renamed and tuple(classes) == tuple(model):
        return list(range(len(classes)))
    shown = range(len(classes)) if present is None else sorted(present)
    index = {name: number for number, name in enumerate(model)}
    targets = {number: renamed.get(classes[number], classes[number]) for number in shown}
    numbers = {number for number in shown if targets[number].isdecimal() and int(targets[number]) < len(model)}
    unknown = [number for number, target in targets.items() if target not in index]
    bare = not renamed and 0 < len(numbers) == len(unknown) == len(targets)
    if bare:
        _note(f"the labels of {data} are numbers without names; they are taken as the model's class indices")
    if bare or all(number in numbers and classes[number] in renamed for number in unknown):  # or indices in `labels`
        matched = [-1] * len(classes)
        for number, target in targets.items():
            matched[number] = index[target] if target in index else int(target)
        return matched
    if not renamed and len(classes) == len(model) and all(re.fullmatch(r"LABEL_\d+", name) for name in model):
        _note(f"the model has no class names; its {len(model)} outputs are taken as the classes of {data} in order")
        return list(range(len(classes)))
    raise CrateError(
        f"{data} has classes that the model does not know: {list_names([targets[number] for number in unknown])}; "
        f"the model's are {list_names(model)}; "
        f"map them with `labels='{classes[unknown[0]]}={model[0]},…'` or a JSON file"
    )


def list_names(names: Sequence[str]) -> str:
    """Return the first names, and how many there are if these are not all."""
    return ", ".join(names[:_SHOWN]) + (f", … ({len(names)})" if len(names) > _SHOWN else "")


def _note(text: str) -> None:
    logging.getLogger("codingrate").info(text)
