"""The suites of `crate bench` by name, and the coding rate beside its definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import objective
from .._state import seeded
from ..errors import unknown_name
from ..operators import RateGradient
from .models import bench_gpt, bench_image
from .timing import Progress, Result, machine, medians

ROUNDS = {"image": (2, 2), "rate": (2, 2), "gpt": (2, 1)}  # timed parts, warm-up rounds of each


def run_suites(
    names: Sequence[str],
    *,
    model: str = "crate-base-patch16-224",
    batch: int = 8,
    repeats: int = 7,
    compiler: str | None = None,
    progress: Progress = None,
) -> Result:
    """Run suites by name; return a result for each, and a description of the machine.

    `model` and `batch` apply to "image", `compiler`, a backend of torch.compile, to "image" and "gpt". `progress` is
    called after every one of `count_rounds` rounds.
    """
    suites: dict[str, tuple[str, Callable[[], Result]]] = {
        "image": ("image", lambda: bench_image(model, batch, repeats, compiler, progress)),
        "rate": ("coding_rate", lambda: bench_rate(repeats=repeats, progress=progress)),
        "gpt": ("gpt", lambda: bench_gpt(repeats=repeats, compiler=compiler, progress=progress)),
    }
    for name in set(names) - suites.keys():
        raise unknown_name("suite", name, suites)
    return {key: run() for name, (key, run) in suites.items() if name in names} | {"machine": machine()}


def count_rounds(names: Sequence[str], repeats: int) -> int:
    """Return how often `run_suites` calls its `progress`."""
    return sum(parts * (warmup + repeats) for name, (parts, warmup) in ROUNDS.items() if name in names)


def bench_rate(
    shape: tuple[int, int, int, int] = (32, 12, 197, 64), repeats: int = 7, progress: Progress = None
) -> Result:
    """Time R of projected tokens (batch, heads, n, p) against its definition, and its exact gradient against attention.

    The definition is the logdet of an n × n matrix. The paper calls the exact gradient of R highly expensive, because
    W(I + βWᵀW)⁻¹ = (I + βWWᵀ)⁻¹W has an inverse for each head, and approximates it by attention. The gradient is
    computed with the p × p inverse, as attention `rate-gradient` does, and with the n × n inverse, of the same tokens
    as softmax(WWᵀ)W by PyTorch's fused kernel.
    """
    with seeded(0):
        w = F.normalize(torch.randn(shape), dim=-1)
    n, p = shape[-2:]
    beta = p / (n * 0.5**2)
    cases = {
        "ours": lambda: objective.projected_coding_rate(w, eps=0.5),
        "naive": lambda: 0.5 * torch.logdet(torch.eye(n) + beta * (w @ w.mT)),
    }
    with torch.no_grad():
        ours, naive = cases["ours"](), cases["naive"]()
        seconds = medians(cases, repeats, progress=progress)
    difference = float(((ours - naive) / naive).abs().max())
    speedup = seconds["naive"] / seconds["ours"]
    return {
        "shape": list(shape),
        "seconds": seconds,
        "speedup": {"naive": speedup},
        "difference": difference,
        "gradient": _bench_gradient(w, beta, repeats, progress),
    }


def _bench_gradient(w: Tensor, beta: float, repeats: int, progress: Progress) -> Result:
    """Time W(I + βWᵀW)⁻¹ by both inverses, and softmax(WWᵀ)W, for codes (batch, heads, n, p)."""
    scale, n = w.new_full((1, 1, 1, 1), beta), w.shape[-2]
    with torch.device("meta"):
        operator = RateGradient(w.shape[1] * w.shape[-1], w.shape[1])  # its weights are not read
    cases: dict[str, Callable[[], Tensor]] = {
        "exact": lambda: operator.solve(w, w.mT @ w, scale),
        "attention": lambda: F.scaled_dot_product_attention(w, w, w, scale=1.0),
        "inverse": lambda: torch.cholesky_inverse(torch.linalg.cholesky(torch.eye(n) + beta * (w @ w.mT))) @ w,
    }
    with torch.no_grad():
        difference = float((cases["exact"]() - cases["inverse"]()).norm() / cases["inverse"]().norm())
        seconds = medians(cases, repeats, progress=progress)
    return {
        "seconds": seconds,
        "speedup": {name: seconds[name] / seconds["exact"] for name in ("attention", "inverse")},
        "difference": difference,
    }
