"""Stochastic depth of DINO's student, the width of an MAE decoder, and the pooling of the released ViT."""

import pytest
import torch

from codingrate import CrateError
from codingrate.models import CrateForImageClassification, CrateForMaskedAutoencoding, CrateForSelfDistillation
from codingrate.models.layers import drop_path
from codingrate.models.presets import BLACK_BOX, RELEASED_MAE

from . import toys


def test_a_dropped_update_keeps_its_expectation():
    torch.manual_seed(0)
    update = torch.randn(20_000, 2, 3).abs() + 1
    dropped = drop_path(update, 0.3)
    kept = dropped.abs().sum((1, 2), keepdim=True) > 0  # all tokens of a sample, or none
    assert kept.float().mean().item() == pytest.approx(0.7, abs=4 * (0.3 * 0.7 / 20_000) ** 0.5)
    torch.testing.assert_close(dropped, torch.where(kept, update / 0.7, 0.0))


def test_rates_grow_linearly_with_depth():
    config = toys.vision(num_hidden_layers=5, drop_path=0.2)
    assert config.drop_path_rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    model = CrateForImageClassification(config)
    assert [layer.drop_path for layer in model.crate.layers] == config.drop_path_rates
    with pytest.raises(CrateError, match="drop_path is 1"):
        toys.vision(drop_path=1.0)


@pytest.mark.parametrize("fields", [{}, dict(BLACK_BOX)], ids=["crate", "vit"])
def test_whole_residual_branches_of_samples_are_left_out_in_training_only(fields):
    torch.manual_seed(0)
    model = CrateForImageClassification(toys.vision(num_hidden_layers=2, drop_path=0.999, **fields))
    z = torch.randn(3, 7, 15)
    last = model.crate.layers[-1]
    with torch.no_grad():
        tokens = last.train()(z)[1]
        start = last.attention_input(z) if not fields else z
        torch.testing.assert_close(tokens, start)  # attention is left out, its skip remains
        assert not torch.allclose(last.eval()(z)[1], start)
        sparse = last.train()(z)[0]
        expected = start if fields else last.sparsifier(last.sparsifier_norm(start))
        torch.testing.assert_close(sparse, expected)  # an MLP is left out too, ISTA never is


def test_only_the_student_drops():
    config = toys.vision(drop_path=0.5, prototypes=11, projection_hidden=8, projection_bottleneck=4)
    model = CrateForSelfDistillation(config).train()
    pixels = torch.randn(32, 3, 21, 14)
    assert torch.equal(model.teacher(pixels), model.teacher(pixels))
    assert not torch.equal(model.student(pixels), model.student(pixels))


def test_a_decoder_of_another_width():
    black_box = {**RELEASED_MAE, **BLACK_BOX, "mask_space": "drop", "decoder_type": "forward", "mask_ratio": 0.5}
    model = CrateForMaskedAutoencoding(toys.autoencoding(**black_box, decoder_width=20, decoder_heads=5))
    assert model.decoder_embed.weight.shape == (20, 12)
    assert model.decoder_layers[0].attention.head_dim == 4
    assert model(torch.randn(2, 3, 21, 14)).reconstruction.shape == (2, 6, 147)
    for fields, message in (
        ({**black_box, "decoder_width": 20, "decoder_heads": 3}, "decoder_heads 3 does not divide decoder_width 20"),
        ({**black_box, "decoder_width": 18, "decoder_heads": 3}, "a multiple of 4, not 18"),
        ({"decoder_width": 20}, "are for the black-box MAE"),
    ):
        with pytest.raises(CrateError, match=message):
            toys.autoencoding(**fields)


def test_pooling_of_the_patches_leaves_the_class_token_out():
    model = CrateForImageClassification(toys.vision(pooling="patches", **BLACK_BOX)).eval()
    pixels = torch.randn(2, 3, 21, 14)
    body = model.crate(pixels)
    torch.testing.assert_close(body.pooler_output, body.last_hidden_state[:, 1:].mean(dim=1))
