"""The measurements that claims share, on data with known answers."""

import math

import pytest
import torch

from codingrate.theory.claims import frame


def test_a_power_law_is_found_exactly_and_by_least_squares():
    x = [0.1, 0.7, 2.0, 11.0]
    assert frame.power_law(x, [3.0 * v**-1.5 for v in x]) == pytest.approx((-1.5, 3.0))
    assert frame.power_law(x, torch.tensor(x, dtype=torch.float64).sqrt()).exponent == pytest.approx(0.5)
    # Points (0, 0), (1, 2), (2, 1) in log-log have the slope ½.
    assert frame.power_law([1.0, math.e, math.e**2], [1.0, math.e**2, math.e]).exponent == pytest.approx(0.5)
    assert all(map(math.isnan, frame.power_law([1.0, 2.0], [1.0, 0.0])))


def test_an_estimate_is_mean_and_standard_error():
    assert frame.estimate([1.0, 2.0, 6.0]) == pytest.approx((3.0, math.sqrt(7 / 3)))  # s² = 7


def test_cosine_and_distances():
    a, b = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    assert (frame.cosine(a, b), frame.cosine(a, -a)) == pytest.approx((0.8, -1))
    assert frame.relative(a, b) == pytest.approx(math.sqrt(13) / 2)
    assert frame.rounding(3, 2.0) == 6 * torch.finfo(torch.float64).eps
    assert math.isnan(frame.worst([1.0, math.nan, 2.0]))


def test_limits_and_scores_of_sample_means():
    assert frame.critical(1) == pytest.approx(3.29, abs=0.01)
    assert frame.critical(100) == pytest.approx(4.42, abs=0.01)
    sample = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 7.0]])
    torch.testing.assert_close(frame.z_scores(sample, torch.tensor([2.0, 5.0])), torch.tensor([3**0.5 / 2, 0.0]))
    squares = torch.stack([sample[:, 0] ** 2, sample[:, 0] * sample[:, 1], sample[:, 1] ** 2], dim=-1)
    scores = frame.covariance_scores(sample, torch.tensor([[2.0, 3.0], [3.0, 5.0]]))
    torch.testing.assert_close(scores, frame.z_scores(squares, torch.tensor([2.0, 3.0, 5.0])))
