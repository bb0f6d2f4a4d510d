"""A layer's projections against the equations, and objects found in whole images at their own size."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import codingrate as cr
from codingrate import CrateError, create_model
from codingrate.data import Augment
from codingrate.inspection import default_layer, default_side, find_objects, overlay, projections, square_input, trace
from codingrate.inspection.segment.pictures import COLORS
from codingrate.models import build_config

SMALL = {"hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "image_size": 32, "patch_size": 8}


def small(name="crate-tiny-patch16-224", **fields):
    return create_model(name, **{**SMALL, **fields}).double().eval()


@pytest.mark.parametrize("layer", [0, 1, 2, -1, -2])
def test_projections_are_every_head_of_what_attention_reads(layer):
    model = small(num_labels=7)
    pixels = torch.randn(2, 3, 40, 24, dtype=torch.float64)  # 5 × 3 patches, not the 4 × 4 of training
    found = projections(model, pixels, layer)
    passed = trace(model, pixels)
    module = model.crate.layers[layer]
    z = torch.nn.functional.layer_norm(
        passed.tokens[layer % 3], (30,), module.attention_norm.weight, module.attention_norm.bias, 1e-5
    )
    naive = torch.cat([z @ basis for basis in passed.bases[layer % 3]], dim=-1)
    torch.testing.assert_close(found, naive[:, 1:])  # without the class token


def test_a_vit_gives_its_keys():
    model = small("vit-tiny-patch16-224", num_labels=7)
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    z = model.crate.layers[1].attention_norm(trace(model, pixels).tokens[1])
    attention = model.crate.layers[1].attention
    keys = z @ attention.project.weight[30:60].T + attention.project.bias[30:60]
    torch.testing.assert_close(projections(model, pixels, 1), keys[:, 1:])


def test_without_a_class_token_every_token_is_a_patch():
    model = small("crate-mae-small")
    model.train()
    found = projections(model, torch.randn(2, 3, 32, 32, dtype=torch.float64), -1)
    assert found.shape == (2, 16, 30)
    assert model.training


@pytest.mark.parametrize("layer", [3, -4])
def test_a_layer_that_is_not_there(layer):
    with pytest.raises(CrateError, match=f"layer index {layer} is out of range; the indices are -3 to 2"):
        projections(small(), torch.randn(1, 3, 32, 32, dtype=torch.float64), layer)


def test_a_model_of_words_has_no_patches():
    model = create_model("crate-bert-medium", hidden_size=24, num_hidden_layers=1, num_attention_heads=3, vocab_size=50)
    with pytest.raises(CrateError, match="reads text"):
        projections(model, torch.zeros(1, 3, 32, 32), 0)


@pytest.mark.parametrize(("patch", "side"), [(16, 480), (8, 480), (14, 476), (4, 240), (2, 120), (500, 500)])
def test_the_square_has_whole_patches_and_no_more_than_sixty(patch, side):
    assert default_side(build_config({"patch_size": patch, "image_size": 2 * patch})) == side


def test_the_last_layer_but_one_is_looked_at_and_the_last_of_a_vit():
    assert default_layer(small().config) == -2
    assert default_layer(small("vit-tiny-patch16-224").config) == -1
    assert default_layer(small(num_hidden_layers=1).config) == -1


def test_the_square_is_normalised_and_of_the_models_precision():
    model = small()
    image = Image.new("RGB", (50, 20), (255, 0, 51))
    square, pixels = square_input(model, image, Augment(mean=(0.5, 0.5, 0.2), std=(0.5, 0.25, 0.1)), 40)
    assert square.size == (40, 40)
    assert (pixels.dtype, tuple(pixels.shape)) == (torch.float64, (1, 3, 40, 40))
    torch.testing.assert_close(pixels[0, :, 7, 9], torch.tensor([1.0, -2.0, 0.0]).double(), atol=1e-6, rtol=0)
    with pytest.raises(CrateError, match="side 41 is not divisible by the model's patch_size 8; use 40"):
        square_input(model, image, Augment(), 41)


def disc_image(width=90, height=60):
    y, x = np.mgrid[:height, :width]
    disc = (y - 30) ** 2 + (x - 40) ** 2 < 20**2
    draw = np.random.default_rng(0)
    colors = np.where(disc[..., None], (200, 60, 40), (60, 110, 190)) + draw.normal(0, 4, (height, width, 3))
    return Image.fromarray(colors.clip(0, 255).astype(np.uint8)), disc


def test_an_object_is_found_and_its_edges_are_the_images():
    """Patches of two colours are told apart by any projection, so an untrained model will do."""
    model = small(positions="none", num_labels=7).float()
    image, disc = disc_image()
    iou = {}
    for refine in (False, True):
        found = find_objects(model, image, Augment(), masks=1, threshold=0.5, refine=refine, side=96)
        assert len(found) == 1
        mask, (x, y, width, height) = found[0].mask, found[0].box
        assert mask.shape == (60, 90)
        assert mask.sum() == mask[y : y + height, x : x + width].sum()
        iou[refine] = (mask & disc).sum() / (mask | disc).sum()
    assert 0.6 < iou[False] < iou[True]
    assert iou[True] > 0.97


def test_tokens_that_share_a_large_part_are_cut_at_their_mean_cosine(monkeypatch):
    """At 0.15 all patches are then alike. Where 0.15 separates patches, it remains the default."""
    model = small(positions="none", num_labels=7).float()
    image, disc = disc_image()
    settings = {"masks": 1, "refine": False, "side": 96}
    plain = find_objects(model, image, Augment(), **settings)
    assert plain[0].threshold == 0.15
    assert (plain[0].mask == find_objects(model, image, Augment(), threshold=0.15, **settings)[0].mask).all()
    features = projections(model, square_input(model, image, Augment(), 96)[1], -2)
    shared = features + 3 * features.norm(dim=-1).max()
    monkeypatch.setattr("codingrate.inspection.segment.pictures.projections", lambda *_: shared)
    assert find_objects(model, image, Augment(), threshold=0.15, **settings) == []
    (found,) = find_objects(model, image, Augment(), **settings)
    assert (found.mask & disc).sum() / (found.mask | disc).sum() > 0.6
    unit = torch.nn.functional.normalize(shared[0].double(), dim=-1)
    assert found.threshold == pytest.approx(float((unit @ unit.T).mean()))
    monkeypatch.setattr("codingrate.inspection.segment.pictures.projections", lambda *_: torch.ones_like(shared))
    assert find_objects(model, image, Augment(), **settings) == [], "nothing differs from anything"


def test_the_shipped_classifier_finds_regions_by_default():
    run = cr.Run("crate-cifar10")
    table = pd.read_parquet(run.folder / "sample.parquet")
    images = [Image.open(io.BytesIO(image["bytes"])).convert("RGB") for image in table["image"][:8]]
    assert all(run.segment(images, refine=False, side=64))
    assert not any(run.segment(images, refine=False, side=64, threshold=0.15))


def test_an_overlay_tints_masks_and_draws_boxes():
    model = small(positions="none").float()
    image, _ = disc_image()
    found = find_objects(model, image, Augment(), masks=1, threshold=0.5, side=96)
    picture = np.asarray(overlay(image, found))
    x, y, width, height = found[0].box
    assert tuple(picture[y + height - 1, x + width // 2]) == COLORS[0]
    outside = ~found[0].mask
    outside[y : y + height, x : x + width] = False
    outside[:y] = False  # the label may stand out of the box
    np.testing.assert_array_equal(picture[outside], np.asarray(image)[outside])
    middle = (30, 40)
    tinted = 0.5 * np.asarray(image)[middle] + 0.5 * np.array(COLORS[0])
    np.testing.assert_allclose(picture[middle], tinted, atol=1)
