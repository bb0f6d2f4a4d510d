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


@pytest.mark.parametrize("seed", range(4))
def test_the_default_does_what_the_page_says_whatever_the_tokens(seed):
    table = play(PlaySettings(seed=seed)).table
    first, last = table.iloc[0], table.iloc[-1]
    assert last["compression"] < 0.95 * first["compression"]
    assert last["reduction"] > 1.1 * first["reduction"]
    assert last["distance"] < 0.8 * first["distance"]
    assert last["nonzero"] < 0.3 < 0.9 < first["nonzero"]
    if seed == PlaySettings().seed:  # in every layer, which is not so for all tokens
        assert table["compression"].is_monotonic_decreasing
        assert table["reduction"].is_monotonic_increasing
        assert last["rate"] > first["rate"]


def test_the_exact_gradient_of_the_compression_alone_lowers_the_rate_reduction():
    result = play(PlaySettings(method="exact", angle=90.0, sparsify=False))
    assert result.table["compression"].is_monotonic_decreasing
    assert (result.table["nonzero"] == 1).all()
    assert result.table["reduction"].is_monotonic_decreasing  # R falls faster
    first, last = (z.square().sum(0) / z.square().sum() for z in (result.tokens[0], result.tokens[-1]))
    assert first.max() < 0.5 < 0.9 < last.max()  # the tokens gather on fewer directions


@pytest.mark.parametrize("method", METHODS.values())
def test_every_method_runs_and_keeps_the_size(method):
    result = play(PlaySettings(method=method, subspaces=2))
    sizes = [float(z.norm()) for z in result.tokens]
    assert sizes == pytest.approx([sizes[0]] * len(sizes), rel=1e-9)
    assert len(result.table) == len(result.tokens) == 13


def test_bad_settings_are_refused():
    for change in ({"subspaces": 4}, {"sigma": math.nan}, {"tokens": 10**9}, {"method": "magic"}):
        refused("must be", dataclasses.replace, PlaySettings(), **change)
