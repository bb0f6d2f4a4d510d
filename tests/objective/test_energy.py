"""Energy of the sparse rate reduction, its gradient, and subspaces at equal angles."""

import math

import pytest
import torch

from codingrate import objective as ob
from codingrate.errors import CrateError


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    bases = ob.random_bases(3, 11, 2, "incoherent", generator, torch.float64)
    return torch.randn(5, 7, 11, generator=generator, dtype=torch.float64), bases


def test_the_energy_of_one_token_by_hand():
    z, basis = torch.tensor([[3.0, 4.0]], dtype=torch.float64), torch.tensor([[[1.0], [0.0]]], dtype=torch.float64)
    rate, part = math.log(1 + 2 * 25 / 0.25) / 2, math.log(1 + 9 / 0.25) / 2
    assert float(ob.energy(z, basis, 0.5, 0.1)) == pytest.approx(-(rate - part - 0.7))


def test_the_gradient_is_that_of_the_objective(case):
    z, bases = case
    leaf = z.clone().requires_grad_()
    ob.sparse_rate_reduction(leaf, bases, 0.7, 0.3).sum().backward()
    torch.testing.assert_close(ob.sparse_rate_reduction_gradient(z, bases, 0.7, 0.3), leaf.grad)
    torch.testing.assert_close(ob.energy(z, bases, 0.7, 0.3), -ob.sparse_rate_reduction(z, bases, 0.7, 0.3))


def test_the_gradient_at_zero_entries_has_no_threshold(case):
    _, bases = case
    zero = torch.zeros(2, 11, dtype=torch.float64)
    assert not ob.sparse_rate_reduction_gradient(zero, bases, 0.5, 0.3).any()


@pytest.mark.parametrize("nu", [-0.4, 0.0, 0.3, 0.9])
def test_equiangular_bases(nu):
    frame = ob.random_bases(3, 13, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bases = ob.equiangular_bases(frame, nu)
    products = torch.einsum("kdp,ldq->klpq", bases, bases)
    cosines = torch.full((3, 3), nu, dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(products, cosines[..., None, None] * torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("nu", [-0.5, 1.0, 2.0, math.nan])
def test_impossible_angles_are_refused(nu):
    with pytest.raises(CrateError, match=r"coherence must lie between -0\.5 and 1"):
        ob.equiangular_bases(torch.eye(6).view(6, 3, 2).transpose(0, 1), nu)
