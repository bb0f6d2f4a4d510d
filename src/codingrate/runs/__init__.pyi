from .glue import GlueResult, fine_tune_glue
from .run import Run
from .training import train

__all__ = ["GlueResult", "Run", "fine_tune_glue", "train"]
