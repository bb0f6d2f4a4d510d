"""Counting models: proper distributions, equal to loops written from the formula, and honest about small counts."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from codingrate.evaluation import NGram, unigram_cross_entropy
from tests.refusals import refused

V = 11


def stream(length=700, seed=0, words=V - 1):
    """Ids in which the last two matter for the next, and the highest never comes."""
    draw = np.random.default_rng(seed)
    ids = [0, 1]
    while len(ids) < length:
        ids.append(int((2 * ids[-1] + ids[-2] + (draw.random() < 0.3) * draw.integers(words)) % words))
    return np.array(ids, np.uint16)


def naive(ids, order, history, word):
    """P(word | history) by Chen and Goodman's formula, from dictionaries."""
    ids = [int(i) for i in ids]
    grams = {n: [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)] for n in range(1, order + 1)}
    adjusted = {order: Counter(grams[order])}
    for n in range(1, order):
        before = defaultdict(set)
        for gram in grams[n + 1]:
            before[gram[1:]].add(gram[0])
        adjusted[n] = Counter({gram: len(found) for gram, found in before.items()})

    def discount(n, count):
        sizes = Counter(adjusted[n].values())
        if not all(sizes[i] for i in (1, 2, 3, 4)):
            return 0.5
        y, i = sizes[1] / (sizes[1] + 2 * sizes[2]), min(count, 3)
        return min(max(i - (i + 1) * y * sizes[i + 1] / sizes[i], 0.1), i)

    def p(n, history):
        if n == 0:
            return 1 / V
        below = p(n - 1, history[1:])
        here = {gram: count for gram, count in adjusted[n].items() if gram[:-1] == history}
        total = sum(here.values())
        if not total:
            return below
        count = here.get((*history, word), 0)
        freed = sum(discount(n, c) for c in here.values())
        return ((count - discount(n, count) if count else 0) + freed * below) / total

    history = tuple(history[-(order - 1) :]) if order > 1 else ()
    return p(len(history) + 1, history)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_are_those_of_the_formula(order):
    train, test = stream(), stream(41, seed=1, words=V)
    model = NGram(train, order=order, vocab_size=V)
    expected = [math.log(naive(train, order, [int(i) for i in test[:t]], int(test[t]))) for t in range(len(test))]
    np.testing.assert_allclose(model.log_probabilities(test), expected, rtol=1e-12)
    assert model.cross_entropy(test) == pytest.approx(-np.mean(expected[1:]), rel=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_every_distribution_sums_to_one(order):
    train = stream()
    model = NGram(train, order=order, vocab_size=V)
    unseen, ends_the_text = [10, 10, 10], [int(i) for i in train[-3:]]
    for history in ([], [3], [3, 7], [1, 3, 7], [2, 1, 3, 7], unseen, [10, 3], ends_the_text):
        p = model.distribution(history)
        assert p.sum() == pytest.approx(1, abs=1e-12)
        assert p.min() > 0, "nothing is impossible"
        expected = [naive(train, order, history, word) for word in range(V)]
        np.testing.assert_allclose(p, expected, rtol=1e-12)


def test_a_longer_history_helps_where_it_matters():
    train, test = stream(30_000), stream(3_000, seed=1)
    found = [NGram(train, order=order, vocab_size=V).cross_entropy(test) for order in (1, 2, 3, 5)]
    assert found[0] == pytest.approx(unigram_cross_entropy(train, test, vocab_size=V), abs=2e-3)
    assert found[1] < found[0] + 0.01
    assert found[2] < found[1] - 0.5, "the text was made from the last two"
    assert found[3] > found[2], "and from no more: rare histories only mislead"
    noise = 0.7 + 0.3 / 10  # its true entropy: one of ten words with this probability, the others alike
    truth = -noise * math.log(noise) - 9 * 0.03 * math.log(0.03)
    assert truth < found[2] < truth + 0.05


def test_unigrams_leave_special_ids_out():
    train, test = np.array([5, 5, 6, 0, 1, 0]), np.array([0, 5, 6, 1])
    # of nine ids other than 0 and 1 each counts one more than it is there: 5 three times, 6 twice, 12 in all
    expected = -(math.log(3 / 12) + math.log(2 / 12)) / 2
    assert unigram_cross_entropy(train, test, vocab_size=11, special_ids=(0, 1)) == pytest.approx(expected)
    assert unigram_cross_entropy(train, np.array([10]), vocab_size=11) == pytest.approx(-math.log(1 / 17))


def test_what_cannot_be_counted():
    ids, special = stream(20), {"vocab_size": V, "special_ids": (3,)}
    for words, call, *arguments, options in (
        ("order is 0", NGram, ids, {"order": 0, "vocab_size": V}),
        ("order 3", NGram, ids[:2], {"vocab_size": V}),
        ("token id 9", NGram, ids, {"vocab_size": 5}),
        ("too few", NGram(ids, vocab_size=V).cross_entropy, ids[:1], {}),
        ("special tokens", unigram_cross_entropy, ids, np.array([3]), special),
    ):
        refused(words, call, *arguments, **options)
