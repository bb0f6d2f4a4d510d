"""Dropout acts at every place that has one: a share p of the values is zero, the others are divided by 1 − p.

Shares are tested with at least 3,000 values at 4.5 standard errors: a right one fails once in 150,000 times.
"""

from __future__ import annotations

import math

import pytest
import torch

from codingrate.operators import ATTENTION, SPARSIFIERS

from . import toys

SHARE = 0.3


def check_dropout(dropped, whole):
    """Check values after dropout against the same values without it."""
    dropped, whole = dropped.flatten(), whole.flatten()
    dropped, whole = dropped[whole != 0], whole[whole != 0]
    zeros = dropped == 0
    assert len(whole) >= 3000
    deviation = math.sqrt(SHARE * (1 - SHARE) / len(whole))
    assert abs(float(zeros.double().mean()) - SHARE) <= 4.5 * deviation
    torch.testing.assert_close(dropped[~zeros], whole[~zeros] / (1 - SHARE), rtol=1e-4, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("task", ["image-classification", "masked-lm", "causal-lm"])
def test_embeddings_are_dropped(task):
    model, given = toys.build(task, dropout=SHARE), toys.inputs(task)
    embedding = model.crate.embedding
    (inputs,) = (given[name] for name in ("pixel_values", "input_ids") if name in given)
    inputs = inputs.repeat(40, *[1] * (inputs.ndim - 1))
    check_dropout(embedding.train()(inputs), embedding.eval()(inputs))


@torch.no_grad()
@pytest.mark.parametrize("name", ["mssa", "mssa-tied", "mhsa"])
@pytest.mark.parametrize("return_attention", [False, True])
def test_attention_weights_are_dropped(name, return_attention):
    """With unit vectors as values the result of `attend` are the weights themselves."""
    n = 24
    module = ATTENTION.create(name, dim=n, num_heads=2, head_dim=n, dropout=SHARE).double()
    query = torch.randn(4, 2, n, n, dtype=torch.float64)
    units = torch.eye(n, dtype=torch.float64).expand(4, 2, n, n)
    whole, dropped = (
        module.train(mode).attend(query, query, units, None, return_attention, 0)[0] for mode in (False, True)
    )
    check_dropout(dropped, whole)


@torch.no_grad()
@pytest.mark.parametrize("name", ["mssa", "mssa-tied", "mhsa"])
def test_the_update_of_attention_is_dropped(name, monkeypatch):
    module = ATTENTION.create(name, dim=24, num_heads=3, dropout=SHARE).double()
    z, whole = torch.randn(9, 17, 24, dtype=torch.float64), []
    right = type(module).combine_heads

    def spy(self, *arguments):
        whole.append(right(self, *arguments))
        return whole[-1]

    monkeypatch.setattr(type(module), "combine_heads", spy)
    update = module.train()(z)
    check_dropout(update, whole[0])


@torch.no_grad()
def test_the_output_of_an_mlp_is_dropped():
    module = SPARSIFIERS.create("mlp", dim=24, expansion=2, dropout=SHARE).double()
    z = torch.randn(200, 24, dtype=torch.float64)
    check_dropout(module.train()(z), module.eval()(z))


@torch.no_grad()
def test_a_sequence_classifier_drops_before_both_of_its_maps():
    model = toys.build("sequence-classification", dropout=SHARE).train()
    z, seen = torch.randn(300, 5, model.config.hidden_size), []
    model.dropout.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    answer = model.predict(z, None)
    (pooled, first), (hidden, second) = seen
    check_dropout(first, pooled)
    check_dropout(second, hidden)
    torch.testing.assert_close(hidden, torch.tanh(model.dense(first)))
    torch.testing.assert_close(answer, model.head(second))
