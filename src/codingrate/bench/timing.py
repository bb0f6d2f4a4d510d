"""Timing and memory measurements. Compared functions take turns, so that changes of the machine's load affect all."""

from __future__ import annotations

import math
import multiprocessing
import platform
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from torch import Tensor, nn

Value = TypeVar("Value")
Progress = Callable[[], None] | None  # a function that is called after every round, or None
Result = dict[str, Any]  # measurements as plain values, which `crate bench --json` prints


def medians(
    cases: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 2, progress: Progress = None
) -> dict[str, float]:
    """Return the median seconds of each case over `repeats` rounds; in a round every case runs once."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for turn in range(warmup + repeats):
        for name, run in cases.items():
            synchronize()
            start = time.perf_counter()
            run()
            synchronize()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
        if progress is not None:
            progress()
    return {name: statistics.median(values) for name, values in seconds.items()}


def training_step(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """Return a function that takes one training step: forward, backward and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def machine() -> Result:
    """Return the software versions, the number of threads and the peak speed that results depend on.

    The peak is that of a large float32 matrix product, the best of five, in billions of operations per second.
    """
    size = 3072
    a, b = torch.randn(size, size), torch.randn(size, size)
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "peak_gflops": 2 * size**3 / min(timeit.repeat(lambda: a @ b, number=1, repeat=5)) / 1e9,
    }


def peak_memory(task: Callable[..., None], arguments: Sequence[Any]) -> float:
    """Return the peak memory in MiB that `task(*arguments)` adds to a new process that has imported its module."""
    return in_new_process(_added_mib, (task, arguments))


def in_new_process(function: Callable[..., Value], arguments: Sequence[Any]) -> Value:
    """Return `function(*arguments)`, computed in a new process with as many threads as this one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_with_threads, function, arguments, torch.get_num_threads()).result()


def _with_threads(function: Callable[..., Value], arguments: Sequence[Any], threads: int) -> Value:
    torch.set_num_threads(threads)
    return function(*arguments)


def _added_mib(task: Callable[..., None], arguments: Sequence[Any]) -> float:
    before = peak_mib()
    task(*arguments)
    return peak_mib() - before


def peak_mib() -> float:
    """Return the largest memory this process has held, in MiB. On Linux, getrusage would include the parent's size."""
    kib = _kib("/proc/self/status", "VmHWM")
    if kib is not None:
        return kib / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def available_mib() -> float:
    """Return the memory that new processes can use, in MiB; infinite where the system does not say."""
    kib = _kib("/proc/meminfo", "MemAvailable")
    return math.inf if kib is None else kib / 1024


def _kib(file: str, key: str) -> int | None:
    path = Path(file)
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)
