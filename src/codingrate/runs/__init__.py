"""Runs: train by a recipe, then evaluate, predict, inspect and probe the trained model."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
