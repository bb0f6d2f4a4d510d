"""Timing and memory measurements. Compared functions take turns, so that changes of the machine's load affect all."""

from __future__ import annotations

import multiprocessing
import platform
import statistics
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

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
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_added_mib, task, arguments, torch.get_num_threads()).result()


def _added_mib(task: Callable[..., None], arguments: Sequence[Any], threads: int) -> float:
    torch.set_num_threads(threads)
    before = _peak_kib()
    task(*arguments)
    return (_peak_kib() - before) / 1024


def _peak_kib() -> int:
    """Return the largest memory this process has held. On Linux, getrusage would include the parent's size."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
