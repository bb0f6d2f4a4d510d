import math

import pytest
import torch

from codingrate import objective as ob
from codingrate.objective._tensors import cholesky, spectral_gradient
from tests.refusals import refused

EPS = 0.5
RATES = {
    "rate": lambda z, u: ob.coding_rate(z, EPS),
    "subspace": lambda z, u: ob.subspace_coding_rate(z, u.to(z.dtype), EPS),
    "class": lambda z, u: ob.class_coding_rate(z, torch.arange(z.shape[-2]) % 3 == torch.arange(3)[:, None], EPS),
    "gradient": lambda z, u: ob.coding_rate_gradient(z, EPS).norm(),
    "subspace gradient": lambda z, u: ob.subspace_coding_rate_gradient(z, u.to(z.dtype), EPS).norm(),
    "hvp": lambda z, u: ob.coding_rate_hvp(z, z.flip(-1), EPS).norm(),
}


@pytest.fixture(params=[23, 71], ids=["n<d", "n>d"])
def tokens(request, rng):
    return torch.randn(2, request.param, 37, generator=rng, dtype=torch.float64)


@pytest.fixture
def bases(rng):
    return ob.random_bases(3, 37, 5, "incoherent", rng, torch.float64)


@pytest.mark.parametrize("name", RATES)
def test_float32_is_close_to_float64_and_dtypes_are_kept(name, tokens, bases):
    exact, single = RATES[name](tokens, bases), RATES[name](tokens.float(), bases)
    assert (exact.dtype, single.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(single.double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", RATES)
def test_half_precision_is_computed_and_returned_in_float32(name, dtype, tokens, bases):
    half = tokens.to(dtype)
    value = RATES[name](half, bases)
    assert value.dtype == torch.float32
    # 3e-2: what rounding the tokens (and bases) to 8 bits leaves.
    torch.testing.assert_close(value.double(), RATES[name](tokens, bases), rtol=3e-2, atol=0)
    if name in ("rate", "class", "gradient", "hvp"):
        torch.testing.assert_close(value.double(), RATES[name](half.double(), bases), rtol=1e-5, atol=0)


def test_autocast_does_not_lower_the_precision(tokens, bases):
    z, u = tokens.float(), bases.float()
    outside = ob.rate_reduction(z, u, EPS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ob.rate_reduction(z, u, EPS), outside)
        assert ob.subspace_coding_rate_gradient(z, u, EPS).dtype == torch.float32


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_tiny_and_huge_float32_tokens(scale, tokens, bases):
    # Full-rank tokens of norm 1e6·√d; the square case n = d is the worst conditioned of all.
    for z in (tokens * scale, tokens[..., :5, :] * scale):
        single = ob.coding_rate(z.float(), EPS)
        assert single.isfinite().all()
        torch.testing.assert_close(single.double(), ob.coding_rate(z, EPS), rtol=1e-4, atol=1e-6)


def test_huge_rank_deficient_float32_tokens_stay_finite_by_jitter(rng):
    direction = torch.randn(1, 31, generator=rng)
    z = 1e6 * torch.randn(4, 41, 1, generator=rng) * direction  # rank one: the 1 of I + αG is lost
    gram = torch.eye(31) + 31 / 41 / EPS**2 * z.mT @ z
    assert torch.linalg.cholesky_ex(gram).info.any()  # or the test below would prove nothing
    z.requires_grad_()
    value = ob.coding_rate(z, EPS)
    assert value.isfinite().all()
    assert torch.autograd.grad(value.sum(), z)[0].isfinite().all()
    assert ob.coding_rate_gradient(z, EPS).isfinite().all()


def test_one_bad_sample_leaves_the_others_alone(rng):
    z = torch.randn(4, 7, 5, generator=rng)
    good = ob.coding_rate(z, EPS)
    for bad in (torch.nan, torch.inf, -torch.inf):
        spoiled = z.clone()
        spoiled[2, 3, 1] = bad
        value = ob.coding_rate(spoiled, EPS)
        assert value[2].isnan()
        torch.testing.assert_close(value[[0, 1, 3]], good[[0, 1, 3]])
    assert ob.coding_rate(torch.full((1, 1), torch.inf), EPS).isnan()
    huge = ob.coding_rate(torch.full((3, 2), 1e30), EPS)  # rank one, and its Gram matrix overflows in float32
    assert float(huge) == pytest.approx((math.log(6 * 2 / (3 * EPS**2)) + 60 * math.log(10)) / 2, rel=1e-6)


@pytest.mark.parametrize(("dtype", "power"), [(torch.float32, 30), (torch.float64, 200)])
@pytest.mark.parametrize("name", ["rate", "subspace", "class", "gradient", "subspace gradient"])
def test_tokens_whose_gram_matrix_overflows_are_rescaled(name, dtype, power, tokens, bases):
    # At this size R = m log s + const and ∇R = const/s for m directions; s = 1e4 in float64 is the reference.
    z = tokens[0].to(dtype)
    huge, large = RATES[name](z * 10.0**power, bases), RATES[name](z.double() * 1e4, bases)
    assert huge.isfinite()
    if "gradient" in name:
        assert float(huge) == pytest.approx(float(large) * 10.0 ** (4 - power), rel=1e-4)
    else:
        directions = {
            "rate": min(z.shape),
            "subspace": 15,
            "class": sum(min(len(range(k, len(z), 3)), 37) for k in range(3)),
        }
        assert float(huge) == pytest.approx(float(large) + directions[name] * (power - 4) * math.log(10), rel=1e-6)


def test_rescaled_rates_have_gradients_and_leave_bad_samples_alone(tokens, bases):
    for scale in (1e30, 1e37):
        z = (tokens * scale).float()
        z[1, 0, 0] = torch.nan
        z.requires_grad_()
        rates = (ob.coding_rate(z, EPS), ob.subspace_coding_rate(z, bases.float() * 1e3, EPS))
        for rate in rates:
            assert rate.isfinite().tolist() == [True, False]
            (gradient,) = torch.autograd.grad(rate[0], z)
            scaled = (gradient[0].double() * z.detach()[0].double()).sum().item()  # dR(sZ)/d log s
            assert scaled == pytest.approx(min(z.shape[1:]) if rate is rates[0] else 3 * min(5, z.shape[1]), rel=1e-4)


def test_results_that_overflow_by_themselves_are_refused(tokens, bases):
    z, u = tokens.float() * 1e30, bases.float()
    for method in ("neumann", "attention"):
        refused("tokens are too large", ob.subspace_coding_rate_gradient, z, u, EPS, method)
    refused("tokens are too large", ob.coding_rate_hvp, z, z, EPS)
    refused("tokens are too large", ob.l1_norm, z * 5e7)
    soft = torch.rand(3, z.shape[-2], requires_grad=True)
    refused("tokens are too large for a gradient in the memberships", ob.class_coding_rate, z, soft, EPS)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_counts_do_not_hide_what_is_not_finite(bad, tokens):
    z = tokens.clone()
    z[1, 2, 3] = bad
    for measure in (ob.l0_norm, ob.l0_fraction, lambda z: ob.fraction_below(z, [0.1])[..., 0]):
        assert measure(z).isnan().tolist() == [False, True]
        assert torch.equal(measure(z)[0], measure(tokens)[0])
    assert not ob.l1_norm(z)[1].isfinite()


def test_zero_tokens_have_rate_zero_and_gradient_zero(bases):
    z = torch.zeros(2, 11, 37, dtype=torch.float64, requires_grad=True)
    for rate in (
        ob.coding_rate(z),
        ob.subspace_coding_rate(z, bases),
        ob.class_coding_rate(z, torch.ones(2, 11)),
    ):
        assert torch.equal(rate, torch.zeros_like(rate))
        assert not torch.autograd.grad(rate.sum(), z)[0].any()


def test_an_empty_batch_gives_an_empty_result(bases):
    z = torch.zeros(0, 11, 37, dtype=torch.float64)
    assert ob.rate_reduction(z, bases).shape == (0,)
    assert ob.class_coding_rate(z, torch.ones(3, 11)).shape == (0,)
    assert ob.coding_rate_gradient(z).shape == z.shape


def test_strided_tokens_are_accepted(tokens):
    torch.testing.assert_close(ob.coding_rate(tokens.mT.contiguous().mT), ob.coding_rate(tokens))


def test_cholesky_adds_no_more_jitter_than_it_needs():
    """A matrix whose smallest eigenvalue is lost to rounding is factored after a shift of that size."""
    ones = torch.full((6, 6), 1e8, dtype=torch.float32)
    spd = ones - 1e3 * torch.eye(6)  # rounding has made it indefinite
    assert torch.linalg.cholesky_ex(spd).info != 0
    factor = cholesky(spd)
    assert factor.isfinite().all()
    error = torch.linalg.matrix_norm(factor @ factor.mT - spd) / torch.linalg.matrix_norm(spd)
    assert float(error) < 1e-4


def test_spectral_gradient_is_the_closed_form(rng):
    """U diag(cσ/(1 + cσ²)) Vᵀ = c w (I + c wᵀw)⁻¹, here without overflow, so that both can be computed."""
    w = torch.randn(5, 3, generator=rng, dtype=torch.float64)
    scale, log_size = 0.7, torch.tensor(0.4, dtype=torch.float64)
    expected = scale * w @ torch.linalg.inv(torch.eye(3, dtype=torch.float64) + scale * w.mT @ w)
    torch.testing.assert_close(spectral_gradient(scale, w / log_size.exp(), log_size), expected)
