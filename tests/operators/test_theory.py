"""The operators do what they were derived for: each step lowers the objective it belongs to."""

import pytest
import torch

from codingrate.objective import subspace_coding_rate_gradient
from codingrate.operators import ISTA, ProximalStep, SoftISTA, TiedMSSA

DIM = 13


def lasso(x, z, atoms, lam):
    """½‖z − Dx‖² + λ‖x‖₁ of every token (rows)."""
    return 0.5 * (z - x @ atoms.T).square().sum(-1) + lam * x.abs().sum(-1)


def step(kind, atoms, fraction, lam):
    """One step with η a fraction of 1/‖D‖²."""
    eta = fraction / float(torch.linalg.matrix_norm(atoms, 2)) ** 2
    module = kind(DIM, step_size=eta, sparsity=lam).double()
    with torch.no_grad():
        module.dictionary.copy_(atoms)
    return module


@torch.no_grad()
@pytest.mark.parametrize("kind", [ISTA, SoftISTA])
@pytest.mark.parametrize("fraction", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("lam", [0.01, 0.3])
def test_a_valid_ista_step_lowers_its_lasso(kind, fraction, lam):
    D = torch.randn(DIM, DIM, dtype=torch.float64)
    z = torch.randn(211, DIM, dtype=torch.float64)
    if kind is ISTA:
        z = z.abs()  # the start x = z must be feasible
    x = step(kind, D, fraction, lam)(z)
    if kind is ISTA:
        assert float(x.min()) >= 0
    # Every proximal gradient step with η ≤ 1/‖D‖² lowers the objective by at least ‖x − z‖²/(2η).
    eta = fraction / float(torch.linalg.matrix_norm(D, 2)) ** 2
    drop = lasso(z, z, D, lam) - lasso(x, z, D, lam)
    assert (drop >= (x - z).square().sum(-1) / (2 * eta) - 1e-9).all()
    assert (drop > 0).all()


@torch.no_grad()
def test_a_step_that_is_too_long_does_not():
    D = torch.randn(DIM, DIM, dtype=torch.float64)
    z = torch.randn(211, DIM, dtype=torch.float64).abs()
    x = step(ISTA, D, 8.0, 0.01)(z)
    assert (lasso(x, z, D, 0.01) > lasso(z, z, D, 0.01)).any()


@torch.no_grad()
@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_prox_is_the_minimiser_of_its_majoriser(alpha):
    lam = 0.4
    module = ProximalStep(DIM, sparsity=lam, alpha=alpha, orthonormal=True).double()
    z = torch.randn(97, DIM, dtype=torch.float64)
    center = z @ module.atoms()  # rows of Dᵀz

    def majoriser(x):
        """λ‖x‖₁ − ⟨∇R, x − c⟩ + (9α/8)‖x − c‖² at c = Dᵀz, where ∇R = α/(1 + α) c."""
        gap = x - center
        linear = alpha / (1 + alpha) * (center * gap).sum(-1)
        return lam * x.sum(-1) - linear + 9 * alpha / 8 * gap.square().sum(-1)

    best = module(z)
    assert 0.1 < float((best > 0).double().mean()) < 0.9  # both branches of the threshold are met
    for size in (1e-4, 1e-2, 1.0):
        for _ in range(20):
            other = (best + size * torch.randn_like(best)).clamp(min=0)
            # strongly convex with modulus 9α/4: the minimiser is better by the square of the distance
            margin = 9 * alpha / 8 * (other - best).square().sum(-1)
            assert (majoriser(other) >= majoriser(best) + margin - 1e-9).all()


@torch.no_grad()
@pytest.mark.parametrize("eps", [0.5, 1.3])
def test_tied_attention_is_the_attention_in_the_gradient_of_the_rate(eps):
    K, p, n = 3, 4, 7
    attention = TiedMSSA(DIM, K, p, eps=eps, orthonormal=True).double()
    z = torch.randn(2, n, DIM, dtype=torch.float64)
    U, beta = attention.bases, p / (n * eps**2)
    projected = sum(z @ U[k] @ U[k].T for k in range(K))
    gradient = subspace_coding_rate_gradient(z, U, eps, method="attention")
    torch.testing.assert_close(gradient, beta * projected - beta * attention(z), rtol=0, atol=1e-10)
