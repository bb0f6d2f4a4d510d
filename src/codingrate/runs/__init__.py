"""Runs: train by a recipe, then evaluate, predict, inspect and probe the trained model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from .glue import GlueResult, fine_tune_glue
    from .run import Run
    from .training import train

__all__ = ["GlueResult", "Run", "fine_tune_glue", "train"]

_HOMES = {"Run": "run", "train": "training", "GlueResult": "glue", "fine_tune_glue": "glue"}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
