"""The exact gradient step: against the objective's own gradient, its series, its chunks, and its precision."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from codingrate import objective
from codingrate.operators import RateGradient, attention

from .cases import Case

K, D, P, EPS = 3, 17, 5, 0.5


def build(**options):
    return RateGradient(D, K, P, **{"eps": EPS, "orthonormal": "per-head", **options}).double()


def test_the_update_is_the_gradient_of_the_objective_at_unit_tokens():
    """Any step s scales −‖z_t‖∇R^c(x)_t by s/β, whatever the length of the tokens."""
    module, n = build(), 11
    z = 3 * torch.randn(2, n, D, dtype=torch.float64)
    with torch.no_grad():
        module.log_step.fill_(math.log(0.7))
        gradient = objective.subspace_coding_rate_gradient(F.normalize(z, dim=-1), module.bases, EPS)
        expected = -0.7 / (P / (n * EPS**2)) * z.norm(dim=-1, keepdim=True) * gradient
        torch.testing.assert_close(module(z), expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(module(2 * z), 2 * expected, rtol=0, atol=1e-12)


def test_the_first_step_lowers_the_rate_and_reverses_no_direction():
    module, z = build(orthonormal=True), torch.randn(5, 11, D, dtype=torch.float64)
    x = F.normalize(z, dim=-1)
    with torch.no_grad():
        after = x + module(x)
        before, now = (objective.subspace_coding_rate(tokens, module.bases, EPS) for tokens in (x, after))
        assert (now < before).all()
        # WᵀW⁺ = G(I − (I + βG)⁻¹), which has no negative eigenvalue
        assert (torch.linalg.eigvalsh(module.codes(x).mT @ module.codes(after)) >= -1e-12).all()


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_the_error_of_the_series_shrinks_with_its_order(causal):
    """The first term that is left out is (βG)^(order + 1): with β‖W‖² = q < 1 the error falls by q per order.

    β, and with it q, falls with 1/ε², so that at twice ε the error is 4^(order + 1) times smaller.
    """
    torch.manual_seed(0)
    weights, z = build(causal=causal).state_dict(), torch.randn(2, 11, D, dtype=torch.float64)

    def update(eps, order=None):
        module = build(causal=causal, eps=eps, order=order)
        module.load_state_dict(weights)
        return module(z), module.codes(F.normalize(z, dim=-1))

    errors = {}
    for eps in (4.0, 8.0):
        exact, w = update(eps)
        prefixes = range(1, 12) if causal else [11]
        norms = [P / (n * eps**2) * torch.linalg.matrix_norm(w[:, :, :n], ord=2).square().max() for n in prefixes]
        assert float(max(norms)) < 0.5
        errors[eps] = [float((update(eps, order)[0] - exact).norm()) for order in range(5)]
        assert all(fine <= float(max(norms)) * coarse for coarse, fine in pairwise(errors[eps]))
    for order, (large, small) in enumerate(zip(*errors.values(), strict=True)):
        assert math.log(large / small, 4) == pytest.approx(order + 1, abs=0.1)


@pytest.mark.parametrize("padded", [False, True])
def test_parts_of_a_causal_sequence_are_the_whole(padded, monkeypatch):
    """Sums of so few tokens at a time that each part is computed again for the gradient."""
    case = Case("attention", "rate-gradient", causal=True)
    module, z = case.build(), case.tokens(2, 11).requires_grad_()
    mask = torch.tensor([[True] * 11, [True] * 6 + [False] * 5]) if padded else None
    leaves = [z, *module.parameters()]
    results = []
    for largest in (2**24, 3 * 2 * 3 * 25):
        monkeypatch.setattr(attention, "LARGEST_SUMS", largest)
        out = module(z, mask)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for whole, parts in zip(*results, strict=True):
        torch.testing.assert_close(whole, parts, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("causal", [False, True])
def test_extreme_tokens_stay_finite(dtype, causal):
    """Tokens of length 0 and 10⁴, equal tokens, and a β so large that the 1 in I + βG is below rounding."""
    z = torch.randn(2, 7, D)
    z[0, 2], z[1] = 0, 2e3
    for eps in (0.5, 1e-5):
        module = build(causal=causal, eps=eps).to(dtype)
        tokens = z.to(dtype).requires_grad_()
        out = module(tokens)
        assert out.dtype == dtype
        assert out.isfinite().all()
        (gradient,) = torch.autograd.grad(out.float().square().mean(), tokens)
        assert gradient.isfinite().all()


def test_autocast_does_not_reach_the_factorization():
    module, z = build().float(), torch.randn(2, 7, D)
    with torch.autocast("cpu", torch.bfloat16):
        inside = module(z)
    assert torch.equal(inside, module(z))
    exact = module.double()(z.double())
    assert float((inside - exact).detach().norm() / exact.detach().norm()) < 1e-5  # products in bfloat16 have 3 digits
