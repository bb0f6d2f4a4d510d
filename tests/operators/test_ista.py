"""ISTA as one product: the same step, chosen by size, kept while the dictionary stays, and never stale."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from codingrate.operators import ISTA, SoftISTA
from codingrate.operators.sparsify import MLP
from codingrate.runs.lion import Lion

DIM = 31
PLAIN, FUSED = 5, 97  # token counts on both sides of the switch


def build(kind=ISTA, dtype=torch.float32, **options):
    module = kind(DIM, **options).to(dtype)
    assert module.dictionary.dtype == dtype
    return module


def two_products(z, atoms, eta=0.1, lam=0.1):
    """The step as the pseudocode has it: a product with D, then one with its transpose."""
    return F.relu(z - eta * F.linear(F.linear(z, atoms) - z, atoms.t()) - eta * lam)


def products(module, z, backward=False):
    """Multiply-adds of a call."""
    with FlopCounterMode(display=False) as counter:
        out = module(z)
        if backward:
            out.sum().backward()
    return counter.get_total_flops() // 2


def relative(a, b):
    return float((a - b).double().norm() / b.double().norm())


def assert_current(module, z):
    """What comes out belongs to the dictionary as it is now."""
    expected = two_products(z.double(), module.dictionary.detach().double())
    assert relative(module(z).detach(), expected) < 1e-5


@pytest.mark.parametrize("tokens", [PLAIN, FUSED])
def test_fused_equals_two_products_in_value_and_gradient(tokens):
    module, z = build(), torch.randn(tokens, DIM, requires_grad=True)
    direction = torch.randn(tokens, DIM)
    leaves = (z, module.dictionary)
    out, naive = module(z), two_products(z, module.dictionary)
    assert relative(out.detach(), naive.detach()) < 1e-5  # a hundred float32 roundings
    ours = torch.autograd.grad((out * direction).sum(), leaves)
    theirs = torch.autograd.grad((naive * direction).sum(), leaves)
    for a, b in zip(ours, theirs, strict=True):
        assert relative(a, b) < 1e-5


def test_second_derivatives_go_through_the_fused_form():
    module, z = build(dtype=torch.float64), torch.randn(FUSED, DIM, dtype=torch.float64)

    def hessian_product(step):
        D = module.dictionary
        (gradient,) = torch.autograd.grad(step(z, D).square().sum(), D, create_graph=True)
        return torch.autograd.grad((gradient * torch.ones_like(D)).sum(), D)[0]

    torch.testing.assert_close(hessian_product(lambda z, _: module(z)), hessian_product(two_products))


def test_functional_gradient_equals_autograd():
    module, z = build(dtype=torch.float64), torch.randn(FUSED, DIM, dtype=torch.float64)
    D = module.dictionary.detach()
    ours = torch.func.grad(lambda d: torch.func.functional_call(module, {"dictionary": d}, (z,)).sum())(D)
    theirs = torch.func.grad(lambda d: two_products(z, d).sum())(D)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_the_cheaper_form_is_chosen_by_the_number_of_tokens():
    module = build()
    square, cube = DIM**2, DIM**3
    assert products(module, torch.randn(PLAIN, DIM)) == 2 * PLAIN * square
    assert products(module, torch.randn(FUSED, DIM)) == FUSED * square + cube
    few, many = torch.randn(PLAIN, DIM, requires_grad=True), torch.randn(FUSED, DIM, requires_grad=True)
    assert products(module, few, backward=True) == 6 * PLAIN * square
    assert products(module, many, backward=True) == 3 * FUSED * square + 2 * cube


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_in_evaluation_the_product_is_built_once(context):
    module, z = build().eval(), torch.randn(PLAIN, DIM)
    with context():
        assert products(module, z) == PLAIN * DIM**2 + DIM**3
        assert products(module, z) == PLAIN * DIM**2
        assert products(module, torch.randn(FUSED, DIM)) == FUSED * DIM**2
    assert_current(module, z)


def load(module):
    module.load_state_dict({"dictionary": torch.randn(DIM, DIM)})


def assign(module):
    """Twice, so that the second may lie where the one before the first did."""
    for _ in range(2):
        module.load_state_dict({"dictionary": torch.randn(DIM, DIM)}, assign=True)


def optimize(optimizer, rate):
    def step(module):
        with torch.enable_grad():
            module(torch.randn(FUSED, DIM)).square().sum().backward()
        optimizer(module.parameters(), lr=rate, weight_decay=0.1).step()

    return step


def edit(module):
    with torch.no_grad():
        module.dictionary[3].mul_(2)


def replace(module):
    module.dictionary = nn.Parameter(torch.randn(DIM, DIM))


def edit_data_between_modes(module):
    module.train()
    module.dictionary.data.mul_(2)  # leaves no trace in the version counter
    module.eval()


CHANGES = {
    "load_state_dict": load,
    "assign": assign,
    "AdamW": optimize(torch.optim.AdamW, 0.01),
    "SGD": optimize(torch.optim.SGD, 1e-5),
    "Lion": optimize(Lion, 0.01),
    "in-place edit": edit,
    "new parameter": replace,
    "data edit between train and eval": edit_data_between_modes,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_dictionary_is_noticed(change):
    module, z = build().eval(), torch.randn(FUSED, DIM)
    for _ in range(30):  # memory may be handed out again: once is no proof
        with torch.no_grad():
            before = module(z)
            change(module)
            assert_current(module, z)
            assert not torch.equal(module(z), before)


@torch.no_grad()
def test_precision_follows_the_module():
    module, z = build().eval(), torch.randn(FUSED, DIM, dtype=torch.float64)
    module(z.float())
    module.to(torch.float64)
    exact = two_products(z, module.dictionary)
    torch.testing.assert_close(module(z), exact, rtol=0, atol=1e-12)
    module.double().float()
    assert module(z.float()).dtype == torch.float32
    assert_current(module, z.float())


@torch.no_grad()
def test_what_half_precision_rounded_away_stays_away():
    z = torch.randn(FUSED, DIM)
    for _ in range(5):
        module = build().eval()
        before = module(z)
        module.bfloat16().float()
        assert_current(module, z)
        assert not torch.equal(module(z), before)


@torch.no_grad()
def test_autocast_leaves_no_trace_behind():
    module, z = build().eval(), torch.randn(FUSED, DIM)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(z).isfinite().all()
    assert_current(module, z)


@torch.no_grad()
def test_a_copy_keeps_its_own():
    module, z = build().eval(), torch.randn(FUSED, DIM)
    before = module(z)
    twin = copy.deepcopy(module)
    twin.dictionary.mul_(2)
    assert_current(twin, z)
    assert torch.equal(module(z), before)
    assert "_cached" not in str(list(module.state_dict()))


def test_inference_first_then_gradients_of_the_input():
    module, z = build().eval(), torch.randn(FUSED, DIM)
    module.dictionary.requires_grad_(False)
    with torch.inference_mode():
        module(z)
    z.requires_grad_()
    (ours,) = torch.autograd.grad(module(z).square().sum(), z)
    (theirs,) = torch.autograd.grad(two_products(z, module.dictionary).square().sum(), z)
    assert relative(ours, theirs) < 1e-5


@pytest.mark.parametrize("kind", [ISTA, SoftISTA])
def test_a_module_born_in_inference_mode_is_right_after_every_edit(kind):
    with torch.inference_mode():
        module, z = build(kind).eval(), torch.randn(FUSED, DIM)
        for _ in range(3):
            x = z - 0.1 * F.linear(F.linear(z, module.dictionary) - z, module.dictionary.t())
            expected = F.relu(x - 0.01) if kind is ISTA else F.softshrink(x, 0.01)
            assert relative(module(z), expected) < 1e-5
            module.dictionary.mul_(1.5)


@pytest.mark.parametrize("dim", [64, 384])
def test_bfloat16_is_as_good_as_two_products_in_bfloat16(dim):
    module = ISTA(dim).to(torch.bfloat16).eval()
    D = module.dictionary.detach()
    z = F.layer_norm(torch.randn(509, dim), (dim,)).to(torch.bfloat16)
    exact = two_products(z.double(), D.double())
    with torch.no_grad():
        fused, naive = relative(module(z), exact), relative(two_products(z, D), exact)
    assert fused < 1.5 * naive  # I + N is rounded once, the other form rounds between its products
    assert fused < 0.01


def test_threshold_and_sign():
    eye = torch.eye(DIM)
    one_sided, two_sided = build(step_size=0.5, sparsity=0.4), build(SoftISTA, step_size=0.5, sparsity=0.4)
    for module in (one_sided, two_sided):
        with torch.no_grad():
            module.dictionary.copy_(eye)  # nothing to reconstruct: only the threshold ηλ = 0.2 acts
    z = torch.linspace(-1, 1, DIM)
    torch.testing.assert_close(one_sided(z), (z - 0.2).clamp(min=0))
    torch.testing.assert_close(two_sided(z), z.sign() * (z.abs() - 0.2).clamp(min=0))
    assert (two_sided(z) < 0).any()


@torch.no_grad()
@pytest.mark.parametrize("kind", [ISTA, SoftISTA])
def test_more_steps_lower_the_objective_of_one_lasso(kind):
    """At η = 1/‖D‖² every step lowers ½‖z − ADᵀ‖² + λ‖A‖₁ of the same z; many steps meet its optimality condition."""
    torch.manual_seed(0)
    z, D = torch.randn(PLAIN, DIM, dtype=torch.float64), torch.randn(DIM, DIM, dtype=torch.float64) / DIM**0.5
    eta, lam, values = 1 / float(torch.linalg.matrix_norm(D, ord=2)) ** 2, 0.2, []
    for steps in (1, 2, 3, 5, 9, 5000):
        module = build(kind, torch.float64, step_size=eta, sparsity=lam, steps=steps).eval()
        module.dictionary.copy_(D)
        codes = module(z)
        values.append(float(module.lasso(z, codes).sum()))
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == len(values)
    slope = (codes @ D.T - z) @ D + lam  # derivative of the objective in a positive entry
    assert float(slope[codes > 1e-9].abs().max()) < 1e-4
    if kind is ISTA:
        assert float(slope[codes == 0].min()) > -1e-4


@torch.no_grad()
@pytest.mark.parametrize("edit", ["in place, off the diagonal", "through .data, on the diagonal"])
def test_an_edited_dictionary_is_noticed(edit):
    """The first edit is seen by the version counter only, the second by the diagonal only."""
    module, z = build().eval(), torch.randn(FUSED, DIM)
    module(z)
    if edit.startswith("in place"):
        module.dictionary[0, 1] += 1
    else:
        module.dictionary.data.diagonal().add_(1)
    torch.testing.assert_close(module(z), two_products(z, module.dictionary), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("activation", "approximate"), [("gelu", "none"), ("gelu-tanh", "tanh")])
def test_an_mlp_has_its_activation(activation, approximate):
    module, z = MLP(DIM, activation=activation).double(), torch.randn(PLAIN, DIM).double()
    expected = module.contract(F.gelu(module.expand(z), approximate=approximate))
    assert torch.equal(module(z), expected)
    other = F.gelu(module.expand(z), approximate="none" if approximate == "tanh" else "tanh")
    assert not torch.equal(module(z), module.contract(other))


@pytest.mark.parametrize("factor", [0.2, 3.0])
def test_a_scaled_step_is_that_of_another_step_size(factor):
    scaled, other = ISTA(6).double().eval(), ISTA(6, step_size=0.1 * factor).double().eval()
    other.load_state_dict(scaled.state_dict())
    z = torch.randn(2, 5, 6, dtype=torch.float64)
    with torch.no_grad():
        scaled(z)  # fills the cache
        scaled.scale_step(factor)
        torch.testing.assert_close(scaled(z), other(z))
