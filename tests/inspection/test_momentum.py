"""Measures and interventions of a model with momentum, whose layers read more than the tokens before them."""

import pytest
import torch

from codingrate.inspection import Intervention, attention_maps, intervene, layerwise, rank_heads, retrace, trace

from ..models import toys

PIXELS = torch.randn(3, 3, 21, 14, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = toys.build("image-classification", num_hidden_layers=4, momentum=True, skip="residual").eval()
    with torch.no_grad():
        for layer in model.crate.layers[1:]:
            layer.momentum.fill_(0.7)
    return model


@torch.no_grad()
def test_the_attention_that_is_measured_is_that_of_the_forward_pass(model):
    inside = model(PIXELS, output_attentions=True).attentions
    passed, some = trace(model, PIXELS), trace(model, PIXELS, [2])
    for layer, weights in enumerate(inside):
        torch.testing.assert_close(passed.attention(layer), weights)
        torch.testing.assert_close(passed.attention_of(layer, 3), weights[:, :, 3])
        patches = weights[:, :, 0, 1:]
        maps = attention_maps(model.crate, PIXELS, layer)
        torch.testing.assert_close(maps.flatten(2), patches / patches.sum(-1, keepdim=True))
    torch.testing.assert_close(some.attention(2), inside[2])
    passed.layers[2].momentum.zero_()
    assert not torch.allclose(passed.attention(2), inside[2])


@torch.no_grad()
def test_measures_before_attention_are_of_the_tokens_that_a_layer_reads(model):
    table, some = layerwise(model, [PIXELS]), layerwise(model, [PIXELS], layers=[2])
    assert some["before"].tolist() == pytest.approx([table["before"][2]])
    tokens, layer = trace(model, PIXELS).tokens, model.crate.layers[2]
    read = tokens[2] + 0.7 * (tokens[2] - tokens[1])
    torch.testing.assert_close(trace(model, PIXELS).layer_input(2), read)
    # an attention of zero leaves those tokens as they are, so that R^c before and after it are one
    layer.attention.output.weight.zero_()
    layer.attention.output.bias.zero_()
    row = layerwise(model, [PIXELS], layers=[2]).iloc[0]
    assert row["before"] == pytest.approx(row["compression"], rel=1e-5)


@torch.no_grad()
def test_interventions_are_those_of_the_whole_model(model):
    changes = Intervention(heads=[(3, 1)])
    ours = retrace(model, changes, trace(model, PIXELS), PIXELS)
    expected = trace(intervene(model, changes), PIXELS)
    torch.testing.assert_close(ours.tokens, expected.tokens)
    before = model(PIXELS[:1]).logits.softmax(-1)[0]
    table = rank_heads(model, pixel_values=PIXELS[:1])
    assert len(table) == 12
    for row in table.itertuples():
        after = intervene(model, Intervention(heads=[(row.layer, row.head)]))(PIXELS[:1]).logits.softmax(-1)[0]
        assert row.after == pytest.approx(float(after[before.argmax()]), abs=1e-6)
