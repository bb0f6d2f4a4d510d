"""Extreme numbers in the objective: each result equals a float64 reference, is NaN for bad tokens, or is refused."""

import math

import pytest
import torch
from hypothesis import strategies as st

from codingrate import objective as ob
from codingrate.errors import CrateError

from .outcomes import counts, fuzz

FEW = counts(15, 200)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])
EPS = st.sampled_from([0.5, 0.1, 1, 3.0, 1e-3, 1e3])
RATES = {
    "rate": lambda z, u, eps: ob.coding_rate(z, eps),
    "subspace": lambda z, u, eps: ob.subspace_coding_rate(z, u, eps),
    "class": lambda z, u, eps: ob.class_coding_rate(z, torch.arange(z.shape[-2]) % 2 == torch.arange(2)[:, None], eps),
}
GRADIENTS = {
    "rate": lambda z, u, eps: ob.coding_rate_gradient(z, eps),
    "subspace": lambda z, u, eps: ob.subspace_coding_rate_gradient(z, u, eps),
}
MEASURES = {
    **RATES,
    **{f"{name} gradient": gradient for name, gradient in GRADIENTS.items()},
    "neumann": lambda z, u, eps: ob.subspace_coding_rate_gradient(z, u, eps, "neumann"),
    "attention": lambda z, u, eps: ob.subspace_coding_rate_gradient(z, u, eps, "attention"),
    "hvp": lambda z, u, eps: ob.coding_rate_hvp(z, z, eps),
    "objective": lambda z, u, eps: ob.sparse_rate_reduction(z, u, eps),
    "l0": lambda z, u, eps: ob.l0_norm(z), "l1": lambda z, u, eps: ob.l1_norm(z),
    "share": lambda z, u, eps: ob.l0_fraction(z), "below": lambda z, u, eps: ob.fraction_below(z, [0.1]),
    "rank": lambda z, u, eps: ob.effective_rank(z),
}  # fmt: skip


def spectrum(name, z, u, eps):
    """Return (c, matrices): the rate is Σ ½ log(1 + cσ²) over the singular values σ of the matrices, by definition."""
    n, d, p = *z.shape, u.shape[-1]
    classes = [rows / math.sqrt(len(rows)) for rows in (z[0::2], z[1::2]) if len(rows)]
    return {
        "rate": (d / (n * eps**2), [z]),
        "subspace": (p / (n * eps**2), [z @ basis for basis in u]),
        "class": (d / eps**2, classes),
    }[name]


def energies(name, z, u, eps, power):
    """Return log(cσ²) for the singular values of z · 10^power that are not zero."""
    c, matrices = spectrum(name, z.double(), u.double(), eps)
    sigmas = [sigma for matrix in matrices for sigma in torch.linalg.svdvals(matrix).tolist() if sigma > 0]
    return [math.log(c) + 2 * (math.log(sigma) + power * math.log(10)) for sigma in sigmas]


def reference(name, z, u, eps, power):
    """Compute a rate of z · 10^power in float64 without squares that overflow."""
    values = energies(name, z, u, eps, power)
    return sum((value if value > 700 else math.log1p(math.exp(value))) / 2 for value in values)


def tokens(n, d, seed):
    """Return tokens with singular values between ½ and 2, so that no direction is lost to rounding."""
    generator = torch.Generator().manual_seed(seed)
    left, _, right = torch.linalg.svd(torch.randn(n, d, generator=generator, dtype=torch.float64), full_matrices=False)
    return left * torch.linspace(0.5, 2, min(n, d), dtype=torch.float64) @ right


@FEW
@pytest.mark.parametrize("name", RATES)
def test_rates_of_any_size_equal_the_definition(name, count):
    @fuzz(count,
        seed=st.integers(0, 999), sizes=st.sampled_from([(3, 7), (7, 3), (23, 37), (1, 4), (4, 1)]),
        power=st.integers(-37, 37), eps=EPS, double=st.booleans(),
    )  # fmt: skip
    def check(seed, sizes, power, eps, double):
        dtype = torch.float64 if double else torch.float32
        power *= 8 if double else 1
        z = tokens(*sizes, seed).to(dtype)
        u = ob.random_bases(2, sizes[1], 1, "incoherent", torch.Generator().manual_seed(seed), torch.float64)
        value = RATES[name](z * 10.0**power, u, eps)
        # The 1 in I + cG is lost in float32 from c‖Z‖² = 10⁷ on, where it no longer matters for full-rank tokens.
        assert float(value) == pytest.approx(reference(name, z, u, eps, power), rel=1e-4, abs=1e-6)


@FEW
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_any_size_point_along_the_tokens(name, count):
    @fuzz(count, seed=st.integers(0, 999), power=st.integers(-30, 30), eps=EPS, rows=st.sampled_from([3, 11, 37]))
    def check(seed, power, eps, rows):
        z = tokens(rows, 11, seed).float()
        u = ob.random_bases(2, 11, 3, "orthonormal", torch.Generator().manual_seed(seed))
        gradient = GRADIENTS[name](z * 10.0**power, u, eps)
        assert gradient.isfinite().all()
        # ⟨∇R, Z⟩ = Σ cσ²/(1 + cσ²), which is R's derivative in the logarithm of the scale.
        values = energies(name, z, u, eps, power)
        expected = sum(1 / (1 + math.exp(-value)) if value > -700 else 0.0 for value in values)
        inner = float((gradient.double() * z.double() * 10.0**power).sum())
        # float32 loses what lies in directions in which the tokens are hardly extended within a subspace.
        assert inner == pytest.approx(expected, rel=1e-2, abs=1e-30)


@FEW
@pytest.mark.parametrize("name", MEASURES)
def test_finite_tokens_give_numbers_or_an_error_and_others_nan(name, count):
    @fuzz(count,
        seed=st.integers(0, 999), power=st.integers(-300, 300), dtype=DTYPES, eps=EPS,
        bad=st.sampled_from([None, None, math.nan, math.inf, -math.inf, 0.0]), rows=st.sampled_from([1, 3, 8]),
    )  # fmt: skip
    def check(seed, power, dtype, eps, bad, rows):
        generator = torch.Generator().manual_seed(seed)
        z = (torch.randn(2, rows, 5, generator=generator, dtype=torch.float64) * 10.0**power).to(dtype)
        if bad is not None:
            z[0, : None if bad == 0.0 else 1, : None if bad == 0.0 else 1] = bad
        u = ob.random_bases(2, 5, 2, "incoherent", generator)
        try:
            value = MEASURES[name](z, u, eps).reshape(2, -1)
        except CrateError:
            assert z.isfinite().all()
            return
        finite, result = z.isfinite().flatten(1).all(-1), value.isfinite().all(-1)
        assert not (result & ~finite).any()
        assert result.all() or not finite.all()
