"""Random weights: nanoGPT's smaller maps at the end of residual branches, and nothing else changed by them."""

import math

import pytest
import torch

from . import toys

WIDE = {"hidden_size": 96, "num_hidden_layers": 5, "initializer_range": 0.02}


@torch.no_grad()
@pytest.mark.parametrize("box", ["white", "black"])
def test_scaled_output_maps_are_drawn_smaller(box):
    twin = {"attention": "mhsa", "sparsifier": "mlp", "skip": "residual"} if box == "black" else {}
    torch.manual_seed(7)
    plain = toys.build("causal-lm", **WIDE, **twin)
    scaled = toys.build("causal-lm", **WIDE, **twin, scaled_output_init=True)
    ends = ("attention.output.weight", "sparsifier.contract.weight")
    for (name, a), b in zip(plain.named_parameters(), scaled.parameters(), strict=True):
        if name.endswith(ends):
            # 96² draws or more: the standard deviation is known to one per cent
            assert float(b.std()) == pytest.approx(0.02 / math.sqrt(2 * 5), rel=0.05), name
            assert float(a.std()) == pytest.approx(0.02, rel=0.05), name
        elif float(a.std()) > 0:
            assert float(b.std()) == pytest.approx(float(a.std()), rel=0.2), name
        else:
            assert torch.equal(a, b)


def test_loaded_weights_are_not_drawn_again(tmp_path):
    model = toys.build("causal-lm", scaled_output_init=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
    model.save_pretrained(tmp_path)
    for name, parameter in type(model).from_pretrained(tmp_path).named_parameters():
        assert (parameter == 0.25).all(), name


@torch.no_grad()
@pytest.mark.parametrize("initializer", ["torch", "xavier", "normal"])
def test_weights_and_biases_have_the_range_of_their_initializer(initializer):
    """PyTorch's default is uniform in ±1/√fan_in for weights and biases; the other two have no bias at first."""
    torch.manual_seed(3)
    fields = {"attention": "mhsa", "sparsifier": "mlp", "skip": "residual", "hidden_size": 96, "projection_bias": True}
    model = toys.build("image-classification", initializer=initializer, initializer_range=0.05, **fields)
    linear = model.crate.layers[0].sparsifier.expand
    bound = 1 / math.sqrt(96)
    weight, bias = linear.weight, linear.bias
    if initializer == "torch":
        for values in (weight, bias):
            assert 0.95 * bound < float(values.abs().max()) <= bound
            assert float(values.std()) == pytest.approx(bound / math.sqrt(3), rel=0.15)
        assert float(model.crate.embedding.positions.weight.std()) == pytest.approx(1.0, rel=0.15)
    else:
        assert not bias.any()
        xavier = math.sqrt(2 / sum(weight.shape))
        assert float(weight.std()) == pytest.approx(xavier if initializer == "xavier" else 0.05, rel=0.05)
