"""White-box transformers via sparse rate reduction.

`codingrate.objective` measures, `codingrate.operators` compress and sparsify, `codingrate.models` stack them. `train`
trains a model by a recipe, and `Run` opens a trained one to evaluate, predict and look inside.

Names load what they need on first use, so that importing the package takes almost no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _auto, _lazy
from .errors import CrateError

if TYPE_CHECKING:
    from . import bench, data, evaluation, inspection, models, objective, operators, recipes, runs, tasks, theory
    from .models import (
        CrateConfig,
        CrateForCausalLM,
        CrateForImageClassification,
        CrateForMaskedAutoencoding,
        CrateForMaskedLM,
        CrateForSelfDistillation,
        CrateForSequenceClassification,
        CrateModel,
        create_model,
        list_models,
        load_released,
    )
    from .recipes import Recipe, load_recipe
    from .runs import Run, train

__version__ = "0.1.0"

__all__ = [
    "CrateConfig", "CrateError", "CrateForCausalLM", "CrateForImageClassification", "CrateForMaskedAutoencoding",
    "CrateForMaskedLM", "CrateForSelfDistillation", "CrateForSequenceClassification", "CrateModel", "Recipe", "Run",
    "bench", "create_model", "data", "evaluation", "inspection", "list_models", "load_recipe", "load_released",
    "models", "objective", "operators", "recipes", "runs", "tasks", "theory", "train",
]  # fmt: skip

_HOMES = {"Recipe": "recipes", "load_recipe": "recipes", "Run": "runs", "train": "runs"}
_LAZY = {
    name: _HOMES.get(name, "models" if name.startswith(("Crate", "create", "list", "load")) else name)
    for name in __all__
}
del _LAZY["CrateError"]
__getattr__, __dir__ = _lazy.attach(__name__, _LAZY)

_auto.register_when_imported()
