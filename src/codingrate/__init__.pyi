from . import bench, data, evaluation, explorer, inspection, models, objective, operators, recipes, runs, tasks, theory
from .errors import CrateError
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
    from_transformers,
    list_models,
    load_released,
    pretrained_names,
)
from .recipes import Recipe, load_recipe
from .runs import Run, load, train

__version__: str
__all__ = [
    "CrateConfig", "CrateError", "CrateForCausalLM", "CrateForImageClassification", "CrateForMaskedAutoencoding",
    "CrateForMaskedLM", "CrateForSelfDistillation", "CrateForSequenceClassification", "CrateModel", "Recipe", "Run",
    "bench", "create_model", "data", "evaluation", "explorer", "from_transformers", "inspection", "list_models", "load",
    "load_recipe", "load_released", "models", "objective", "operators", "pretrained_names", "recipes", "runs", "tasks",
    "theory", "train",
]  # fmt: skip
