"""Speed and memory in one run: our models, the paper's pseudocode and transformers' models, side by side."""

from .explorer import bench_explorer
from .growth import bench_growth, save_growth
from .inspecting import bench_inspection
from .limits import products_alone, read_bandwidth
from .models import bench_gpt, bench_image
from .precision import bench_precision
from .scaling import bench_scaling
from .suites import bench_loader, bench_maskcut, bench_probe, bench_rate, count_rounds, run_suites
from .timing import machine

__all__ = [
    "bench_explorer", "bench_gpt", "bench_growth", "bench_image", "bench_inspection", "bench_loader", "bench_maskcut",
    "bench_precision", "bench_probe", "bench_rate", "bench_scaling", "count_rounds", "machine", "products_alone",
    "read_bandwidth", "run_suites", "save_growth",
]  # fmt: skip
