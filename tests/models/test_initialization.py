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
