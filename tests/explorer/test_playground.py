"""The playground: its lines, its layers against the operators, and what they lower."""

import dataclasses
import math

import pytest
import torch

from codingrate import objective as ob
from codingrate.explorer import PlaySettings, play
from codingrate.explorer.playground import EPS, METHODS, lines
from codingrate.theory.unrolled import compression_smoothness
from tests.refusals import refused


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("angle", [10.0, 47.0, 90.0])
def test_lines_have_the_angle(count, angle):
    gram = lines(count, angle)[:, :, 0] @ lines(count, angle)[:, :, 0].T
    expected = torch.full((count, count), math.cos(math.radians(angle)), dtype=gram.dtype).fill_diagonal_(1)
    torch.testing.assert_close(gram, expected)
    assert (lines(count, angle) >= -1e-12).all()


def test_a_layer_is_a_gradient_step_and_ista():
    settings = PlaySettings(method="exact", rescale=False, layers=1, angle=60.0)
    result = play(settings)
    z, bases = result.tokens[0], result.bases
    step = settings.step / compression_smoothness(bases, settings.tokens, EPS)
    half = z - step * ob.subspace_coding_rate_gradient(z, bases, EPS)
    torch.testing.assert_close(result.tokens[1], torch.relu(half - settings.threshold))


@pytest.mark.parametrize("angle", [30.0, 90.0])
def test_exact_steps_lower_the_rate(angle):
    table = play(PlaySettings(method="exact", sparsify=False, rescale=False, angle=angle)).table
    assert table["compression"].is_monotonic_decreasing


def test_the_default_compresses_onto_the_lines_and_keeps_the_rate():
    table = play(PlaySettings()).table
    first, last = table.iloc[0], table.iloc[-1]
    assert last["distance"] < 0.2 * first["distance"]
    assert last["compression"] < first["compression"]
    assert last["nonzero"] < 0.3 < 0.9 < first["nonzero"]
    assert last["rate"] > 0.9 * first["rate"]


def test_ista_off_leaves_all_entries():
    table = play(PlaySettings(sparsify=False)).table
    assert (table["nonzero"] == 1).all()


@pytest.mark.parametrize("method", METHODS.values())
def test_every_method_runs_and_keeps_the_size(method):
    result = play(PlaySettings(method=method, subspaces=2))
    sizes = [float(z.norm()) for z in result.tokens]
    assert sizes == pytest.approx([sizes[0]] * len(sizes), rel=1e-9)
    assert len(result.table) == len(result.tokens) == 13


def test_bad_settings_are_refused():
    for change in ({"subspaces": 4}, {"sigma": math.nan}, {"tokens": 10**9}, {"method": "magic"}):
        refused("must be", dataclasses.replace, PlaySettings(), **change)
