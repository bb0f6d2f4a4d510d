"""What a report shows of text models of every kind, and how tokens are spelt."""

from __future__ import annotations

import pytest
import torch

from codingrate.data import load_tokenizer
from codingrate.inspection.text import hide, text_panels
from codingrate.inspection.token_text import drawable, shaded, spell, spelt

from ..models import toys
from ..refusals import refused
from .test_lens import drawn

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
        assert spelled(tokenizer).endswith(tokens)


def spelled(tokenizer):
    return "".join(spell(tokenizer, tokenizer(TEXT, add_special_tokens=False)["input_ids"]))


def test_hidden_tokens_are_the_same_every_time_and_never_special():
    _, tokenizer = setting("masked-lm")
    first, again = (list(hide(batches(tokenizer), tokenizer)) for _ in range(2))
    for one, other, plain in zip(first, again, batches(tokenizer), strict=True):
        torch.testing.assert_close(one["input_ids"], other["input_ids"])
        chosen = one["labels"] >= 0
        assert chosen.any()
        torch.testing.assert_close(one["labels"][chosen], plain["input_ids"][chosen])
        assert not chosen[:, 0].any()
        assert one["attention_mask"].equal(plain["attention_mask"])


def test_bytes_and_bpe_are_spelt_to_be_read():
    tokenizer = load_tokenizer("bytes")
    ids = tokenizer("a b\n\t\r\x00é")["input_ids"]
    assert spell(tokenizer, ids) == ["a", "␣", "b", "⏎", "→", "←", "‹00›", "‹c3›", "‹a9›"]
    assert spelt(tokenizer, 256) == "<|endoftext|>"
    bpe = load_tokenizer("bpe", ["the cat and the dog and the é é é é"] * 3, vocab_size=300)
    ids = bpe("the cat and the é")["input_ids"]
    assert "".join(spell(bpe, ids)) == "the␣cat␣and␣the␣é"
    assert "␣the" in spell(bpe, ids)


def test_what_is_drawn_has_a_glyph_and_fits():
    assert drawable("a$日é⏎") == "a$▯é⏎"
    assert drawable("abcdef", 4) == "abc…"
    assert drawable("abcd", 4) == "abcd"


def test_ink_is_one_colour_more_or_less_see_through():
    import numpy as np

    ink = shaded(np.array([[0.0, 0.5], [1.0, np.nan]]), 1, 0.8)
    assert ink.shape == (2, 2, 4)
    assert ink[..., 3].ravel().tolist() == pytest.approx([0, 0.4, 0.8, 0])
    assert (ink[..., :3] == ink[0, 0, :3]).all()


def test_refusals():
    model, tokenizer = setting("causal-lm")
    refused("fewer than two tokens", text_panels, model, tokenizer, batches(tokenizer), "a")
    refused("no batches", text_panels, model, tokenizer, [], TEXT)
    refused("layer 2 is out of range", text_panels, model, tokenizer, batches(tokenizer), TEXT, layer=2)
