"""Tasks: one file per kind of learning. A recipe names its task; `open_task` builds it."""

from __future__ import annotations

from ..models import (
    CrateForCausalLM,
    CrateForImageClassification,
    CrateForMaskedAutoencoding,
    CrateForMaskedLM,
    CrateForSelfDistillation,
    CrateForSequenceClassification,
)
from ..recipes.schema import Recipe
from .autoencoding import Autoencoding
from .base import Reading, Samples, Step, Task, TaskPaths
from .classification import Classification
from .distillation import Distillation
from .generation import Generation, generate, sampling_settings
from .images import ImageTask
from .language import CausalLM, LanguageTask, MaskedLM
from .reports import ClassificationReport, MaskedReport, Reconstruction, ReconstructionReport, SentenceReport
from .sentences import SequenceClassification
from .text import TextTask

TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "autoencoding": Autoencoding,
    "distillation": Distillation,
    "causal-lm": CausalLM,
    "masked-lm": MaskedLM,
    "sequence-classification": SequenceClassification,
}
"""Tasks by their name in a recipe."""

TASK_OF_MODEL: dict[str, str] = {
    CrateForImageClassification.__name__: "classification",
    CrateForMaskedAutoencoding.__name__: "autoencoding",
    CrateForSelfDistillation.__name__: "distillation",
    CrateForCausalLM.__name__: "causal-lm",
    CrateForMaskedLM.__name__: "masked-lm",
    CrateForSequenceClassification.__name__: "sequence-classification",
}
"""Name of the task that a model class belongs to, for models that are not part of a run."""


def open_task(recipe: Recipe, paths: TaskPaths | None = None) -> Task:
    """Build the task of a recipe; its data are opened on first use."""
    return TASKS[recipe.task](recipe, paths)


__all__ = [
    "TASKS", "TASK_OF_MODEL", "CausalLM", "Classification", "ClassificationReport", "Generation", "ImageTask",
    "LanguageTask", "MaskedReport", "Reading", "Reconstruction", "ReconstructionReport", "Samples", "SentenceReport",
    "Step", "Task", "TaskPaths", "TextTask", "generate", "open_task", "sampling_settings",
]  # fmt: skip
