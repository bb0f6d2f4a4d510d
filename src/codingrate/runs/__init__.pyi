from .curves import kept_steps, learning_curve, save_curves
from .exporting import export_onnx
from .glue import GlueResult, fine_tune_glue, glue_curve
from .interruption import TrainingStopped
from .publishing import check_published, publish
from .run import Run, load
from .study import StudyCheck, StudyReport, check_study, run_study
from .training import train
from .zero_shot_report import ZeroShotReport, zero_shot

__all__ = [
    "GlueResult", "Run", "StudyCheck", "StudyReport", "TrainingStopped", "ZeroShotReport", "check_published",
    "check_study", "export_onnx", "fine_tune_glue", "glue_curve", "kept_steps", "learning_curve", "load", "publish",
    "run_study", "save_curves", "train", "zero_shot",
]  # fmt: skip
