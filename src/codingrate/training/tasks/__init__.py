"""The tasks a recipe can name."""

from __future__ import annotations

from ..recipe import Recipe
from .autoencoding import Autoencoding
from .base import Step, Task
from .classification import Classification
from .distillation import Distillation
from .images import load_data
from .language import CausalLM, MaskedLM
from .sentences import SequenceClassification

TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "autoencoding": Autoencoding,
    "distillation": Distillation,
    "causal-lm": CausalLM,
    "masked-lm": MaskedLM,
    "sequence-classification": SequenceClassification,
}
"""Each task by the name recipes call it."""


def task_of(recipe: Recipe) -> Task:
    """The task of a recipe."""
    return TASKS[recipe.task](recipe)


__all__ = ["TASKS", "Step", "Task", "load_data", "task_of"]
