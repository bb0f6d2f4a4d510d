"""Tails of the proof: values by hand, monotonic in the constant, and the parts of D_k + Ξ_k."""

import math

import pytest
import torch

from codingrate.theory import (
    MixtureSizes,
    block_inverse,
    broken_assumptions,
    codes_tail,
    covariance_tail,
    draw_tokens,
    gaussian_tail,
    gram_tail,
    noise_tail,
    perturbation,
)

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


def test_block_inverse_and_perturbation_are_those_of_the_equation():
    tokens = draw_tokens(SIZES, torch.Generator().manual_seed(0))
    beta = SIZES.beta
    for k, basis in enumerate(tokens.bases):
        own = tokens.labels == k
        codes = tokens.clean[own] @ basis
        eye = torch.eye(len(codes), dtype=torch.float64)
        torch.testing.assert_close(block_inverse(codes, beta) @ (eye / beta + codes @ codes.mT), eye)
        block, rest = perturbation(tokens, k)
        torch.testing.assert_close(block[own][:, own], eye / beta + codes @ codes.mT)
        torch.testing.assert_close(block[~own][:, ~own], torch.eye(int((~own).sum()), dtype=torch.float64) / beta)
        w = tokens.tokens @ basis
        torch.testing.assert_close(block + rest, torch.eye(SIZES.n, dtype=torch.float64) / beta + w @ w.mT)


def test_a_valid_constant_asks_for_more_dimensions():
    sizes = MixtureSizes(K=6, p=994, n=994, sigma=1e-3, eps=0.5)
    assert broken_assumptions(sizes) == []
    assert broken_assumptions(sizes, gram=2.0) == ["8n ≤ d"]
