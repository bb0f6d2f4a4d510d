"""Counting models: the baselines that a language model must beat, on token ids of any tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CrateError


@dataclass(frozen=True)
class _Order:
    """What is known of the k-grams of one length k, in the order of their keys."""

    keys: NDArray[np.int64]
    """Sorted; the key of a k-gram is (number of its first k − 1 ids in the table below)·V + its last id."""
    kept: NDArray[np.float64]
    """a(hw) − D(a(hw)): adjusted count less its discount."""
    totals: NDArray[np.float64]
    """Σ_w a(hw) for each history h, a row of the table below."""
    freed: NDArray[np.float64]
    """Σ_w D(a(hw)): what the discounts leave to the shorter history."""


class NGram:
    """Interpolated Kneser-Ney of a given order, with the discounts of Chen and Goodman (1999).

    P(w | h) = (max(a(hw) − D(a(hw)), 0) + Σ_v D(a(hv)) · P(w | h′)) / Σ_v a(hv), where h′ is h without its oldest id,
    and below the single id stands 1/V. At the highest order a counts occurrences, below it in how many different
    places hw stands after another id: an id that follows one history only is unlikely elsewhere. A history that was
    never seen gives P(w | h′). Every P(· | h) sums to one.
    """

    def __init__(self, tokens: NDArray[Any], *, order: int = 3, vocab_size: int) -> None:
        """Count `tokens` (n,), ids below `vocab_size`."""
        if order < 1:
            raise CrateError(f"order is {order}; it must be at least 1")
        self.order, self.vocab_size = order, vocab_size
        ids = self._ids(tokens)
        if len(ids) < order:
            raise CrateError(f"{len(ids)} tokens are too few for n-grams of order {order}; give more text")
        numbers = [np.zeros(len(ids), np.int64)]  # of the k-gram that ends at each place, k = 0 first
        found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        for length in range(1, order + 1):
            key = numbers[-1][: len(ids) - length + 1] * vocab_size + ids[length - 1 :]
            keys, first, inverse, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
            found.append((keys, first, counts))
            numbers.append(inverse.astype(np.int64))
        self._orders: list[_Order] = []
        for length, (keys, _, counts) in enumerate(found, 1):
            adjusted = counts
            if length < order:  # one occurrence of each longer gram, and the number of what it ends in
                adjusted = np.bincount(numbers[length][found[length][1] + 1], minlength=len(keys))
            below = len(found[length - 2][0]) if length > 1 else 1
            self._orders.append(_smoothed(keys, adjusted, keys // vocab_size, below))

    def log_probabilities(self, tokens: NDArray[Any]) -> NDArray[np.float64]:
        """log P of each id (n,) after the order − 1 before it; the first have fewer before them."""
        ids = self._ids(tokens)
        p = np.full(len(ids), 1 / self.vocab_size)
        history = np.zeros(len(ids), np.int64)  # number of what stands before each place in the table below, −1 unseen
        for order in self._orders:
            number = _find(order.keys, np.where(history < 0, -1, history * self.vocab_size + ids))
            p = self._mix(order, history, number, p)
            history = np.concatenate(([-1], number[:-1]))
        return np.log(p)

    def cross_entropy(self, tokens: NDArray[Any]) -> float:
        """Mean of −log P in nats over all ids but the first, which a language model does not predict either."""
        if len(tokens) < 2:
            raise CrateError(f"{len(tokens)} tokens are too few to measure on; give at least 2")
        return float(-self.log_probabilities(tokens)[1:].mean())

    def distribution(self, history: NDArray[Any] | list[int]) -> NDArray[np.float64]:
        """P(· | history) over all ids, (V,)."""
        past = self._ids(np.asarray(history, np.int64))
        p = np.full(self.vocab_size, 1 / self.vocab_size)
        for length, order in enumerate(self._orders[: len(past) + 1]):
            number = 0
            for below, token in zip(self._orders, past[len(past) - length :], strict=False):
                number = int(_find(below.keys, np.array([-1 if number < 0 else number * self.vocab_size + token]))[0])
            here = np.full(self.vocab_size, number)
            words = _find(order.keys, np.where(here < 0, -1, here * self.vocab_size + np.arange(self.vocab_size)))
            p = self._mix(order, here, words, p)
        return p

    @staticmethod
    def _mix(
        order: _Order, history: NDArray[np.int64], number: NDArray[np.int64], below: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """One step up: P by a longer history from P by the shorter one."""
        totals = np.where(history < 0, 0.0, order.totals[history])
        kept = np.where(number < 0, 0.0, order.kept[number])
        mixed = (kept + order.freed[history] * below) / np.maximum(totals, 1)
        return np.where(totals > 0, mixed, below)

    def _ids(self, tokens: NDArray[Any]) -> NDArray[np.int64]:
        return _checked(np.asarray(tokens, np.int64), self.vocab_size)


def _checked(ids: NDArray[np.int64], vocab_size: int) -> NDArray[np.int64]:
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        raise CrateError(f"token id {ids.max()} is outside the vocabulary of {vocab_size}; take the same tokenizer")
    return ids


def _find(keys: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of each wanted key, −1 for those that are not there."""
    place = np.searchsorted(keys, wanted)
    place[place == len(keys)] = 0
    return np.where(keys[place] == wanted, place, -1)


def _smoothed(
    keys: NDArray[np.int64], adjusted: NDArray[np.int64], history: NDArray[np.int64], histories: int
) -> _Order:
    discount = _discounts(adjusted)[np.minimum(adjusted, 3)]
    return _Order(
        keys=keys,
        kept=adjusted - discount,
        totals=np.bincount(history, adjusted, histories).astype(np.float64),
        freed=np.bincount(history, discount, histories).astype(np.float64),
    )


def _discounts(adjusted: NDArray[np.int64]) -> NDArray[np.float64]:
    """D of the counts 0, 1, 2 and of 3 or more: i − (i + 1)·Y·n_{i+1}/n_i with Y = n₁/(n₁ + 2n₂).

    n_i is how many grams have adjusted count i. Where one of these is missing, as in small vocabularies, D is ½.
    """
    n = np.bincount(np.minimum(adjusted, 5), minlength=6).astype(float)
    if not n[1:5].all():
        return np.array([0.0, 0.5, 0.5, 0.5])
    size = np.arange(1.0, 4.0)
    found = size - (size + 1) * n[1] / (n[1] + 2 * n[2]) * n[2:5] / n[1:4]
    return np.concatenate(([0.0], found.clip(0.1, size)))  # counts of few grams can give any number


def unigram_cross_entropy(
    train: NDArray[Any], tokens: NDArray[Any], *, vocab_size: int, special_ids: Iterable[int] = ()
) -> float:
    """−log P in nats of an id by how often it stands in `train`, mean over `tokens`, special ids left out of both.

    Every id counts once more than it is there, so that none is impossible. This is what a masked language model that
    reads nothing around the mask can reach.
    """
    special = np.unique(np.fromiter(special_ids, np.int64))
    counts = np.bincount(_checked(np.asarray(train, np.int64), vocab_size), minlength=vocab_size) + 1.0
    counts[special] = 0
    ids = _checked(np.asarray(tokens, np.int64), vocab_size)
    ids = ids[~np.isin(ids, special)]
    if len(ids) == 0:
        raise CrateError("there are no tokens to measure on but special ones; give more text")
    return float(-np.log(counts[ids] / counts.sum()).mean())
