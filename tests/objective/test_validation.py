import pytest
import torch

from codingrate import objective as ob
from codingrate.errors import CrateError

Z, U = torch.ones(7, 5), torch.ones(3, 5, 2)
ON_TOKENS = [
    ob.coding_rate,
    ob.coding_rate_gradient,
    ob.projected_coding_rate,
    ob.l0_norm,
    ob.l0_fraction,
    ob.l1_norm,
    lambda z: ob.fraction_below(z, [0.1]),
    lambda z: ob.class_coding_rate(z, torch.ones(3, 7)),
    lambda z: ob.subspace_coding_rate(z, U),
    lambda z: ob.rate_reduction(z, U),
    lambda z: ob.sparse_rate_reduction(z, U),
    lambda z: ob.subspace_coding_rate_gradient(z, U),
    lambda z: ob.coding_rate_hvp(z, Z),
    lambda z: ob.coding_rate_hvp(Z, z),
]


@pytest.mark.parametrize("function", ON_TOKENS)
def test_tokens_must_be_floating_and_have_two_axes(function):
    with pytest.raises(CrateError, match=r"must be a floating-point tensor, got torch.int64"):
        function(Z.long())
    with pytest.raises(CrateError, match=r"must be a floating-point tensor, got list"):
        function([[1.0]])
    with pytest.raises(CrateError, match=r"must be tokens \(\.\.\., n, d\) with n, d ≥ 1, got shape \(5,\)"):
        function(Z[0])
    with pytest.raises(CrateError, match=r"n, d ≥ 1, got shape \(0, 5\)"):
        function(Z[:0])


@pytest.mark.parametrize("function", [ob.subspace_coding_rate, ob.rate_reduction, ob.subspace_coding_rate_gradient])
def test_bases_must_fit(function):
    with pytest.raises(CrateError, match=r"bases must be \(K, d, p\), got shape \(5, 2\)"):
        function(Z, U[0])
    with pytest.raises(CrateError, match=r"bases have d = 2 but the tokens z have d = 5"):
        function(Z, U.mT)
    with pytest.raises(CrateError, match=r"bases must be a floating-point tensor, got torch.int64"):
        function(Z, U.long())


@pytest.mark.parametrize("eps", [0.0, -1.0, float("nan")])
def test_eps_must_be_positive(eps):
    calls = [
        lambda: ob.coding_rate(Z, eps),
        lambda: ob.class_coding_rate(Z, torch.ones(3, 7), eps),
        lambda: ob.sparse_rate_reduction(Z, U, eps),
        lambda: ob.coding_rate_gradient(Z, eps),
        lambda: ob.subspace_coding_rate_gradient(Z, U, eps),
        lambda: ob.coding_rate_hvp(Z, Z, eps),
        lambda: ob.coding_rate_lipschitz(7, 5, eps),
    ]
    for call in calls:
        with pytest.raises(CrateError, match=f"eps must be positive, got {eps}"):
            call()


@pytest.mark.parametrize("eps", ["0.5", None, True, [0.5], torch.tensor(0.5), 1j])
def test_eps_must_be_a_number(eps):
    with pytest.raises(CrateError, match="eps must be a number, got a "):
        ob.coding_rate(Z, eps)


@pytest.mark.parametrize("eps", [1e-200, 1e-13, 1e13, 1e200, 10**400, float("inf")])
def test_eps_must_not_be_extreme(eps):
    for call in (lambda: ob.coding_rate(Z, eps), lambda: ob.coding_rate_lipschitz(7, 5, eps)):
        with pytest.raises(CrateError, match=r"eps must lie between 1e-12 and 1e\+12"):
            call()


@pytest.mark.parametrize("z", [Z.to_sparse(), Z.to("meta"), Z.to(torch.float8_e4m3fn)], ids=["sparse", "meta", "fp8"])
def test_tokens_must_be_dense_and_have_values(z):
    for function in ON_TOKENS:
        with pytest.raises(CrateError, match="must be a dense tensor with values in at least 16 bits"):
            function(z)


def test_memberships_must_fit():
    for bad in ([[1.0] * 7], torch.ones(3, 7, dtype=torch.complex64)):
        with pytest.raises(CrateError, match="memberships must be a tensor of real numbers"):
            ob.class_coding_rate(Z, bad)
    for bad in (torch.nan, torch.inf, 3e38):
        with pytest.raises(CrateError, match="memberships must be finite"):
            ob.class_coding_rate(Z, torch.full((3, 7), bad))
    with pytest.raises(CrateError, match=r"memberships must be \(\.\.\., K, n\) with n = 7 tokens, got shape \(7, 3\)"):
        ob.class_coding_rate(Z, torch.ones(7, 3))
    with pytest.raises(CrateError, match=r"n = 7 tokens, got shape \(7,\)"):
        ob.class_coding_rate(Z, torch.ones(7))
    with pytest.raises(CrateError, match=r"memberships have leading axes \(2,\) but the tokens z have \(4,\)"):
        ob.class_coding_rate(Z.expand(4, 7, 5), torch.ones(2, 3, 7))
    with pytest.raises(CrateError, match="memberships must not be negative"):
        ob.class_coding_rate(Z, -torch.ones(3, 7))


def test_unknown_names_offer_the_nearest():
    with pytest.raises(CrateError, match="unknown method 'exakt'; did you mean 'exact'"):
        ob.subspace_coding_rate_gradient(Z, U, 0.5, "exakt")
    with pytest.raises(CrateError, match=r"unknown norm 'l2'; did you mean 'l[01]'"):
        ob.sparse_rate_reduction(Z, U, norm="l2")
    with pytest.raises(CrateError, match="unknown coherence 'incoherant'; did you mean 'incoherent'"):
        ob.random_bases(2, 5, 2, "incoherant")


def test_the_rest():
    with pytest.raises(CrateError, match='identity_projection is a step of method="attention"'):
        ob.subspace_coding_rate_gradient(Z, U, identity_projection=True)
    with pytest.raises(CrateError, match=r"direction must be \(\.\.\., n, d\) = \(\.\.\., 7, 5\) like z"):
        ob.coding_rate_hvp(Z, Z.mT)
    with pytest.raises(CrateError, match="n and d must be at least 1"):
        ob.coding_rate_lipschitz(0, 5)
    with pytest.raises(CrateError, match=r'"orthonormal" needs K·p ≤ d, got 3·2 > 5; use coherence="incoherent"'):
        ob.random_bases(3, 5, 2)
    with pytest.raises(CrateError, match=r"p ≤ d, got K = 1, d = 3, p = 4"):
        ob.random_bases(1, 3, 4)
    with pytest.raises(CrateError, match="n must be at least 1, got 0"):
        ob.sample_tokens(U, 0)
    with pytest.raises(CrateError, match=r"sigma must be finite and not negative, got -0\.1"):
        ob.sample_tokens(U, 3, sigma=-0.1)
    with pytest.raises(CrateError, match="bases must be"):
        ob.coherence(U[0])
    assert ob.coherence(U * torch.nan).isnan()
    with pytest.raises(CrateError, match="thresholds must not be negative"):
        ob.fraction_below(Z, [-1.0])
