"""Speed and memory, side by side in one run: ours, the paper's pseudocode as written, and transformers' ViT."""

from .loader import bench_loader
from .suites import bench_image, bench_rate, machine

__all__ = ["bench_image", "bench_loader", "bench_rate", "machine"]
