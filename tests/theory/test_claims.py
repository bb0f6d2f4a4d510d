"""Every claim has its expected verdict; the helpers of claims measure what they say."""

import pytest
import torch

from codingrate.theory.claims import CLAIMS, Trial, operators, unrolled, verify


@pytest.mark.parametrize("name", CLAIMS)
def test_claim_has_its_expected_verdict(name):
    (outcome,) = verify([name])
    finding = outcome.finding
    assert outcome.ok, finding
    assert finding.numbers
    assert all(isinstance(value, int | float) for value in finding.numbers.values())
    assert finding.reason or finding.verdict == "holds"
    assert len({len(column) for column in finding.table.values()}) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", CLAIMS)
def test_claims_do_not_depend_on_the_seed(name, seed):
    assert verify([name], Trial(seed))[0].ok


def test_tokens_of_equal_products_and_the_share_outside_a_subspace():
    z = unrolled.coherent_tokens(5, 0.3, torch.Generator().manual_seed(0))
    torch.testing.assert_close(z @ z.mT, 0.3 + 0.7 * torch.eye(5, dtype=torch.float64))
    tokens = torch.tensor([[3.0, 0, 4, 0, 0, 0], [0, 0, 0, 2, 0, 0]], dtype=torch.float64)
    bases = torch.eye(6, dtype=torch.float64).view(6, 3, 2).transpose(0, 1)
    share = operators.off_share(tokens, bases, torch.tensor([0, 1]))
    assert share == pytest.approx((0.8**2 / 2) ** 0.5)
