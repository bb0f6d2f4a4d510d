"""What every operator promises: its equation in value and gradient, its dtype, and to be a plain module."""

import copy
import pickle

import pytest
import torch

from codingrate.operators import ATTENTION, SPARSIFIERS

from . import oracles
from .cases import EVERY, SHAPES

every = pytest.mark.parametrize("case", EVERY, ids=str)
# torch's own compiler instantiates an autograd.Function and scripts a method, both of which torch deprecates
compiler = pytest.mark.filterwarnings("ignore:.*(should not be instantiated|torch.jit):DeprecationWarning")
PLAIN = [case for case in EVERY if not case.wide]
plain = pytest.mark.parametrize("case", PLAIN, ids=str)


def compiled_quickly(case):
    """Return whether `make test` compiles this form: each operator once, and one with a causal mask and rotations."""
    return str(case) == "mssa-causal-rotary" or not (case.causal or case.rotary)


def expected(case, module, z):
    """What the equation gives in the place of the operator's output."""
    result = case.oracle(module, z)
    return result[0] if case.kind == "attention" else result


def test_every_registered_operator_has_an_oracle():
    assert set(ATTENTION.names()) == set(oracles.ATTENTION)
    assert set(SPARSIFIERS.names()) == set(oracles.SPARSIFIERS)


@every
@pytest.mark.parametrize(("batch", "n"), SHAPES)
def test_value_is_the_equation(case, batch, n):
    module, z = case.build(), case.tokens(batch, n)
    out = module(z)
    assert out.shape == z.shape
    # float64 with sums of at most a few hundred terms: rounding stays far below 1e-10
    torch.testing.assert_close(out, expected(case, module, z), rtol=0, atol=1e-10)


@every
def test_gradient_is_autograd_of_the_equation(case):
    module, z = case.build(), case.tokens(3, 7).requires_grad_()
    direction = torch.randn_like(z)
    leaves = [z, *module.parameters()]
    ours = torch.autograd.grad((module(z) * direction).sum(), leaves)
    theirs = torch.autograd.grad((expected(case, module, z) * direction).sum(), leaves)
    for name, a, b in zip(["z", *dict(module.named_parameters())], ours, theirs, strict=True):
        # a decade looser than values: a gradient of a parameter sums over all tokens
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")
    if case.name != "none":
        assert all(float(g.abs().max()) > 0 for g in ours)


@torch.no_grad()
@plain
def test_dtype_is_kept_and_precision_degrades_gently(case):
    module, z = case.build().eval(), case.tokens()
    exact = module(z)
    assert exact.dtype == torch.float64
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):  # ~100 and ~10 roundings
        out = copy.deepcopy(module).to(dtype)(z.to(dtype))
        assert out.dtype == dtype
        assert out.isfinite().all()
        assert float((out.double() - exact).norm() / exact.norm()) < tolerance


@compiler
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (not compiled_quickly(case))) for case in PLAIN], ids=str
)
def test_compiles_to_one_graph_with_the_same_value(case):
    torch._dynamo.reset()
    module, z = case.build(), case.tokens(3, 11)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(z), module(z), rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(compiled(z), module(z), rtol=0, atol=1e-12)


@compiler
@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in EVERY if str(c) in ("mssa", "ista")], ids=str)
def test_compiles_with_inductor(case):
    torch._dynamo.reset()
    module, z = case.build(torch.float32), case.tokens(3, 11, torch.float32)
    compiled = torch.compile(module, fullgraph=True)
    torch.testing.assert_close(compiled(z), module(z), rtol=1e-4, atol=1e-5)


@plain
def test_dropout_acts_in_training_only(case):
    module, z = case.build(dropout=0.5), case.tokens()
    reference = expected(case, module, z)
    torch.testing.assert_close(module.eval()(z), reference, rtol=0, atol=1e-10)
    module.train()
    first, second = module(z), module(z)
    if case.kind == "attention" or case.name == "mlp":
        assert not torch.allclose(first, second)
        assert not torch.allclose(first, reference)
    else:  # a proximal step has no random part
        torch.testing.assert_close(first, reference, rtol=0, atol=1e-10)


@plain
def test_state_dict_deepcopy_and_pickle_carry_the_operator(case):
    module, z = case.build().eval(), case.tokens()
    before = module(z)
    other = case.build().eval()
    other.load_state_dict(module.state_dict())
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(z), before)
    if case.name != "none":
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1.5)
        assert not torch.allclose(module(z), before)
        assert torch.equal(copy.deepcopy(other)(z), before)


@plain
def test_training_and_evaluation_give_the_same_value(case):
    module, z = case.build(), case.tokens()
    trained = module.train()(z)
    with torch.no_grad():
        torch.testing.assert_close(module.eval()(z), trained, rtol=0, atol=1e-12)
