"""The decoder with the encoder's weights, and autoencoding of whole images."""

import copy
import pickle

import pytest
import torch

import codingrate as cr
from codingrate.errors import CrateError
from codingrate.inspection import trace
from codingrate.models import CrateForMaskedAutoencoding
from codingrate.models.quantization import quantize

from . import naive, toys

close = {"rtol": 0, "atol": 1e-10}


def tied(**fields):
    """A tied autoencoder of three layers in float64 with every parameter drawn at random."""
    torch.manual_seed(0)
    config = toys.autoencoding(decoder_type="tied", num_hidden_layers=3, step_size=0.3, **fields)
    model = CrateForMaskedAutoencoding(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape) * 0.5)
    return model


def mirrored(weights, depth):
    """The same weights with a copy of those of encoder layer L − 1 − i in decoder layer i, both from 0."""
    full = dict(weights)
    for i in range(depth):
        encoder = f"crate.layers.{depth - 1 - i}."
        for name in ("attention.project.weight", "attention.output.weight", "attention.output.bias", "step.logit"):
            if encoder + name in weights:
                full[f"decoder_layers.{i}.{name}"] = weights[encoder + name]
        full[f"decoder_layers.{i}.synthesis.dictionary"] = weights[encoder + "sparsifier.dictionary"]
    return full


@pytest.mark.parametrize(
    "fields", [{}, {"step": "derived", "learn_step": True, "skip": "residual"}], ids=["sum", "derived"]
)
def test_the_tied_decoder_is_a_decoder_with_the_weights_of_the_encoder(fields):
    """g^1 has the weights of f^L, and the gradient of a shared weight is the sum of both uses."""
    model, images, mask = tied(**fields), toys.pixels(dtype=torch.float64), toys.patch_mask()
    weights = dict(model.named_parameters())
    reconstruction, loss = naive.paper_autoencoder(images, mask, mirrored(weights, 3), model.config)
    output = model(images, mask)
    torch.testing.assert_close(output.reconstruction, reconstruction, **close)
    leaves = list(weights.values())
    for ours, theirs in zip(*(torch.autograd.grad(value, leaves) for value in (output.loss, loss)), strict=True):
        torch.testing.assert_close(ours, theirs, **close)
        assert float(ours.abs().max()) > 0


def test_weights_are_stored_once(tmp_path):
    model, free = tied(), CrateForMaskedAutoencoding(toys.autoencoding(num_hidden_layers=3))
    own = [name for name, _ in model.named_parameters() if name.startswith("decoder_layers")]
    assert {name.split(".")[2] for name in own} == {"synthesis_norm", "attention_norm"}
    shared = 3 * (12 * 12 * 3 + 12)  # U, W with its bias, and D of three layers
    assert free.num_parameters() - model.num_parameters() == shared
    images, mask = toys.pixels(dtype=torch.float64), toys.patch_mask()
    expected = model(images, mask).reconstruction
    model.save_pretrained(tmp_path)
    for again in (
        CrateForMaskedAutoencoding.from_pretrained(tmp_path).double(),
        cr.load(tmp_path).double(),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
    ):
        torch.testing.assert_close(again(images, mask).reconstruction, expected, **close)
        with torch.no_grad():  # the weights of a copy are its own, and shared within it
            again.crate.layers[2].sparsifier.dictionary.mul_(1.5)
        torch.testing.assert_close(
            again.decoder_layers[0].dictionary, again.crate.layers[2].sparsifier.dictionary, rtol=0, atol=0
        )
    torch.testing.assert_close(model(images, mask).reconstruction, expected, rtol=0, atol=0)


def test_the_penalty_counts_shared_weights_once():
    model = tied(orthogonality="penalty")
    rows = model.orthogonality()
    assert [sorted(row) for row in rows] == [["across", "dictionary", "layer", "within"]] * 3 + [["layer"]] * 3
    body = sum(row["across"] ** 2 + row["dictionary"] ** 2 for row in rows[:3])
    assert float(model.orthogonality_penalty().detach()) == pytest.approx(body)


@torch.no_grad()
def test_a_tied_decoder_is_traced_like_any_other():
    model = tied(orthogonality="parametrize")
    passed = trace(model, {"pixel_values": toys.pixels(dtype=torch.float64), "mask": toys.patch_mask()})
    for i in range(3):
        torch.testing.assert_close(passed.dictionaries[3 + i], passed.dictionaries[2 - i])
        torch.testing.assert_close(passed.bases[3 + i], passed.bases[2 - i])
        weights = passed.attention(3 + i)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_a_quantized_encoder_cannot_lend_its_dictionary():
    model = quantize(tied().float())
    with pytest.raises(CrateError, match=r"^a tied decoder needs the dictionary of its encoder"):
        model(toys.pixels(dtype=torch.bfloat16), toys.patch_mask())


@pytest.mark.parametrize("decoder", ["mirror", "tied"])
@pytest.mark.parametrize("space", ["pixel", "embedding", "drop"])
def test_whole_images_can_be_autoencoded(decoder, space, tmp_path):
    """With mask_ratio 0 no patch is removed: the mask token has no part in it."""
    model = CrateForMaskedAutoencoding(toys.autoencoding(decoder_type=decoder, mask_ratio=0, mask_space=space)).double()
    images = toys.pixels(dtype=torch.float64)
    output = model(images)
    assert not output.mask.any()
    output.loss.backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    assert not model.mask_token.grad.any()
    with torch.no_grad():
        if space == "pixel" and decoder == "mirror":
            weights = dict(model.named_parameters())
            expected, loss = naive.paper_autoencoder(images, output.mask, weights, model.config)
            torch.testing.assert_close(output.reconstruction, expected, **close)
            torch.testing.assert_close(output.loss, loss, **close)
        model.mask_token.fill_(9)
        torch.testing.assert_close(model(images).reconstruction, output.reconstruction, **close)
    model.save_pretrained(tmp_path)
    assert CrateForMaskedAutoencoding.from_pretrained(tmp_path).config.mask_ratio == 0
