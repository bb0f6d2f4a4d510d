"""Training: typed recipes, transformers' Trainer with what each task needs, runs that survive a kill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from .recipe import Recipe
    from .recipe_files import build_recipe, load_recipe, recipe_header, recipe_names, recipe_path, save_recipe
    from .run import RunResult, train
    from .start import build_classifier, load_weights, saved_model
    from .tasks import load_data, task_of

__all__ = [
    "Recipe",
    "RunResult",
    "build_classifier",
    "build_recipe",
    "load_data",
    "load_recipe",
    "load_weights",
    "recipe_header",
    "recipe_names",
    "recipe_path",
    "save_recipe",
    "saved_model",
    "task_of",
    "train",
]

_HOMES = {
    "recipe": ("Recipe",),
    "recipe_files": ("build_recipe", "load_recipe", "recipe_header", "recipe_names", "recipe_path", "save_recipe"),
    "run": ("RunResult", "train"),
    "tasks": ("load_data", "task_of"),
    "start": ("build_classifier", "load_weights", "saved_model"),
}
__getattr__, __dir__ = _lazy.attach(__name__, {name: home for home, names in _HOMES.items() for name in names})
