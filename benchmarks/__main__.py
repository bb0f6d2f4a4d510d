"""Run benchmarks by name and print what they measure as JSON; it is valid for this machine and this run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from codingrate.bench.timing import machine

from .explorer import bench_explorer
from .growth import bench_growth, save_growth
from .inspection import bench_inspection
from .parts import bench_loader, bench_maskcut, bench_probe
from .precision import bench_precision
from .scaling import bench_scaling

BENCHMARKS: dict[str, tuple[Callable[..., dict[str, Any]], str]] = {
    "explorer": (bench_explorer, "clicks in crate explore, in units of one forward pass"),
    "growth": (bench_growth, "time and memory of MSSA, TSSA and a ViT's layer against tokens and width"),
    "inspection": (bench_inspection, "layer-wise measures, features, probes and MaskCut, in forward passes"),
    "loader": (bench_loader, "loading images, and training on them"),
    "maskcut": (bench_maskcut, "the cut of MaskCut and a dense solver"),
    "precision": (bench_precision, "decoding, training and losses in float32, bfloat16 and int8"),
    "probe": (bench_probe, "k nearest neighbors and logistic regression"),
    "scaling": (bench_scaling, "training on 1, 8 and 64 GPUs, computed from counted operations and bytes"),
}
"""Benchmarks by name, with what they measure."""


def main() -> None:
    """Run the benchmarks that the command line names."""
    about = "\n".join(f"{name}: {what}" for name, (_, what) in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=BENCHMARKS)
    parser.add_argument("--threads", type=int, help="number of CPU threads; default: PyTorch's choice")
    parser.add_argument("--figure", type=Path, help="picture of the benchmark growth to write, PNG or SVG")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    result = {name: BENCHMARKS[name][0]() for name in options.names}
    if options.figure and "growth" in result:
        save_growth(result["growth"], options.figure)
    print(json.dumps(result | {"machine": machine()}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
