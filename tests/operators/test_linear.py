"""The product for a single token: equal to the plain one, and only where it may be used."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from codingrate.operators import linear as module
from codingrate.operators.linear import Linear, apply_linear, linear


@pytest.fixture
def used(monkeypatch):
    """The shapes of the batched products that are computed."""
    shapes, bmm = [], torch.bmm

    def recorded(parts, column, out):
        shapes.append(tuple(parts.shape))
        return bmm(parts, column, out=out)

    monkeypatch.setattr(module.torch, "bmm", recorded)
    return shapes


@pytest.mark.parametrize(("rows", "width"), [(512, 257), (1031, 131), (7, 40009)])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("biased", [True, False])
@torch.no_grad()
def test_a_single_token_gives_the_plain_product(used, rows, width, shape, biased):
    draw = torch.Generator().manual_seed(rows)
    weight, bias = torch.randn(rows, width, generator=draw), torch.randn(rows, generator=draw) if biased else None
    x = torch.randn(*shape, width, generator=draw)
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    result = linear(x, weight, bias)
    assert result.shape == expected.shape
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-3)
    assert used == [(module.BLOCKS, rows // module.BLOCKS, width)]


def test_everything_else_takes_the_plain_product(used):
    weight = torch.randn(640, 257)
    x = torch.randn(1, 257)
    with torch.no_grad():
        cases = {
            "two tokens": (torch.randn(2, 257), weight),
            "no token": (torch.randn(0, 257), weight),
            "float64": (x.double(), weight.double()),
            "a small matrix": (x, weight[:10]),
            "a transposed matrix": (x, torch.randn(257, 640).mT),
        }
        for name, (tokens, matrix) in cases.items():
            assert torch.equal(linear(tokens, matrix), F.linear(tokens, matrix)), name
        with torch.autocast("cpu", torch.bfloat16):
            assert linear(x, weight).dtype == torch.bfloat16
    layer = Linear(257, 640)
    layer(x).sum().backward()
    assert torch.equal(layer.weight.grad, x.expand(640, 257))
    assert used == []


@torch.no_grad()
def test_a_module_that_is_wrapped_or_observed_is_called(used):
    x, plain = torch.randn(1, 257), nn.Linear(257, 640)
    expected = plain(x)
    torch.testing.assert_close(apply_linear(plain, x), expected)
    assert len(used) == 1
    calls = []
    observed = deepcopy(plain)
    observed.register_forward_hook(lambda *_: calls.append("hook"))
    prepared = deepcopy(plain)
    prepared.register_forward_pre_hook(lambda *_: calls.append("hook before"))
    replaced = deepcopy(plain)
    replaced.forward = lambda tokens: calls.append("forward") or plain(tokens)
    wrapped = nn.Sequential(plain)
    for other in (observed, prepared, replaced, wrapped):
        assert torch.equal(apply_linear(other, x), expected)
    assert calls == ["hook", "hook before", "forward"]
    assert len(used) == 1
