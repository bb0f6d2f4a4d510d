"""Timing side by side: what is compared takes turns, so that a machine's moods fall on all alike."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

Progress = Callable[[], None]


def medians(
    cases: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 2, progress: Progress | None = None
) -> dict[str, float]:
    """Median seconds of each case over `repeats` rounds in which every case has its turn."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
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


def synchronize() -> None:
    """Wait for the accelerator, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_gflops(size: int = 3072, repeats: int = 5) -> float:
    """Billions of operations per second of one large float32 matrix product, the best of a few."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9


def peak_memory(task: Callable[..., None], arguments: Sequence[Any]) -> float:
    """MiB that `task(*arguments)` adds at its peak to a process of its own that has everything imported."""
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_watched, args=(queue, task, arguments, torch.get_num_threads()))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the process that measures memory ended with code {process.exitcode}")
    return float(queue.get())


def _watched(queue: Any, task: Callable[..., None], arguments: Sequence[Any], threads: int) -> None:
    import transformers.models.vit.modeling_vit  # noqa: F401 (so that importing it is not counted)

    torch.set_num_threads(threads)
    before = _peak_kib()
    task(*arguments)
    queue.put((_peak_kib() - before) / 1024)


def _peak_kib() -> int:
    """The most this process has ever held. Where Linux tells it, not getrusage's, which a parent's size taints."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
