"""Evaluation: what a trained model gets right, measured one way for every run; a file per task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from .classification import classify
    from .picture import confusion_picture
    from .real import read_real_labels, real_accuracy
    from .report import ClassAccuracy, ClassificationReport

__all__ = [
    "ClassAccuracy",
    "ClassificationReport",
    "classify",
    "confusion_picture",
    "read_real_labels",
    "real_accuracy",
]

_HOMES = {
    "classification": ("classify",),
    "picture": ("confusion_picture",),
    "real": ("read_real_labels", "real_accuracy"),
    "report": ("ClassAccuracy", "ClassificationReport"),
}
__getattr__, __dir__ = _lazy.attach(__name__, {name: home for home, names in _HOMES.items() for name in names})
