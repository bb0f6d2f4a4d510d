"""Pieces of the tokens and their PCA against naive computations, and the sentences under them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from codingrate.inspection import trace
from codingrate.inspection.measure.tracing import pca_colors, token_heat
from codingrate.inspection.report.images import pca_panel, token_panel
from codingrate.objective import effective_rank
from tests.models import toys
from tests.refusals import refused


def planted(tokens, encoder_depth=None, mask=None):
    """A trace whose tokens are given, Z^2 … Z^{L+1} each (batch, n, d)."""
    passed = trace(toys.CrateModel(toys.vision()).eval(), toys.pixels())
    depth = len(tokens) if encoder_depth is None else encoder_depth
    return dataclasses.replace(passed, tokens=(None, *tokens), encoder_depth=depth, mask=mask)


def pictures(count):
    draw = np.random.default_rng(0)
    return [Image.fromarray(draw.integers(0, 255, (21, 14, 3), dtype=np.uint8)) for _ in range(count)]


def test_heat_is_one_choice_of_rows_and_columns_at_every_layer():
    layers = [torch.arange(61 * 53).view(1, 61, 53).expand(2, -1, -1) * sign for sign in (-1.0, 2.0)]
    first, second = token_heat(planted(layers), sample=1).values()
    assert first.shape == (50, 50)
    torch.testing.assert_close(second, 2 * first)  # the same places, and sizes only
    rows, columns = (first // 53), (first % 53)
    assert (rows == rows[:, :1]).all()
    assert (columns == columns[:1]).all()
    assert (rows[:, 0].diff() > 0).all()
    assert (columns[0].diff() > 0).all()
    assert torch.equal(token_heat(planted(layers), 1)[1], first)
    assert not torch.equal(token_heat(planted(layers), 1, seed=1)[1], first)


def test_heat_of_small_samples_of_padded_texts_and_of_chosen_layers():
    model = toys.build("masked-lm").eval()
    ids = torch.randint(2, 29, (2, 11))
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[1, 7:] = 0
    passed = trace(model, {"input_ids": ids, "attention_mask": mask})
    heat = token_heat(passed, sample=1)
    assert list(heat) == [1, 2]
    torch.testing.assert_close(heat[2], passed.tokens[2][1, :7].abs())
    assert list(token_heat(trace(model, {"input_ids": ids, "attention_mask": mask}, layers=[0]))) == [1]
    autoencoder = toys.build("masked-autoencoding").eval()
    assert list(token_heat(trace(autoencoder, toys.inputs("masked-autoencoding")))) == [1, 2]
    refused("no encoder layer was traced", token_panel, planted([None, None]))


def falling(rank_first, rank_last, share_first, share_last, layers=3):
    """Tokens whose rank and share of non-zero entries move evenly between the two ends."""
    draw = torch.Generator().manual_seed(5)
    found = []
    for place in np.linspace(0, 1, layers):
        rank, share = (
            round(a + (b - a) * place) for a, b in ((rank_first, rank_last), (100 * share_first, 100 * share_last))
        )
        z = torch.randn(1, 40, rank, generator=draw) @ torch.randn(1, rank, 40, generator=draw)
        z[..., round(share * 40 / 100) :] = 0
        found.append(z)
    return found


@pytest.mark.parametrize(("ends", "word"), [((30, 4, 1.0, 0.2), "falls"), ((4, 30, 0.2, 1.0), "rises")])
def test_sentence_and_table_follow_the_tokens(ends, word):
    tokens = falling(*ends)
    panel = token_panel(planted(tokens))
    assert panel.table["layer"].tolist() == [1, 2, 3]
    assert panel.table["nonzero"].tolist() == pytest.approx([float((z != 0).float().mean()) for z in tokens])
    ranks = [float(effective_rank(z[0])) for z in tokens]
    assert panel.table["effective_rank"].tolist() == pytest.approx(ranks)
    assert f"non-zero entries {word} in every layer ({ends[2]:.3g} in the first" in panel.measured
    assert f"effective rank {word} in every layer ({ranks[0]:.3g} in the first" in panel.measured
    assert "40 tokens in 40 dimensions" in panel.measured


def test_heat_maps_are_drawn_each_on_its_own_scale_with_zeros_left_out():
    tokens = [scale * z for scale, z in zip((1.0, 1e-3, 1e3), falling(9, 9, 0.5, 0.5), strict=True)]
    tokens.append(torch.zeros_like(tokens[0]))
    figure = Figure()
    token_panel(planted(tokens)).draw(figure)
    figure.draw_without_rendering()
    *drawn, empty = [axes.get_images()[0] for axes in figure.axes if axes.get_images()]
    assert len(drawn) == 3
    for image in drawn:
        values = image.get_array()
        assert values.max() == 1  # its own largest, whatever its size
        assert values.mask.mean() == 0.5
    assert empty.get_array().mask.all()
    assert figure.get_figwidth() <= 9.5


def naive_colors(tokens, grid):
    """By the singular vectors of the centred patches in numpy, image by image."""
    rows, columns = grid
    patches = np.concatenate([image[len(image) - rows * columns :] for image in tokens.double().numpy()])
    centred = patches - patches.mean(0)
    _, sigma, vectors = np.linalg.svd(centred, full_matrices=False)
    colors = np.empty((len(patches), 3))
    for c in range(3):
        v = vectors[c] * np.sign(vectors[c][np.abs(vectors[c]).argmax()])
        values = np.array([float(row @ v) for row in centred])
        low, high = np.percentile(values, [1, 99])
        colors[:, c] = [min(max((x - low) / (high - low), 0), 1) for x in values]
    return colors.reshape(len(tokens), rows, columns, 3), sigma[:3] ** 2 / (sigma**2).sum()


@pytest.mark.parametrize("front", [0, 1])
@pytest.mark.parametrize("d", [7, 61])
def test_pca_equals_singular_vectors(front, d):
    tokens = torch.randn(3, front + 15, d, generator=torch.Generator().manual_seed(d)) + 3
    found, shares = pca_colors(tokens, (5, 3))
    expected, expected_shares = naive_colors(tokens, (5, 3))
    np.testing.assert_allclose(found, expected, atol=1e-8)
    np.testing.assert_allclose(shares, expected_shares, rtol=1e-8)
    assert found.min() == 0
    assert found.max() == 1


def test_pca_leaves_the_class_token_out_and_paints_planted_regions():
    tokens = torch.zeros(2, 1 + 12, 5)
    tokens[:, 0] = 1e6  # a class token that would drown all others
    half = torch.arange(12).view(4, 3) % 3 == 0
    tokens[:, 1:][:, half.flatten()] = torch.tensor([2.0, 0, 0, 0, 0])
    colors, shares = pca_colors(tokens, (4, 3))
    assert (colors[:, half, 0] == 1).all()
    assert (colors[:, ~half, 0] == 0).all()
    assert (colors[..., 1:] == 0.5).all()  # nothing varies there
    np.testing.assert_allclose(shares, [1, 0, 0], atol=1e-12)
    even, none = pca_colors(torch.ones(2, 12, 2), (4, 3))
    assert (even == 0.5).all()
    assert not none.any()
    refused("14 tokens do not fill the grid 4 × 3", pca_colors, torch.ones(2, 14, 5), (4, 3))


def test_pca_panel():
    model = toys.CrateModel(toys.vision(num_hidden_layers=7)).eval()
    passed = trace(model, toys.pixels(5))
    panel = pca_panel(passed, pictures(5), (3, 2), shown=2)
    assert panel.table["layer"].tolist() == [1, 3, 4, 5, 7]
    shares = pca_colors(passed.tokens[7], (3, 2))[1]
    assert panel.table.iloc[-1, 1:].tolist() == pytest.approx(shares.tolist())
    assert f"{shares.sum():.0%} after layer 7 of the variance" in panel.measured
    assert panel.measured.startswith("Over 5 images")
    figure = Figure()
    panel.draw(figure)
    figure.draw_without_rendering()
    drawn = [np.asarray(axes.get_images()[0].get_array()) for axes in figure.axes]
    assert len(drawn) == 2 * 6
    np.testing.assert_array_equal(drawn[6], np.asarray(pictures(5)[1]))
    np.testing.assert_allclose(drawn[11], pca_colors(passed.tokens[7], (3, 2))[0][1])
    refused("do not fill the grid", pca_panel, passed, pictures(5), (3, 3))


@pytest.mark.parametrize("shape", [(1, 3, 50), (1, 50, 50), (2, 16, 3)])
def test_the_label_of_the_color_scale_is_never_clipped(shape):
    """A figure of few tokens is low; beside it, a vertical label would be longer than the figure is high."""
    figure = Figure()
    FigureCanvasAgg(figure)
    token_panel(planted([torch.randn(shape), torch.randn(shape)])).draw(figure)
    figure.canvas.draw()
    (bar,) = (axes for axes in figure.axes if axes.get_xlabel())
    assert "percentile" in bar.get_xlabel()
    box = bar.xaxis.label.get_window_extent()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1
