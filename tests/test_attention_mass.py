"""The patches that hold a share of the attention, against sets tried one size after the other in exact numbers."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from codingrate._attention_mass import MASS, at_size, check_mass, mass_masks
from tests.refusals import refused


def naive_running(values, mass):
    """In rising order, keep those whose running share exceeds 1 − mass."""
    total, running, kept = sum(values), 0.0, set()
    for place in sorted(range(len(values)), key=lambda i: values[i]):
        running += values[place] / total
        if running > 1 - mass:
            kept.add(place)
    return [place in kept for place in range(len(values))]


def naive_fewest(values, mass):
    """How many patches the smallest set that holds the share has, every set tried."""
    exact = [Fraction(value) for value in values]
    wanted = Fraction(str(mass)) * sum(exact)
    for count in range(1, len(values) + 1):
        if any(sum(chosen) >= wanted for chosen in combinations(exact, count)):
            return count
    raise AssertionError("all patches hold everything")


@pytest.mark.parametrize("mass", [0.1, 0.6, 0.9, 1.0])
def test_masks_hold_their_share(mass):
    maps = np.random.default_rng(0).random((3, 5, 7)) ** 3
    masks = mass_masks(maps, mass)
    for head, mask in zip(maps, masks, strict=True):
        assert mask.ravel().tolist() == naive_running(head.ravel().tolist(), mass)
        assert head[mask].sum() / head.sum() >= mass - 1e-12


@pytest.mark.parametrize("most", [1, 3, 50])
def test_no_smaller_set_does(most):
    """Whole numbers have many ties and sums that meet the share exactly; most = 1 is even attention."""
    for mass in (0.1, 0.3, 0.5, 0.6, 0.7, 0.9, 1.0):
        check_fewest(most, mass)


def check_fewest(most, mass):
    draw = np.random.default_rng(most)
    for size in ((2, 5), (1, 7)):
        attention = draw.integers(1, most + 1, size)
        mask = mass_masks(attention, mass)
        assert mask.sum() == naive_fewest(attention.ravel().tolist(), mass)
        assert attention[mask].min() >= attention[~mask].max(initial=0)
        assert attention[mask].sum() / attention.sum() >= mass - 1e-12


def test_of_equal_patches_the_later_are_kept():
    assert mass_masks(np.ones((2, 5)), 0.3).ravel().tolist() == [False] * 7 + [True] * 3


@pytest.mark.parametrize(("height", "width"), [(29, 23), (5, 7), (3, 2)])
def test_masks_at_the_size_of_an_image(height, width):
    masks = np.random.default_rng(1).random((3, 5, 7)) < 0.5
    large = at_size(masks, height, width)
    assert large.shape == (3, height, width)
    for y in range(height):
        for x in range(width):
            assert (large[:, y, x] == masks[:, y * 5 // height, x * 7 // width]).all()


@pytest.mark.parametrize("mass", [0.0, 1.1, float("nan")])
def test_a_share_that_is_none(mass):
    refused("the share of attention must lie in (0, 1]", mass_masks, np.ones((1, 2, 2)), mass)
    refused("--mass must lie in (0, 1]", check_mass, mass, "--mass")


@pytest.mark.parametrize("value", [np.nan, -1.0, 0.0])
def test_maps_that_are_none(value):
    refused("must be finite", mass_masks, np.full((1, 2, 2), value))


def test_the_default_share_is_the_one_of_dino():
    """visualize_attention.py of DINO keeps 60 % of the mass."""
    values = np.array([[0.05, 0.3, 0.25, 0.4]])
    assert mass_masks(values).tolist() == mass_masks(values, 0.6).tolist() != mass_masks(values, 0.75).tolist()
    assert MASS == 0.6
