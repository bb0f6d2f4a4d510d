from .exporting import export_onnx
from .glue import GlueResult, fine_tune_glue
from .interruption import TrainingStopped
from .run import Run, load
from .study import StudyReport, run_study
from .training import train

__all__ = [
    "GlueResult", "Run", "StudyReport", "TrainingStopped", "export_onnx", "fine_tune_glue", "load", "run_study",
    "train",
]  # fmt: skip
