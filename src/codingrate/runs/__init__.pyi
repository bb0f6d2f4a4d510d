from .exporting import export_onnx
from .glue import GlueResult, fine_tune_glue
from .interruption import TrainingStopped
from .publishing import check_published, publish
from .run import Run, load
from .study import StudyReport, run_study
from .training import train

__all__ = [
    "GlueResult", "Run", "StudyReport", "TrainingStopped", "check_published", "export_onnx", "fine_tune_glue", "load",
    "publish", "run_study", "train",
]  # fmt: skip
