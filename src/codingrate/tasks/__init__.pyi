from .autoencoding import Autoencoding
from .base import Reading, Samples, Step, Task, TaskPaths
from .classification import Classification
from .distillation import Distillation
from .generation import Generation, generate, sampling_settings
from .images import ImageTask
from .language import CausalLM, LanguageTask, MaskedLM
from .registry import TASK_OF_MODEL, TASKS, open_task
from .reports import ClassificationReport, FeatureReport, MaskedReport, Reconstruction, ReconstructionReport

# isort: split
from .reports import SentenceReport
from .sentences import SequenceClassification
from .text import TextTask

__all__ = [
    "TASKS", "TASK_OF_MODEL", "Autoencoding", "CausalLM", "Classification", "ClassificationReport", "Distillation",
    "FeatureReport", "Generation", "ImageTask", "LanguageTask", "MaskedLM", "MaskedReport", "Reading", "Reconstruction",
    "ReconstructionReport", "Samples", "SentenceReport", "SequenceClassification", "Step", "Task", "TaskPaths",
    "TextTask", "generate", "open_task", "sampling_settings",
]  # fmt: skip
