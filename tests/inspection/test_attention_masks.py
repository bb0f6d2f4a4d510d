"""Attention over images: heat and masks against loops over pixels, and the panel's sentences against its numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image

from codingrate._attention_mass import at_size, mass_masks
from codingrate.data import Augment
from codingrate.inspection import attend_images, attention_entropy, attention_maps, square_input
from codingrate.inspection.measure.attention import layer_attention_maps
from codingrate.inspection.report.images import HEADS, IMAGES, attention_panel, describe_attention
from codingrate.inspection.segment.pictures import (
    COLORMAP,
    DIMMED,
    GAP,
    HEADER,
    NAME,
    OPACITY,
    TILE,
    ImageAttention,
    heat_overlay,
    mask_overlay,
    tile,
)
from tests.models import toys
from tests.refusals import refused

from .test_segment import disc_image, small


def picture(width, height, mode="RGB"):
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values).convert(mode)


def naive_bilinear(values, height, width):
    """Between the four nearest centres of patches; beyond the outermost centres their value holds."""
    rows, columns = values.shape
    v, u = ((np.arange(side) + 0.5) * count / side - 0.5 for side, count in ((height, rows), (width, columns)))
    wide = [np.interp(u, range(columns), row) for row in values]
    return np.stack([np.interp(v, range(rows), column) for column in np.transpose(wide)], axis=1)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_heat_is_the_map_read_bilinearly_over_grey(mode):
    image, attention = picture(23, 17, mode), np.random.default_rng(1).random((3, 5))
    drawn = np.asarray(heat_overlay(image, attention), dtype=float)
    large = naive_bilinear(attention / attention.max(), 17, 23)
    below = np.asarray(image.convert("L"), dtype=float)
    color = 255 * colormaps[COLORMAP](large)[..., :3]
    expected = (1 - OPACITY) * below[..., None] + OPACITY * color
    np.testing.assert_allclose(drawn, expected, atol=3)  # a level of gray, of color, and of the map's 256


def test_uniform_attention_has_one_color():
    drawn = np.asarray(heat_overlay(Image.new("RGB", (7, 5), "black"), np.full((2, 3), 1 / 6)))
    assert (drawn == drawn[0, 0]).all()
    assert drawn.max() > 100


def test_what_a_mask_leaves_out_is_dim():
    image, mask = picture(23, 17), np.random.default_rng(2).random((3, 5)) < 0.5
    drawn, pixels = np.asarray(mask_overlay(image, mask)), np.asarray(image, dtype=float)
    share = np.where(mask[np.arange(17)[:, None] * 3 // 17, np.arange(23) * 5 // 23], 1, DIMMED)
    np.testing.assert_allclose(drawn, share[..., None] * pixels, atol=1)


@pytest.mark.parametrize(
    ("size", "wanted"), [((90, 60), (240, 160)), ((500, 1000), (120, 240)), ((4096, 2), (240, 1)), ((1, 1), (240, 240))]
)
def test_tiles(size, wanted):
    assert tile(Image.new("RGB", size)).size == wanted


@pytest.mark.parametrize("size", [(90, 60), (40, 400)])
def test_a_grid_has_a_column_for_each_map_and_its_mask_below(size):
    image = picture(*size)
    maps = dict(zip(("head 1", "head 2", "mean"), np.random.default_rng(3).random((3, 5, 7)), strict=True))
    attended = ImageAttention(image, image, 0, 0.4, maps)
    grid, small = attended.grid(), tile(image)
    width, height = small.size
    step = max(width, NAME) + GAP
    assert max(width, height) == TILE
    assert grid.size == (4 * step - GAP, HEADER + 2 * height + GAP)
    for column, attention in enumerate(maps.values(), 1):
        left = column * step
        heat = grid.crop((left, HEADER, left + width, HEADER + height))
        assert heat.tobytes() == heat_overlay(small, attention).tobytes()
        below = grid.crop((left, HEADER + height + GAP, left + width, HEADER + 2 * height + GAP))
        assert below.tobytes() == mask_overlay(small, mass_masks(attention, 0.4)).tobytes()


def test_attention_over_images_has_maps_entropies_and_masks_of_every_head():
    model, images = small(), [disc_image()[0], picture(23, 17)]
    results = attend_images(model, images, Augment(), layers=["all"], mass=0.4, size=40)
    assert [[result.layer for result in layers] for layers in results] == [[0, 1, 2]] * 2
    for image, layers in zip(images, results, strict=True):
        square, pixels = square_input(model, image, Augment(), 40)
        for result in layers:
            maps = attention_maps(model, pixels, result.layer)[0].numpy()
            assert list(result.maps) == ["head 1", "head 2", "head 3", "head 4", "head 5", "mean"]
            np.testing.assert_array_equal(np.stack(list(result.maps.values())[:-1]), maps)
            np.testing.assert_allclose(result.maps["mean"], sum(maps) / 5)
            assert result.square.tobytes() == square.tobytes()
            for name, own in result.maps.items():
                assert result.entropies[name] == pytest.approx(naive_entropy(own.ravel().tolist()))
                np.testing.assert_array_equal(result.masks[name], mass_masks(own, 0.4))
                large = at_size(result.masks[name], image.height, image.width)
                np.testing.assert_array_equal(np.asarray(result.image_masks()[name]), large)


def test_one_head_has_no_mean_and_the_defaults_are_the_models():
    model = small()
    ((result,),) = attend_images(model, [picture(9, 9)], Augment(), head=2)
    ((whole,),) = attend_images(model, [picture(9, 9)], Augment())
    assert (result.layer, result.mass, result.square.size) == (1, 0.6, (32, 32))
    assert list(result.maps) == ["head 2"]
    np.testing.assert_array_equal(result.maps["head 2"], whole.maps["head 2"])
    assert result.grid().width == 2 * TILE + GAP


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [0, -4]}, "layer index -4 is out of range; the indices are -3 to 2"),
        ({"layers": ["last"]}, "layer index last is not a number; give -3 to 2, or all"),
        ({"head": 6}, "head 6 is out of range; the model has 5 heads, 1 to 5"),
        ({"mass": 1.5}, "mass must lie in (0, 1], not 1.5"),
        ({"size": 41}, "side 41 is not divisible by the model's patch_size 8; use 40"),
    ],
)
def test_bad_options_of_attention_over_images(options, message):
    refused(message, attend_images, small(), [picture(9, 9)], Augment(), **options)


@pytest.mark.parametrize("layers", [(0,), (2, 0, -2), (-1, -1)])
def test_the_maps_of_several_layers_are_those_of_each(layers):
    model = toys.CrateModel(toys.vision(num_hidden_layers=3)).train()
    pixels = toys.pixels(height=28)
    found = layer_attention_maps(model, pixels, layers)
    assert found.shape == (len(layers), 3, 3, 4, 2)
    for layer, maps in zip(layers, found, strict=True):
        torch.testing.assert_close(maps, attention_maps(model, pixels, layer))
    assert model.training
    refused("layer index 3 is out of range", layer_attention_maps, model, pixels, (0, 3))


def naive_entropy(values):
    return -sum(p * math.log(p) for p in values if p > 0) / math.log(len(values))


def test_entropy_is_a_share_of_that_of_even_attention():
    maps = torch.rand(2, 3, 5, 7, dtype=torch.float64) ** 4
    maps /= maps.sum((-2, -1), keepdim=True)
    maps[0, 0] = 1 / 35
    maps[0, 1] = 0
    maps[0, 1, 2, 3] = 1
    found = attention_entropy(maps)
    for image in range(2):
        for k in range(3):
            assert float(found[image, k]) == pytest.approx(naive_entropy(maps[image, k].ravel().tolist()), abs=1e-12)
    assert float(found[0, 0]) == pytest.approx(1)
    assert float(found[0, 1]) == 0
    assert float(attention_entropy(torch.ones(1, 1))) == 1


# the panel


@pytest.mark.parametrize(("name", "layer"), [("crate-tiny-patch16-224", 1), ("vit-tiny-patch16-224", 2)])
def test_the_panel_measures_what_it_says(name, layer):
    model = small(name)
    images = [disc_image()[0], picture(23, 17)]
    panel = attention_panel(model, images, Augment(), mass=0.7)
    entropy, patches = np.zeros((2, 5)), np.zeros((2, 5))
    for row, image in enumerate(images):
        maps = attention_maps(model, square_input(model, image, Augment(), 32)[1], layer)[0].detach().numpy()
        for k in range(5):
            entropy[row, k] = naive_entropy(maps[k].ravel().tolist())
            patches[row, k] = mass_masks(maps[k], 0.7).sum() / 16
    assert panel.table is not None
    assert panel.table["layer"].tolist() == [layer + 1] * 5
    assert panel.table["head"].tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(panel.table["entropy"], entropy.mean(0))
    np.testing.assert_allclose(panel.table["entropy_std"], entropy.std(0), atol=1e-12)
    np.testing.assert_allclose(panel.table["patches"], patches.mean(0))
    assert f"In layer {layer + 1} of 3 the 5 heads have {entropy.mean():.0%} of the entropy" in panel.measured
    assert f"70% of the attention lies on {patches.mean():.0%} of the patches" in panel.measured
    assert "uniform attention needs 75%" in panel.measured  # 12 of 16
    assert ("do not follow objects" in panel.expected) == (layer == 2)


@pytest.mark.parametrize(
    ("patches", "words"),
    [(0.6, "are close to uniform"), (0.4, "favor some patches"), (0.2, "are focused on few patches")],
)
def test_the_sentence_follows_the_numbers(patches, words):
    sentence = describe_attention(np.array([[0.5]]), patches, 0.6, 0.6)
    assert words in sentence
    assert "from" not in sentence  # a single head has no range


def test_the_panel_is_drawn_and_stays_within_the_page():
    model = small("crate-tiny-patch16-224", hidden_size=28, num_attention_heads=14)
    panel = attention_panel(model, [picture(9, 9)] * (IMAGES + 1), Augment(), layer=0)
    figure = Figure()
    assert panel.draw is not None
    panel.draw(figure)
    assert len(figure.axes) == IMAGES * (HEADS + 2)
    assert figure.get_size_inches()[0] <= 9.5
    titles = [axes.get_title() for axes in figure.axes[: HEADS + 2]]
    assert titles == ["image", *(f"head {k + 1}" for k in range(HEADS)), "mean"]
    figure.canvas.draw()


def test_what_has_no_panel():
    refused("give at least one", attention_panel, small(), [], Augment())
    refused("no class token", attention_panel, small("crate-mae-small"), [picture(9, 9)], Augment())
