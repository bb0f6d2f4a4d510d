"""Gram matrices, coherence and principal angles against loops and scipy, and on subspaces that are planted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from matplotlib.figure import Figure

from codingrate.inspection.measure.subspaces import (
    gram,
    principal_cosines,
    random_directions,
    random_mean_cosine,
    subspace_coherence,
)
from codingrate.inspection.report.subspaces import subspace_panels
from codingrate.objective import random_bases
from tests.models import toys
from tests.refusals import refused

K, D, P = 3, 17, 5


def random_u(seed=0, shape=(K, D, P)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def naive_cosines(columns):
    """The cosine of any two rows."""
    lengths = np.sqrt((columns**2).sum(axis=1))
    return columns @ columns.T / np.outer(lengths, lengths)


def with_bases(model, layers):
    """Put bases (K, d, p) into the layers of a model."""
    for layer, bases in zip(model.base_model.layers, layers, strict=True):
        with torch.no_grad():
            layer.attention.project.weight.copy_(bases.mT.flatten(0, 1))
    return model


def test_gram_is_every_cosine_in_its_place():
    bases = random_u()
    found = gram(bases)
    assert found.shape == (K * P, K * P)
    columns = np.array([bases[k, :, i].tolist() for k in range(K) for i in range(P)])
    np.testing.assert_allclose(found.numpy(), naive_cosines(columns), atol=1e-12)
    bases[1, :, 2] = 0
    assert gram(bases)[P + 2].abs().max() == 0
    assert gram(bases.bfloat16()).dtype == torch.float32


def test_random_directions_are_columns_and_stay_the_same():
    bases = random_u()
    found = random_directions(bases, 4)
    assert found.shape == (K, D, 4)
    for k in range(K):
        own = [next(i for i in range(P) if torch.equal(bases[k, :, i], column)) for column in found[k].T]
        assert own == sorted(set(own))
    assert torch.equal(found, random_directions(bases, 4))
    wide = random_u(shape=(2, 5, 31))
    assert random_directions(wide).shape == (2, 5, 4)  # the paper's figure shows four columns of each U_k
    assert not torch.equal(random_directions(wide, 4, seed=1), random_directions(wide, 4, seed=2))
    assert random_directions(bases, P) is bases


def test_principal_cosines_equal_scipys_angles():
    bases = random_u()
    found = principal_cosines(bases)
    pairs = [(k, m) for k in range(K) for m in range(k + 1, K)]
    assert found.shape == (len(pairs), P)
    for row, (k, m) in zip(found, pairs, strict=True):
        angles = scipy.linalg.subspace_angles(bases[k].numpy(), bases[m].numpy())  # falling
        np.testing.assert_allclose(row.numpy(), np.cos(angles[::-1]), atol=1e-12)


def test_principal_cosines_of_planted_subspaces():
    orthogonal = random_bases(K, D, P, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert principal_cosines(orthogonal).max() < 1e-12
    mixed = torch.stack([orthogonal[0], orthogonal[0] @ random_u(2, (P, P))])  # one subspace, two bases
    torch.testing.assert_close(principal_cosines(mixed), torch.ones(1, P, dtype=torch.float64))
    assert principal_cosines(random_u(shape=(2, 3, 7))).shape == (1, 3)  # wider than the space: all of it
    torch.testing.assert_close(principal_cosines(random_u(shape=(2, 3, 7))), torch.ones(1, 3, dtype=torch.float64))
    assert principal_cosines(random_u(shape=(1, D, P))).shape == (0, P)


def test_a_direction_that_is_missing_counts_as_orthogonal():
    bases = random_u(shape=(2, D, 3))
    poor = bases.clone()
    poor[0, :, 1] = -2 * poor[0, :, 0]  # rank two
    angles = scipy.linalg.subspace_angles(bases[0][:, [0, 2]].numpy(), bases[1].numpy())
    expected = [*np.cos(angles[::-1]), 0.0]
    np.testing.assert_allclose(principal_cosines(poor)[0].numpy(), expected, atol=1e-12)
    poor[0] = 0
    assert principal_cosines(poor).abs().max() == 0


@pytest.mark.parametrize("d", [1, 2, 3, 101])
def test_random_mean_cosine_equals_the_integral_over_the_sphere(d):
    if d == 1:
        assert random_mean_cosine(d) == pytest.approx(1)
        return
    # ⟨u, v⟩ = cos t with density sin^{d-2} t; the midpoint rule keeps clear of the ends.
    t = (np.arange(200_000) + 0.5) * np.pi / 200_000
    density = np.sin(t) ** (d - 2)
    assert random_mean_cosine(d) == pytest.approx(float((np.abs(np.cos(t)) * density).sum() / density.sum()), rel=1e-6)
    if d == 101:
        assert random_mean_cosine(d) == pytest.approx(math.sqrt(2 / (math.pi * d)), rel=0.01)


def naive_row(bases, dictionary):
    """Everything in the table but the random references, entry by entry."""
    heads, _, p = bases.shape
    size = np.abs(naive_cosines(np.concatenate([basis.T for basis in bases.numpy()])))
    pairs = list(itertools.combinations(range(heads * p), 2))
    across, within = ([size[i, j] for i, j in pairs if (i // p == j // p) is same] for same in (False, True))
    cosines = [
        np.cos(scipy.linalg.subspace_angles(bases[k].numpy(), bases[m].numpy()))
        for k in range(heads)
        for m in range(k + 1, heads)
    ]
    atoms = dictionary.T.numpy()
    others = np.abs(naive_cosines(atoms))[np.tril_indices(len(atoms), -1)]
    gap = np.linalg.norm(atoms @ atoms.T - np.eye(len(atoms)))
    return {
        "across_mean": np.mean(across), "across_max": max(across),
        "within_mean": np.mean(within), "within_max": max(within),
        "cosine_max": np.mean([c.max() for c in cosines]), "cosine_mean": np.mean(cosines),
        "angle_min": math.degrees(math.acos(max(c.max() for c in cosines))),
        "dictionary_mean": np.mean(others), "dictionary_max": max(others), "dictionary_gap": gap / len(atoms) ** 0.5,
    }  # fmt: skip


@pytest.mark.parametrize("task", ["image-classification", "masked-autoencoding", "causal-lm"])
def test_the_table_equals_loops_over_the_encoders_layers(task):
    model = toys.build(task).double()
    table = subspace_coherence(model)
    assert table["layer"].tolist() == [1, 2]
    for row, layer in zip(table.to_dict("records"), model.base_model.layers, strict=True):
        bases, dictionary = layer.attention.bases.detach(), layer.sparsifier.dictionary.detach()
        for name, expected in naive_row(bases, dictionary).items():
            assert row[name] == pytest.approx(expected, rel=1e-9), name
        assert row["random"] == random_mean_cosine(bases.shape[1])
        assert 0 < row["random_cosine_mean"] < row["random_cosine_max"] <= 1


def test_orthogonal_and_identical_subspaces():
    orthogonal = random_bases(3, 15, 5, generator=torch.Generator().manual_seed(3))
    model = with_bases(toys.CrateModel(toys.vision()), [orthogonal, orthogonal[:1].expand(3, 15, 5)])
    apart, same = subspace_coherence(model).to_dict("records")
    assert max(apart["across_max"], apart["within_max"], apart["cosine_max"]) < 1e-5
    assert apart["angle_min"] == pytest.approx(90, abs=1e-3)
    assert same["cosine_mean"] == pytest.approx(1, abs=1e-5)
    assert same["across_max"] == pytest.approx(1, abs=1e-5)
    assert same["across_mean"] == pytest.approx(1 / 5, abs=1e-5)  # each column meets itself among five
    assert same["angle_min"] < 0.1


def test_what_a_layer_lacks_is_not_a_number():
    black = toys.CrateModel(toys.vision(attention="mhsa", sparsifier="mlp"))
    table = subspace_coherence(black)
    assert table.drop(columns=["layer", "random"]).isna().all(axis=None)
    assert subspace_panels(black) == []
    half = toys.CrateModel(toys.vision(attention="mhsa"))
    assert [panel.name for panel in subspace_panels(half)] == ["dictionaries"]
    single = toys.CrateModel(toys.vision(num_attention_heads=1, sparsifier="mlp"))
    assert [panel.name for panel in subspace_panels(single)] == ["subspaces"]
    assert subspace_coherence(single)["across_mean"].isna().all()
    wide = toys.CrateModel(toys.vision(sparsifier="odl"))
    expected = wide.layers[0].sparsifier.dictionary.detach()
    assert expected.shape[1] > expected.shape[0]
    assert subspace_coherence(wide)["dictionary_max"][0] == pytest.approx(
        float((gram(expected[None]).abs() - torch.eye(expected.shape[1])).max()), rel=1e-5
    )


def coherent(share, seed):
    """Three heads of 15 × 5 whose columns share a direction, the more the larger `share`."""
    common = random_u(99, (15, 1))
    return (random_u(seed, (3, 15, 5)) * (1 - share) + common * share).float()


@pytest.mark.parametrize(("shares", "word"), [((0.9, 0.6, 0.0), "falls in every"), ((0.0, 0.6, 0.9), "rises in every")])
def test_sentences_follow_the_numbers(shares, word):
    model = toys.CrateModel(toys.vision(num_hidden_layers=3))
    model = with_bases(model, [coherent(share, seed) for seed, share in enumerate(shares)])
    panels = {panel.name: panel for panel in subspace_panels(model)}
    assert list(panels) == ["subspaces", "coherence", "principal-angles", "dictionaries"]
    table = subspace_coherence(model)
    assert f"different heads {word} layer ({table['across_mean'][0]:.3g}" in panels["coherence"].measured
    below = int((table["across_mean"] < table["random"]).sum())
    words = {0: "in no layer", 3: "in every layer"}.get(below, f"in {below} of 3 layers")
    assert panels["coherence"].measured.endswith(f"{words}.")
    largest = int(table["across_max"].argmax()) + 1
    assert f"at most, in layer {largest}." in panels["subspaces"].measured
    smallest = int(table["angle_min"].argmin())
    assert f"{table['angle_min'][smallest]:.1f}°, in layer {smallest + 1}" in panels["principal-angles"].measured


def test_below_random_in_every_layer():
    orthogonal = random_bases(3, 15, 5, generator=torch.Generator().manual_seed(3))
    model = with_bases(toys.CrateModel(toys.vision()), [orthogonal, orthogonal])
    assert subspace_panels(model)[1].measured.endswith("in every layer.")


def test_weights_that_are_not_finite_are_named():
    model = toys.build("image-classification")
    with torch.no_grad():
        next(model.crate.layers[1].sparsifier.parameters())[0, 0] = torch.nan
    refused("the weights of layer 2 hold NaN or infinity", subspace_coherence, model)


def test_panels_draw():
    model = toys.CrateModel(toys.vision(num_hidden_layers=7))
    for panel in subspace_panels(model):
        figure = Figure()
        panel.draw(figure)
        figure.draw_without_rendering()
        assert figure.get_figwidth() <= 9.5
        pictures = [axes.get_images()[0] for axes in figure.axes if axes.get_images()]
        if panel.name == "subspaces":
            for picture, layer in zip(pictures, model.layers, strict=True):
                expected = gram(random_directions(layer.attention.bases.detach())).abs()
                np.testing.assert_allclose(np.asarray(picture.get_array()), expected.numpy())
            continue
        assert not pictures
        assert all(axes.lines for axes in figure.axes)
        for axes in figure.axes:
            assert axes.get_ylim()[1] > max(np.max(line.get_ydata()) for line in axes.lines)
            for line in axes.lines:
                column = [name for name in panel.table if np.array_equal(panel.table[name], line.get_ydata())]
                assert column[0].startswith("random") == (line.get_linestyle() == "--")
