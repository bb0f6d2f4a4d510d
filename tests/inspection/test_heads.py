"""The catalogue of heads against loops over images and patches, and on maps that are planted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from codingrate.inspection import attention_maps, head_catalogue
from codingrate.inspection.measure import attention as module
from codingrate.inspection.report.images import GAP, HEAD_PIXELS, head_panel
from codingrate.inspection.segment.pictures import heat_overlay, tile
from tests.models import toys
from tests.refusals import refused


def pictures(count, mode="RGB"):
    draw = np.random.default_rng(0)
    images = (Image.fromarray(draw.integers(0, 255, (21, 14, 3), dtype=np.uint8)) for _ in range(count))
    return [image.convert(mode) for image in images]


def planted(monkeypatch, maps):
    """A model whose maps are given, (images, K, rows, columns)."""
    left = [torch.as_tensor(maps, dtype=torch.float64)]

    def give(model, pixels, layer):
        part, left[0] = left[0][: len(pixels)], left[0][len(pixels) :]
        return part

    monkeypatch.setattr(module, "attention_maps", give)
    return toys.CrateModel(toys.vision()), toys.pixels(len(left[0]))


@pytest.mark.parametrize("attention", ["mssa", "mhsa"])
def test_the_table_equals_loops_over_images_and_patches(monkeypatch, attention):
    monkeypatch.setattr(module, "BATCH_SIZE", 2)  # five images in three passes
    model = toys.CrateModel(toys.vision(attention=attention, num_hidden_layers=3)).double()
    pixels = 3 * toys.pixels(5, torch.float64, height=35, width=49)
    found = head_catalogue(model, pixels, shown=2)
    assert found.layer == {"mssa": 1, "mhsa": 2}[attention]
    maps = attention_maps(model, pixels, found.layer)
    torch.testing.assert_close(found.maps, maps)
    assert maps.shape == (5, 3, 5, 7)
    top = 4  # ⌈35/10⌉
    assert found.uniform_focus == top / 35
    for k in range(3):
        focus, entropy, overlap = [], [], []
        for image in range(5):
            values = maps[image, k].flatten().tolist()
            focus.append(sum(sorted(values)[-top:]))
            entropy.append(-sum(v * math.log(v) for v in values) / math.log(35))
            for other in range(3):
                if other != k:
                    theirs = maps[image, other].flatten().tolist()
                    product = sum(a * b for a, b in zip(values, theirs, strict=True))
                    overlap.append(product / math.sqrt(sum(a * a for a in values) * sum(b * b for b in theirs)))
        row = found.table.iloc[k]
        assert row["head"] == k + 1
        assert row["focus"] == pytest.approx(np.mean(focus), rel=1e-9)
        assert row["entropy"] == pytest.approx(np.mean(entropy), rel=1e-9)
        assert row["overlap"] == pytest.approx(np.mean(overlap), rel=1e-9)
        best = sorted(range(5), key=lambda image: -focus[image])[:2]
        assert found.best[k].tolist() == best
        assert row["best"] == " ".join(map(str, best))


def one_patch(image, head):
    flat = np.zeros(20)
    flat[(3 * image + 7 * head) % 20] = 1
    return flat.reshape(4, 5)


def test_a_head_that_looks_at_one_patch_and_one_that_looks_at_all(monkeypatch):
    even = np.full((4, 5), 1 / 20)
    maps = np.stack([np.stack([one_patch(image, 0), even]) for image in range(3)])
    model, pixels = planted(monkeypatch, maps)
    panel = head_panel(model, pixels, pictures(3))
    sharp, blunt = panel.table.to_dict("records")
    assert (sharp["focus"], sharp["entropy"]) == (1, 0)
    assert (blunt["focus"], blunt["entropy"]) == (pytest.approx(0.1), pytest.approx(1))
    assert sharp["overlap"] == pytest.approx(1 / math.sqrt(20))
    assert "head 1 is the most focused, with 100% of its attention in a tenth of the patches" in panel.measured
    assert "head 2 the least, with 10%, where uniform attention has 10%" in panel.measured
    assert panel.measured.endswith("0.22 on average: the heads look at different patches.")


@pytest.mark.parametrize(
    ("other", "words"), [(0, "nearly the same patches"), (1, "at different patches"), (None, "share part of what")]
)
def test_the_sentence_says_how_alike_the_heads_are(monkeypatch, other, words):
    second = 0.5 * one_patch(0, 0) + 0.5 * one_patch(0, 1) if other is None else one_patch(0, other)
    model, pixels = planted(monkeypatch, np.stack([np.stack([second, one_patch(0, 0)])]))
    measured = head_panel(model, pixels, pictures(1)).measured
    assert words in measured
    assert measured.startswith("On 1 image head")


def test_an_object_lit_as_a_whole_counts_as_much_as_one_patch(monkeypatch):
    lit, dim = np.zeros((4, 5)), np.full((4, 5), 0.02)
    lit[1, 1:3] = 0.5
    dim[2, 2] += 0.6
    maps = np.stack([dim, one_patch(0, 0), lit, dim])[:, None]
    model, pixels = planted(monkeypatch, maps)
    found = head_catalogue(model, pixels, shown=3)
    assert found.best.tolist() == [[1, 2, 0]]  # images of equal focus in their own order
    assert math.isnan(found.table["overlap"][0])
    maps = np.stack([dim])[:, None]
    model, pixels = planted(monkeypatch, maps)
    assert "the only head has 64% of its attention" in head_panel(model, pixels, pictures(1)).measured


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_panel_draws_a_strip_of_images_and_maps_for_each_head(mode):
    model, pixels, images = toys.CrateModel(toys.vision()), toys.pixels(5), pictures(5, mode)
    panel = head_panel(model, pixels, images, shown=3)
    found = head_catalogue(model, pixels, shown=3)
    figure = Figure()
    panel.draw(figure)
    figure.draw_without_rendering()
    assert figure.get_figwidth() <= 9.5
    strips = [np.asarray(axes.get_images()[0].get_array()) for axes in figure.axes]
    assert len(strips) == 3
    small = tile(images[int(found.best[2, 0])], HEAD_PIXELS).convert("RGB")
    width, height = small.size
    np.testing.assert_array_equal(strips[2][:, :width, :3], np.asarray(small))
    heat = heat_overlay(small, found.maps[found.best[2, 0], 2].numpy())
    start = width + GAP // 3
    np.testing.assert_array_equal(strips[2][:, start : start + width, :3], np.asarray(heat))
    assert strips[2].shape[0] == height
    assert not strips[2][:, width:start, 3].any()  # nothing is painted between them
    assert "focus" in figure.axes[0].get_title("left")


def test_what_has_no_catalogue():
    model = toys.CrateModel(toys.vision())
    refused("needs images", head_catalogue, model, toys.pixels(0))
    refused("2 images do not fit 3 rows", head_panel, model, toys.pixels(3), pictures(2))
    refused("out of range", head_catalogue, model, toys.pixels(), 2)
    plain = toys.CrateModel(toys.vision(class_token=False, pooling="mean"))
    refused("no class token", head_panel, plain, toys.pixels(3), pictures(3))
    refused("reads text", head_catalogue, toys.CrateModel(toys.text()), toys.pixels())
    refused("'tssa'", head_catalogue, toys.CrateModel(toys.vision(attention="tssa")), toys.pixels())
