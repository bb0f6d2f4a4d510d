"""Growth of time and memory with the number of tokens and with the width, for MSSA, TSSA and the layer of a ViT."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from codingrate._page import save_figure
from codingrate._state import seeded
from codingrate.bench.timing import Progress, Result, available_mib, in_new_process, medians, peak_mib, training_step
from codingrate.models.config import CrateConfig
from codingrate.models.layers import EncoderLayer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYERS: dict[str, dict[str, Any]] = {
    "mssa": {"attention": "mssa", "sparsifier": "ista"},
    "tssa": {"attention": "tssa", "sparsifier": "ista"},
    "vit": {"attention": "mhsa", "sparsifier": "mlp", "skip": "residual"},
}
"""Config fields of the measured layers."""
AXES: dict[str, tuple[int, ...]] = {"tokens": (64, 256, 1024, 4096, 16384), "width": (192, 384, 768, 1536)}
"""Sizes that are measured, ascending."""
FIXED = {"tokens": 256, "width": 384}
"""Size on one axis while the other varies."""
MODES = ("inference", "training")
HEAD_DIM = 64
FITTED = 3
"""Number of sizes, the largest ones, to which an exponent is fitted; smaller sizes show constant costs."""
QUICK = 2.0  # seconds above which a step is not repeated


def bench_growth(
    axes: Mapping[str, Sequence[int]] = AXES,
    fixed: Mapping[str, int] = FIXED,
    *,
    repeats: int = 5,
    limit: float = 30.0,
    progress: Progress = None,
) -> Result:
    """Measure seconds and peak MiB of one layer against the number of tokens and against the width, with exponents.

    A training step is forward, backward and AdamW on one sequence. Memory is measured first, in a new process for
    each layer and mode that takes steps of ascending size: it is the growth of the peak resident memory (VmHWM on
    Linux) since before the layer was created, weights and AdamW's averages included, libraries not. A size is skipped,
    and all larger ones, if quadratic growth from the size before would take more than `limit` seconds or more than the
    available memory. Times are medians, for which the layers take turns. An exponent is the slope of a straight line
    through the logarithms of the largest sizes.
    """
    result: Result = {"limit": limit, "fixed": dict(fixed), "axes": {}}
    for axis, sizes in axes.items():
        result["axes"][axis] = {mode: {} for mode in MODES}
        for mode in MODES:
            growth: dict[str, Result] = result["axes"][axis][mode]
            for name in LAYERS:
                points = in_new_process(_memory, (name, mode, _shapes(axis, sizes, fixed), limit))
                growth[name] = {"sizes": list(sizes), **points, "seconds": [None] * len(sizes)}
                if progress is not None:
                    progress()
            for index, (tokens, width) in enumerate(_shapes(axis, sizes, fixed)):
                measured = {name: one for name, one in growth.items() if one["mib"][index] is not None}
                cases = {name: _step(name, mode, tokens, width) for name in measured}
                slow = max((one["first"][index] for one in measured.values()), default=0.0) > QUICK
                seconds = medians(cases, 1 if slow else repeats, warmup=0 if slow else 1)
                for name, value in seconds.items():
                    growth[name]["seconds"][index] = value
                if progress is not None:
                    progress()
            for one in growth.values():
                del one["first"]
                one["exponents"] = {key: fit_exponent(sizes, one[key]) for key in ("seconds", "mib")}
    return result


def growth_rounds(axes: Mapping[str, Sequence[int]] = AXES) -> int:
    """Return how often `bench_growth` calls its `progress`."""
    return sum(len(MODES) * (len(LAYERS) + len(sizes)) for sizes in axes.values())


def fit_exponent(sizes: Sequence[int], values: Sequence[float | None]) -> float | None:
    """Return the slope of log value against log size over the largest measured sizes; None for fewer than two."""
    points = [(math.log(n), math.log(v)) for n, v in zip(sizes, values, strict=True) if v is not None and v > 0]
    points = points[-FITTED:]
    if len(points) < 2:
        return None
    x, y = (sum(column) / len(points) for column in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def _shapes(axis: str, sizes: Sequence[int], fixed: Mapping[str, int]) -> list[tuple[int, int]]:
    """Return (tokens, width) of every size of an axis."""
    return [(size, fixed["width"]) if axis == "tokens" else (fixed["tokens"], size) for size in sizes]


def _step(name: str, mode: str, tokens: int, width: int) -> Callable[[], object]:
    with seeded(0):
        config = CrateConfig(hidden_size=width, num_attention_heads=max(1, width // HEAD_DIM), **LAYERS[name])
        layer, z = EncoderLayer(config).train(mode == "training"), torch.randn(1, tokens, width)
    if mode == "inference":
        return torch.no_grad()(lambda: layer(z))

    def loss() -> Tensor:
        output: Tensor = layer(z)[0]
        return output.square().mean()

    return training_step(layer, loss)


def _memory(name: str, mode: str, shapes: Sequence[tuple[int, int]], limit: float) -> Result:
    """Return peak MiB, seconds of the last of one or two steps, and the reasons for skipped sizes, by index."""
    _step(name, mode, 2, HEAD_DIM)()  # so that libraries have their own memory before the layer counts
    before = peak_mib()
    mib: list[float] = []
    first: list[float] = []
    skipped: dict[int, str] = {}
    for index, (tokens, width) in enumerate(shapes):
        if index:
            ratio = (tokens * width / math.prod(shapes[index - 1])) ** 2
            seconds, memory = first[-1] * ratio, mib[-1] * ratio
            if seconds > limit:
                skipped[index] = f"over {limit:g} s"
            elif memory > available_mib():
                skipped[index] = "over memory"
            if skipped:
                skipped |= dict.fromkeys(range(index, len(shapes)), skipped[index])
                break
        step = _step(name, mode, tokens, width)
        for _ in range(2):
            start = time.perf_counter()
            step()
            seconds = time.perf_counter() - start
            if seconds > QUICK:
                break
        first.append(seconds)
        mib.append(peak_mib() - before)
    missing = [None] * len(skipped)
    return {"mib": [*mib, *missing], "first": [*first, *missing], "skipped": skipped}


def save_growth(result: Result, path: Path) -> Path:
    """Draw time and memory against both sizes on logarithmic axes, as PNG or SVG by suffix."""
    return save_figure(lambda figure: _draw(figure, result), path, "growth")


def _curves(result: Result, axis: str, key: str) -> Iterator[tuple[str, str, list[int], list[float]]]:
    for mode in MODES:
        for name, one in result["axes"][axis][mode].items():
            points = [(n, v) for n, v in zip(one["sizes"], one[key], strict=True) if v is not None and v > 0]
            yield name, mode, [n for n, _ in points], [v for _, v in points]


def _draw(figure: Figure, result: Result) -> None:
    figure.set_size_inches(9, 6.4)
    figure.set_layout_engine("constrained")
    labels = {"seconds": "seconds", "mib": "peak memory, MiB"}
    grid: Any = figure.subplots(2, len(result["axes"]), squeeze=False, sharey="row")
    for row, key in zip(grid, labels, strict=True):
        for axes, axis in zip(row, result["axes"], strict=True):
            for name, mode, sizes, values in _curves(result, axis, key):
                style = "-" if mode == "inference" else "--"
                color = f"C{list(LAYERS).index(name)}"
                axes.plot(sizes, values, style, color=color, marker="o", markersize=3, label=f"{name}, {mode}")
            axes.set_xscale("log", base=2)
            if any(len(line.get_ydata()) for line in axes.lines):
                axes.set_yscale("log")
            other = next(name for name in FIXED if name != axis)
            axes.set_xlabel(f"{axis} ({other} {result['fixed'][other]})")
            axes.grid(alpha=0.3)
        row[0].set_ylabel(labels[key])
    grid[0][0].legend(fontsize=8)
