import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from codingrate.objective import random_bases
from codingrate.theory.denoising import SubspaceMixture, attention_denoise, nearest_subspace, project_nearest
from tests.refusals import refused

K, D, P, N = 3, 7, 2, 5
VARIANCES = (1.3, 0.4)


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(71)


@pytest.fixture
def model(rng):
    bases = random_bases(K, D, P, "incoherent", rng, torch.float64)
    return SubspaceMixture(bases, torch.tensor(VARIANCES, dtype=torch.float64))


def covariances(model, sigma):
    return [U @ np.diag(VARIANCES) @ U.T + sigma**2 * np.eye(D) for U in model.bases.numpy()]


def densities(model, x, sigma):
    return np.array([multivariate_normal(np.zeros(D), c).pdf(x) for c in covariances(model, sigma)])


def naive_shares(model, x, sigma):
    return densities(model, x, sigma) / densities(model, x, sigma).sum()


def naive_score(model, x, sigma):
    """The proposition as printed: M_k = (Σ_k + σ²I)^{-1/2}, softmax of −½‖M_k*x‖², −Σ softmax_k M_k M_k* x."""
    roots = []
    for c in covariances(model, sigma):
        value, vector = np.linalg.eigh(c)
        roots.append(vector @ np.diag(value**-0.5) @ vector.T)
    weights = np.array([math.exp(-0.5 * np.linalg.norm(M.T @ x) ** 2) for M in roots])
    weights = weights / weights.sum()
    return -sum(weight * M @ M.T @ x for weight, M in zip(weights, roots, strict=True))


def naive_denoise(model, x, sigma):
    """Σ_k P(k | x) E[z | x, k] with the Gaussian regression Σ_k(Σ_k + σ²I)⁻¹x."""
    shares = naive_shares(model, x, sigma)
    clean = [c - sigma**2 * np.eye(D) for c in covariances(model, sigma)]
    noisy = covariances(model, sigma)
    return sum(s * a @ np.linalg.inv(b) @ x for s, a, b in zip(shares, clean, noisy, strict=True))


def naive_attention(bases, x, sigma):
    """Eq. mog-score-as-attention with its stacked matrices and its Kronecker product."""
    logits = np.array([np.linalg.norm(U.T @ x) ** 2 for U in bases]) / (2 * sigma**2)
    weights = np.exp(logits - logits.max())
    weights = weights / weights.sum()
    stacked = np.concatenate([U.T @ x for U in bases])
    return np.concatenate(list(bases), axis=1) @ np.kron(np.diag(weights), np.eye(bases.shape[-1])) @ stacked


def over_rows(function, z):
    flat = [function(row) for row in z.reshape(-1, z.shape[-1]).numpy()]
    return torch.from_numpy(np.array(flat)).reshape(z.shape[:-1] + np.shape(flat[0]))


@pytest.mark.parametrize("sigma", [0.3, 2.0])
@pytest.mark.parametrize("lead", [(), (N,), (2, N)])
def test_every_function_equals_its_transcription(model, rng, sigma, lead):
    z = torch.randn(*lead, D, generator=rng, dtype=torch.float64)
    checks = [
        (model.log_density(z, sigma), lambda x: math.log(densities(model, x, sigma).mean())),
        (model.responsibilities(z, sigma), lambda x: naive_shares(model, x, sigma)),
        (model.score(z, sigma), lambda x: naive_score(model, x, sigma)),
        (model.denoise(z, sigma), lambda x: naive_denoise(model, x, sigma)),
        (attention_denoise(z, model.bases, sigma), lambda x: naive_attention(model.bases.numpy(), x, sigma)),
    ]
    for value, oracle in checks:
        torch.testing.assert_close(value, over_rows(oracle, z), rtol=1e-9, atol=1e-11)


def test_projection_by_trying_every_subspace(model, rng):
    z = torch.randn(2, N, D, generator=rng, dtype=torch.float64)

    def nearest(x):
        candidates = [U @ U.T @ x for U in model.bases.numpy()]
        return min(candidates, key=lambda candidate: np.linalg.norm(candidate - x))

    torch.testing.assert_close(project_nearest(z, model.bases), over_rows(nearest, z))
    chosen = model.bases[nearest_subspace(z, model.bases)]
    torch.testing.assert_close(project_nearest(z, model.bases), (chosen @ (chosen.mT @ z[..., None]))[..., 0])


def test_limits_of_the_noise(model, rng):
    z = torch.randn(N, D, generator=rng, dtype=torch.float64)
    target = project_nearest(z, model.bases)
    for tiny in (1e-3, 1e-8, 1e-150):
        torch.testing.assert_close(model.denoise(z, tiny), target, rtol=0, atol=1e-4)
        torch.testing.assert_close(attention_denoise(z, model.bases, tiny), target, rtol=0, atol=1e-4)
    torch.testing.assert_close(model.denoise(z, 1e6), torch.zeros_like(z), rtol=0, atol=1e-9)
    shares = model.responsibilities(z, 1e6)
    torch.testing.assert_close(shares, torch.full_like(shares, 1 / K), rtol=1e-9, atol=0)


def test_float32_is_close_to_float64_and_kept(model, rng):
    sample = model.sample(200, 0.1, rng)
    narrow = SubspaceMixture(model.bases.float(), model.variances.float())
    z = sample.tokens.float()
    for wide, small in (
        (model.denoise(sample.tokens, 0.1), narrow.denoise(z, 0.1)),
        (model.score(sample.tokens, 0.1), narrow.score(z, 0.1)),
        (model.log_density(sample.tokens, 0.1), narrow.log_density(z, 0.1)),
        (attention_denoise(sample.tokens, model.bases, 0.1), attention_denoise(z, narrow.bases, 0.1)),
    ):
        assert small.dtype == torch.float32
        # Logits are ‖z‖²/2σ², some hundreds, known to 1e-7 of themselves; the score has a further 1/σ².
        torch.testing.assert_close(small.double(), wide, rtol=1e-3, atol=2e-2)


def test_samples_have_the_stated_covariance(model, rng):
    sample = model.sample(40_000, 0.5, rng)
    measured = sample.tokens.T @ sample.tokens / 40_000
    torch.testing.assert_close(
        measured, model.covariance(0.5), rtol=0, atol=0.04
    )  # 1/√40000 times √2 · 1.6, five of it
    expected = sum(covariances(model, 0.5)) / K
    torch.testing.assert_close(model.covariance(0.5), torch.from_numpy(expected))


def test_one_number_is_a_variance_for_every_direction(model, rng):
    z = torch.randn(N, D, generator=rng, dtype=torch.float64)
    even = SubspaceMixture(model.bases, torch.full((P,), 0.7, dtype=torch.float64))
    assert torch.equal(SubspaceMixture(model.bases, 0.7).denoise(z, 0.3), even.denoise(z, 0.3))


@pytest.mark.parametrize("factor", [2.0, math.nan])
def test_bases_that_are_not_orthonormal_are_refused(model, factor):
    refused("orthonormal", SubspaceMixture, factor * model.bases)
    for function in (attention_denoise, project_nearest):
        refused(
            "orthonormal",
            function,
            torch.zeros(N, D, dtype=torch.float64),
            factor * model.bases,
            *[1.0][: function is attention_denoise],
        )
