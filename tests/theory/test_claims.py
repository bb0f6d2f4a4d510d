"""Every claim has its expected verdict and draws its figure; the helpers of claims measure what they say."""

import io

import pytest
import torch
from matplotlib.figure import Figure

from codingrate.theory.claims import CLAIMS, Trial, operators, unrolled, verify


def outcome(name, seed=0):
    (result,) = verify([name], Trial(seed))
    return result


@pytest.mark.parametrize("name", CLAIMS)
def test_claim_has_its_expected_verdict_and_draws(name):
    result = outcome(name)
    finding = result.finding
    assert finding.verdict == result.claim.expected, finding
    assert finding.numbers
    assert all(isinstance(value, int | float) for value in finding.numbers.values())
    if finding.verdict != "holds":
        assert finding.reason
    if finding.draw is not None:
        figure = Figure()
        finding.draw(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg")
        assert figure.axes
        assert figure.patch.get_alpha() == 0
        assert "<svg" in out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", CLAIMS)
def test_claims_do_not_depend_on_the_seed(name, seed):
    assert outcome(name, seed).ok


def test_tokens_of_equal_products():
    z = unrolled.coherent_tokens(5, 0.3, torch.Generator().manual_seed(0))
    products = z @ z.mT
    torch.testing.assert_close(products.diagonal(), torch.ones(5, dtype=torch.float64))
    off = products[~torch.eye(5, dtype=torch.bool)]
    torch.testing.assert_close(off, torch.full((20,), 0.3, dtype=torch.float64))


def test_the_share_outside_is_that_of_the_norm():
    bases = torch.eye(6, dtype=torch.float64).view(6, 3, 2).transpose(0, 1)
    z = torch.tensor([[3.0, 0, 4, 0, 0, 0], [0, 0, 0, 2, 0, 0]], dtype=torch.float64)
    share = operators.off_share(z, bases, torch.tensor([0, 1]))
    assert share == pytest.approx((0.8**2 / 2) ** 0.5)
