import pytest
import torch


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(20240)


@pytest.fixture(params=[(), (3,), (2, 3)], ids=["lead0", "lead1", "lead2"])
def lead(request):
    return request.param


# (n, d, K, p): n against p and d both ways round, all prime and distinct.
@pytest.fixture(params=[(5, 13, 3, 7), (11, 13, 3, 7), (17, 13, 3, 7), (2, 19, 5, 3)], ids=str)
def sizes(request):
    return request.param


@pytest.fixture
def case(lead, sizes, rng):
    """Tokens z (*lead, n, d) and general (not orthonormal) bases (K, d, p) in float64."""
    n, d, K, p = sizes
    z = torch.randn(*lead, n, d, generator=rng, dtype=torch.float64)
    return z, torch.randn(K, d, p, generator=rng, dtype=torch.float64) / d**0.5
