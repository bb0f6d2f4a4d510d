"""Parts of the library beside others that do the same: loading against training, the probes, MaskCut's cut."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch.utils.data import DataLoader

from codingrate.bench.timing import Progress, Result, medians, peak_memory, training_step
from codingrate.data import Augment, BatchAugment, collate
from codingrate.data.image_batches import ImageDataset
from codingrate.evaluation import knn_probe, logistic_probe
from codingrate.inspection.segment.cuts import affinity, normalized_cut
from codingrate.models.presets import create_model

from .samples import gaussian_features, photographs

PROBES: dict[str, Callable[..., Any]] = {"knn": knn_probe, "logistic": logistic_probe}
WIDTH, RANK = 384, 8  # of the features that are cut, as in a small model, and of each object's subspace


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
