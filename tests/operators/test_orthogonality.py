"""Orthonormal bases and dictionaries: measured, and built in."""

import pytest
import torch

from codingrate.operators import (
    ATTENTION,
    SPARSIFIERS,
    orthogonality_gap,
    orthonormal_columns,
)

SUBSPACES = ["mssa", "mssa-tied", "tssa"]
DICTIONARIES = ["ista", "ista-soft", "prox"]


def attention(name, **options):
    return ATTENTION.create(name, dim=17, num_heads=3, head_dim=5, **options)


def sparsifier(name, **options):
    return SPARSIFIERS.create(name, dim=17, **options)


def test_orthonormal_columns_spans_the_same_space_and_keeps_what_is_orthonormal():
    matrix = torch.randn(17, 5, dtype=torch.float64)
    q = orthonormal_columns(matrix)
    torch.testing.assert_close(q.T @ q, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(q @ q.T @ matrix, matrix, rtol=0, atol=1e-12)
    torch.testing.assert_close(orthonormal_columns(q), q, rtol=0, atol=1e-12)
    assert orthonormal_columns(matrix.bfloat16()).dtype == torch.bfloat16


def test_orthonormal_columns_is_continuous():
    """QR's free signs are fixed: a small change of the matrix is a small change of its factor."""
    square = torch.randn(11, 11, dtype=torch.float64)
    moved = orthonormal_columns(square + 1e-8 * torch.randn_like(square))
    assert float((moved - orthonormal_columns(square)).abs().max()) < 1e-5
    torch.testing.assert_close(orthonormal_columns(-torch.eye(3)), -torch.eye(3))


def test_gap_is_the_frobenius_distance_to_the_identity():
    matrix = torch.randn(2, 7, 3, dtype=torch.float64)
    for b in range(2):
        naive = 0.0
        for r in range(3):
            for c in range(3):
                product = sum(matrix[b, i, r] * matrix[b, i, c] for i in range(7))
                naive = naive + (product - float(r == c)) ** 2
        torch.testing.assert_close(orthogonality_gap(matrix)[b], naive**0.5)
    assert float(orthogonality_gap(orthonormal_columns(matrix[0]))) < 1e-12


@pytest.mark.parametrize("name", SUBSPACES)
def test_bases_can_be_built_orthonormal(name):
    module = attention(name, orthonormal=True)
    U = module.bases.detach()
    stacked = torch.cat(list(U), dim=1)  # (d, K·p): within and across subspaces at once
    torch.testing.assert_close(stacked.T @ stacked, torch.eye(15), rtol=0, atol=1e-6)
    assert float(orthogonality_gap(attention(name).bases).detach().max()) > 0.1
    z = torch.randn(2, 7, 17)
    module(z).square().sum().backward()
    assert float(module.project.weight.grad.abs().max()) > 0


@pytest.mark.parametrize("name", SUBSPACES)
def test_each_basis_can_be_orthonormal_by_itself(name):
    """Five subspaces of dimension 5 in 17 dimensions overlap, and yet U_k*U_k = I for every k."""
    module, plain = (
        ATTENTION.create(name, dim=17, num_heads=5, head_dim=5, orthonormal=kind).double()
        for kind in ("per-head", False)
    )
    assert float(orthogonality_gap(module.bases.detach()).max()) < 1e-12
    assert float(orthogonality_gap(module.subspaces().mT.detach())) > 0.1
    plain.load_state_dict(module.state_dict())  # the same keys
    z = torch.randn(2, 7, 17, dtype=torch.float64)
    update = module(z)
    assert not torch.allclose(update, plain(z))
    with torch.no_grad():
        heads = plain.project.weight.unflatten(0, (5, 5))
        plain.project.weight.copy_(torch.cat([orthonormal_columns(matrix.T).T for matrix in heads]))
    torch.testing.assert_close(update, plain(z), rtol=0, atol=1e-12)
    update.square().sum().backward()
    assert float(module.project.weight.grad.abs().max()) > 0


@pytest.mark.parametrize("name", SUBSPACES)
def test_orthonormal_bases_act_in_the_operator(name):
    module, plain = attention(name, orthonormal=True).double(), attention(name).double()
    plain.load_state_dict(module.state_dict())  # the same keys
    z = torch.randn(2, 7, 17, dtype=torch.float64)
    assert not torch.allclose(module(z), plain(z))
    with torch.no_grad():
        plain.project.weight.copy_(orthonormal_columns(plain.project.weight.T).T)
    torch.testing.assert_close(module(z), plain(z), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", DICTIONARIES)
@pytest.mark.parametrize("tokens", [3, 101])
def test_dictionaries_can_be_built_orthonormal(name, tokens):
    module, plain = sparsifier(name, orthonormal=True).double(), sparsifier(name).double()
    D = module.atoms().detach()
    torch.testing.assert_close(D.T @ D, torch.eye(17, dtype=torch.float64), rtol=0, atol=1e-12)
    plain.load_state_dict(module.state_dict())
    z = torch.randn(tokens, 17, dtype=torch.float64)
    assert not torch.allclose(module(z), plain(z))
    with torch.no_grad():
        plain.dictionary.copy_(D)
    torch.testing.assert_close(module(z), plain(z), rtol=0, atol=1e-12)
    module(z).square().sum().backward()
    assert float(module.dictionary.grad.abs().max()) > 0
    with torch.no_grad():
        torch.testing.assert_close(module.eval()(z), plain(z), rtol=0, atol=1e-12)
