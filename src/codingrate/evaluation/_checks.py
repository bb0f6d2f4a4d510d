"""What two sets of features must have before a probe makes sense."""

from __future__ import annotations

import numpy as np

from ..errors import CrateError
from .features import Features

_CHUNK = 2**24  # numbers looked at a time


def check_probe(train: Features, test: Features) -> None:
    """Refuse what a probe could only mislead about: nothing to learn, nothing to tell apart, other classes."""
    if train.classes != test.classes:
        here, there = (f"{len(part.classes)} ({', '.join(part.classes[:3])}, …)" for part in (train, test))
        raise CrateError(f"training and test features have other classes: {here} and {there}; take both from one set")
    for name, part in (("training", train), ("test", test)):
        if part.values.ndim != 2 or part.labels.shape != (len(part.values),):
            raise CrateError(
                f"{name} features are (n, d) with n labels, not {part.values.shape} with {part.labels.shape}"
            )
        if len(part) == 0 or part.values.shape[1] == 0:
            raise CrateError(f"the {name} features are empty; give a split with images")
        outside = part.labels[(part.labels < 0) | (part.labels >= len(part.classes))]
        if len(outside):
            raise CrateError(f"{name} label {outside[0]} is outside the {len(part.classes)} classes")
        step = max(_CHUNK // part.values.shape[1], 1)
        for start in range(0, len(part), step):
            if not np.isfinite(part.values[start : start + step]).all():
                raise CrateError(f"the {name} features are not all finite; the model that made them has diverged")
    if train.values.shape[1] != test.values.shape[1]:
        widths = f"{train.values.shape[1]} and {test.values.shape[1]}"
        raise CrateError(f"training and test features are {widths} wide; take both from one model")
    known = np.unique(train.labels)
    if len(known) < 2:
        only = train.classes[int(known[0])]
        raise CrateError(f"the training features are of one class only ({only!r}); a probe needs two or more")
    unseen = np.setdiff1d(test.labels, known)
    if len(unseen):
        name = test.classes[int(unseen[0])]
        raise CrateError(f"test class {name!r} is in no training image; take more images or leave the class out")


def ranked_before(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How many classes stand before the true one, (n,), by scores (n, classes); the lower class wins a tie."""
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    lower = np.arange(scores.shape[1]) < labels[:, None]
    return np.asarray(((scores > own) | ((scores == own) & lower)).sum(axis=1))
