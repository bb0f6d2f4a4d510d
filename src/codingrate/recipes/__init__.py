"""Recipes: typed settings of an experiment, in YAML files that inherit, have variants and take overrides."""

from __future__ import annotations

from .._lazy import names_of_stub

__getattr__, __dir__, __all__ = names_of_stub(__name__, __file__)
