"""Rotary positions and the metric of a subspace, in whole models."""

import pytest
import torch

from codingrate.models import CrateForCausalLM
from codingrate.objective import coding_rate
from codingrate.operators.attention import rotate
from tests.refusals import refused

from . import toys
from .test_generation import PADDED, assert_same, build, generate, prompts


@torch.no_grad()
@pytest.mark.parametrize(("attention", "metric"), [("mssa", True), ("mssa-tied", True), ("mhsa", False)])
@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}], ids=["dynamic", "static"])
def test_a_cache_and_padding_change_nothing(attention, metric, cache):
    model = build(attention, positions="rotary", subspace_metric=metric, head_dim=6)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    ids = prompts()
    for options in ({}, {"attention_mask": PADDED}):
        assert_same(generate(model, ids, use_cache=False, **options), generate(model, ids, **options, **cache))
    alone = model(ids[2:, 5:]).logits
    torch.testing.assert_close(model(ids, attention_mask=PADDED).logits[2:, 5:], alone, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_metric_starts_as_the_papers_attention(tmp_path):
    plain = build()
    model = CrateForCausalLM(type(plain.config)(**{**plain.config.to_dict(), "subspace_metric": True})).double().eval()
    missing = model.load_state_dict(plain.state_dict(), strict=False)
    assert {key.split(".")[-1] for key in missing.missing_keys} == {"metric"}
    ids = prompts()
    torch.testing.assert_close(model(ids).logits, plain(ids).logits, rtol=0, atol=1e-12)
    model.crate.layers[0].attention.metric.add_(0.3)
    assert not torch.allclose(model(ids).logits, plain(ids).logits)
    model.save_pretrained(tmp_path)
    again = CrateForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=1e-12)


@torch.no_grad()
def test_order_is_seen_only_through_positions():
    """Without positions and causality tokens are a set; rotary positions make them a sequence."""
    order = torch.randperm(7)
    for positions, same in (("none", True), ("rotary", False)):
        model = toys.build("masked-lm", positions=positions, head_dim=6).double().eval()
        ids = prompts(2)
        states = [model.crate(part).last_hidden_state for part in (ids, ids[:, order])]
        assert torch.allclose(states[0][:, order], states[1], atol=1e-10) is same
        assert coding_rate(states[0], 0.5).isfinite().all()


def test_what_does_not_fit_is_refused():
    refused("positions 'rotary' need", toys.build, "causal-lm", attention="tssa", positions="rotary", head_dim=6)
    refused("positions 'rotary' need", toys.build, "causal-lm", attention="rate-gradient", positions="rotary")
    refused("positions 'rotary' need", toys.build, "causal-lm", positions="rotary", head_dim=5)
    refused("subspace_metric needs attention 'mssa' or 'mssa-tied'", build, "mhsa", subspace_metric=True)


def test_rotation_is_a_product_of_complex_numbers():
    """The pair (x_i, x_{i+p/2}) of token t is multiplied by exp(i·t·10000^{-2i/p}); positions may start later."""
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    for start in (0, 7):
        turn = torch.tensor([[(start + t) * 10_000 ** (-2 * i / 8) for i in range(4)] for t in range(5)])
        turned = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(turn), turn).to(torch.complex128)
        torch.testing.assert_close(rotate(x, start), torch.cat([turned.real, turned.imag], -1), rtol=1e-6, atol=1e-6)
