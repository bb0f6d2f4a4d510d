"""Trained models that ship with the package, by name: run folders below `codingrate/weights`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

WEIGHTS = Path(__file__).parents[1] / "weights"


def pretrained_names(pattern: str = "*") -> list[str]:
    """Return the names of the trained models that match a shell pattern such as `crate-*`, sorted."""
    return sorted(path.parent.name for path in WEIGHTS.glob("*/recipe.yaml") if fnmatchcase(path.parent.name, pattern))


def pretrained_folder(name: str) -> Path | None:
    """Return the run folder of a trained model that ships with the package, or None if there is none of this name."""
    return WEIGHTS / name if name in pretrained_names() else None
