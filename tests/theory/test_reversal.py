"""General diffusions: closed forms of ∇·Ψ and both drifts, exact flows, and the law of the reversed process."""

import math

import pytest
import torch

from codingrate.errors import CrateError
from codingrate.theory import ItoDiffusion, VarianceExploding
from codingrate.theory.denoising import SubspaceMixture


def growth():
    """dz = z/2 dt + z dw from log z ~ N(0, 1): log z(t) ~ N(0, 1 + t)."""
    return ItoDiffusion(
        drift=lambda z, t: z / 2,
        diffusion=lambda z, t: torch.diag(z),
        score=lambda z, t: -(1 + z.log() / (1 + t)) / z,
    )


def test_divergence_and_drifts_by_hand():
    z, t = torch.tensor([[2.0], [0.5]], dtype=torch.float64), 1.0
    score = -(1 + z.log() / 2) / z
    torch.testing.assert_close(growth().covariance(z, t), z[:, :, None] ** 2)
    torch.testing.assert_close(growth().divergence(z, t), 2 * z)
    torch.testing.assert_close(growth().reverse_drift(z, t), -z / 2 + 2 * z + z**2 * score)
    torch.testing.assert_close(growth().flow_drift(z, t), z / 2 - z - z**2 * score / 2)


def test_divergence_runs_over_the_second_index():
    matrix = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    process = ItoDiffusion(
        drift=lambda z, t: 0 * z,
        diffusion=lambda z, t: matrix + torch.stack([torch.stack([0 * z[0], 0 * z[0]]), torch.stack([z[1], 0 * z[0]])]),
        score=lambda z, t: 0 * z,
    )  # Σ = [[1, 0], [z₂, 0]], Ψ = [[1, z₂], [z₂, z₂²]], ∇·Ψ = (1, 2z₂)
    z = torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    torch.testing.assert_close(process.divergence(z, 1.0), torch.tensor([[1.0, 1.4]], dtype=torch.float64))


def test_the_flow_keeps_standardized_logarithms():
    z = torch.tensor([[0.2, 1.0, 5.0]], dtype=torch.float64)
    path = growth().flow(z, torch.linspace(2.0, 0.5, 41, dtype=torch.float64))
    torch.testing.assert_close(path[0], z)
    torch.testing.assert_close(path[-1].log(), z.log() * math.sqrt(1.5 / 3), rtol=1e-6, atol=1e-9)


def test_the_reversal_ends_in_the_law_of_the_start():
    generator = torch.Generator().manual_seed(0)
    start = (math.sqrt(2) * torch.randn(4000, 1, generator=generator, dtype=torch.float64)).exp()
    end = growth().reverse(start, torch.linspace(1.0, 1e-3, 301, dtype=torch.float64), generator)[-1]
    logs = end.clamp_min(1e-6).log()
    assert float(logs.mean()) == pytest.approx(0, abs=0.06)
    assert float(logs.std()) == pytest.approx(1, abs=0.06)


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


def test_ascending_times_are_refused():
    with pytest.raises(CrateError, match="times must descend"):
        growth().reverse(torch.ones(1, 1), torch.tensor([0.5, 1.0]))
