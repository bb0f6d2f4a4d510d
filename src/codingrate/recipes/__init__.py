"""Recipes: typed settings of an experiment, in YAML files that inherit, have variants and take overrides."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
