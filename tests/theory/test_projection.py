"""The theorem on projection against its formulas written out token by token, tokens as columns as in the paper."""

import math
from dataclasses import replace

import pytest
import torch

from codingrate.theory.denoising import off_subspace
from codingrate.theory.projection import (
    MixtureSizes,
    broken_assumptions,
    compress,
    draw_tokens,
    event_constants,
    main_term,
    projected_noise,
    residual,
    residual_bound,
    signal_gain,
)

K, P, N, SIGMA, EPS = 3, 5, 11, 0.2, 0.6


@pytest.fixture(params=[True, False], ids=["rotated", "axes"])
def tokens(request):
    return draw_tokens(MixtureSizes(K, P, N, SIGMA, EPS), torch.Generator().manual_seed(3), rotate=request.param)


def block(tokens, k):
    """A_k (p, n_k): codes of the tokens of subspace k."""
    return tokens.bases[k].T @ tokens.clean[tokens.labels == k].T


@pytest.mark.parametrize("rotate", [True, False])
def test_a_draw_is_the_signal_model(rotate):
    sizes = MixtureSizes(K, P, 4001, SIGMA, EPS)
    tokens = draw_tokens(sizes, torch.Generator().manual_seed(0), rotate=rotate)
    assert sizes.d == K * P
    assert sizes.beta == pytest.approx(P / (4001 * EPS**2))
    torch.testing.assert_close(tokens.tokens, tokens.clean + tokens.noise)
    assert float(off_subspace(tokens.clean, tokens.bases, tokens.labels).abs().max()) < 1e-12
    # ‖x‖² and ‖δ‖² have the means 1 and σ²; 4,001 tokens give them to about 1 %
    assert float(tokens.clean.square().sum(-1).mean()) == pytest.approx(1, rel=0.05)
    assert float(tokens.noise.square().sum(-1).mean()) == pytest.approx(SIGMA**2, rel=0.05)
    assert torch.bincount(tokens.labels).tolist() == pytest.approx([4001 / K] * K, rel=0.1)


def test_noise_and_precision_do_not_change_the_directions():
    one, two = (
        draw_tokens(MixtureSizes(K, P, N, sigma, eps), torch.Generator().manual_seed(1))
        for sigma, eps in ((0.1, 1.0), (0.3, 0.2))
    )
    torch.testing.assert_close(one.clean, two.clean)
    torch.testing.assert_close(3 * one.noise, two.noise)


def test_projected_noise_is_the_definition(tokens):
    beta = tokens.sizes.beta
    for projected, delta, label in zip(projected_noise(tokens), tokens.noise, tokens.labels, strict=True):
        total = torch.zeros(K * P, dtype=torch.float64)
        for k in range(K):
            if k != label:
                A, U = block(tokens, k), tokens.bases[k]
                inner = torch.linalg.inv(torch.eye(A.shape[1], dtype=torch.float64) / beta + A.T @ A)
                total += U @ (torch.eye(P, dtype=torch.float64) - A @ inner @ A.T) @ U.T @ delta
        torch.testing.assert_close(projected, total, rtol=1e-9, atol=1e-12)


def test_step_main_term_and_residual_are_the_theorem(tokens):
    eta, beta, Z = 0.3, tokens.sizes.beta, tokens.tokens.T
    gradient = torch.zeros_like(Z)
    for U in tokens.bases:
        W = U.T @ Z
        gradient += U @ W @ torch.linalg.inv(torch.eye(N, dtype=torch.float64) / beta + W.T @ W)
    after = Z - eta * gradient
    torch.testing.assert_close(compress(tokens.tokens, tokens.bases, EPS, eta).T, after, rtol=1e-9, atol=1e-12)
    main = (
        tokens.noise.T - eta * beta * projected_noise(tokens).T + (1 + 1 / beta - eta) / (1 + 1 / beta) * tokens.clean.T
    )
    torch.testing.assert_close(main_term(tokens, eta).T, main, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(residual(tokens, eta).T, after - main, rtol=1e-9, atol=1e-12)
    alpha = K * beta
    whole = Z @ torch.linalg.inv(torch.eye(N, dtype=torch.float64) / alpha + Z.T @ Z)
    torch.testing.assert_close(
        compress(tokens.tokens, tokens.bases, EPS, eta, full=True).T, after + eta * whole, rtol=1e-9, atol=1e-12
    )


def test_the_bound_is_the_theorems():
    sizes, eta = MixtureSizes(K, P, N, SIGMA, EPS), 0.3
    b, r = sizes.beta, math.sqrt(N / (K * P))
    due = 3 * eta * (SIGMA**2 * b**2 + SIGMA * (1 + r) + math.sqrt(3) * b * SIGMA**2 * (1 + r) + r)
    assert residual_bound(sizes, eta) == pytest.approx(due)


def test_the_constants_of_the_good_event(tokens):
    root = math.sqrt(N / (K * P))
    blocks = [block(tokens, k) for k in range(K)]
    assert all(A.shape[1] for A in blocks)
    noise = float(torch.linalg.svdvals(tokens.noise)[0]) / SIGMA - root
    largest = max(float(torch.linalg.svdvals(A)[0]) - 1 for A in blocks) / root
    apart = max(
        float(torch.linalg.svdvals(A.T @ A - torch.eye(A.shape[1], dtype=torch.float64))[0]) for A in blocks
    ) / root  # fmt: skip
    assert event_constants(tokens) == pytest.approx((noise, largest, apart))


def test_an_empty_subspace_is_no_obstacle():
    tokens = draw_tokens(MixtureSizes(7, 2, 3, SIGMA, EPS), torch.Generator().manual_seed(0))
    assert len(tokens.labels.unique()) < 7
    assert all(math.isfinite(constant) for constant in event_constants(tokens))
    assert residual(tokens, 0.1).isfinite().all()


def test_gain_and_outside(tokens):
    z = 0.7 * tokens.clean + off_subspace(tokens.noise, tokens.bases, tokens.labels)
    assert signal_gain(z, tokens.clean) == pytest.approx(0.7)
    torch.testing.assert_close(
        off_subspace(z, tokens.bases, tokens.labels),
        off_subspace(tokens.noise, tokens.bases, tokens.labels),
        rtol=0,
        atol=1e-12,
    )


def test_the_smallest_sizes_inside_all_assumptions():
    """With constants of 1 they need K = 6 and n = p = 994; CRATE-Base has other sizes."""
    inside = MixtureSizes(6, 994, 994, 0.1, eps=math.sqrt(1 / 5))  # β = 5, βσ = ½
    assert broken_assumptions(inside) == []
    assert broken_assumptions(replace(inside, n=993, p=993)) == ["√(n log n) ≤ n/2K"]
    assert broken_assumptions(replace(inside, sigma=0.11)) == ["βσ ≤ ½"]
    assert broken_assumptions(replace(inside, eps=1.1)) == ["ε ≤ 1"]
    assert broken_assumptions(replace(inside, K=5)) == ["6n ≤ d"]
    base = MixtureSizes(12, 64, 196, 0.1, eps=0.5)
    assert broken_assumptions(base) == ["√(n log n) ≤ n/2K", "6n ≤ d"]
    large = MixtureSizes(K=6, p=994, n=994, sigma=1e-3, eps=0.5)
    assert broken_assumptions(large) == []
    assert broken_assumptions(large, gram=2.0) == ["8n ≤ d"]
