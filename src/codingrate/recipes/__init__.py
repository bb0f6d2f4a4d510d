"""Recipes: typed settings of an experiment, in YAML files that inherit, have variants and take overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from .files import build_recipe, load_recipe, recipe_header, recipe_names, recipe_path, save_recipe
    from .schema import Recipe

__all__ = ["Recipe", "build_recipe", "load_recipe", "recipe_header", "recipe_names", "recipe_path", "save_recipe"]

__getattr__, __dir__ = _lazy.attach(__name__, {name: "schema" if name == "Recipe" else "files" for name in __all__})
