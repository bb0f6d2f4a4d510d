"""Weighted nearest neighbours: how good features are with nothing learned on top of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import CrateError
from ._checks import check_probe, ranked_before
from ._images import placed
from .features import Features

KS = (10, 20, 100, 200)
"""Numbers of neighbours the best is taken of (paper 4.1.3, after Caron et al., 2021)."""
_ROWS, _COLUMNS = 1024, 16384  # of the similarities held at a time, 64 MiB


class KnnRow(TypedDict):
    """One number of neighbours; shares in [0, 1]."""

    k: int
    train_top1: float | None
    top1: float
    top5: float | None


@dataclass(frozen=True)
class KnnResult:
    """What the neighbours say, at the k that is best on the training images."""

    k: int
    """Neighbours that vote."""
    train_top1: float | None
    """Share of training images whose neighbours, without the image itself, vote for its class; None for a single k."""
    top1: float
    """Share of test images whose class gets the most votes."""
    top5: float | None
    """Share of test images whose class is among the five with the most votes; None up to five classes."""
    table: list[KnnRow]
    """The same for every k."""


def knn_probe(
    train: Features,
    test: Features,
    *,
    ks: Sequence[int] | None = None,
    temperature: float = 0.07,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> KnnResult:
    """Every test image takes the class with the most votes among the k most similar training images.

    votes_c(z) = Σ_{i among the k nearest, y_i = c} exp(cos(z, z_i)/τ), z (d,), τ = `temperature`

    k is the one of `ks` with the highest training accuracy, as in the paper. It does not say whether an image may vote
    for itself; here it may not, for then it would always win. A class without a vote is never among the best five.
    Similarities are computed in blocks of 64 MiB, in float32, votes in float64. Of equally similar images the earlier
    is nearer, of equal votes the lower class wins, of equal training accuracies the smaller k. `progress` hears how
    many images are done, of training (unless there is a single k) and test.
    """
    check_probe(train, test)
    if not temperature > 0:
        raise CrateError(f"temperature is {temperature}; it must be positive")
    chosen = _checked_ks(ks, len(train))
    place = placed(nn.Identity(), device)

    def accuracy(queries: Features, own: bool) -> tuple[list[float], list[float]]:
        return _accuracy(queries, train, own, chosen, temperature, place, progress)

    learned: Sequence[float | None] = [None] if len(chosen) == 1 else accuracy(train, own=True)[0]
    top1, top5 = accuracy(test, own=False)
    five = len(train.classes) > 5
    table: list[KnnRow] = [
        {"k": k, "train_top1": learned[i], "top1": top1[i], "top5": top5[i] if five else None}
        for i, k in enumerate(chosen)
    ]
    best = max(table, key=lambda row: row["train_top1"] or 0.0)
    return KnnResult(best["k"], best["train_top1"], best["top1"], best["top5"], table)


def _checked_ks(ks: Sequence[int] | None, samples: int) -> list[int]:
    """The numbers of neighbours in order; those of the grid that are more than there are neighbours are left out."""
    if ks is not None and (not ks or min(ks) < 1):
        raise CrateError(f"k is {list(ks)}; neighbours are counted from one")
    found = sorted(set(KS if ks is None else ks))
    fitting = [k for k in found if k < samples]
    if not fitting or (ks is not None and len(fitting) < len(found)):
        wanted = found[len(fitting)]
        raise CrateError(f"{samples} training images are fewer samples than k={wanted} needs; give a k below {samples}")
    return fitting


def _accuracy(
    queries: Features,
    train: Features,
    own: bool,
    ks: list[int],
    temperature: float,
    place: torch.device,
    progress: Callable[[int], None] | None,
) -> tuple[list[float], list[float]]:
    """Top-1 and top-5 for each k, of queries that are the training images themselves (`own`) or others."""
    right = np.zeros((2, len(ks)), np.int64)
    for start in range(0, len(queries), _ROWS):
        labels = queries.labels[start : start + _ROWS]
        some = _normalized(queries.values[start : start + _ROWS], place)
        similarity, rows = nearest(some, train.values, ks[-1], start if own else None)
        weights = ((similarity - similarity[:, :1]).double() / temperature).exp()  # a common factor: none overflows
        voters = torch.from_numpy(train.labels[rows.numpy()])
        votes = torch.zeros(len(labels), len(train.classes), dtype=torch.float64)
        for column, (before, k) in enumerate(pairwise((0, *ks))):
            votes.scatter_add_(1, voters[:, before:k], weights[:, before:k])
            ahead, some_vote = ranked_before(votes.numpy(), labels), votes.numpy()[np.arange(len(labels)), labels] > 0
            right[:, column] += (ahead < 1).sum(), ((ahead < 5) & some_vote).sum()
        if progress is not None:
            progress(len(labels))
    top1, top5 = (right / len(queries)).tolist()
    return top1, top5


def nearest(queries: Tensor, values: NDArray[np.float32], k: int, own: int | None = None) -> tuple[Tensor, Tensor]:
    """Similarity and row of the k rows of `values` (n, d) most similar to each of `queries` (m, d), both (m, k) on the
    CPU, the most similar first and the earlier of equals. With `own`, query i is row `own` + i, which is left out.
    """
    best = queries.new_empty(len(queries), 0), queries.new_empty(len(queries), 0, dtype=torch.long)
    for start in range(0, len(values), _COLUMNS):
        block = _normalized(values[start : start + _COLUMNS], queries.device)
        similarity = queries @ block.T
        if own is not None:
            first, last = max(own, start), min(own + len(queries), start + len(block))
            same = torch.arange(first, max(first, last), device=queries.device)
            similarity[same - own, same - start] = -torch.inf
        found, rows = _top(similarity, k)
        # Stable, and earlier blocks stand in front: equals stay in the order of their rows.
        together, order = torch.cat([best[0], found], 1).sort(dim=1, descending=True, stable=True)
        best = together[:, :k], torch.cat([best[1], rows + start], 1).gather(1, order[:, :k])
    return best[0].cpu(), best[1].cpu()


def _top(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and their columns, in order; of equals the first, which `topk` leaves open."""
    k = min(k, similarity.shape[1])
    values, columns = similarity.topk(min(k + 1, similarity.shape[1]))
    tied = (values[:, 1:] == values[:, :-1]).any(dim=1).nonzero().flatten()
    values, columns = values[:, :k], columns[:, :k]
    if len(tied):
        rows, least = similarity[tied], values[tied, -1:]
        above, equal = rows > least, rows == least
        room = k - above.sum(dim=1, keepdim=True)
        kept = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= room))
        first = kept.nonzero()[:, 1].view(len(tied), k)
        values[tied], order = rows.gather(1, first).sort(dim=1, descending=True, stable=True)
        columns[tied] = first.gather(1, order)
    return values, columns


def _normalized(values: Any, place: torch.device) -> Tensor:
    return F.normalize(torch.from_numpy(np.array(values, np.float32)).to(place), dim=1)
