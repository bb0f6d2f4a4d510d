"""Probes of frozen features: nearest neighbors, and logistic regression (the linear probe)."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from .._report import Report, Table, counted, percent
from ..errors import CrateError, unknown_name
from ..objective.rates import rate_scale
from .features import Features, check_features, move_to_device

METHODS = ("logistic", "knn")
METRICS = ("cosine", "coding-rate")
WIDEST = 8192  # width of features up to which their covariance is decomposed
KS = (10, 20, 100, 200)  # numbers of neighbors to choose from (paper 4.1.3, after Caron et al., 2021)
TEMPERATURE = 0.07  # of the votes (Caron et al., 2021)
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)
"""The paper's grid for C. The paper does not say whether C or 1/C is meant; the grid is the same either way."""
QUERY_BLOCK, NEIGHBOR_BLOCK = 1024, 16384  # size of one block of the similarity matrix: 64 MiB
_PARALLEL_SIZE = 5 * 10**8  # products in a fit below which it uses one thread; waiting for a second is slower


@dataclass(frozen=True)
class ProbeReport(Report):
    """Result of a probe; accuracies lie in [0, 1]."""

    method: str  # `logistic` or `knn`
    metrics: dict[str, float | None]
    """`top1` and `top5` of the test images, `train_top1` of the training images; None where undefined.

    There is no `top5` for five classes or fewer. A training image never votes for itself in a `knn` probe, whose
    `train_top1` is undefined for a single k; the `train_top1` of a `logistic` probe is that of the images it fits.
    """
    chosen: dict[str, float]
    """The hyperparameter chosen on the training images: number of neighbors `k`, or inverse ℓ2 strength `C`."""
    table: list[dict[str, Any]]  # accuracies for every value of the hyperparameter
    images: dict[str, int]  # number of images in the splits `train` and `test`
    width: int  # number of features per image
    seconds: float  # time of the probe, without the extraction of features
    notes: tuple[str, ...] = ()  # warnings, such as a fit that did not converge
    about: dict[str, str] = field(default_factory=dict)  # origin of the features: run, data and the like
    total: dict[str, int | None] = field(default_factory=dict)  # number of images that each split has
    unreadable: dict[str, int] = field(default_factory=dict)  # number of images of each split that could not be read

    def describe(self, title: str = "", others: Mapping[str, ProbeReport] | None = None) -> Iterator[Table | str]:
        """Yield the accuracies, with those of probes of `others`, features by name, below them, and notes."""
        reports = {self.about.get("features", "trained"): self, **(others or {})}
        names = {"top1": "top-1", "top5": "top-5", "train_top1": "training"}
        metrics = [key for key in names if key in self.metrics]
        rows = []
        for name, report in reports.items():
            ((letter, value),) = report.chosen.items()
            shares = (percent(report.metrics[key]) for key in metrics)
            rows.append((name, str(report.width), f"{letter} = {value:g}", *shares, f"{report.seconds:.1f} s"))
        columns = ("features", "width", "chosen", *(names[key] for key in metrics), "time")
        yield Table(title or f"probe, {self.method}", columns, rows)
        yield ", ".join(
            counted(count, self.total.get(split), f"{split} images", self.unreadable.get(split, 0))
            for split, count in self.images.items()
        )
        yield from (f"{name}: {note}" for name, report in reports.items() for note in report.notes)


def probe_features(
    train: Features,
    test: Features,
    method: str = "logistic",
    *,
    about: Mapping[str, str] | None = None,
    total: Mapping[str, int | None] | None = None,
    **options: Any,
) -> ProbeReport:
    """Run `logistic_probe` or `knn_probe` with their `options`; `about` and `total` are stored in the report."""
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    report = (knn_probe if method == "knn" else logistic_probe)(train, test, **options)
    unreadable = {"train": len(train.corrupt), "test": len(test.corrupt)}
    return replace(report, about=dict(about or {}), total=dict(total or {}), unreadable=unreadable)


def probe_steps(train: int, test: int, method: str, options: Mapping[str, Any]) -> int:
    """Return the total of `progress` for a probe with this many training and test images."""
    if method == "knn":
        return test + (0 if len(options.get("ks") or KS) == 1 else train)
    return len(options.get("strengths") or STRENGTHS) * int(options.get("folds", 5)) + 1


def knn_probe(
    train: Features,
    test: Features,
    *,
    ks: Sequence[int] | None = None,
    temperature: float = TEMPERATURE,
    own_vote: bool = False,
    metric: str = "cosine",
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> ProbeReport:
    """Classify every test image by a weighted vote of the k most similar training images.

    votes_c(z) = Σ_{i among the k nearest, y_i = c} exp(cos(z, z_i)/τ), z (d,), τ = `temperature`

    With `metric="coding-rate"` the cosine is that of `in_coding_rate_metric`, fitted to the training images.
    As in the paper, k is the one of `ks` with the highest training accuracy. The paper does not say whether a training
    image may vote for itself; here it may not, because it would always win, unless `own_vote` is set. A class without
    votes is never among the best five. Similarities are computed in float32 in blocks of 64 MiB, votes in float64.
    Ties go to the earlier of equally similar images, to the lower class, and to the smaller k. `progress` is called
    with the number of images done, first of the training split (unless there is a single k), then of the test
    split.
    """
    start = time.perf_counter()
    check_features(train, test)
    if not temperature > 0:
        raise CrateError(f"temperature is {temperature}; it must be positive")
    if metric not in METRICS:
        raise unknown_name("metric", metric, METRICS)
    if metric == "coding-rate":
        train, test = in_coding_rate_metric(train, test)
    grid = _valid_ks(ks, len(train))
    vote = partial(_vote, train=train, grid=grid, temperature=temperature, device=device, progress=progress)
    train_top1: Sequence[float | None] = [None] if len(grid) == 1 else vote(train, leave_one_out=not own_vote)[0]
    top1, top5 = vote(test)
    has_top5 = len(train.classes) > 5
    table: list[dict[str, Any]] = [
        {"k": k, "train_top1": train_top1[i], "top1": top1[i], **({"top5": top5[i]} if has_top5 else {})}
        for i, k in enumerate(grid)
    ]
    best = max(table, key=lambda row: row["train_top1"] or 0.0)
    metrics: dict[str, float | None] = {name: best[name] for name in ("top1", "top5", "train_top1") if name in best}
    images, seconds = {"train": len(train), "test": len(test)}, time.perf_counter() - start
    return ProbeReport("knn", metrics, {"k": best["k"]}, table, images, train.values.shape[1], seconds)


def in_coding_rate_metric(train: Features, test: Features, eps: float = 0.5) -> tuple[Features, Features]:
    """Map features such that their inner product is that of the coding rate's metric of the training images.

    ⟨z, z'⟩_M = zᵀ M z', M = (I + α Σ_i z_i z_iᵀ)⁻¹, α = d/(nε²), z (d,)

    M is the matrix in the gradient of the coding rate, ∇R = α M Z: it shrinks the directions that most images share,
    and leaves those that tell images apart. Features are centered and scaled such that the training images have a mean
    squared length of 1, hence ε has the same meaning for every model. Returns M^½ z, (n, d).
    """
    check_features(train, test)
    n, d = train.values.shape
    if d > WIDEST:
        raise CrateError(f"features of width {d} are too wide for the coding-rate metric, at most {WIDEST}; use cosine")
    mean = train.values.mean(axis=0, dtype=np.float64)
    gram = np.zeros((d, d))
    for start in range(0, n, NEIGHBOR_BLOCK):
        block = train.values[start : start + NEIGHBOR_BLOCK] - mean
        gram += block.T @ block
    squares = np.trace(gram) / n  # mean squared length
    if not squares > 0:
        raise CrateError("all training features are equal; their model maps every image to one point")
    eigenvalues, directions = np.linalg.eigh(gram / squares)
    root = directions / np.sqrt(1 + rate_scale(n, d, eps) * eigenvalues.clip(min=0))
    matrix, shift = root.astype(np.float32), mean.astype(np.float32)
    return replace(train, values=(train.values - shift) @ matrix), replace(test, values=(test.values - shift) @ matrix)


def neighbor_accuracy(features: Features, k: int = 20) -> float:
    """Return the share of images whose class wins the vote of their k nearest neighbors among all other images.

    There are fewer neighbors if there are not more than k images. See `knn_probe` for the vote.
    """
    grid = [min(k, len(features) - 1)]
    if grid[0] < 1:
        raise CrateError("neighbors are looked for among other images, but there is a single image; use more images")
    return _vote(features, train=features, grid=grid, temperature=TEMPERATURE, leave_one_out=True)[0][0]


def _vote(
    queries: Features,
    *,
    train: Features,
    grid: Sequence[int],
    temperature: float,
    leave_one_out: bool = False,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[list[float]]:
    """Return top-1 and top-5 accuracy for each k; with `leave_one_out` the queries are the training images."""
    target = move_to_device(nn.Identity(), device)
    correct = np.zeros((2, len(grid)), np.int64)
    for first in range(0, len(queries), QUERY_BLOCK):
        labels = queries.labels[first : first + QUERY_BLOCK]
        block = _normalized(queries.values[first : first + QUERY_BLOCK], target)
        similarity, neighbors = nearest_neighbors(block, train.values, grid[-1], first if leave_one_out else None)
        # Subtracting the largest similarity scales all votes alike; it changes no ranking and prevents overflow.
        weights = ((similarity - similarity[:, :1]).double() / temperature).exp()
        neighbor_labels = torch.from_numpy(train.labels[neighbors.numpy()])
        votes = torch.zeros(len(labels), len(train.classes), dtype=torch.float64)
        for column, (previous, k) in enumerate(pairwise((0, *grid))):
            votes.scatter_add_(1, neighbor_labels[:, previous:k], weights[:, previous:k])
            ranks, own = _label_ranks(votes.numpy(), labels), votes.numpy()[np.arange(len(labels)), labels]
            correct[:, column] += (ranks < 1).sum(), ((ranks < 5) & (own > 0)).sum()
        if progress is not None:
            progress(len(labels))
    return (correct / len(queries)).tolist()


def logistic_probe(
    train: Features,
    test: Features,
    *,
    strengths: Sequence[float] = STRENGTHS,
    folds: int = 5,
    standardize: bool = True,
    seed: int = 0,
    tolerance: float = 1e-6,
    iterations: int = 1000,
    progress: Callable[[int], None] | None = None,
) -> ProbeReport:
    """Fit W, b by  min ½‖W‖² + C Σ_i −log softmax(W z_i + b)_{y_i},  z_i (d,) standardized, W (classes, d).

    Every C of `strengths` is scored by cross-validation with stratified `folds`, shuffled by `seed`. Features are
    standardized with the mean and standard deviation of the images a fit learns from. Along the grid, from small C to
    large, each fit starts from the previous one. The best C (the smallest in a tie) is fitted to all training images
    from scratch. The paper mentions neither folds nor standardization; without it (`standardize=False`) the same C
    means different things for two models. There are fewer folds if a class has fewer images. `progress` is called with
    1 after each of the `len(strengths)·folds + 1` fits. Fits run in float64.
    """
    start = time.perf_counter()
    check_features(train, test)
    grid = sorted(set(strengths))
    if not grid or not grid[0] > 0 or folds < 2 or iterations < 1 or not tolerance > 0:
        needs = "positive strengths, at least two folds, at least one iteration and a positive tolerance"
        raise CrateError(f"a logistic probe needs {needs}")
    labels, counts = np.unique(train.labels, return_counts=True)
    if counts.min() < 2:
        name = train.classes[int(labels[counts.argmin()])]
        problem = f"class {name!r} has a single training image, but cross-validation needs at least two"
        raise CrateError(f"{problem}; use more images")
    possible = min(folds, int(counts.min()))  # so that every fold contains every class
    correct, converged = np.zeros(len(grid), np.int64), np.ones(len(grid), bool)
    scale = _standardized if standardize else _unscaled
    settings = {"tol": tolerance, "max_iter": iterations}
    small = train.values.size * len(train.classes) < _PARALLEL_SIZE
    with threadpool_limits(1 if small else None):
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold

        splitter = StratifiedKFold(possible, shuffle=True, random_state=seed)
        for fitted, held_out in splitter.split(train.labels, train.labels):
            x, x_held_out = scale(train.values[fitted], train.values[held_out])
            model = LogisticRegression(warm_start=True, **settings)
            for index, strength in enumerate(grid):
                converged[index] &= _fit(model.set_params(C=strength), x, train.labels[fitted])
                correct[index] += (model.predict(x_held_out) == train.labels[held_out]).sum()
                if progress is not None:
                    progress(1)
        best = grid[int(correct.argmax())]
        x, x_test = scale(train.values, test.values)
        model = LogisticRegression(C=best, **settings)
        final_converged = _fit(model, x, train.labels)
        if progress is not None:
            progress(1)
        top1, train_top1 = float(model.score(x_test, test.labels)), float(model.score(x, train.labels))
        five = {"top5": _top5(model, x_test, test)} if len(test.classes) > 5 else {}
        metrics: dict[str, float | None] = {"top1": top1, **five, "train_top1": train_top1}
    table: list[dict[str, Any]] = [
        {"C": strength, "validation_top1": int(hits) / len(train), "converged": bool(ok)}
        for strength, hits, ok in zip(grid, correct, converged, strict=True)
    ]
    notes = [f"{possible} folds, as many as the rarest class has training images"] if possible < folds else []
    if not converged.all():
        stopped = ", ".join(f"{strength:g}" for strength, ok in zip(grid, converged, strict=True) if not ok)
        notes.append(f"not converged in cross-validation: C = {stopped}")
    if not final_converged:
        notes.append(f"the final fit, C = {best:g}, did not converge")
    if len(grid) > 1 and best in (grid[0], grid[-1]):
        notes.append(f"C = {best:g} is at the edge of the grid")
    images, seconds = {"train": len(train), "test": len(test)}, time.perf_counter() - start
    return ProbeReport("logistic", metrics, {"C": best}, table, images, train.values.shape[1], seconds, tuple(notes))


def _label_ranks(scores: NDArray[Any], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rank (n,) of each true label, 0 for the highest of scores (n, classes); ties go to the lower class."""
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    lower = np.arange(scores.shape[1]) < labels[:, None]
    return np.asarray(((scores > own) | ((scores == own) & lower)).sum(axis=1))


# nearest neighbors


def _valid_ks(ks: Sequence[int] | None, samples: int) -> list[int]:
    """Return the numbers of neighbors in rising order; the default grid is cut to the number of samples."""
    if ks is not None and (not ks or min(ks) < 1):
        raise CrateError(f"k is {list(ks)}; give one or more numbers of at least 1")
    grid = sorted(set(KS if ks is None else ks))
    valid = [k for k in grid if k < samples]
    if not valid or (ks is not None and len(valid) < len(grid)):
        raise CrateError(f"{samples} training images are too few for k={grid[len(valid)]}; use a k below {samples}")
    return valid


def nearest_neighbors(
    queries: Tensor, values: NDArray[np.float32], k: int, first: int | None = None
) -> tuple[Tensor, Tensor]:
    """Find the k rows of `values` (n, d) most similar to each of `queries` (m, d), which have unit length.

    Returns cosine similarities and row indices, both (m, k) on the CPU: the most similar first, the earlier of equals.
    If `first` is given, query i is row `first` + i of `values`, which is left out of its own neighbors.
    """
    best = queries.new_empty(len(queries), 0), queries.new_empty(len(queries), 0, dtype=torch.long)
    for start in range(0, len(values), NEIGHBOR_BLOCK):
        block = _normalized(values[start : start + NEIGHBOR_BLOCK], queries.device)
        similarity = queries @ block.T
        if first is not None:
            low, high = max(first, start), min(first + len(queries), start + len(block))
            own = torch.arange(low, max(low, high), device=queries.device)
            similarity[own - first, own - start] = -torch.inf
        block_best, columns = _top_k(similarity, min(k, len(block)))
        # The sort is stable and earlier blocks come first, so equal similarities keep the order of their rows.
        merged, order = torch.cat([best[0], block_best], 1).sort(dim=1, descending=True, stable=True)
        best = merged[:, :k], torch.cat([best[1], columns + start], 1).gather(1, order[:, :k])
    return best[0].cpu(), best[1].cpu()


def _top_k(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row and their columns; of equal values the first, unlike `topk`."""
    values, columns = similarity.topk(min(k + 1, similarity.shape[1]))
    tied = (values[:, 1:] == values[:, :-1]).any(dim=1).nonzero().flatten()
    values, columns = values[:, :k], columns[:, :k]
    if len(tied):  # few rows, because a full sort is slower
        ordered, order = similarity[tied].sort(dim=1, descending=True, stable=True)
        values[tied], columns[tied] = ordered[:, :k], order[:, :k]
    return values, columns


def _normalized(values: Any, device: torch.device) -> Tensor:
    return F.normalize(torch.from_numpy(np.array(values, np.float32)).to(device), dim=1)


# logistic regression


def _standardized(
    fitted: NDArray[np.float32], others: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both arrays scaled such that `fitted` has mean 0 and standard deviation 1 (0 where it is constant)."""
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler(copy=False)  # `astype` copies already
    return scaler.fit_transform(fitted.astype(np.float64)), scaler.transform(others.astype(np.float64))


def _unscaled(
    fitted: NDArray[np.float32], others: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return fitted.astype(np.float64), others.astype(np.float64)


def _fit(model: Any, x: NDArray[np.float64], labels: NDArray[np.int64]) -> bool:
    """Fit the model and return whether it converged, instead of scikit-learn's warning; pass on other warnings."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, labels)
    others = [warning for warning in caught if not issubclass(warning.category, ConvergenceWarning)]
    for warning in others:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return len(others) == len(caught)


def _top5(model: Any, x: NDArray[np.float64], test: Features) -> float:
    if len(model.classes_) == 2:  # a single score, and both classes among the best five
        return 1.0
    ranks = _label_ranks(model.decision_function(x), np.searchsorted(model.classes_, test.labels))
    return float((ranks < 5).mean())
