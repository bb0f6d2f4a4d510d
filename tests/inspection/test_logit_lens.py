"""The lens against the model's own logits, and against loops over tokens in float64."""

from __future__ import annotations

import math

import pytest
import torch

from codingrate.data import load_tokenizer
from codingrate.inspection import candidates, lens, trace
from codingrate.inspection.measure.logit_lens import head_logits
from codingrate.inspection.report.text import candidates_panel, candidates_table, lens_panel

from ..models import toys
from ..refusals import refused

TWIN = {"attention": "mhsa", "sparsifier": "mlp", "skip": "residual"}
MODELS = {
    "causal": ("causal-lm", {}),
    "causal-twin": ("causal-lm", TWIN),
    "masked": ("masked-lm", {}),
    "masked-twin": ("masked-lm", {**TWIN, "norm": "post"}),
}


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def build(name, **fields):
    task, more = MODELS[name]
    return toys.build(task, **{"num_hidden_layers": 3, **more, **fields}).double().eval()


def padded():
    """Five texts of a batch, two of them shorter, with what stands in the padding within the vocabulary."""
    ids = torch.randint(2, 29, (5, 11))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    mask[4, 3:] = 0
    return ids, mask


@pytest.mark.parametrize("name", MODELS)
def test_the_last_layer_under_the_lens_is_the_model_itself(name):
    model = build(name)
    ids, mask = padded()
    output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    torch.testing.assert_close(head_logits(model, output.unnormalized_state), output.logits)
    assert not torch.allclose(head_logits(model, output.hidden_states[1]), output.logits)


@pytest.mark.parametrize("name", MODELS)
def test_the_table_equals_a_loop_over_the_tokens_that_count(name):
    model = build(name)
    ids, mask = padded()
    labels = torch.where(torch.rand(ids.shape) < 0.4, ids, -100)
    batch = {"input_ids": ids, "attention_mask": mask}
    if not model.config.causal:
        batch["labels"] = labels
    states = trace(model, {"input_ids": ids, "attention_mask": mask}).tokens
    batches = [{key: value[part] for key, value in batch.items()} for part in (slice(0, 2), slice(2, 5))]
    table = lens(model, batches)
    for layer in range(3):
        z = states[layer + 1].detach()
        values = []
        for i in range(5):
            for t in range(11):
                true = None
                if model.config.causal and t + 1 < 11 and mask[i, t + 1]:
                    true = int(ids[i, t + 1])
                if not model.config.causal and mask[i, t] and labels[i, t] >= 0:
                    true = int(labels[i, t])
                if true is None:
                    continue
                p = head_logits(model, z[i, t]).softmax(-1).tolist()
                rank = 1 + sum(p[word] > p[true] or (p[word] == p[true] and word < true) for word in range(29))
                entropy = -sum(value * math.log(value) for value in p)
                values.append((-math.log(p[true]), p[true], float(rank == 1), float(rank), entropy))
        mean = torch.tensor(values, dtype=torch.float64).mean(0).tolist()
        assert table.iloc[layer].tolist() == pytest.approx([layer + 1, *mean, len(values)], rel=1e-9)
    if model.config.causal:
        loss = model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
        assert table["cross_entropy"].iloc[-1] == pytest.approx(loss.item(), rel=1e-9)


def test_padding_in_front_predicts_nothing():
    model = build("causal")
    ids = torch.randint(2, 29, (2, 7))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    table = lens(model, [{"input_ids": ids, "attention_mask": mask}])
    assert table["tokens"].iloc[0] == 3 + 6


def test_of_equal_words_the_lower_id_comes_first():
    model = build("causal")
    torch.nn.init.zeros_(model.head.weight)
    table = lens(model, [{"input_ids": torch.tensor([[3, 0, 5]])}])
    assert table["rank"].tolist() == pytest.approx([(1 + 6) / 2] * 3)
    assert table["top1"].tolist() == pytest.approx([0.5] * 3)
    assert table["entropy"].tolist() == pytest.approx([math.log(29)] * 3)


@pytest.mark.parametrize("name", MODELS)
def test_candidates_equal_those_of_each_position_by_itself(name):
    model = build(name)
    ids, positions, mask_id = torch.randint(2, 28, (11,)), [0, 4, -1], 28
    found = candidates(model, ids, positions, top=5, mask_id=mask_id)
    assert found.positions == (0, 4, 10)
    assert found.read == tuple(ids[[0, 4, 10]].tolist())
    for place, t in enumerate(found.positions):
        inputs = ids.clone()
        if not model.config.causal:
            inputs[t] = mask_id
        states = trace(model, inputs[None]).tokens
        last = model.config.causal and t == 10
        truth = None if last else int(ids[t + 1] if model.config.causal else ids[t])
        assert found.truth[place] == truth
        for layer in range(3):
            p = head_logits(model, states[layer + 1][0, t].detach()).softmax(-1)
            best = sorted(range(29), key=lambda word: -float(p[word]))[:5]
            assert found.ids[layer, place].tolist() == best
            torch.testing.assert_close(found.probabilities[layer, place], p[best])
            assert float(found.entropy[layer, place]) == pytest.approx(-float((p * p.log()).sum()))
            if truth is None:
                assert math.isnan(found.truth_probability[layer, place])
                assert found.truth_rank[layer, place] == 0
            else:
                assert float(found.truth_probability[layer, place]) == pytest.approx(float(p[truth]))
                assert int(found.truth_rank[layer, place]) == 1 + int((p > p[truth]).sum())


def test_of_a_mask_in_the_text_the_truth_is_not_known():
    ids = torch.tensor([3, 28, 5])
    assert candidates(build("masked"), ids, [0, 1], mask_id=28).truth == (3, None)


def test_the_mode_of_the_model_stays():
    model = build("causal").train()
    lens(model, [{"input_ids": torch.tensor([[3, 0, 5]])}])
    refused("labels", lens, masked := build("masked").train(), [{"input_ids": torch.tensor([[3, 5]])}])
    assert model.training
    assert masked.training


def test_panels_say_what_the_numbers_say():
    tokenizer = load_tokenizer("bytes")
    model = build("causal", vocab_size=257, max_position_embeddings=31)
    ids = torch.tensor(tokenizer("a $b\n\x00 c $é日")["input_ids"])
    found = candidates(model, ids, range(len(ids)), top=3)
    panel = candidates_panel(found, tokenizer, causal=True)
    right = [int((found.truth_rank[layer] == 1).sum()) for layer in range(3)]
    assert f"correct at {right[-1]} of {len(ids) - 1} positions" in panel.measured
    assert f"layer by layer: {', '.join(map(str, right))}" in panel.measured
    table = candidates_table(found, tokenizer)
    assert table["token"].iloc[::3].tolist()[:7] == ["a", "␣", "$", "b", "⏎", "‹00›", "␣"]
    assert table["token"].iloc[-3] == "‹a5›"
    assert table["truth"].iloc[-1] == ""
    assert table["probability_1"].ge(table["probability_2"]).all()
    drawn(panel)
    curves = lens_panel(lens(model, [{"input_ids": ids[None]}]))
    assert f"Over {len(ids) - 1} tokens" in curves.measured
    drawn(curves)
    lone = lens_panel(curves.table.iloc[-1:])
    assert f"−log p of the true token is {curves.table['cross_entropy'].iloc[-1]:.3g}" in lone.measured


def drawn(panel):
    """The figure, drawn for real: a glyph that is missing would warn, and warnings are errors."""
    from matplotlib.figure import Figure

    figure = Figure()
    panel.draw(figure)
    figure.canvas.draw()
    assert figure.get_size_inches()[0] <= 9.5
    return figure


def test_refusals():
    model, ids = build("causal"), torch.randint(2, 29, (7,))
    refused("position 7 is out of range", candidates, model, ids, [7])
    refused("at least 1", candidates, model, ids, [])
    refused("mask_id", candidates, build("masked"), ids, [1])
    refused("no batches", lens, model, [])
    refused("no token to predict", lens, model, [{"input_ids": ids[None, :1]}])
    refused("reads images", lens, toys.build("image-classification"), [{"input_ids": ids[None]}])
