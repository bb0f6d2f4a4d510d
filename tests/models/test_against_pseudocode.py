"""Layers and whole models against the pseudocode, with the same weights, in float64."""

import pytest
import torch

from codingrate.models.layers import DecoderLayer, EncoderLayer

from . import naive, toys

# float64 through two layers: rounding stays orders below
close = {"rtol": 0, "atol": 1e-10}


def weights_of(module):
    """Every parameter drawn anew, so that no weight of one and no bias of zero hides an error."""
    with torch.no_grad():
        for parameter in module.double().parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape) * 0.5)
    return {key: value.detach() for key, value in module.state_dict().items()}


@pytest.mark.parametrize("skip", ["normalized", "residual"])
@pytest.mark.parametrize(
    ("layer", "reference"),
    [(EncoderLayer, naive.encoder_layer), (DecoderLayer, naive.decoder_layer)],
    ids=["encoder", "decoder"],
)
def test_a_layer_is_its_pseudocode(layer, reference, skip):
    config = toys.vision(skip=skip, step_size=0.3, sparsity=0.2, layer_norm_eps=1e-3)
    module = layer(config)
    weights = weights_of(module)
    z = torch.randn(3, 7, 15, dtype=torch.float64)
    out, half, attention = module(z)
    expected, expected_half = reference(z, weights, config)
    assert attention is None
    torch.testing.assert_close(out, expected, **close)
    torch.testing.assert_close(half, expected_half, **close)


def test_the_two_skips_differ():
    z = torch.randn(3, 7, 15, dtype=torch.float64)
    layers = [EncoderLayer(toys.vision(skip=skip)).double() for skip in ("normalized", "residual")]
    layers[1].load_state_dict(layers[0].state_dict())
    assert not torch.allclose(layers[0](z)[0], layers[1](z)[0])


@pytest.mark.parametrize("skip", ["normalized", "residual"])
@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_the_classifier_is_its_pseudocode(skip, pooling):
    model = toys.build("image-classification", skip=skip, pooling=pooling)
    weights, images = weights_of(model), toys.pixels(dtype=torch.float64)
    labels = torch.tensor([4, 0, 2])
    output = model(images, labels=labels)
    expected = naive.classifier(images, weights, model.config)
    torch.testing.assert_close(output.logits, expected, **close)
    chosen = torch.stack([expected[b].exp()[label] / expected[b].exp().sum() for b, label in enumerate(labels)])
    torch.testing.assert_close(output.loss, -chosen.log().mean(), **close)


def test_mixed_targets_are_distributions():
    model = toys.build("image-classification")
    images, labels = toys.pixels(), torch.tensor([4, 0, 2])
    hard = model(images, labels=labels).loss
    soft = model(images, labels=torch.nn.functional.one_hot(labels, 5).float()).loss
    torch.testing.assert_close(hard, soft)


@pytest.mark.parametrize("skip", ["normalized", "residual"])
def test_the_paper_autoencoder(skip):
    model = toys.build("masked-autoencoding", skip=skip)
    weights, images, mask = weights_of(model), toys.pixels(dtype=torch.float64), toys.patch_mask()
    output = model(images, mask)
    reconstruction, loss = naive.paper_autoencoder(images, mask, weights, model.config)
    torch.testing.assert_close(output.reconstruction, reconstruction, **close)
    torch.testing.assert_close(output.loss, loss, **close)
    assert torch.equal(output.mask, mask)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_released_autoencoder(normalize):
    config = toys.released_autoencoding(normalize_pixels=normalize)
    model = toys.CrateForMaskedAutoencoding(config)
    weights, images, mask = weights_of(model), toys.pixels(dtype=torch.float64), toys.patch_mask()
    output = model(images, mask)
    reconstruction, loss = naive.released_autoencoder(images, mask, weights, config)
    assert output.reconstruction.shape == (3, 6, 147)
    torch.testing.assert_close(output.reconstruction, reconstruction, **close)
    torch.testing.assert_close(output.loss, loss, **close)


@pytest.mark.parametrize("config", [toys.autoencoding, toys.released_autoencoding])
def test_a_removed_patch_is_not_seen(config):
    model = toys.CrateForMaskedAutoencoding(config()).double()
    images, mask = toys.pixels(dtype=torch.float64), toys.patch_mask()
    hidden = images.clone()
    hidden[0, :, :7, 7:] += 9  # row 0, column 1: the second patch
    removed = model(hidden, mask).reconstruction - model(images, mask).reconstruction
    assert float(removed.detach().abs().max()) == 0
    mask[0, 1] = False
    seen = model(hidden, mask).reconstruction - model(images, mask).reconstruction
    assert float(seen.detach().abs().max()) > 1e-3


def test_the_black_box_autoencoder_drops_what_was_removed():
    config = toys.released_autoencoding(
        mask_space="drop", mask_ratio=0.65, decoder_type="forward", decoder_layers=1, attention="mhsa", sparsifier="mlp"
    )
    model = toys.CrateForMaskedAutoencoding(config).double()
    images, mask = toys.pixels(dtype=torch.float64), toys.patch_mask()
    output = model(images, mask, output_hidden_states=True)
    assert output.hidden_states[0].shape == (3, 1 + 2, 12)  # the class token and two of six patches
    assert output.hidden_states[-1].shape == (3, 1 + 6, 12)
    # image by image gives the same: tokens are put back where they came from
    for b in range(3):
        alone = model(images[b : b + 1], mask[b : b + 1]).reconstruction
        torch.testing.assert_close(output.reconstruction[b : b + 1], alone, **close)
    # a kept token enters the decoder at its own place
    z = torch.arange(3 * 3 * 12, dtype=torch.float64).reshape(3, 3, 12)
    with torch.no_grad():
        model.decoder_embed.weight.copy_(torch.eye(12))
        model.decoder_embed.bias.zero_()
        placed = model.enter_decoder(z, mask, config.grid) - model.decoder_positions.weight
    for b in range(3):
        kept = (~mask[b]).nonzero()[:, 0].tolist()
        for order, place in enumerate(kept):
            torch.testing.assert_close(placed[b, 1 + place], z[b, 1 + order], **close)
        for place in mask[b].nonzero()[:, 0].tolist():
            torch.testing.assert_close(placed[b, 1 + place], model.mask_token.detach(), **close)


def test_the_masked_language_model():
    model = toys.build("masked-lm")
    weights, ids = weights_of(model), torch.randint(29, (3, 11))
    labels = torch.where(torch.rand(3, 11) < 0.3, ids, -100)
    output = model(ids, labels=labels)
    expected = naive.masked_lm(ids, weights, model.config)
    torch.testing.assert_close(output.logits, expected, **close)
    losses = [
        -torch.log(expected[b, t].exp()[ids[b, t]] / expected[b, t].exp().sum())
        for b, t in (labels >= 0).nonzero().tolist()
    ]
    torch.testing.assert_close(output.loss, sum(losses) / len(losses), **close)


def test_the_causal_language_model():
    model = toys.build("causal-lm")
    weights, ids = weights_of(model), torch.randint(29, (3, 11))
    output = model(ids, labels=ids)
    expected = naive.causal_lm(ids, weights, model.config)
    torch.testing.assert_close(output.logits, expected, **close)
    losses = [
        -torch.log(expected[b, t].exp()[ids[b, t + 1]] / expected[b, t].exp().sum())
        for b in range(3)
        for t in range(10)
    ]
    torch.testing.assert_close(output.loss, sum(losses) / len(losses), **close)


@pytest.mark.parametrize("causal", [False, True])
def test_a_padded_sentence_is_classified_as_without_padding(causal):
    model = toys.build("sequence-classification", causal=causal).double()
    ids, lengths = torch.randint(2, 29, (3, 11)), (11, 6, 3)
    mask = torch.tensor([[t < length for t in range(11)] for length in lengths]).long()
    logits = model(ids, attention_mask=mask).logits
    for b, length in enumerate(lengths):
        torch.testing.assert_close(logits[b : b + 1], model(ids[b : b + 1, :length]).logits, **close)
    if causal:
        shifted = torch.stack([ids[b].roll(11 - length) for b, length in enumerate(lengths)])
        positions = torch.stack([torch.arange(11).roll(11 - length) for length in lengths])
        left = model(shifted, attention_mask=mask.flip(1), position_ids=positions).logits
        torch.testing.assert_close(left, logits, **close)


def test_one_label_is_a_regression():
    model = toys.build("sequence-classification", num_labels=1)
    output = model(torch.randint(29, (3, 11)), labels=torch.tensor([0.5, -1.0, 2.0]))
    expected = ((output.logits[:, 0] - torch.tensor([0.5, -1.0, 2.0])) ** 2).mean()
    torch.testing.assert_close(output.loss, expected)


def test_embeddings_can_stand_in_for_ids():
    model = toys.build("causal-lm")
    ids = torch.randint(29, (3, 11))
    embedded = model(inputs_embeds=model.get_input_embeddings()(ids)).logits
    torch.testing.assert_close(embedded, model(ids).logits)


def test_token_types_and_positions_are_read():
    model = toys.build("masked-lm")
    ids, ones = torch.randint(29, (3, 11)), torch.ones(3, 11, dtype=torch.long)
    plain = model(ids).logits
    torch.testing.assert_close(model(ids, token_type_ids=0 * ones).logits, plain)
    assert not torch.allclose(model(ids, token_type_ids=ones).logits, plain)
    torch.testing.assert_close(model(ids, position_ids=torch.arange(11).expand(3, -1)).logits, plain)
    assert not torch.allclose(model(ids, position_ids=0 * ones).logits, plain)
