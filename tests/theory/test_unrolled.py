"""The unrolled steps against the equations written out with loops, in float64."""

import pytest
import torch

from codingrate.objective import random_bases, subspace_coding_rate
from codingrate.theory.unrolled import (
    alternate,
    compression_direction,
    compression_smoothness,
    ista,
    proximal_layer,
    proximal_step,
)
from tests.objective import oracles
from tests.refusals import refused

K, D, P, N, EPS = 3, 13, 4, 7, 0.7


@pytest.fixture
def bases():
    return random_bases(K, D, P, dtype=torch.float64)


@pytest.fixture
def z():
    return torch.randn(N, D, dtype=torch.float64)


def test_directions_are_those_of_the_objective(z, bases):
    for method, oracle in (
        ("neumann", oracles.neumann(z.T, bases, EPS)),
        ("mssa", oracles.attention(z.T, bases, EPS, identity_projection=True)),
    ):
        torch.testing.assert_close(compression_direction(z, bases, EPS, method), oracle.T, rtol=1e-10, atol=1e-12)
    point = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(subspace_coding_rate(point, bases, EPS), point)
    torch.testing.assert_close(compression_direction(z, bases, EPS), gradient, rtol=1e-9, atol=1e-12)
    refused("mhsa", compression_direction, z, bases, EPS, "mhsa")


def test_sparsifiers_are_the_equations(z):
    dictionary, eta, lam, alpha = torch.randn(D, D, dtype=torch.float64), 0.3, 0.2, 1.7
    for token, sparse, proximal in zip(
        z, ista(z, dictionary, eta, lam), proximal_layer(z, dictionary, lam, alpha), strict=True
    ):
        step = token - eta * dictionary.T @ (dictionary @ token - token) - eta * lam
        torch.testing.assert_close(sparse, step.clamp(min=0), rtol=1e-10, atol=1e-12)
        grown = (1 + 4 / (9 * (1 + alpha))) * dictionary.T @ token - 4 * lam / (9 * alpha)
        torch.testing.assert_close(proximal, grown.clamp(min=0), rtol=1e-10, atol=1e-12)


def test_the_proximal_step_minimizes_its_majorizer(z):
    """No X ≥ 0 near the step is better on λ‖X‖₁ − ⟨∇R, X − Z⟩ + (9α/8)‖X − Z‖²."""
    lam, alpha = 0.3, D / (N * EPS**2)
    point = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(oracles.rate(point.T, EPS), point)

    def majorizer(x):
        return lam * x.sum() - ((x - z) * gradient).sum() + 9 * alpha / 8 * (x - z).square().sum()

    best = proximal_step(z, EPS, lam)
    assert 0 < float((best == 0).double().mean()) < 1
    for size in (1e-3, 1e-1):
        other = (best + size * torch.randn_like(best)).clamp(min=0)
        assert float(majorizer(other)) > float(majorizer(best))


def test_the_smoothness_of_compression_is_reached_and_never_exceeded():
    bases = random_bases(K, D, P, "incoherent", dtype=torch.float64)
    limit = compression_smoothness(bases, N, EPS)
    total = sum(U @ U.T for U in bases)
    assert limit == pytest.approx(P / (N * EPS**2) * float(torch.linalg.eigvalsh(total)[-1]))
    for scale in (1e-3, 0.3, 3.0):
        x, y = (scale * torch.randn(N, D, dtype=torch.float64) for _ in range(2))
        change = compression_direction(x, bases, EPS) - compression_direction(y, bases, EPS)
        assert float(change.norm()) <= limit * float((x - y).norm())
    steepest = 1e-4 * torch.linalg.eigh(total)[1][:, -1].expand(N, D)  # near 0 the bound is met
    assert float(compression_direction(steepest, bases, EPS).norm() / steepest.norm()) == pytest.approx(limit, rel=1e-4)


def test_alternate_records_every_term_of_every_half_layer(z, bases):
    start, lam = z.abs(), 0.05
    run = alternate(start, bases, EPS, lam, 2, step=0.1)
    seen = [start]
    for _ in range(2):
        seen.append(seen[-1] - 0.1 * compression_direction(seen[-1], bases, EPS))
        seen.append(proximal_step(seen[-1], EPS, lam))
    for at, tokens in enumerate(seen):
        assert float(run.compression[at]) == pytest.approx(float(oracles.subspace_rate(tokens.T, bases, EPS)))
        assert float(run.expansion[at]) == pytest.approx(float(oracles.rate(tokens.T, EPS)))
        assert float(run.sparsity[at]) == pytest.approx(lam * float(tokens.abs().sum()))
    torch.testing.assert_close(run.objective, run.compression + run.sparsity - run.expansion)
    torch.testing.assert_close(run.tokens, seen[-1])
    eta = 4 / 9 * N * EPS**2 / D
    by_default = alternate(start, bases, EPS, lam, 1, "mssa", "ista")
    half = start - eta * compression_direction(start, bases, EPS, "mssa")
    torch.testing.assert_close(by_default.tokens, (half - eta * lam).clamp(min=0))
