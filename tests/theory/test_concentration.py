"""Tails of the proof: values by hand, and monotonic in the constant."""

import math

import pytest

from codingrate.theory.concentration import codes_tail, covariance_tail, gaussian_tail, gram_tail, noise_tail
from codingrate.theory.projection import MixtureSizes

SIZES = MixtureSizes(K=3, p=5, n=7, sigma=0.1, eps=0.5)


def test_gaussian_tail_by_hand():
    assert gaussian_tail(4, 9, 0.5, 0.5 * (2 + math.sqrt(2) * 3)) == 1.0
    assert gaussian_tail(4, 9, 0.5, 0.5 * (2 + math.sqrt(2) * 3 * 1.5)) == pytest.approx(math.exp(-9 / 4))


def test_both_cases_of_the_covariance():
    q, n, x = 100, 4, 0.5
    first = 3 * math.sqrt(2) * math.sqrt(n * q) * x**2
    assert covariance_tail(q, n, x, first) == 1.0
    assert covariance_tail(q, n, x, 3 * first) == pytest.approx(2 * math.exp(-4 * n))
    second = 3 * 2 * n * x**2
    assert covariance_tail(1, n, x, 4 * second) == pytest.approx(2 * math.exp(-n))
    assert covariance_tail(1, 60, x, 3 * 1.01 * x**2) == 1.0  # the printed second case would be 2e⁻⁴⁹


def test_tails_of_the_good_event():
    assert noise_tail(SIZES, 2.0) == pytest.approx(math.exp(-15 / 2))
    assert noise_tail(SIZES, 0.5) == 1.0
    for tail in (codes_tail, gram_tail):
        values = [tail(SIZES, constant) for constant in (0.1, 2.0, 5.0, 20.0, 100.0)]
        assert values == sorted(values, reverse=True)
        assert values[0] == pytest.approx(1 - (2 / 3) ** 7)  # all classes but the empty one
        assert values[-1] < 1e-6


def test_codes_tail_by_hand():
    sizes = MixtureSizes(K=2, p=4, n=1, sigma=0.1, eps=0.5)  # one token, in the class with probability ½
    reach = 3 * math.sqrt(1 / 8) - math.sqrt(1 / 4)
    assert codes_tail(sizes, 3.0) == pytest.approx(math.exp(-2 * reach**2) / 2)
