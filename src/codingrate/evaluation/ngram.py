"""Count-based baselines for language models: n-grams and unigrams, on the token ids of any tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import CrateError


class _Order(NamedTuple):
    """Table of the k-grams of one length k, sorted by key."""

    keys: NDArray[np.int64]
    """Sorted; the key of a k-gram is (index of its first k − 1 ids in the table of length k − 1)·V + its last id."""
    discounted: NDArray[np.float64]  # a(hw) − D(a(hw)): adjusted count minus its discount
    totals: NDArray[np.float64]  # Σ_w a(hw) for each history h, an index into the table of length k − 1
    discounts: NDArray[np.float64]  # Σ_w D(a(hw)) for each history h: the mass left for the shorter history


class NGram:
    """Interpolated Kneser-Ney model of a given order, with the discounts of Chen and Goodman (1999).

    P(w | h) = (max(a(hw) − D(a(hw)), 0) + Σ_v D(a(hv)) · P(w | h′)) / Σ_v a(hv), where h′ is h without its oldest id;
    below the unigrams, P = 1/V. At the highest order, a counts occurrences. Below, a counts the different ids that
    precede hw: an id that follows a single history only is unlikely after others. For a history that was never seen,
    P(w | h) = P(w | h′). Every P(· | h) sums to one.
    """

    def __init__(self, tokens: NDArray[Any], *, order: int = 3, vocab_size: int) -> None:
        """Count `tokens` (n,), ids below `vocab_size`."""
        if order < 1:
            raise CrateError(f"order is {order}; it must be at least 1")
        self.order, self.vocab_size = order, vocab_size
        ids = _checked(tokens, vocab_size)
        if len(ids) < order:
            raise CrateError(f"{len(ids)} tokens are too few for n-grams of order {order}; use a longer text")
        ending = [np.zeros(len(ids), np.int64)]  # for k = 0, 1 …: index of the k-gram that ends at each position
        tables: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        for length in range(1, order + 1):
            key = ending[-1][: len(ids) - length + 1] * vocab_size + ids[length - 1 :]
            keys, first, inverse, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
            tables.append((keys, first, counts))
            ending.append(inverse.astype(np.int64))
        self._orders: list[_Order] = []
        for length, (keys, _, counts) in enumerate(tables, 1):
            adjusted = counts
            if length < order:  # count each (length + 1)-gram once, at the k-gram it ends in
                adjusted = np.bincount(ending[length][tables[length][1] + 1], minlength=len(keys))
            histories = len(tables[length - 2][0]) if length > 1 else 1
            discount = _discounts(adjusted)[np.minimum(adjusted, 3)]
            sums = (np.bincount(keys // vocab_size, a, histories).astype(np.float64) for a in (adjusted, discount))
            self._orders.append(_Order(keys, adjusted - discount, *sums))

    def log_probabilities(self, tokens: NDArray[Any]) -> NDArray[np.float64]:
        """Return log P (n,) of each id given the order − 1 before it; the first ids have fewer before them."""
        ids = _checked(tokens, self.vocab_size)
        p = np.full(len(ids), 1 / self.vocab_size)
        history = np.zeros(len(ids), np.int64)  # index of the history of each position; −1 if it was never seen
        for order in self._orders:
            p, index = self._extend(order, history, ids, p)
            history = np.concatenate(([-1], index[:-1]))
        return np.log(p)

    def cross_entropy(self, tokens: NDArray[Any], left_out: Iterable[int] = ()) -> float:
        """Return the mean of −log P in nats over all ids but the first, which language models do not predict either.

        The ids in `left_out` are read but not counted.
        """
        counted = ~np.isin(tokens[1:], list(left_out))
        if not counted.any():
            raise CrateError(f"{len(tokens)} tokens are too few to measure on; use at least 2")
        return float(-self.log_probabilities(tokens)[1:][counted].mean())

    def distribution(self, history: NDArray[Any] | list[int]) -> NDArray[np.float64]:
        """Return P(· | history) over all ids, (V,)."""
        past, words = _checked(history, self.vocab_size), np.arange(self.vocab_size)
        p = np.full(self.vocab_size, 1 / self.vocab_size)
        for length, order in enumerate(self._orders[: len(past) + 1]):
            index = np.zeros(1, np.int64)
            for shorter, token in zip(self._orders, past[len(past) - length :], strict=False):
                index = self._find(shorter, index, token)
            p, _ = self._extend(order, np.repeat(index, self.vocab_size), words, p)
        return p

    def _extend(
        self, order: _Order, history: NDArray[np.int64], ids: NDArray[np.int64], shorter: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return P of each id given the longer history, from P given the shorter one, and the index of each k-gram."""
        index = self._find(order, history, ids)
        totals = np.where(history < 0, 0.0, order.totals[history])
        discounted = np.where(index < 0, 0.0, order.discounted[index])
        mixed = (discounted + order.discounts[history] * shorter) / np.maximum(totals, 1)
        return np.where(totals > 0, mixed, shorter), index

    def _find(self, order: _Order, history: NDArray[np.int64], ids: Any) -> NDArray[np.int64]:
        """Return the index of the k-gram of each history and id, −1 if it was never seen."""
        wanted = np.where(history < 0, -1, history * self.vocab_size + ids)
        index = np.searchsorted(order.keys, wanted)
        index[index == len(order.keys)] = 0
        return np.where(order.keys[index] == wanted, index, -1)


def _checked(tokens: NDArray[Any] | list[int], vocab_size: int) -> NDArray[np.int64]:
    ids = np.asarray(tokens, np.int64)
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        raise CrateError(f"token id {ids.max()} is outside the vocabulary of {vocab_size}; use the same tokenizer")
    return ids


def _discounts(adjusted: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return D for the counts 0, 1, 2 and 3 or more: i − (i + 1)·Y·n_{i+1}/n_i with Y = n₁/(n₁ + 2n₂).

    n_i is the number of k-grams with adjusted count i. If one of n₁ … n₄ is 0, as in small vocabularies, D is ½.
    """
    n = np.bincount(np.minimum(adjusted, 5), minlength=6).astype(float)
    if not n[1:5].all():
        return np.array([0.0, 0.5, 0.5, 0.5])
    size = np.arange(1.0, 4.0)
    discounts = size - (size + 1) * n[1] / (n[1] + 2 * n[2]) * n[2:5] / n[1:4]
    return np.concatenate(([0.0], discounts.clip(0.1, size)))  # a small sample can give any number


def unigram_cross_entropy(
    train: NDArray[Any], tokens: NDArray[Any], *, vocab_size: int, special_ids: Iterable[int] = ()
) -> float:
    """Return the mean of −log P in nats over `tokens`, with P the frequency of an id in `train`.

    Special ids are left out of both. Every count is raised by one, so that no id is impossible. A masked language model
    that ignores the context of a mask reaches this loss.
    """
    special = np.unique(np.fromiter(special_ids, np.int64))
    counts = np.bincount(_checked(train, vocab_size), minlength=vocab_size) + 1.0
    counts[special] = 0
    ids = _checked(tokens, vocab_size)
    ids = ids[~np.isin(ids, special)]
    if len(ids) == 0:
        raise CrateError("the text contains special tokens only; use a longer text")
    return float(-np.log(counts[ids] / counts.sum()).mean())
