"""The token, or the mean of tokens, that a text classifier reads, and the number of patches that a mask keeps."""

import pytest
import torch

from codingrate.models import CrateForSequenceClassification
from codingrate.models.autoencoder import kept_patches

from . import toys

MASK = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("fields", "config", "rows"),
    [
        ({}, toys.text, [[0], [0], [0]]),
        ({}, toys.causal, [[2], [4], [4]]),
        ({"pooling": "mean"}, toys.text, [[0, 1, 2], [2, 3, 4], [0, 1, 2, 3, 4]]),
    ],
    ids=["first", "last of a causal model", "mean"],
)
def test_a_classifier_reads_real_tokens_only(fields, config, rows):
    model = CrateForSequenceClassification(config(num_labels=3, **fields))
    z = torch.randn(3, 5, 14)
    expected = torch.stack([z[index, chosen].mean(0) for index, chosen in enumerate(rows)])
    torch.testing.assert_close(model.pool(z, MASK), expected)


@torch.no_grad()
@pytest.mark.parametrize("class_token", [False, True])
def test_the_features_of_an_autoencoder_are_the_mean_of_all_its_tokens(class_token):
    model, pixels = toys.build("masked-autoencoding", class_token=class_token).eval(), toys.pixels()
    tokens = model.crate(pixels).last_hidden_state
    assert tokens.shape[1] == 6 + class_token, "no patch is removed"
    expected = sum(tokens[:, index] for index in range(tokens.shape[1])) / tokens.shape[1]
    torch.testing.assert_close(model.features(pixels), expected)


@torch.no_grad()
@pytest.mark.parametrize("loss_on", ["masked", "all"])
def test_the_losses_of_images_are_means_over_the_patches_that_count(loss_on):
    model, pixels, mask = toys.build("masked-autoencoding", loss_on=loss_on).eval(), toys.pixels(), toys.patch_mask()
    output = model(pixel_values=pixels, mask=mask)
    errors = (output.reconstruction - model.embedding.patches(pixels)[0]).square().mean(-1)
    rows = [row[own] if loss_on == "masked" else row for row, own in zip(errors, mask, strict=True)]
    torch.testing.assert_close(output.losses, torch.stack([row.mean() for row in rows]))
    torch.testing.assert_close(output.loss, output.losses.mean())


@pytest.mark.parametrize(("patches", "ratio", "kept"), [(10, 0.9, 1), (196, 0.75, 49), (7, 0.5, 3)])
def test_rounding_does_not_lose_a_kept_patch(patches, ratio, kept):
    assert kept_patches(patches, ratio) == kept
