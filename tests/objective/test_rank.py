import numpy as np
import pytest
import torch

from codingrate.objective import effective_rank
from tests.refusals import refused


def naive(z):
    """From the singular values themselves, one sample at a time."""
    sigma = np.linalg.svd(z.double().numpy(), compute_uv=False)
    p = sigma / sigma.sum()
    return float(np.exp(-sum(share * np.log(share) for share in p if share > 0)))


def test_equals_the_entropy_of_the_singular_values(case):
    z, _ = case
    z = z * torch.logspace(0, -3, z.shape[-1], dtype=z.dtype)  # singular values of several sizes
    found = effective_rank(z)
    assert found.shape == z.shape[:-2]
    expected = torch.tensor([naive(sample) for sample in z.reshape(-1, *z.shape[-2:])], dtype=z.dtype)
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-8, atol=0)


def test_planted_ranks(rng):
    frame = torch.linalg.qr(torch.randn(23, 17, generator=rng, dtype=torch.float64))[0]
    for rank in (1, 5, 17):
        z = frame[:, :rank] @ torch.linalg.qr(torch.randn(19, rank, generator=rng, dtype=torch.float64))[0].mT
        assert effective_rank(z).item() == pytest.approx(rank, rel=1e-6)
        assert effective_rank(z).item() <= rank * (1 + 1e-12)
    uneven = frame[:, :2] @ torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64)) @ frame[:2, :2].mT
    two = effective_rank(torch.diag(torch.tensor([3.0, 1.0, 0.0])))
    assert two.item() == pytest.approx(4 / 3**0.75)  # exp(−¾ log ¾ − ¼ log ¼)
    assert 1 < effective_rank(uneven) < 2


def test_scale_zero_rows_and_precision_change_nothing(rng):
    z = torch.randn(2, 11, 7, generator=rng, dtype=torch.float64)
    expected = effective_rank(z)
    for scale in (1e-200, 1e200):
        torch.testing.assert_close(effective_rank(z * scale), expected)
    padded = torch.cat([z, torch.zeros(2, 5, 7, dtype=z.dtype)], 1)
    torch.testing.assert_close(effective_rank(padded), expected)
    single = effective_rank(z.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-6, atol=0)
    half = z.bfloat16()
    assert effective_rank(half).dtype == torch.float32
    torch.testing.assert_close(effective_rank(half).double(), effective_rank(half.double()), rtol=1e-6, atol=0)


def test_zero_and_bad_samples_leave_the_others_alone(rng):
    z = torch.randn(4, 7, 5, generator=rng)
    good = effective_rank(z)
    z[0] = 0
    z[2, 3, 1] = torch.nan
    z[3, 0, 0] = torch.inf
    found = effective_rank(z)
    assert found[0] == 0
    assert found[1] == good[1]
    assert found[2:].isnan().all()
    assert effective_rank(z[:0]).shape == (0,)


def test_tokens_must_be_tokens():
    refused("floating-point tensor", effective_rank, torch.ones(3, 2, dtype=torch.int64))
    refused("z must be tokens", effective_rank, torch.ones(3))
