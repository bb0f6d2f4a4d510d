import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from codingrate.errors import CrateError
from codingrate.objective import random_bases
from codingrate.theory import SubspaceMixture, attention_denoise, nearest_subspace, project_nearest

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


def naive_density(model, x, sigma):
    return sum(multivariate_normal(np.zeros(D), c).pdf(x) for c in covariances(model, sigma)) / K


def naive_shares(model, x, sigma):
    parts = np.array([multivariate_normal(np.zeros(D), c).pdf(x) for c in covariances(model, sigma)])
    return parts / parts.sum()


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
        (model.log_density(z, sigma), lambda x: math.log(naive_density(model, x, sigma))),
        (model.responsibilities(z, sigma), lambda x: naive_shares(model, x, sigma)),
        (model.score(z, sigma), lambda x: naive_score(model, x, sigma)),
        (model.denoise(z, sigma), lambda x: naive_denoise(model, x, sigma)),
        (attention_denoise(z, model.bases, sigma), lambda x: naive_attention(model.bases.numpy(), x, sigma)),
    ]
    for value, oracle in checks:
        torch.testing.assert_close(value, over_rows(oracle, z), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("sigma", [0.05, 1.0])
def test_score_is_the_gradient_and_tweedie_the_conditional_mean(model, rng, sigma):
    z = model.sample(N, sigma, rng).tokens.requires_grad_()
    (gradient,) = torch.autograd.grad(model.log_density(z, sigma).sum(), z)
    torch.testing.assert_close(model.score(z.detach(), sigma), gradient, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(z.detach() + sigma**2 * gradient, model.denoise(z.detach(), sigma), rtol=1e-9, atol=1e-9)


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
        assert model.log_density(z, tiny).isfinite().all() or tiny < 1e-100
    torch.testing.assert_close(model.denoise(z, 1e6), torch.zeros_like(z), rtol=0, atol=1e-9)
    shares = model.responsibilities(z, 1e6)
    torch.testing.assert_close(shares, torch.full_like(shares, 1 / K), rtol=1e-9, atol=0)


def test_rotation_moves_with_the_model(model, rng):
    rotation = random_bases(1, D, D, generator=rng, dtype=torch.float64)[0]
    turned = SubspaceMixture(rotation @ model.bases, model.variances)
    z = torch.randn(N, D, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(turned.denoise(z @ rotation.T, 0.4), model.denoise(z, 0.4) @ rotation.T)
    torch.testing.assert_close(turned.log_density(z @ rotation.T, 0.4), model.log_density(z, 0.4))


def test_attention_form_scales_with_the_noise(model, rng):
    z = torch.randn(N, D, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(
        attention_denoise(3 * z, model.bases, 0.6), 3 * attention_denoise(z, model.bases, 0.2), rtol=1e-12, atol=1e-12
    )


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
    assert narrow.denoise(z.bfloat16(), 0.1).dtype == torch.float32
    assert model.denoise(z, 0.1).dtype == torch.float64


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


def test_the_nearest_subspace_does_not_change_with_scale(model, rng):
    z = torch.randn(N, D, generator=rng, dtype=torch.float64)
    for scale in (1e-30, 1e30, 1e300):
        assert torch.equal(nearest_subspace(z * scale, model.bases), nearest_subspace(z, model.bases))


def test_bad_input_is_one_line(model):
    z = torch.zeros(N, D, dtype=torch.float64)
    for call, words in [
        (lambda: SubspaceMixture(2 * model.bases), "orthonormal"),
        (lambda: SubspaceMixture(model.bases * math.nan), "orthonormal"),
        (lambda: SubspaceMixture(model.bases[0]), r"\(K, d, p\)"),
        (lambda: SubspaceMixture(model.bases.half()), "float32 or float64"),
        (lambda: SubspaceMixture(model.bases, torch.ones(P + 1)), "variances"),
        (lambda: SubspaceMixture(model.bases, 0.0), "variances"),
        (lambda: model.denoise(z, 0.0), "project_nearest"),
        (lambda: model.score(z, -1.0), "sigma"),
        (lambda: model.log_density(z, math.nan), "sigma"),
        (lambda: model.denoise(z[:, :-1], 1.0), f"d = {D}"),
        (lambda: model.denoise(z.long(), 1.0), "floating"),
        (lambda: attention_denoise(z, 2 * model.bases, 1.0), "orthonormal"),
        (lambda: project_nearest(z[:, 1:], model.bases), f"d = {D}"),
        (lambda: nearest_subspace(z * math.nan, model.bases), "NaN or infinity"),
        (lambda: nearest_subspace(z + math.inf, model.bases), "NaN or infinity"),
    ]:
        with pytest.raises(CrateError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
