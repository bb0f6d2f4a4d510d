"""The measurements that claims share, on data whose answer is known."""

import math

import pytest
import torch

from codingrate.theory.claims._measure import cosine, estimate, law_through, power_law, relative, rounding


def test_a_power_law_is_found_exactly():
    x = [0.1, 0.7, 2.0, 11.0]
    law = power_law(x, [3.0 * v**-1.5 for v in x])
    assert law == pytest.approx((-1.5, 3.0))
    assert power_law(x, torch.tensor(x, dtype=torch.float64).sqrt()).exponent == pytest.approx(0.5)


def test_the_slope_is_that_of_least_squares():
    """Points (0, 0), (1, 2), (2, 1) in log-log: slope ½."""
    assert power_law([1.0, math.e, math.e**2], [1.0, math.e**2, math.e]).exponent == pytest.approx(0.5)


def test_a_law_through_points_has_the_order_and_meets_their_middle():
    x, y = [1.0, 2.0, 4.0], [5.0, 3.0, 7.0]
    line = law_through(x, y, 2.0)
    assert power_law(x, line).exponent == pytest.approx(2.0)
    assert math.prod(line) == pytest.approx(math.prod(y))


def test_an_estimate_is_mean_and_standard_error():
    found = estimate([1.0, 2.0, 6.0])
    assert found.mean == pytest.approx(3.0)
    assert found.error == pytest.approx(math.sqrt(7 / 3))  # s² = 7


def test_cosine_and_relative_distance():
    a, b = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    assert cosine(a, b) == pytest.approx(0.8)
    assert cosine(a, -a) == pytest.approx(-1)
    assert relative(a, b) == pytest.approx(math.sqrt(13) / 2)


def test_rounding_is_in_units_of_the_last_place():
    assert rounding(3, 2.0) == 6 * torch.finfo(torch.float64).eps
