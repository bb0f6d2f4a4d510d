"""The trace against a forward pass by hand, and layer-wise measures against naive float64 ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from codingrate import CrateError, create_model, inspection
from codingrate.models.autoencoder import random_mask
from tests.refusals import refused

SMALL = {"hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "image_size": 32, "patch_size": 8}


def model_and_pixels(**fields):
    model = create_model("crate-tiny-patch16-224", **SMALL, num_labels=7, **fields).double().eval()
    return model, torch.randn(4, 3, 32, 32, dtype=torch.float64)


def test_trace_is_the_forward_pass_step_by_step():
    model, pixels = model_and_pixels()
    passed = inspection.trace(model, pixels)
    z = model.crate.embedding(pixels)
    for index, layer in enumerate(model.crate.layers):
        torch.testing.assert_close(passed.tokens[index], z)
        z, half, weights = layer(z, None, True)
        torch.testing.assert_close(passed.compressed[index], half)
        torch.testing.assert_close(passed.attention(index), weights)
        torch.testing.assert_close(passed.bases[index], layer.attention.bases)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    torch.testing.assert_close(passed.tokens[-1], z)


def test_trace_of_an_autoencoder_goes_on_through_the_decoder():
    model = create_model("crate-mae-small", **SMALL).eval()
    passed = inspection.trace(model, torch.randn(2, 3, 32, 32))
    assert len(passed.layers) == len(passed.compressed) == 6
    attention = passed.attention(4)
    torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention[..., 0]))
    assert len(inspection.layerwise(model, [torch.randn(2, 3, 32, 32)])) == 3, "the decoder is not the objective's"


def test_trace_of_a_text_model_with_padding():
    model = create_model("crate-bert-medium", hidden_size=24, num_hidden_layers=2, num_attention_heads=3, vocab_size=50)
    ids, mask = torch.randint(0, 50, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    mask[0, 4:] = 0
    passed = inspection.trace(model.eval(), {"input_ids": ids, "attention_mask": mask})
    assert passed.attention(1)[0, :, :4, 4:].abs().max() == 0


def naive_rate(w, eps, dim=None):
    """½ logdet(I + dim/(nε²) wwᵀ) of tokens as rows, by the eigenvalues of the n × n side."""
    n = w.shape[0]
    matrix = np.eye(n) + (dim or w.shape[1]) / (n * eps**2) * w @ w.T
    return 0.5 * float(np.log(np.linalg.eigvalsh(matrix)).sum())


def naive(model, sample, layer, eps):
    """Every measure of one layer for one image or text, token by token where it can be."""
    passed = inspection.trace(model, sample)
    module = model.base_model.layers[layer]
    before, half, out = (x[0].detach().double().numpy() for x in
                         (passed.tokens[layer], passed.compressed[layer], passed.tokens[layer + 1]))  # fmt: skip
    normed = module.attention_norm(passed.tokens[layer])[0].detach().double().numpy()
    weight = module.attention.project.weight.detach().double().numpy()
    heads, p = module.attention.num_heads, module.attention.head_dim
    maps = [weight[-heads * p :][k * p : (k + 1) * p] for k in range(heads)]  # U_k, or the last third of q, k, v
    start = normed if model.config.skip == "normalized" else before
    singular = np.linalg.svd(out, compute_uv=False)
    shares = singular[singular > 1e-7 * singular[0]] / singular[singular > 1e-7 * singular[0]].sum()
    unit = [normed @ u.T / np.linalg.norm(normed @ u.T, axis=1, keepdims=True) for u in maps]
    block = half.shape[1] // heads
    return {
        "compression": sum(naive_rate(half @ u.T, eps) for u in maps),
        "released": sum(naive_rate(w, 0.1) for w in unit),
        "before": sum(naive_rate(start @ u.T, eps) for u in maps),
        "blocks": sum(naive_rate(half[:, k * block : (k + 1) * block], eps) for k in range(heads)),
        "rate": naive_rate(out, eps),
        "reduction": naive_rate(out, eps) - sum(naive_rate(out @ u.T, eps) for u in maps),
        "effective_rank": float(np.exp(-(shares * np.log(shares)).sum())),
        "nonzero": np.mean([value != 0 for value in out.flatten()]),
        **{f"below_{tau:g}": np.mean([abs(value) < tau for value in out.flatten()]) for tau in (1.0, 0.5, 0.1)},
    }


@pytest.mark.parametrize("fields", [{}, {"skip": "residual"}, {"attention": "mhsa", "sparsifier": "mlp"}], ids=str)
def test_every_measure_equals_a_naive_one_over_all_samples(fields):
    model, pixels = model_and_pixels(**fields)
    eps = 0.3
    table = inspection.layerwise(model, [pixels[:3], pixels[3:]], eps)
    released = inspection.layerwise(model, [pixels], measure="released")
    for index in range(len(model.crate.layers)):
        rows = [naive(model, pixels[i : i + 1], index, eps) for i in range(len(pixels))]
        row = table.iloc[index]
        assert row["layer"] == index + 1
        for name in rows[0]:
            values = np.array([values[name] for values in rows])
            measured = released.iloc[index] if name == "released" else row
            column = "compression" if name == "released" else name
            assert measured[column] == pytest.approx(values.mean(), rel=1e-6), name
            assert measured[f"{column}_std"] == pytest.approx(values.std(), rel=1e-4, abs=1e-9), name


def test_chosen_layers_are_those_of_the_whole_table():
    model, pixels = model_and_pixels()
    whole, some = inspection.layerwise(model, [pixels]), inspection.layerwise(model, [pixels], layers=[-1, 0, 0])
    assert some["layer"].tolist() == [1, 3]
    assert some.equals(whole.iloc[[0, 2]].reset_index(drop=True))
    passed = inspection.trace(model, pixels, [1])
    assert [z is None for z in passed.tokens] == [True, False, False, True]
    assert [z is None for z in passed.compressed] == [True, False, True]
    refused("layer 0 was not traced", passed.attention, 0)
    refused("layer index 3 is out of range", inspection.trace, model, pixels, [3])


@pytest.mark.parametrize("skip", ["normalized", "residual"])
@pytest.mark.parametrize("causal", [False, True])
def test_measures_in_float32_are_those_in_float64(causal, skip):
    """With padding, with 12 and 40 tokens for d = 24, and with tokens that almost lie on a line."""
    torch.manual_seed(0)
    name = "crate-gpt-base" if causal else "crate-bert-medium"
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": 40}
    model = create_model(name, **sizes, vocab_size=50, skip=skip).eval()
    with torch.no_grad():
        model.base_model.layers[0].sparsifier_norm.bias.fill_(30)  # their mean is far larger than their differences
    batches = []
    for n in (12, 40):
        mask = torch.ones(2, n, dtype=torch.long)
        mask[0, n // 2 :] = 0
        batches.append({"input_ids": torch.randint(5, 50, (2, n)), "attention_mask": mask})
    single = inspection.layerwise(model, batches, controls=True)
    double = inspection.layerwise(model.double(), batches, controls=True)
    for column in single.filter(regex="(?<!_std)$"):  # a deviation is a small difference of values
        assert single[column].tolist() == pytest.approx(double[column].tolist(), rel=1e-4, abs=2e-5), column


def test_padding_does_not_count():
    model = create_model("crate-bert-medium", hidden_size=24, num_hidden_layers=2, num_attention_heads=3, vocab_size=50)
    model = model.double().eval()
    ids, mask = torch.randint(5, 50, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    mask[0, 4:] = 0
    padded = inspection.layerwise(model, [{"input_ids": ids, "attention_mask": mask}])
    alone = inspection.layerwise(model, [{"input_ids": ids[:1, :4]}, {"input_ids": ids[1:]}])
    for name in padded:
        assert padded[name].tolist() == pytest.approx(alone[name].tolist(), rel=1e-9, abs=1e-12), name


def test_layerwise_leaves_the_mode_as_it_was():
    model, pixels = model_and_pixels(attention="mhsa")
    model.train()
    table = inspection.layerwise(model, [pixels])
    assert model.training
    assert table.notna().all(axis=None)


@pytest.mark.parametrize(
    "variant", [{}, {"decoder_type": "forward"}, {"decoder_type": "forward", "mask_space": "drop"}], ids=str
)
def test_attention_of_every_decoder_layer_is_that_of_the_forward_pass(variant):
    torch.manual_seed(0)
    model = create_model("crate-mae-small", **SMALL, **variant).eval()
    pixels = torch.randn(2, 3, 32, 32)
    mask = random_mask(2, 16, 0.75)
    inside = model(pixels, mask=mask, output_attentions=True).attentions
    passed = inspection.trace(model, {"pixel_values": pixels, "mask": mask})
    for layer, weights in enumerate(inside):
        torch.testing.assert_close(passed.attention(layer), weights)
    assert len(inspection.layerwise(model, [pixels])) == 3, "the decoder is not the objective's"


def test_dictionaries_are_the_layers_own():
    model, pixels = model_and_pixels()
    for dictionary, layer in zip(inspection.trace(model, pixels).dictionaries, model.crate.layers, strict=True):
        assert torch.equal(dictionary, layer.sparsifier.dictionary)
    twin, pixels = model_and_pixels(sparsifier="mlp")
    assert inspection.trace(twin, pixels).dictionaries == (None, None, None)


def test_an_unknown_measure_is_refused():
    model, pixels = model_and_pixels()
    refused("measure", inspection.layerwise, model, [pixels], measure="relased")


def test_layerwise_of_nothing_is_refused():
    model, _ = model_and_pixels()
    with pytest.raises(CrateError, match="no batches"):
        inspection.layerwise(model, [])
