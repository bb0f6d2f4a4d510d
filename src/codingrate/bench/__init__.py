"""Speed and memory, side by side in one run: ours, the paper's pseudocode as written, and transformers' ViT."""

from .gpt import bench_gpt
from .loader import bench_loader
from .maskcut import bench_maskcut
from .probe import bench_probe
from .suites import bench_image, bench_rate, machine

__all__ = ["bench_gpt", "bench_image", "bench_loader", "bench_maskcut", "bench_probe", "bench_rate", "machine"]
