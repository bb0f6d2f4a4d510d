"""The tasks by name; only the file of the task that is opened is imported."""

from __future__ import annotations

from importlib import import_module

from ..recipes.schema import Recipe
from .base import Task, TaskPaths

TASKS: dict[str, str] = {
    "classification": "Classification",
    "autoencoding": "Autoencoding",
    "distillation": "Distillation",
    "causal-lm": "CausalLM",
    "masked-lm": "MaskedLM",
    "sequence-classification": "SequenceClassification",
}
"""Class of each task, by the task's name in a recipe."""

TASK_OF_MODEL: dict[str, str] = {
    "CrateForImageClassification": "classification",
    "CrateForMaskedAutoencoding": "autoencoding",
    "CrateForSelfDistillation": "distillation",
    "CrateForCausalLM": "causal-lm",
    "CrateForMaskedLM": "masked-lm",
    "CrateForSequenceClassification": "sequence-classification",
}
"""Name of the task that a model class belongs to, for models that are not part of a run."""


def open_task(recipe: Recipe, paths: TaskPaths | None = None) -> Task:
    """Build the task of a recipe; its data are opened on first use."""
    task: type[Task] = getattr(import_module(__package__), TASKS[recipe.task])
    return task(recipe, paths)
