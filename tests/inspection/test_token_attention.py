"""Attention between tokens against the forward pass, and its numbers against loops."""

from __future__ import annotations

import math

import pytest
import torch

from codingrate.inspection.token_attention import attention_numbers, token_attention, token_attention_panel

from ..models import toys
from ..refusals import refused
from .test_lens import drawn

TWIN = {"attention": "mhsa", "sparsifier": "mlp", "skip": "residual"}


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm", "sequence-classification"])
@pytest.mark.parametrize("fields", [{}, TWIN], ids=["crate", "twin"])
def test_it_is_the_attention_of_the_forward_pass(task, fields):
    model = toys.build(task, num_hidden_layers=3, **fields).double().eval()
    ids = torch.randint(2, 29, (11,))
    inside = model(input_ids=ids[None], output_attentions=True).attentions
    for layer in (0, 1, -1):
        weights = token_attention(model, ids, layer)
        torch.testing.assert_close(weights, inside[layer][0].detach())
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 11, dtype=torch.float64))
    torch.testing.assert_close(token_attention(model, ids), inside[1][0].detach())


@pytest.mark.parametrize("causal", [True, False])
def test_numbers_equal_loops(causal):
    heads, n = 3, 7
    scores = torch.randn(heads, n, n, dtype=torch.float64)
    if causal:
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
    weights = scores.softmax(-1)
    table = attention_numbers(weights, causal)
    looking = range(1, n) if causal else range(n)
    for head in range(heads):
        entropy = distance = itself = first = 0.0
        for i in looking:
            for j in range(n):
                a = float(weights[head, i, j])
                entropy -= a * math.log(a) if a > 0 else 0.0
                distance += a * abs(i - j)
            itself += float(weights[head, i, i])
            first += float(weights[head, i, 0])
        expected = [head + 1, *(value / len(looking) for value in (entropy, distance, itself, first))]
        assert table.iloc[head].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("causal", [True, False])
def test_even_attention_is_what_the_panel_calls_even(causal):
    n = 5
    seen = torch.ones(2, n, n).tril() if causal else torch.ones(2, n, n)
    weights = seen / seen.sum(-1, keepdim=True)
    panel = token_attention_panel(weights, ["a", "$b", "␣c", "⏎", "日"], 1, causal)
    number = attention_numbers(weights, causal).iloc[0]
    words = f"look {number['distance']:.1f} to {number['distance']:.1f} tokens {'back' if causal else 'away'}"
    assert words in panel.measured
    assert f"(even attention: {number['distance']:.1f})" in panel.measured
    assert f"(even: {number['entropy']:.2f})" in panel.measured
    assert "layer 2" in panel.title
    drawn(panel)


def test_heads_are_drawn_from_near_to_far():
    n, heads = 9, 13
    weights = torch.zeros(heads, n, n)
    order = torch.randperm(heads).tolist()
    for head, far in enumerate(order):  # row i looks at itself with a weight that falls with `far`
        weights[head] = torch.eye(n) * (1 - far / heads)
        weights[head, :, 0] += far / heads
    panel = token_attention_panel(weights, list("abcdefghi"), 0, causal=True)
    titles = [axes.get_title() for axes in drawn(panel).axes]
    shown = [order[int(title.split()[1].rstrip(":")) - 1] for title in titles]
    assert shown == [0, 2, 5, 7, 10, 12]


def test_refusals():
    ids = torch.randint(2, 29, (5,))
    model = toys.build("causal-lm")
    refused("layer 2 is out of range", token_attention, model, ids, 2)
    refused("'tssa' compares no two tokens", token_attention, toys.build("causal-lm", attention="tssa"), ids)
    refused("at least 2", attention_numbers, torch.ones(2, 1, 1), True)
    refused("reads images", token_attention, toys.build("image-classification"), ids)
