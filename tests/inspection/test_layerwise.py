"""The trace against a forward pass by hand, and layer-wise measures against naive float64 ones."""

from __future__ import annotations

import pytest
import torch

from codingrate import CrateError, create_model, inspection

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


def test_layerwise_equals_a_naive_computation_over_all_samples():
    model, pixels = model_and_pixels()
    eps = 0.3
    table = inspection.layerwise(model, [pixels[:3], pixels[3:]], eps)
    passed = inspection.trace(model, pixels)
    for index, layer in enumerate(model.crate.layers):
        half, out = passed.compressed[index], passed.tokens[index + 1]
        n, p = half.shape[1], layer.attention.spec.head_dim
        rates, shares = [], []
        for sample in range(len(pixels)):
            rate = 0.0
            for basis in layer.attention.bases.detach():
                w = half[sample] @ basis
                rate += 0.5 * float(torch.logdet(torch.eye(n, dtype=torch.float64) + p / (n * eps**2) * w @ w.T))
            rates.append(rate)
            shares.append(float((out[sample] != 0).double().mean()))
        row = table.iloc[index]
        rates, shares = torch.tensor(rates).double(), torch.tensor(shares).double()
        assert row["layer"] == index + 1
        assert row["compression"] == pytest.approx(float(rates.mean()), rel=1e-6)
        assert row["compression_std"] == pytest.approx(float(rates.std(correction=0)), rel=1e-4)
        assert row["nonzero"] == pytest.approx(float(shares.mean()), rel=1e-6)


def test_layerwise_leaves_the_mode_as_it_was_and_has_no_rate_without_subspaces():
    model, pixels = model_and_pixels(attention="mhsa")
    model.train()
    table = inspection.layerwise(model, [pixels])
    assert model.training
    assert table["compression"].isna().all()
    assert table["rate"].notna().all()


def test_layerwise_of_nothing_is_refused():
    model, _ = model_and_pixels()
    with pytest.raises(CrateError, match="no batches"):
        inspection.layerwise(model, [])
