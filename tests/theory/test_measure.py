"""The measurements that claims share, on data with known answers."""

import math

import pytest
import torch

from codingrate.theory.claims.frame import (
    cosine,
    covariance_scores,
    critical,
    estimate,
    power_law,
    relative,
    rounding,
    z_scores,
)


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
    law = power_law(x, y, 2.0)
    assert law.exponent == 2.0
    assert math.prod(law.constant * value**2 for value in x) == pytest.approx(math.prod(y))


def test_an_estimate_is_mean_and_standard_error():
    result = estimate([1.0, 2.0, 6.0])
    assert result.mean == pytest.approx(3.0)
    assert result.error == pytest.approx(math.sqrt(7 / 3))  # s² = 7


def test_cosine_and_relative_distance():
    a, b = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    assert cosine(a, b) == pytest.approx(0.8)
    assert cosine(a, -a) == pytest.approx(-1)
    assert relative(a, b) == pytest.approx(math.sqrt(13) / 2)


def test_rounding_is_in_units_of_the_last_place():
    assert rounding(3, 2.0) == 6 * torch.finfo(torch.float64).eps


def test_limits_and_scores_of_sample_means():
    assert critical(1) == pytest.approx(3.29, abs=0.01)
    assert critical(100) == pytest.approx(4.42, abs=0.01)
    sample = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 7.0]])
    torch.testing.assert_close(z_scores(sample, torch.tensor([2.0, 5.0])), torch.tensor([3**0.5 / 2, 0.0]))
    squares = torch.stack([sample[:, 0] ** 2, sample[:, 0] * sample[:, 1], sample[:, 1] ** 2], dim=-1)
    scores = covariance_scores(sample, torch.tensor([[2.0, 3.0], [3.0, 5.0]]))
    torch.testing.assert_close(scores, z_scores(squares, torch.tensor([2.0, 3.0, 5.0])))
