import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from codingrate.objective import random_bases, subspace_coding_rate_gradient
from codingrate.theory import (
    ItoDiffusion,
    SubspaceMixture,
    VarianceExploding,
    geometric_times,
    structured_flow,
    structured_solution,
)
from codingrate.theory.diffusion import sliced_wasserstein
from tests.refusals import refused

K, D, P, N = 3, 7, 2, 5


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(73)


@pytest.fixture
def model(rng):
    return SubspaceMixture(random_bases(K, D, P, "incoherent", rng, torch.float64), 0.8)


@pytest.fixture
def single(rng):
    """One subspace: then q_t is one Gaussian and every process is known."""
    return SubspaceMixture(random_bases(1, D, P, generator=rng, dtype=torch.float64), 0.8)


def exact_flow(single, z, start, end, rate):
    """Each principal coordinate scales with its standard deviation √(λ + rt)."""
    inside = z @ single.bases[0] @ single.bases[0].T
    own = math.sqrt((0.8 + rate * end) / (0.8 + rate * start))
    return inside * own + (z - inside) * math.sqrt(end / start)


def test_times_grow_by_the_papers_ratio():
    times = geometric_times(0.01, 0.1, 11)
    assert times.dtype == torch.float64
    torch.testing.assert_close(times.diff() / (2 * times[:-1]), torch.full((10,), 0.1, dtype=torch.float64))
    assert float(times[-1]) == pytest.approx(0.01 * 1.2**10)
    assert float(geometric_times(1.0, -0.1, 4)[-1]) == pytest.approx(0.8**3)


@pytest.mark.parametrize("rate", [1.0, 2.0])
@pytest.mark.parametrize("back", [False, True])
def test_flow_of_one_gaussian_is_its_standard_deviations(single, rng, rate, back):
    z, errors = torch.randn(N, D, generator=rng, dtype=torch.float64), []
    for steps in (8, 16, 32):
        times = geometric_times(0.01, (100 ** (1 / steps) - 1) / 2, steps + 1)
        times = times.flip(0) if back else times
        exact = exact_flow(single, z, float(times[0]), float(times[-1]), rate)
        path = VarianceExploding(single, rate).flow(z, times)
        assert path.shape == (steps + 1, N, D)
        assert torch.equal(path[0], z)
        errors.append(float((path[-1] - exact).norm()))
    assert errors[1] / errors[2] == pytest.approx(4, abs=1.0)  # order 2
    assert errors[2] < 1e-3 * exact.norm()


def test_heun_and_reversal_against_loops(model, rng):
    process, times = VarianceExploding(model, 1.5), [1.0, 0.6, 0.5, 0.2]
    z = torch.randn(N, D, generator=rng, dtype=torch.float64)
    expected = z
    for now, later in pairwise(times):
        a, b = math.sqrt(1.5 * now), math.sqrt(1.5 * later)

        def slope(x, s):
            return -s * model.score(x, s)  # dz/dσ = −σ∇log q

        guess = expected + (b - a) * slope(expected, a)
        expected = expected + (b - a) / 2 * (slope(expected, a) + slope(guess, b))
    torch.testing.assert_close(process.flow(z, torch.tensor(times))[-1], expected, rtol=1e-6, atol=1e-6)

    path = process.reverse(z, torch.tensor(times, dtype=torch.float64), torch.Generator().manual_seed(1))
    noise, expected = torch.Generator().manual_seed(1), z
    for now, later in pairwise(times):
        w = torch.randn(N, D, generator=noise, dtype=torch.float64)
        drift = 1.5 * model.score(expected, math.sqrt(1.5 * now))
        expected = expected + (now - later) * drift + math.sqrt(1.5 * (now - later)) * w
    torch.testing.assert_close(path[-1], expected)


def test_diffusion_adds_noise_of_the_elapsed_time(model, rng):
    times = torch.tensor([0.1, 0.4, 1.1])
    path = VarianceExploding(model, 2.0).diffuse(torch.zeros(20_000, D, dtype=torch.float64), times, rng)
    for at, elapsed in ((1, 0.3), (2, 1.0)):  # 140 000 draws: a variance is known to 0.4 %
        assert path[at].square().mean().item() == pytest.approx(2 * elapsed, rel=0.02)
    assert (path[1] * (path[2] - path[1])).mean().abs() < 0.02


def naive_structured_step(Z, bases, before, after, eps):  # noqa: N803 - the paper's letter, tokens as columns
    n, p = Z.shape[1], bases.shape[-1]
    beta = p / (n * eps**2)
    gradient = sum(
        beta * U @ (U.T @ Z) @ np.linalg.inv(np.eye(n) + beta * (U.T @ Z).T @ (U.T @ Z)) for U in bases.numpy()
    )
    return Z + (after - before) / (2 * before) * gradient


@pytest.mark.parametrize("times", [[0.1, 0.15, 0.4], [1.0, 0.9, 0.3]])
def test_structured_flow_against_the_equation(model, rng, times):
    z = torch.randn(2, N, D, generator=rng, dtype=torch.float64)
    path = structured_flow(z, model.bases, torch.tensor(times, dtype=torch.float64), eps=0.6)
    for at in range(2):
        columns = z[at].T.numpy()
        for before, after in pairwise(times):
            columns = naive_structured_step(columns, model.bases, before, after, 0.6)
        torch.testing.assert_close(path[-1, at], torch.from_numpy(columns).T)


@pytest.mark.parametrize(("n", "ratio"), [(5, 2.0), (5, 0.4), (2, 1.5)])
def test_structured_solution_against_an_ode_solver(rng, n, ratio):
    bases = random_bases(3, 11, 3, "orthonormal", rng, torch.float64)  # two dimensions outside all subspaces
    z = torch.randn(n, 11, generator=rng, dtype=torch.float64)

    def slope(t, flat):
        tokens = torch.from_numpy(flat).view(n, 11)
        return (subspace_coding_rate_gradient(tokens, bases, 0.7) / (2 * t)).numpy().ravel()

    solved = solve_ivp(slope, (0.3, 0.3 * ratio), z.numpy().ravel(), rtol=1e-10, atol=1e-12).y[:, -1]
    solution = structured_solution(z, bases, ratio, 0.7)
    torch.testing.assert_close(solution, torch.from_numpy(solved).view(n, 11), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(structured_solution(solution, bases, 1 / ratio, 0.7), z)
    assert structured_solution(z.float(), bases.float(), ratio, 0.7).dtype == torch.float32


def test_structured_solution_keeps_zero_and_survives_large_tokens(rng):
    bases = random_bases(2, 7, 3, "orthonormal", rng, torch.float64)
    zero = torch.zeros(5, 7, dtype=torch.float64)
    torch.testing.assert_close(structured_solution(zero, bases, 2.0), zero)
    large = 1e4 * torch.randn(5, 7, generator=rng, dtype=torch.float64)
    assert structured_solution(large, bases, 1e-3).isfinite().all()


def test_sliced_wasserstein_by_hand(rng):
    x = torch.randn(301, 1, generator=rng, dtype=torch.float64)
    y = torch.randn(301, 1, generator=rng, dtype=torch.float64) * 2
    sorted_gap = np.sort(x.numpy().ravel()) - np.sort(y.numpy().ravel())
    assert sliced_wasserstein(x, y, 3, rng) == pytest.approx(math.sqrt(np.mean(sorted_gap**2)))
    cloud = torch.randn(101, D, generator=rng, dtype=torch.float64)
    assert sliced_wasserstein(cloud, cloud[torch.randperm(101, generator=rng)], 5, rng) == 0
    # A shift v costs the mean of (v·a)² over directions a, ‖v‖²/d.
    shift = torch.arange(1.0, D + 1, dtype=torch.float64)
    far = sliced_wasserstein(cloud, cloud + shift, 5_000, rng)
    assert far == pytest.approx(float(shift.norm()) / math.sqrt(D), rel=0.05)


@pytest.mark.parametrize("times", [[1.0], [1.0, 2.0, 1.5], [1.0, 1.0], [1.0, 0.0], [1.0, math.nan]])
def test_times_that_do_not_run_one_way_are_refused(model, times):
    z, times = torch.zeros(N, D, dtype=torch.float64), torch.tensor(times, dtype=torch.float64)
    process = VarianceExploding(model)
    for follow in (
        process.diffuse,
        process.reverse,
        process.flow,
        lambda z, times: structured_flow(z, model.bases, times),
    ):
        refused("times", follow, z, times)


def test_the_wrong_way_and_subspaces_without_a_solution_are_refused(model):
    z, up = torch.zeros(N, D, dtype=torch.float64), geometric_times(0.1, 0.1, 3)
    refused("times", VarianceExploding(model).diffuse, z, up.flip(0))
    refused("times", VarianceExploding(model).reverse, z, up)
    refused("orthogonal", structured_solution, z, model.bases, 2.0)


@pytest.fixture
def growth():
    """dz = z/2 dt + z dw from log z ~ N(0, 1): log z(t) ~ N(0, 1 + t)."""
    return ItoDiffusion(
        drift=lambda z, t: z / 2,
        diffusion=lambda z, t: torch.diag(z),
        score=lambda z, t: -(1 + z.log() / (1 + t)) / z,
    )


def test_divergence_and_drifts_by_hand(growth):
    z, t = torch.tensor([[2.0], [0.5]], dtype=torch.float64), 1.0
    score = -(1 + z.log() / 2) / z
    torch.testing.assert_close(growth.covariance(z, t), z[:, :, None] ** 2)
    torch.testing.assert_close(growth.divergence(z, t), 2 * z)
    torch.testing.assert_close(growth.reverse_drift(z, t), -z / 2 + 2 * z + z**2 * score)
    torch.testing.assert_close(growth.flow_drift(z, t), z / 2 - z - z**2 * score / 2)


def test_divergence_runs_over_the_second_index():
    matrix = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    process = ItoDiffusion(
        drift=lambda z, t: 0 * z,
        diffusion=lambda z, t: matrix + torch.stack([torch.stack([0 * z[0], 0 * z[0]]), torch.stack([z[1], 0 * z[0]])]),
        score=lambda z, t: 0 * z,
    )  # Σ = [[1, 0], [z₂, 0]], Ψ = [[1, z₂], [z₂, z₂²]], ∇·Ψ = (1, 2z₂)
    z = torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    torch.testing.assert_close(process.divergence(z, 1.0), torch.tensor([[1.0, 1.4]], dtype=torch.float64))


def test_the_flow_keeps_standardized_logarithms(growth):
    z = torch.tensor([[0.2, 1.0, 5.0]], dtype=torch.float64)
    path = growth.flow(z, torch.linspace(2.0, 0.5, 41, dtype=torch.float64))
    torch.testing.assert_close(path[0], z)
    torch.testing.assert_close(path[-1].log(), z.log() * math.sqrt(1.5 / 3), rtol=1e-6, atol=1e-9)


def test_constant_coefficients_are_the_variance_exploding_case():
    bases = torch.eye(4, dtype=torch.float64).view(4, 2, 2).transpose(0, 1)
    special = VarianceExploding(SubspaceMixture(bases), rate=2.0)
    general = ItoDiffusion(
        drift=lambda z, t: 0 * z,
        diffusion=lambda z, t: math.sqrt(2) * torch.eye(4, dtype=torch.float64),
        score=special.score,
    )
    z = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(general.divergence(z, 0.5), 0 * z)
    torch.testing.assert_close(general.reverse_drift(z, 0.5), 2 * special.score(z, 0.5))
    torch.testing.assert_close(general.flow_drift(z, 0.5), -special.score(z, 0.5))
