"""Padding, causality and the attention handed out, for every attention operator."""

import copy
import itertools

import pytest
import torch
from torch import nn

from codingrate import CrateError
from codingrate.operators import ATTENTION, attention, attention_mask

from .cases import ATTENTIONS, PAIRLESS

every = pytest.mark.parametrize("case", ATTENTIONS, ids=str)
causal = pytest.mark.parametrize("case", [case for case in ATTENTIONS if case.causal], ids=str)
softmaxed = pytest.mark.parametrize("case", [case for case in ATTENTIONS if case.name not in PAIRLESS], ids=str)
statistics = pytest.mark.parametrize(
    "case", [case for case in ATTENTIONS if case.name == "tssa" and not case.per_head], ids=str
)

LENGTHS = (7, 4, 2)


def right_padding() -> torch.Tensor:
    return torch.tensor([[t < length for t in range(7)] for length in LENGTHS])


def padded(case, mask):
    """Tokens whose padding is far from anything real."""
    return torch.where(mask[..., None], case.tokens(3, 7), 50 * case.tokens(3, 7))


@every
def test_masked_value_is_the_equation(case):
    module, mask = case.build(), right_padding()
    z = padded(case, mask)
    out, expected = module(z, mask), case.oracle(module, z, mask)[0]
    assert out.isfinite().all()  # padding too: a NaN there would spread in the backward pass
    torch.testing.assert_close(out[mask], expected[mask], rtol=0, atol=1e-10)


@every
def test_right_padding_changes_nothing(case):
    module, mask = case.build(), right_padding()
    z = padded(case, mask)
    results = [module(z, mask), module(z, mask, True)[0]]
    for b, length in enumerate(LENGTHS):
        alone = module(z[b : b + 1, :length])
        for out in results:  # the same sums in another order
            torch.testing.assert_close(out[b : b + 1, :length], alone, rtol=0, atol=1e-12)


@causal
def test_left_padding_changes_nothing(case):
    module, mask = case.build(), right_padding().flip(1)
    z = padded(case, mask)
    out = module(z, mask)
    for b, length in enumerate(LENGTHS):
        alone = module(z[b : b + 1, -length:])
        torch.testing.assert_close(out[b : b + 1, -length:], alone, rtol=0, atol=1e-12)


@every
def test_no_gradient_reaches_padding_from_real_tokens(case):
    module, mask = case.build(), right_padding()
    z = padded(case, mask).requires_grad_()
    (gradient,) = torch.autograd.grad(module(z, mask)[mask].sum(), z)
    assert gradient.isfinite().all()
    assert float(gradient[~mask].abs().max()) == 0
    assert float(gradient[mask].abs().min()) > 0


@causal
def test_the_future_cannot_be_seen(case):
    module, z = case.build(), case.tokens(2, 11)
    whole = module(z)
    for t in (0, 4, 9):
        changed = z.clone()
        changed[:, t + 1 :] = 50 * torch.randn_like(changed[:, t + 1 :])
        other = module(changed)
        torch.testing.assert_close(other[:, : t + 1], whole[:, : t + 1], rtol=0, atol=1e-12)
        assert not torch.allclose(other[:, t + 1 :], whole[:, t + 1 :])
        shorter = module(z[:, : t + 1])
        torch.testing.assert_close(shorter, whole[:, : t + 1], rtol=0, atol=1e-12)


@every
@pytest.mark.parametrize("padding", [None, "right", "left"])
def test_the_first_queries_alone_are_those_of_all(case, padding):
    module = case.build()
    mask = None if padding is None else right_padding() if padding == "right" else right_padding().flip(1)
    z = case.tokens(3, 7)
    whole, attention = module(z, mask, True)
    for fused in (True, False):
        result = module(z, mask, not fused, 3)
        out, part = (result, attention[:, :, :3]) if fused else result
        torch.testing.assert_close(out, whole[:, :3], rtol=0, atol=1e-12)
        assert torch.equal(part, attention[:, :, :3])


class Kept:
    """The plainest past: everything in one tensor each."""

    def __init__(self):
        self.past_length, self.key, self.value = 0, None, None

    def update(self, key, value):
        self.past_length += key.shape[-2]
        self.key = key if self.key is None else torch.cat([self.key, key], dim=-2)
        self.value = value if self.value is None else torch.cat([self.value, value], dim=-2)
        return self.key, self.value


generating = pytest.mark.parametrize("case", [c for c in ATTENTIONS if c.causal and c.name not in PAIRLESS], ids=str)


@generating
def test_a_sequence_in_pieces_is_the_sequence(case):
    for masked, weights in itertools.product((None, "tokens", "pairs"), (False, True)):
        check_pieces(case, masked, weights)


def check_pieces(case, masked, weights):
    module = case.build()
    mask = right_padding().flip(1) if masked else None
    z = padded(case, mask) if masked else case.tokens(3, 7)
    whole, attention = module(z, mask, True)
    past, start = Kept(), 0
    for size in (4, 1, 2):
        end = start + size
        visible = None if mask is None else mask[:, :end]
        if masked == "pairs":
            visible = attention_mask(size, end, True, visible, z.device, start)
            assert visible.shape == (3, 1, size, end)
        result = module(z[:, start:end], visible, weights, None, past)
        out, part = result if weights else (result, None)
        real = slice(None) if mask is None else mask[:, start:end]
        torch.testing.assert_close(out[real], whole[:, start:end][real], rtol=0, atol=1e-12)
        if weights:
            torch.testing.assert_close(part, attention[:, :, start:end, :end], rtol=0, atol=1e-12)
        start = end


def test_one_token_after_others_needs_no_table():
    assert attention_mask(1, 5, True, None, torch.device("cpu"), 4) is None
    assert attention_mask(1, 5, True, None, torch.device("cpu"), 3).tolist() == [[True] * 4 + [False]]
    assert attention_mask(2, 5, True, None, torch.device("cpu"), torch.tensor(1)).sum(-1).tolist() == [2, 3]


@pytest.mark.parametrize("case", [c for c in ATTENTIONS if c.name in PAIRLESS and c.causal], ids=str)
def test_statistics_keep_no_past(case):
    with pytest.raises(CrateError, match=rf"^attention '{case.name}' does not support caching; pass use_cache=False$"):
        case.build()(case.tokens(), None, False, None, Kept())


@pytest.mark.parametrize("case", [case for case in ATTENTIONS if not case.causal], ids=str)
def test_without_causality_all_tokens_are_seen(case):
    module, z = case.build(), case.tokens(2, 7).requires_grad_()
    (gradient,) = torch.autograd.grad(module(z)[:, 0].sum(), z)
    assert (gradient.abs().sum(-1) > 0).all()


@every
def test_asking_for_weights_changes_no_value(case):
    module, z = case.build(), case.tokens(3, 7)
    for mask in (None, right_padding()):
        out, attention = module(z, mask, True)
        expected = case.oracle(module, z, mask)[1]
        torch.testing.assert_close(out, module(z, mask), rtol=0, atol=1e-12)
        assert attention.shape == (3, 3, 7, 7)
        torch.testing.assert_close(attention, expected, rtol=0, atol=1e-12)


@softmaxed
def test_rows_of_attention_sum_to_one_over_what_is_visible(case):
    module, mask = case.build(), right_padding()
    attention = module(case.tokens(3, 7), mask, True)[1].detach()
    ones = torch.ones(3, 3, 7, dtype=torch.float64)
    torch.testing.assert_close(attention.sum(-1), ones, rtol=0, atol=1e-12)
    hidden = ~mask[:, None, None, :] & ~torch.eye(7, dtype=torch.bool)
    if case.causal:
        hidden = hidden | torch.ones(7, 7, dtype=torch.bool).triu(1)
    assert float(attention[hidden.expand_as(attention)].abs().max()) == 0


@statistics
def test_memberships_are_a_diagonal_that_sums_to_one_over_heads(case):
    module, mask = case.build(), right_padding()
    attention = module(case.tokens(3, 7), mask, True)[1].detach()
    membership = attention.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(membership.sum(1), mask.double(), rtol=0, atol=1e-12)
    assert float((attention - torch.diag_embed(membership)).abs().max()) == 0


def test_tied_bases_take_the_token_count_into_beta():
    case = next(c for c in ATTENTIONS if str(c) == "mssa-tied")
    module = case.build(eps=0.3)
    with torch.no_grad():
        token = torch.randn(1, 1, case.dim, dtype=torch.float64)
        one, many = module(token), module(token.expand(1, 7, -1))
    # equal tokens compress to themselves, so that only β = p/(nε²) differs
    torch.testing.assert_close(many, one.expand(1, 7, -1) / 7, rtol=0, atol=1e-12)
    U = module.bases.detach()
    expected = sum(5 / 0.3**2 * (token @ U[k]) @ U[k].T for k in range(3))
    torch.testing.assert_close(one, expected, rtol=0, atol=1e-12)


def test_the_variants_change_the_output_map_alone():
    """With W = [U_1 … U_K]ᵀ the three maps are βW out, −βW out and βWᵀ out, and nothing else differs."""
    cases = {c.name: c for c in ATTENTIONS if c.name.startswith("mssa-") and str(c) == c.name}
    modules = {name: case.build() for name, case in cases.items()}
    tied, z = modules["mssa-tied"], cases["mssa-tied"].tokens()
    for module in modules.values():
        module.load_state_dict(tied.state_dict())
    updates = {name: module(z) for name, module in modules.items()}
    torch.testing.assert_close(updates["mssa-negative"], -updates["mssa-tied"], rtol=0, atol=0)
    matrix = tied.project.weight
    expected = torch.linalg.solve(matrix.mT, updates["mssa-tied"].mT).mT @ matrix.mT
    torch.testing.assert_close(updates["mssa-transposed"], expected, rtol=0, atol=1e-8)
    assert not torch.allclose(updates["mssa-transposed"], updates["mssa-tied"])
    with pytest.raises(CrateError, match=r"^attention 'mssa-transposed' needs K·p = d, not 3 · 5 and 13$"):
        ATTENTION.create("mssa-transposed", dim=13, num_heads=3, head_dim=5)


@pytest.mark.parametrize("name", ["mssa", "mssa-tied"])
def test_bases_are_the_columns_the_tokens_meet(name):
    case = next(c for c in ATTENTIONS if str(c) == f"{name}-wide")
    module, z = case.build(), case.tokens(2, 7)
    assert module.bases.shape == (3, 13, 5)
    codes = torch.stack([z @ module.bases[k] for k in range(3)], dim=1)
    torch.testing.assert_close(module.codes(z), codes, rtol=0, atol=1e-12)


class Doubled(nn.Linear):
    """A projection that applies another matrix than its weight, as one with an adapter does; the bias is its own."""

    def forward(self, z):
        return super().forward(2 * z)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ["mssa", "mssa-tied", "tssa"])
@pytest.mark.parametrize("orthonormal", [False, True])
def test_a_wrapped_projection_acts_by_the_matrix_and_the_bias_that_it_applies(name, orthonormal, biased):
    case = next(c for c in ATTENTIONS if str(c) == name)
    module, plain = (case.build(orthonormal=orthonormal) for _ in range(2))
    module.project, plain.project = (kind(15, 15, bias=biased).double() for kind in (Doubled, nn.Linear))
    plain.load_state_dict(module.state_dict())
    with torch.no_grad():
        plain.project.weight.mul_(2)
    z = case.tokens(2, 7)
    torch.testing.assert_close(module.bases, plain.bases, rtol=0, atol=1e-12)
    torch.testing.assert_close(module.codes(z), plain.codes(z), rtol=0, atol=1e-12)
    torch.testing.assert_close(module(z), plain(z), rtol=0, atol=1e-12)


@softmaxed
@pytest.mark.parametrize("padding", [False, True])
def test_gradients_in_half_precision_are_those_of_the_products(case, padding, monkeypatch):
    """On a CPU short sequences train by products of matrices; their gradients are as near to exact as fused ones."""
    mask = right_padding() if padding else None
    z, direction = case.tokens(3, 7), torch.randn(3, 7, case.dim, dtype=torch.float64)
    module = case.build()

    def gradient(dtype: torch.dtype) -> torch.Tensor:
        tokens = z.to(dtype).requires_grad_()
        out = copy.deepcopy(module).to(dtype)(tokens, mask)
        (result,) = torch.autograd.grad((out * direction.to(dtype)).sum(), tokens)
        return result.double()

    exact, products = gradient(torch.float64), gradient(torch.bfloat16)
    monkeypatch.setattr(attention, "LONGEST_PRODUCT", 0)
    fused = gradient(torch.bfloat16)
    assert not torch.equal(products, fused)  # two kernels, two roundings
    for result in (products, fused):
        assert float((result - exact).norm() / exact.norm()) < 0.1  # 8 bits of mantissa through about 20 roundings


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@statistics
def test_token_statistics_in_half_precision_are_those_of_double_precision(case, dtype):
    """Tokens of size 0, 1e-4 and 300, whose squares half precision cannot hold, in value and gradient."""
    sizes = torch.tensor([0, 1e-4, 1e-4, 1, 300, 1, 1e-4])[:, None]
    half = case.build(dtype)
    z = (torch.randn(2, 7, case.dim) * sizes).to(dtype)
    direction = torch.randn(2, 7, case.dim).to(dtype)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, :2] = False  # padding in front

    def results(module, z):
        z = z.detach().requires_grad_()
        out = module(z, mask)
        out.backward(direction.to(out.dtype))
        return [out.detach(), z.grad, *(parameter.grad for parameter in module.parameters())]

    exact = results(copy.deepcopy(half).double(), z.double())
    for one, other in zip(results(half, z), exact, strict=True):
        assert one.dtype == dtype
        assert one.isfinite().all()
        # the projections, the output map and their gradients round to half precision, a few times each
        assert float((one.double() - other).norm() / other.norm()) < 8 * torch.finfo(dtype).eps
