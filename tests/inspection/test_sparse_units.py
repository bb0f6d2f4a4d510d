"""Units of the sparse code against a full sort of all activations, however the stream is cut."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from codingrate.data import load_tokenizer
from codingrate.inspection import trace, units
from codingrate.inspection.measure.sparse_units import codes, selective_units, unit_table
from codingrate.inspection.report.text import character_ink, context_table, firing_panel, unit_panel

from ..models import toys
from ..refusals import refused
from .test_logit_lens import drawn

TOP, BEFORE, AFTER = 3, 4, 2
WINDOW = {"top": TOP, "before": BEFORE, "after": AFTER}


def texts(count=7, length=13):
    """Texts of several lengths; what stands in the padding would be seen if it were counted."""
    ids = torch.randint(2, 29, (count, length))
    lengths = torch.randint(5, length + 1, (count,))
    mask = (torch.arange(length) < lengths[:, None]).long()
    return ids, mask


def batches(ids, mask, size):
    return [{"input_ids": i, "attention_mask": m} for i, m in zip(ids.split(size), mask.split(size), strict=True)]


def naive(code, ids, mask, unit):
    """Every token on which a unit is on, strongest first: (|a|, place among real tokens, ids, activations around)."""
    found, place = [], 0
    for i in range(len(ids)):
        for t in range(ids.shape[1]):
            if not mask[i, t]:
                continue
            if code[i, t, unit] != 0:
                window, strengths = [], []
                for s in range(t - BEFORE, t + AFTER + 1):
                    inside = 0 <= s < ids.shape[1] and bool(mask[i, s])
                    window.append(int(ids[i, s]) if inside else -1)
                    strengths.append(float(code[i, s, unit]) if inside else 0.0)
                found.append((abs(float(code[i, t, unit])), place, window, strengths))
            place += 1
    return sorted(found, key=lambda row: (-row[0], row[1])), place


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("sparsifier", ["ista", "ista-soft", "odl"])
def test_contexts_and_shares_equal_a_full_sort_with_padding(sparsifier, size):
    more = {"skip": "residual", "expansion": 2} if sparsifier == "odl" else {}
    model = toys.build("causal-lm", sparsifier=sparsifier, sparsity=3.0, **more).double().eval()
    ids, mask = texts()
    found = units(model, batches(ids, mask, size), **WINDOW)
    passed = trace(model, {"input_ids": ids, "attention_mask": mask})
    for layer in range(2):
        code = codes(passed, layer)
        if sparsifier != "odl":
            torch.testing.assert_close(code, passed.tokens[layer + 1])
        assert 0 < (code != 0).double().mean() < 1
        for unit in range(code.shape[-1]):
            rows, tokens = naive(code, ids, mask, unit)
            strengths = [row[0] for row in rows]
            assert found.tokens == tokens == int(mask.sum())
            assert int(found.fired[layer, unit]) == len(rows)
            assert float(found.share[layer, unit]) == pytest.approx(len(rows) / tokens)
            mean = sum(strengths) / len(rows) if rows else 0.0
            assert float(found.mean[layer, unit]) == pytest.approx(mean)
            if rows:
                spread = (sum(strengths) / tokens) ** 2 / (sum(s * s for s in strengths) / tokens)
                assert float(found.selectivity[layer, unit]) == pytest.approx(1 - spread)
            kept = rows[:TOP]
            places = [row[1] for row in kept] + [-1] * (TOP - len(kept))
            assert found.places[layer, unit].tolist() == places
            for number, row in enumerate(kept):
                assert found.window_ids[layer, unit, number].tolist() == row[2]
                assert found.window_activations[layer, unit, number].tolist() == pytest.approx(row[3])


def test_among_equals_the_earlier_token_comes_first_and_the_cut_does_not_matter():
    model = toys.build("causal-lm").double().eval()
    ids = torch.randint(2, 29, (1, 7)).repeat(5, 1)  # every text the same, so that each place comes five times
    whole = units(model, [{"input_ids": ids}], top=5, before=1, after=0)
    each = units(model, [{"input_ids": row[None]} for row in ids], top=5, before=1, after=0)
    for found in (whole, each):
        fired = found.places >= 0
        steps = found.places[..., 1:] - found.places[..., :-1]
        assert (steps[fired[..., 1:]] == 7).all()
    torch.testing.assert_close(whole.places, each.places)
    torch.testing.assert_close(whole.window_ids, each.window_ids)


def test_chosen_layers_and_more_windows_than_tokens():
    model = toys.build("masked-lm", num_hidden_layers=3).double().eval()
    found = units(model, [{"input_ids": torch.randint(2, 29, (1, 2))}], [-1, 0], top=5)
    assert found.layers == (0, 2)
    assert found.places.shape == (2, 14, 5)
    assert (found.places[..., 2:] == -1).all()
    assert (found.window_ids[..., 2:, :] == -1).all()


def test_the_most_selective_units_are_shown_if_they_are_on_often_enough():
    model = toys.build("causal-lm", sparsity=3.0).double().eval()
    found = units(model, batches(*texts(), 7), **WINDOW)
    chosen = selective_units(found, per_layer=2, minimum=0.1)
    table = unit_table(found)
    for layer in range(2):
        rows = table[(table["layer"] == layer + 1) & (table["share"] >= 0.1)]
        rows = rows[(rows["share"] * found.tokens).round() >= TOP].sort_values("selectivity", ascending=False)
        assert [unit for where, unit in chosen if where == layer] == rows["unit"].tolist()[:2]
    assert selective_units(found, minimum=2.0) == []


def test_a_unit_counts_from_a_hundredth_of_the_tokens_on():
    model = toys.build("causal-lm", sparsity=3.0).double().eval()
    found = units(model, batches(*texts(), 7), **WINDOW)
    fired = torch.zeros_like(found.fired)
    fired[0, 5], fired[0, 6], fired[1, 2] = 10, 9, 11
    ones = torch.ones_like(found.total)  # all units are equally selective
    counts = dataclasses.replace(found, fired=fired, tokens=1000, total=ones, squares=ones)
    assert selective_units(counts) == [(0, 5), (1, 2)]


def test_panels_say_what_the_numbers_say():
    tokenizer = load_tokenizer("bytes")
    model = toys.build("causal-lm", vocab_size=257, max_position_embeddings=31, sparsity=3.0).double().eval()
    lines = ["if $x$ > 1:\n\tgo", "while y: go $on$ é", "for z in 日: stop"]
    found = units(model, [{"input_ids": torch.tensor([tokenizer(line)["input_ids"]])} for line in lines], **WINDOW)
    panel = firing_panel(found)
    assert f"never active: {int((found.fired == 0).sum())} of 28." in panel.measured
    assert panel.table["share"].tolist() == pytest.approx(found.share.mean(-1).tolist())
    drawn(panel)
    chosen = selective_units(found, per_layer=2)
    table = context_table(found, tokenizer, chosen)
    everything = "|".join(lines).replace(" ", "␣").replace("\n", "⏎").replace("\t", "→")
    for text in table["context"]:
        before, token, after = text.replace("»", "«").split("«")
        assert "‹" in text or before + token + after in everything
        assert len(token) == 1 or token.startswith("‹")
    shown = unit_panel(found, tokenizer)
    assert f"The {len(chosen)} units shown" in shown.measured
    drawn(shown)
    nothing = unit_panel(found, tokenizer, [])
    assert nothing.draw is None
    assert "No unit" in nothing.measured


def test_the_ink_behind_a_window_stands_behind_its_token():
    window = ["ab", "", "c", "def"], [1.0, 0.0, 2.0, -4.0]
    assert character_ink(window, 2, 2, 7).tolist() == [0.25, 0.25, 0.5, 1, 1, 1, 0]
    assert character_ink((["ab", "c", "d"], [1.0, 2.0, 4.0]), 2, 1, 3).tolist() == [0.5, 1, 0]
    assert character_ink((["", "c"], [0.0, 2.0]), 1, 2, 4).tolist() == [0, 0, 1, 0]


def test_refusals():
    batch = {"input_ids": torch.randint(2, 29, (2, 5))}
    model = toys.build("causal-lm")
    refused("'mlp' makes no sparse code", units, toys.build("causal-lm", sparsifier="mlp", skip="residual"), [batch])
    refused("layer index 2 is out of range", units, model, [batch], [2])
    refused("top", units, model, [batch], top=0)
    refused("no layers", units, model, [batch], [])
    refused("no batches", units, model, [])
    refused("padding", units, model, [{**batch, "attention_mask": torch.zeros(2, 5)}])


def test_a_code_that_is_not_finite_is_refused():
    model = toys.build("masked-lm")
    with torch.no_grad():
        model.crate.embedding.words.weight.fill_(torch.nan)
    refused("the sparse code of a layer holds NaN or infinity", units, model, [{"input_ids": torch.ones(2, 5).long()}])
