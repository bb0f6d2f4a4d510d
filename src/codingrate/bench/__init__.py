"""Speed and memory in one run: our models, the paper's pseudocode and transformers' models, side by side."""

from .models import bench_gpt, bench_image
from .suites import bench_rate, count_rounds, run_suites
from .tables import describe

__all__ = ["bench_gpt", "bench_image", "bench_rate", "count_rounds", "describe", "run_suites"]
