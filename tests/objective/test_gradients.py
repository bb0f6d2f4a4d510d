import pytest
import torch

from codingrate import objective as ob

from . import oracles

EPS = 0.37
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def autograd_of(oracle, z, *rest):
    z = z.detach().requires_grad_()
    return torch.autograd.grad(oracles.over_batch(oracle, z, *rest).sum(), z)[0]


def test_exact_gradients_are_those_of_the_oracles(case):
    z, bases = case
    torch.testing.assert_close(ob.coding_rate_gradient(z, EPS), autograd_of(oracles.rate, z, EPS), **CLOSE)
    expected = autograd_of(oracles.subspace_rate, z, bases, EPS)
    torch.testing.assert_close(ob.subspace_coding_rate_gradient(z, bases, EPS), expected, **CLOSE)


def test_neumann_gradient_is_the_equation(case):
    z, bases = case
    actual = ob.subspace_coding_rate_gradient(z, bases, EPS, "neumann")
    torch.testing.assert_close(actual, oracles.over_batch(oracles.neumann, z, bases, EPS), **CLOSE)


def test_neumann_error_shrinks_at_second_order(rng):
    # W(I + βW*W)⁻¹ = W(I − βW*W + O(β²‖W‖⁴)): second order in βW*W, so the error relative to the
    # gradient falls as the 4th power of the tokens' size (the error itself as the 5th).
    z = torch.randn(13, 11, generator=rng, dtype=torch.float64)
    bases = ob.random_bases(3, 11, 2, generator=rng, dtype=torch.float64)
    sizes = torch.tensor([0.04, 0.02, 0.01], dtype=torch.float64)
    errors = []
    for size in sizes:
        exact = ob.subspace_coding_rate_gradient(size * z, bases, EPS)
        errors.append((ob.subspace_coding_rate_gradient(size * z, bases, EPS, "neumann") - exact).norm() / exact.norm())
    slopes = torch.stack(errors).log().diff() / sizes.log().diff()
    torch.testing.assert_close(slopes, torch.full_like(slopes, 4.0), rtol=0, atol=0.15)


@pytest.mark.parametrize("identity_projection", [False, True])
def test_attention_gradient_is_the_equation(case, identity_projection):
    z, bases = case
    actual = ob.subspace_coding_rate_gradient(z, bases, EPS, "attention", identity_projection=identity_projection)
    expected = oracles.over_batch(oracles.attention, z, bases, EPS, identity_projection)
    torch.testing.assert_close(actual, expected, **CLOSE)


def test_identity_projection_is_exact_for_a_complete_orthonormal_system(rng):
    for K, d, same in ((3, 15, True), (2, 15, False)):
        bases = ob.random_bases(K, d, 5, generator=rng, dtype=torch.float64)
        z = torch.randn(2, 7, d, generator=rng, dtype=torch.float64)
        plain = ob.subspace_coding_rate_gradient(z, bases, EPS, "attention")
        shortcut = ob.subspace_coding_rate_gradient(z, bases, EPS, "attention", identity_projection=True)
        assert torch.allclose(plain, shortcut, **CLOSE) is same


def test_a_small_exact_step_lowers_the_rates(case):
    z, bases = case
    step = 1e-3 / ob.coding_rate_lipschitz(*z.shape[-2:], EPS)
    before, after = (
        ob.subspace_coding_rate(x, bases, EPS) for x in (z, z - step * ob.subspace_coding_rate_gradient(z, bases, EPS))
    )
    assert (after < before).all()
    assert (ob.coding_rate(z - step * ob.coding_rate_gradient(z, EPS), EPS) < ob.coding_rate(z, EPS)).all()


def test_hvp_is_the_lemma_and_autograds_double_backward(case, rng):
    z = case[0].requires_grad_()
    delta = torch.randn(z.shape, generator=rng, dtype=z.dtype)
    actual = ob.coding_rate_hvp(z, delta, EPS)
    pairs = zip(z.reshape(-1, *z.shape[-2:]), delta.reshape(-1, *z.shape[-2:]), strict=True)
    lemma = torch.stack([oracles.hessian_vector(a.T, b.T, EPS).T for a, b in pairs]).reshape(z.shape)
    torch.testing.assert_close(actual, lemma, **CLOSE)
    first = torch.autograd.grad(ob.coding_rate(z, EPS).sum(), z, create_graph=True)[0]
    second = torch.autograd.grad(first, z, delta)[0]
    torch.testing.assert_close(actual, second, **CLOSE)


@pytest.mark.parametrize(("n", "d"), [(3, 5), (7, 3), (1, 1), (2, 2)])
def test_the_gradient_is_lipschitz_with_the_papers_constant(n, d, rng):
    trials = 1000  # 4 shapes × 1000
    alpha = d / (n * EPS**2)
    scales = 10 ** torch.linspace(-3, 1, trials, dtype=torch.float64)[:, None, None]
    z = scales * torch.randn(trials, n, d, generator=rng, dtype=torch.float64) / alpha**0.5
    v = torch.randn(trials, n, d, generator=rng, dtype=torch.float64)
    for _ in range(30):  # power iteration, so that the largest |eigenvalue| is approached
        v = v / v.norm(dim=(-2, -1), keepdim=True)
        v = ob.coding_rate_hvp(z, v, EPS)
    norms = v.norm(dim=(-2, -1))
    assert ob.coding_rate_lipschitz(n, d, EPS) == pytest.approx(9 * alpha / 4)
    assert norms.max() <= ob.coding_rate_lipschitz(n, d, EPS)
    # The bound is not tight: α itself is never exceeded, and is attained at Z = 0.
    assert ob.coding_rate_lipschitz(n, d, EPS, tight=True) == pytest.approx(alpha)
    assert 0.999 * alpha <= norms.max() <= alpha * (1 + 1e-12)


def test_closed_form_gradients_are_differentiable(rng):
    z = torch.randn(5, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    bases = torch.randn(2, 3, 2, generator=rng, dtype=torch.float64, requires_grad=True)
    for method in ("exact", "neumann", "attention"):
        assert torch.autograd.gradcheck(
            lambda z, b, m=method: ob.subspace_coding_rate_gradient(z, b, EPS, m), (z, bases)
        )
    assert torch.autograd.gradcheck(ob.coding_rate_gradient, (z,))
