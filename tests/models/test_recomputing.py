"""Outputs of norms are not kept for the backward pass: they are computed again, and no gradient changes by a bit."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from codingrate.models.layers import Layer
from codingrate.operators import ATTENTION, SPARSIFIERS

from . import toys

BLACK_BOX = {"attention": "mhsa", "sparsifier": "mlp", "skip": "residual"}
MODELS = [
    *(
        ("image-classification", {"attention": attention, "sparsifier": sparsifier})
        for attention, sparsifier in product(ATTENTION.names(), SPARSIFIERS.names())
    ),
    ("image-classification", {"skip": "residual"}),
    ("masked-autoencoding", {}),
    ("masked-lm", {**BLACK_BOX, "norm": "post"}),
    ("causal-lm", {"positions": "rotary", "head_dim": 8}),
]


def gradients(task, fields):
    torch.manual_seed(0)
    model = toys.build(task, **fields).train()
    output = toys.main_output(model(**toys.inputs(task))).square().mean()
    return torch.autograd.grad(output, list(model.parameters()), allow_unused=True)


@pytest.mark.parametrize(("task", "fields"), MODELS)
def test_gradients_do_not_change_by_a_bit(task, fields, monkeypatch):
    found = gradients(task, fields)
    monkeypatch.setattr(Layer, "recomputing", lambda *_: nullcontext())
    expected = gradients(task, fields)
    assert any(one is not None and one.any() for one in expected)
    for one, two in zip(found, expected, strict=True):
        assert (one is None and two is None) or torch.equal(one, two)


def kept_outputs(model, pixels):
    """Norms before the blocks of the layers, and whether the backward pass has their outputs in memory."""
    kept = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm) and ".layers." in name:
            module.register_forward_hook(
                lambda _m, _i, out, name=name: kept.update({name: StorageWeakRef(out.untyped_storage())})
            )
    output = model(pixels)
    assert kept
    alive = {name: not reference.expired() for name, reference in kept.items()}
    toys.main_output(output).sum().backward()  # still possible
    return alive


def test_outputs_of_norms_are_not_in_memory_until_the_backward_pass(monkeypatch):
    model = toys.build("image-classification").train()
    assert not any(kept_outputs(model, toys.pixels()).values())
    monkeypatch.setattr(Layer, "recomputing", lambda *_: nullcontext())
    assert all(kept_outputs(toys.build("image-classification").train(), toys.pixels()).values())


def test_other_hooks_on_saved_tensors_see_all_but_the_outputs_of_norms():
    model = toys.build("image-classification").train()
    inputs = toys.inputs("image-classification")
    expected = torch.autograd.grad(model(**inputs).loss, list(model.parameters()))
    seen, read = [], []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: seen.append(t) or len(seen) - 1, lambda i: read.append(i) or seen[i]
    ):
        loss = model(**inputs).loss
    found = torch.autograd.grad(loss, list(model.parameters()))
    assert all(map(torch.equal, found, expected))
    assert len(read) == len(seen) > 20
