import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codingrate import objective as ob
from codingrate.objective.normalized import normalized_rate
from codingrate.objective.sparsity import smaller_product
from tests.refusals import refused

from . import oracles

EPS = 0.37


def gradient(value, *inputs, **kwargs):
    return torch.autograd.grad(value.sum(), inputs, **kwargs)


def soft_memberships(z, rng, classes=3):
    return torch.rand(*z.shape[:-2], classes, z.shape[-2], generator=rng, dtype=z.dtype)


def assert_same_value_and_gradient(actual, expected, *inputs):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(gradient(actual, *inputs), gradient(expected, *inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_coding_rate(case):
    z = case[0].requires_grad_()
    assert_same_value_and_gradient(ob.coding_rate(z, EPS), oracles.over_batch(oracles.rate, z, EPS), z)


def test_subspace_coding_rate(case):
    z, bases = (t.requires_grad_() for t in case)
    expected = oracles.over_batch(oracles.subspace_rate, z, bases, EPS)
    assert_same_value_and_gradient(ob.subspace_coding_rate(z, bases, EPS), expected, z, bases)


def test_projected_coding_rate_is_one_term_of_the_subspace_rate(case):
    z, bases = case
    terms = ob.projected_coding_rate(torch.einsum("...nd,kdp->...knp", z, bases), EPS)
    assert terms.shape == (*z.shape[:-2], len(bases))
    for k in range(len(bases)):
        one = oracles.over_batch(oracles.subspace_rate, z, bases[k : k + 1], EPS)
        torch.testing.assert_close(terms[..., k], one, rtol=1e-10, atol=1e-10)


def test_tokens_of_several_layers_are_projected_on_the_bases_of_each(rng):
    z, bases = torch.randn(3, 7, 11, generator=rng), torch.randn(3, 2, 11, 5, generator=rng)
    codes = ob.project(z, bases)
    assert codes.shape == (3, 2, 7, 5)
    for layer in range(3):
        torch.testing.assert_close(codes[layer], ob.project(z[layer], bases[layer]))
    refused("bases have leading axes (2,) but the tokens z have (3,)", ob.project, z, bases[:2])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_class_coding_rate(case, rng, learned, weighted):
    z = case[0].requires_grad_()
    pi = soft_memberships(z, rng)
    pi[..., 0] = 0  # a token in no class: √Π must not spoil the gradient
    pi.requires_grad_(learned)
    flat = zip(z.reshape(-1, *z.shape[-2:]), pi.reshape(-1, *pi.shape[-2:]), strict=True)
    expected = torch.stack([oracles.class_rate(s.T, m, EPS, weighted) for s, m in flat]).reshape(z.shape[:-2])
    inputs = (z, pi) if learned else (z,)
    assert_same_value_and_gradient(ob.class_coding_rate(z, pi, EPS, weighted=weighted), expected, *inputs)


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 7), st.integers(1, 5), st.floats(-1, 1))
def test_the_weights_of_mcr2_keep_the_rate_reduction_from_being_negative(seed, n, d, classes, log_eps):
    """R(Z) is the concave logdet of a mean of the classes; without the weights the sum may exceed it."""
    rng = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, generator=rng, dtype=torch.float64)
    eps, labels = 10**log_eps, torch.randint(classes, (n,), generator=rng)
    whole = ob.coding_rate(z, eps)
    pi = labels == torch.arange(classes)[:, None]
    assert float(whole - ob.class_coding_rate(z, pi, eps, weighted=True)) >= -1e-9 * float(whole)
    soft = torch.rand(classes, n, generator=rng, dtype=torch.float64).softmax(0)
    assert float(whole - ob.class_coding_rate(z, soft, eps, weighted=True)) >= -1e-9 * float(whole)


def test_the_printed_rate_reduction_can_be_negative():
    z = torch.eye(4, dtype=torch.float64)[[0, 0, 0, 0]]  # equal tokens: splitting them into classes saves nothing
    pi = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]]).bool()
    whole = ob.coding_rate(z, EPS)
    assert float(ob.class_coding_rate(z, pi, EPS)) == pytest.approx(2 * float(whole))
    assert float(ob.class_coding_rate(z, pi, EPS, weighted=True)) == pytest.approx(float(whole))


@pytest.mark.parametrize("n", [5, 17])
def test_empty_class_contributes_nothing(rng, n):
    z = torch.randn(n, 11, generator=rng, dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, n, dtype=torch.bool)
    with_empty = torch.cat([one, torch.zeros_like(one)])
    value = ob.class_coding_rate(z, with_empty, EPS)
    torch.testing.assert_close(value, ob.class_coding_rate(z, one, EPS), rtol=1e-12, atol=0)
    torch.testing.assert_close(value, ob.coding_rate(z, EPS), rtol=1e-12, atol=0)  # one class is R itself
    assert gradient(value, z)[0].isfinite().all()


def test_memberships_broadcast_over_the_batch(rng):
    z = torch.randn(3, 7, 5, generator=rng, dtype=torch.float64)
    pi = soft_memberships(z[0], rng)
    each = torch.stack([ob.class_coding_rate(s, pi, EPS) for s in z])
    torch.testing.assert_close(ob.class_coding_rate(z, pi, EPS), each)


def test_memberships_and_subspaces_agree_for_tokens_on_orthonormal_axes(rng):
    # Tokens exactly on orthogonal subspaces, n/K in each: Z Π_k Z* = U_k W_k W_k* U_k*, and the two
    # rates differ only in their constants, γ_k = dK/(nε²) against β = p/(nε²): equal when d·K/ε² = p/ε'².
    K, d, p, each = 3, 17, 5, 7
    bases = ob.random_bases(K, d, p, generator=rng, dtype=torch.float64)
    labels = torch.arange(K).repeat_interleave(each)
    codes = torch.randn(K * each, p, generator=rng, dtype=torch.float64)
    z = (bases[labels] @ codes.unsqueeze(-1)).squeeze(-1)
    pi = labels == torch.arange(K).unsqueeze(1)
    by_class = ob.class_coding_rate(z, pi, EPS)
    by_subspace = ob.subspace_coding_rate(z, bases, EPS * (p / (d * K)) ** 0.5)
    torch.testing.assert_close(by_class, by_subspace, rtol=1e-10, atol=0)


def test_rate_reductions_combine_their_parts(case):
    z, bases = case
    z = z * (z.abs() > 0.5)
    delta = ob.rate_reduction(z, bases, EPS)
    expected = oracles.over_batch(oracles.rate, z, EPS) - oracles.over_batch(oracles.subspace_rate, z, bases, EPS)
    torch.testing.assert_close(delta, expected, rtol=1e-10, atol=1e-10)
    l1 = ob.sparse_rate_reduction(z, bases, EPS, 0.3)
    torch.testing.assert_close(l1, expected - 0.3 * z.abs().sum((-1, -2)), rtol=1e-10, atol=1e-10)
    l0 = ob.sparse_rate_reduction(z, bases, EPS, 0.3, norm="l0")
    torch.testing.assert_close(l0, expected - 0.3 * (z != 0).double().sum((-1, -2)), rtol=1e-10, atol=1e-10)


def test_coding_rate_is_invariant_to_rotations_on_both_sides(rng):
    z = torch.randn(2, 7, 11, generator=rng, dtype=torch.float64)
    left = ob.random_bases(1, 7, 7, generator=rng, dtype=torch.float64)[0]
    right = ob.random_bases(1, 11, 11, generator=rng, dtype=torch.float64)[0]
    torch.testing.assert_close(ob.coding_rate(left @ z @ right, EPS), ob.coding_rate(z, EPS), rtol=1e-12, atol=0)


def test_rate_reduction_is_invariant_to_joint_rotations_only(rng):
    bases = ob.random_bases(3, 11, 2, "incoherent", rng, torch.float64)
    z = ob.sample_tokens(bases, 31, generator=rng).tokens
    turn = ob.random_bases(1, 11, 11, generator=rng, dtype=torch.float64)[0]
    delta = ob.rate_reduction(z, bases, EPS)
    torch.testing.assert_close(ob.rate_reduction(z @ turn, turn.T @ bases, EPS), delta, rtol=1e-11, atol=0)
    assert ob.rate_reduction(z @ turn, bases, EPS) != delta


def test_incoherent_subspaces_have_the_larger_rate_reduction(rng):
    K, d, p = 4, 37, 5
    apart = ob.random_bases(K, d, p, generator=rng, dtype=torch.float64)
    shift = torch.randn(K, d, p, generator=rng, dtype=torch.float64)
    close = torch.linalg.qr(apart[:1] + 0.02 * shift).Q  # four nearly equal subspaces
    assert ob.coherence(close) > 0.9 > 1e-10 > ob.coherence(apart)
    gains = [
        ob.rate_reduction(ob.sample_tokens(b, 211, generator=rng, batch=(8,)).tokens, b, EPS) for b in (apart, close)
    ]
    assert (gains[0] > gains[1]).all()


@pytest.mark.parametrize("n", [3, 5])
def test_gradcheck_first_and_second_order(rng, n):
    z = torch.randn(2, n, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    bases = torch.randn(2, 4, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    pi = soft_memberships(z, rng, classes=2).requires_grad_()
    checks = [(ob.coding_rate, (z,)), (ob.rate_reduction, (z, bases)), (ob.class_coding_rate, (z, pi))]
    for function, inputs in checks:
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


def test_rate_and_rank_are_those_of_the_two_functions(case):
    z, _ = case
    for tokens in (z, z * 1e-3, z.float()):
        rate, rank = ob.rate_and_rank(tokens, 0.3)
        assert rate.dtype == rank.dtype == tokens.dtype
        tolerance = 1e-9 if tokens.dtype == torch.float64 else 1e-5
        torch.testing.assert_close(rate, ob.coding_rate(tokens, 0.3), rtol=tolerance, atol=1e-12)
        assert torch.equal(rank, ob.effective_rank(tokens))


@pytest.mark.parametrize("spread", [1.0, 1e-1, 1e-2, 1e-3, 1e-4])
def test_rate_and_rank_in_float32_keep_four_digits_for_any_spread_of_singular_values(spread):
    rng = torch.Generator().manual_seed(1)
    left, right = (torch.linalg.qr(torch.randn(3, m, 23, generator=rng, dtype=torch.float64))[0] for m in (23, 61))
    sizes = torch.logspace(0, np.log10(spread), 23, dtype=torch.float64)
    for sigma in (sizes, torch.where(torch.arange(23) == 0, 1.0, spread)):  # spread evenly, and one above all others
        z = (left * sigma * 17) @ right.mT
        for tokens in (z.float(), z.float().mT, z.float() * 1e-18, z.float() * 1e18):
            for single, double in zip(ob.rate_and_rank(tokens), ob.rate_and_rank(tokens.double()), strict=True):
                torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=0)
        torch.testing.assert_close(
            normalized_rate(z.float(), 0.5, smaller_product(z.float())),
            ob.coding_rate(ob.unit_tokens(z), 0.5).float(),
            rtol=1e-4, atol=0,
        )  # fmt: skip


def test_rate_and_rank_of_zero_and_bad_samples_leave_the_others_alone():
    z = torch.randn(4, 7, 5, dtype=torch.float64)
    good = [value[1] for value in ob.rate_and_rank(z)]
    z[0], z[2, 3, 1], z[3, 0, 0] = 0, torch.nan, torch.inf
    for found, other in zip(ob.rate_and_rank(z), good, strict=True):
        assert found[0] == 0
        torch.testing.assert_close(found[1], other)
        assert found[2:].isnan().all()


def test_rates_of_heads_that_are_views_are_those_of_copies():
    joined = torch.randn(5, 11, 3 * 2, dtype=torch.float64)
    heads = joined.unflatten(-1, (3, 2)).transpose(1, 2)  # (5, 3, 11, 2)
    torch.testing.assert_close(
        ob.projected_coding_rate(heads), ob.projected_coding_rate(heads.contiguous()), rtol=1e-12, atol=0
    )
