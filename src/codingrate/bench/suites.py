"""The suites of `crate bench` by name, and those that are no comparison of models: rate, loader, probes, MaskCut."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor
from torch.utils.data import DataLoader

from .. import objective
from .._state import seeded
from ..data import Augment, BatchAugment, ImageDataset, collate
from ..errors import unknown_name
from ..evaluation import knn_probe, logistic_probe
from ..inspection.segment.cuts import affinity, normalized_cut
from ..models.presets import create_model
from ..operators import AttentionSpec, RateGradient
from .explorer import bench_explorer
from .growth import bench_growth, growth_rounds
from .inspecting import bench_inspection
from .models import bench_gpt, bench_image
from .precision import bench_precision
from .samples import gaussian_features, photographs
from .scaling import MODELS, bench_scaling
from .timing import Progress, Result, machine, medians, peak_memory, training_step

ROUNDS = {
    "image": (2, 2),
    "rate": (2, 2),
    "gpt": (2, 1),
    "maskcut": (1, 0),
    "explorer": (2, 1),
    "precision": (2, 1),
    "inspect": (3, 1),
}  # timed parts, warm-up rounds of each
PROBES: dict[str, Callable[..., Any]] = {"knn": knn_probe, "logistic": logistic_probe}
WIDTH, RANK = 384, 8  # of the features that are cut, as in a small model, and of each object's subspace


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
        "loader": ("loader", bench_loader),
        "probe": ("probe", bench_probe),
        "gpt": ("gpt", lambda: bench_gpt(repeats=repeats, compiler=compiler, progress=progress)),
        "maskcut": ("maskcut", lambda: bench_maskcut(repeats=repeats, progress=progress)),
        "explorer": ("explorer", lambda: bench_explorer(repeats=repeats, progress=progress)),
        "precision": ("precision", lambda: bench_precision(repeats=repeats, progress=progress)),
        "growth": ("growth", lambda: bench_growth(repeats=repeats, progress=progress)),
        "scaling": ("scaling", lambda: bench_scaling(progress=progress)),
        "inspect": ("inspect", lambda: bench_inspection(repeats=repeats, progress=progress)),
    }
    for name in set(names) - suites.keys():
        raise unknown_name("suite", name, suites)
    return {key: run() for name, (key, run) in suites.items() if name in names} | {"machine": machine()}


def count_rounds(names: Sequence[str], repeats: int) -> int:
    """Return how often `run_suites` calls its `progress`."""
    rounds = sum(parts * (warmup + repeats) for name, (parts, warmup) in ROUNDS.items() if name in names)
    return rounds + ("growth" in names) * growth_rounds() + ("scaling" in names) * len(MODELS)


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
    spec = AttentionSpec(dim=w.shape[1] * w.shape[-1], heads=w.shape[1], head_dim=w.shape[-1])
    with torch.device("meta"):
        operator = RateGradient(spec)  # its weights are not read
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


def bench_loader(
    name: str = "crate-tiny-patch16-224",
    images: int = 512,
    workers: int = 1,
    repeats: int = 3,
    progress: Progress = None,
) -> Result:
    """Time loading of JPEG photographs (decoding, random crops, batch augmentation) against training steps."""
    augment = Augment()
    dataset = ImageDataset(photographs(images), augment, train=True)
    loader = DataLoader(dataset, batch_size=64, num_workers=workers, collate_fn=collate, persistent_workers=workers > 0)
    batch_augment = BatchAugment(augment).train()

    def load() -> None:
        for index, batch in enumerate(loader):
            batch_augment(batch["pixel_values"], seed=index)

    model = create_model(name).train()
    pixels, labels = torch.randn(16, 3, augment.image_size, augment.image_size), torch.zeros(16, dtype=torch.long)
    train = training_step(model, lambda: F.cross_entropy(model(pixels).logits, labels))
    seconds = medians({"loader": load, "training": train}, repeats, warmup=1, progress=progress)
    speed = {"loader": images / seconds["loader"], "training": len(pixels) / seconds["training"]}
    ratio = speed["loader"] / speed["training"]
    return {"model": name, "workers": workers, "images_per_second": speed, "ratio": ratio}


def bench_probe(
    knn: tuple[int, int, int] = (50_000, 10_000, 384), logistic: tuple[int, int, int] = (10_000, 2_000, 192)
) -> Result:
    """Measure seconds and peak MiB of both probes on (training, test, width) features of ten Gaussian classes.

    The time of k nearest neighbors includes the choice of k, which compares every training image with all others. The
    time of logistic regression includes seven regularization strengths on five folds each, and the final fit.
    """
    result: Result = {}
    for name, shape in (("knn", knn), ("logistic", logistic)):
        features = gaussian_features(*shape)
        start = time.perf_counter()
        report = PROBES[name](*features)
        result[name] = {
            **dict(zip(("train", "test", "width"), shape, strict=True)),
            "seconds": time.perf_counter() - start,
            "peak_mib": peak_memory(_run_probe, (name, shape)),
            "top1": report.metrics["top1"],
        }
    return result


def _run_probe(name: str, shape: tuple[int, int, int]) -> None:
    PROBES[name](*gaussian_features(*shape))


def bench_maskcut(side: int = 60, repeats: int = 3, progress: Progress = None) -> Result:
    """Time one cut of side² patches by Lanczos and by a dense solver, and compare their eigenvectors.

    The dense solver is SciPy's `eigh(D − W, D)` for the second eigenvector only, the form in which MaskCut was
    published; for all eigenvectors it would be slower. The affinity, which both need, is timed separately.
    """
    features = planted_features(side)
    weights = affinity(features, 0.15)
    ours, dense = normalized_cut(weights), dense_cut(weights)
    difference = float(min(np.abs(ours - dense).max(), np.abs(ours + dense).max()) / np.abs(dense).max())
    cases = {
        "ours": lambda: normalized_cut(weights),
        "dense": lambda: dense_cut(weights),
        "affinity": lambda: affinity(features, 0.15),
    }
    seconds = medians(cases, repeats, warmup=0, progress=progress)
    speedup = seconds["dense"] / seconds["ours"]
    return {"tokens": side**2, "width": WIDTH, "seconds": seconds, "speedup": speedup, "difference": difference}


def dense_cut(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the eigenvector of the second smallest μ in (D − W)v = μDv, by LAPACK."""
    degrees = np.diag(weights.sum(axis=1))
    return np.asarray(eigh(degrees - weights, degrees, subset_by_index=[1, 1])[1][:, 0])


def planted_features(side: int) -> NDArray[np.float32]:
    """Draw features (side², 384) of two objects on a background, each near its own low-dimensional subspace."""
    generator = np.random.default_rng(0)
    labels = np.zeros((side, side), dtype=int)
    labels[side // 6 : side // 2, side // 6 : side // 2] = 1
    labels[side * 3 // 5 : side * 9 // 10, side // 2 : side * 5 // 6] = 2
    bases = [np.linalg.qr(generator.standard_normal((WIDTH, RANK)))[0] for _ in range(3)]
    codes = 0.8 + generator.standard_normal((side**2, RANK))
    tokens = [bases[label] @ code for label, code in zip(labels.ravel(), codes, strict=True)]
    noise = 0.05 * generator.standard_normal((side**2, WIDTH))
    return (np.stack(tokens) + noise).astype(np.float32)
