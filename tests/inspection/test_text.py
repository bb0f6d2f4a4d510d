"""Panels of text models of every kind, labels of tokens, and attention between tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from codingrate.data import load_tokenizer
from codingrate.inspection import token_attention, trace
from codingrate.inspection.measure.attention import token_attention_table
from codingrate.inspection.report.text import (
    ink_rgba,
    mask_batches,
    shorten,
    text_panels,
    token_attention_panel,
    token_label,
)

from ..models import toys
from ..refusals import refused
from .test_logit_lens import drawn

TEXT = "if x: go\n\tor $stop$ the é of 日 and go on"
TWIN = {"attention": "mhsa", "sparsifier": "mlp", "skip": "residual"}


def setting(task, **fields):
    tokenizer = load_tokenizer("bytes", kind="causal" if task == "causal-lm" else "masked")
    return toys.build(task, vocab_size=261, max_position_embeddings=67, **fields).eval(), tokenizer


def batches(tokenizer, count=2):
    for _ in range(count):
        ids = torch.tensor([tokenizer(TEXT)["input_ids"]]).repeat(3, 1)
        mask = torch.ones_like(ids)
        mask[1, 30:] = 0
        yield {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize(
    ("task", "fields", "shown", "missing"),
    [
        ("causal-lm", {}, 5, {}),
        ("masked-lm", {}, 5, {}),
        ("causal-lm", TWIN, 3, {"units": "'mlp' makes no sparse code"}),
        ("masked-lm", {**TWIN, "norm": "post"}, 3, {"units": "'mlp' makes no sparse code"}),
        ("causal-lm", {"attention": "tssa"}, 4, {"token-attention": "'tssa' compares no two tokens"}),
        ("sequence-classification", {}, 3, {"lens": "predicts no tokens"}),
        ("causal-lm", {"num_hidden_layers": 1}, 5, {}),
    ],
)
def test_every_kind_of_text_model_shows_what_it_has_and_says_what_it_has_not(task, fields, shown, missing):
    model, tokenizer = setting(task, **fields)
    panels = {panel.name: panel for panel in text_panels(model, tokenizer, batches(tokenizer), TEXT, top=3)}
    assert len(panels) == shown + len(missing)
    for name, panel in panels.items():
        if name in missing:
            assert panel.draw is None
            assert "Not shown: " in panel.measured
            assert missing[name] in panel.measured
        elif panel.draw is not None:  # of a toy no unit may be on often enough
            drawn(panel)
            assert len(panel.table) > 0
    if "lens-candidates" in panels:
        tokens = "".join(panels["lens-candidates"].table["token"].iloc[:: model.config.num_hidden_layers])
        assert "".join(labels(tokenizer, tokenizer(TEXT, add_special_tokens=False)["input_ids"])).endswith(tokens)


def labels(tokenizer, ids):
    return [token_label(tokenizer, number) for number in ids]


def test_hidden_tokens_are_the_same_every_time_and_never_special():
    _, tokenizer = setting("masked-lm")
    first, again = (list(mask_batches(batches(tokenizer), tokenizer)) for _ in range(2))
    for one, other, plain in zip(first, again, batches(tokenizer), strict=True):
        torch.testing.assert_close(one["input_ids"], other["input_ids"])
        chosen = one["labels"] >= 0
        assert chosen.any()
        torch.testing.assert_close(one["labels"][chosen], plain["input_ids"][chosen])
        assert not chosen[:, 0].any()
        assert one["attention_mask"].equal(plain["attention_mask"])


def test_labels_of_bytes_and_bpe_are_readable():
    tokenizer = load_tokenizer("bytes")
    ids = tokenizer("a b\n\t\r\x00é")["input_ids"]
    assert labels(tokenizer, ids) == ["a", "␣", "b", "⏎", "→", "←", "‹00›", "‹c3›", "‹a9›"]
    assert token_label(tokenizer, 256) == "<|endoftext|>"
    bpe = load_tokenizer("bpe", ["the cat and the dog and the é é é é"] * 3, vocab_size=300)
    ids = bpe("the cat and the é")["input_ids"]
    assert "".join(labels(bpe, ids)) == "the␣cat␣and␣the␣é"
    assert "␣the" in labels(bpe, ids)


def test_what_is_drawn_fits():
    assert shorten("abcdef", 4) == "abc…"
    assert shorten("abcd", 4) == "abcd"


def test_ink_is_one_colour_more_or_less_see_through():
    ink = ink_rgba(np.array([[0.0, 0.5], [1.0, np.nan]]), 1, 0.8)
    assert ink.shape == (2, 2, 4)
    assert ink[..., 3].ravel().tolist() == pytest.approx([0, 0.4, 0.8, 0])
    assert (ink[..., :3] == ink[0, 0, :3]).all()


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm", "sequence-classification"])
@pytest.mark.parametrize("fields", [{}, TWIN], ids=["crate", "twin"])
def test_token_attention_is_the_attention_of_the_forward_pass(task, fields):
    model = toys.build(task, num_hidden_layers=3, **fields).double().eval()
    ids = torch.randint(2, 29, (11,))
    inside = model(input_ids=ids[None], output_attentions=True).attentions
    for layer in (0, 1, -1):
        weights = token_attention(model, ids, layer)
        torch.testing.assert_close(weights, inside[layer][0].detach())
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 11, dtype=torch.float64))
    torch.testing.assert_close(token_attention(model, ids), inside[1][0].detach())


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("task", ["causal-lm", "masked-lm"])
def test_the_attention_of_one_token_is_a_row_of_that_of_all(task, rotary):
    model = toys.build(task, **({"positions": "rotary", "num_attention_heads": 1} if rotary else {})).double().eval()
    ids, mask = torch.randint(2, 29, (2, 11)), torch.ones(2, 11, dtype=torch.long)
    mask[1, 8:] = 0
    passed = trace(model, {"input_ids": ids, "attention_mask": mask})
    for layer, token in ((0, 0), (1, 4), (1, 7), (-1, 10)):
        row = passed.attention_of(layer, token)
        torch.testing.assert_close(row, passed.attention(layer)[:, :, token], rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_numbers_equal_loops(causal):
    heads, n = 3, 7
    scores = torch.randn(heads, n, n, dtype=torch.float64)
    if causal:
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
    weights = scores.softmax(-1)
    table = token_attention_table(weights, causal)
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
def test_the_panel_states_the_numbers_of_uniform_attention(causal):
    n = 5
    seen = torch.ones(2, n, n).tril() if causal else torch.ones(2, n, n)
    weights = seen / seen.sum(-1, keepdim=True)
    panel = token_attention_panel(weights, ["a", "$b", "␣c", "⏎", "日"], 1, causal)
    number = token_attention_table(weights, causal).iloc[0]
    words = f"look {number['distance']:.1f} to {number['distance']:.1f} tokens {'back' if causal else 'away'}"
    assert words in panel.measured
    assert f"(uniform attention: {number['distance']:.1f})" in panel.measured
    assert f"(uniform: {number['entropy']:.2f})" in panel.measured
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
    model, tokenizer = setting("causal-lm")
    refused("fewer than two tokens", text_panels, model, tokenizer, batches(tokenizer), "a")
    refused("no batches", text_panels, model, tokenizer, [], TEXT)
    refused("layer index 2 is out of range", text_panels, model, tokenizer, batches(tokenizer), TEXT, layer=2)
    ids = torch.randint(2, 29, (5,))
    model = toys.build("causal-lm")
    refused("layer index 2 is out of range", token_attention, model, ids, 2)
    refused("'tssa' compares no two tokens", token_attention, toys.build("causal-lm", attention="tssa"), ids)
    refused("at least 2", token_attention_table, torch.ones(2, 1, 1), True)
    refused("reads images", token_attention, toys.build("image-classification"), ids)
