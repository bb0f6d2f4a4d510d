"""Runs: train by a recipe, then evaluate, predict, inspect and probe the trained model."""

from __future__ import annotations

from .._lazy import names_of_stub

__getattr__, __dir__, __all__ = names_of_stub(__name__, __file__)
