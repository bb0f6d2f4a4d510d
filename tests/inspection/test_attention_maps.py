"""Attention maps against the paper's equation, patch by patch, and against the attention of the forward pass."""

import math

import pytest
import torch

from codingrate.inspection import attention_maps, trace
from tests.models import toys
from tests.refusals import refused

SIZES = ((21, 14), (28, 21))  # the model's own, and one its positions are interpolated to


@torch.no_grad()
def naive(model, pixels, layer):
    """The equation, one pair of tokens at a time, from the tokens of a whole forward pass."""
    inside, module = trace(model, pixels), model.base_model.layers[layer]
    seen = module.attention_norm(inside.tokens[:-1][layer]).double()
    heads, p = module.attention.num_heads, module.attention.head_dim
    weight = module.attention.project.weight.double().detach()
    maps = torch.zeros(len(pixels), heads, seen.shape[1] - 1, dtype=torch.float64)
    for image in range(len(pixels)):
        for k in range(heads):
            own = weight[k * p : (k + 1) * p]
            key = own if len(weight) == heads * p else weight[(heads + k) * p : (heads + k + 1) * p]
            asked = own @ seen[image, 0]
            scores = [math.exp(float(key @ seen[image, i] @ asked) / math.sqrt(p)) for i in range(1, seen.shape[1])]
            maps[image, k] = torch.tensor(scores, dtype=torch.float64) / sum(scores)
    return maps


@pytest.mark.parametrize("attention", ["mssa", "mhsa"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layer", [0, -1, -2])
def test_the_maps_are_those_of_the_equation(attention, size, layer):
    torch.manual_seed(0)
    model = toys.CrateModel(toys.vision(attention=attention, num_hidden_layers=3)).train()
    pixels = toys.pixels(height=size[0], width=size[1])
    maps = attention_maps(model, pixels, layer)
    assert maps.shape[2:] == (size[0] // 7, size[1] // 7)
    torch.testing.assert_close(maps.flatten(2).double(), naive(model.eval(), pixels, layer), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(maps.sum((2, 3)), torch.ones(maps.shape[:2]))


def test_they_are_the_attention_inside_the_forward_pass():
    torch.manual_seed(1)
    model = toys.CrateModel(toys.vision()).eval()
    pixels = toys.pixels()
    inside = model(pixels, output_attentions=True).attentions
    for layer, weights in enumerate(inside):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        torch.testing.assert_close(trace(model, pixels).attention(layer), weights)
        patches = weights[:, :, 0, 1:]
        maps = attention_maps(model, pixels, layer)
        torch.testing.assert_close(maps.flatten(2), patches / patches.sum(-1, keepdim=True))


def test_what_has_no_maps():
    plain = toys.CrateModel(toys.vision(class_token=False, pooling="mean"))
    refused("the model has no class token", attention_maps, plain, toys.pixels())
    model = toys.CrateModel(toys.vision())
    depth = len(model.layers)
    refused(f"layer index {depth} is out of range", attention_maps, model, toys.pixels(), depth)
    text = toys.CrateModel(toys.text())
    refused("reads text", attention_maps, text, toys.pixels())
    for name in ("tssa", "rate-gradient"):
        pairless = toys.CrateModel(toys.vision(attention=name))
        refused(f"'{name}' compares no two tokens", attention_maps, pairless, toys.pixels())
