"""The decoder's layer undoes the encoder's: to what order, up to what, and with which dictionary."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from codingrate.errors import CrateError
from codingrate.objective import random_bases, sample_tokens
from codingrate.theory.inverse import TiedLayers, completed, inversion_error
from tests.operators import oracles
from tests.operators.cases import DEFAULTS

K, D, P, N = 3, 17, 5, 1009  # the last two dimensions belong to no subspace


@pytest.fixture(scope="module")
def bases():
    return random_bases(K, D, P, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def error(bases, sigma, step, sparsity=0.0, n=N, **options):
    """The same tokens and the same noise every time."""
    return inversion_error(bases, n, sigma, step, sparsity, generator=torch.Generator().manual_seed(2), **options)


@pytest.mark.parametrize("sparsifier", ["ista", "ista-soft"])
def test_the_layers_are_the_equations(bases, sparsifier):
    n, step, eta, lam = 7, 0.3, 0.7, 0.2
    z = sample_tokens(bases, n, 0.1).tokens[None]
    dictionary = torch.randn(D, D, dtype=torch.float64)
    layers = TiedLayers(bases, dictionary, step, lam, eta, sparsifier)
    sizes = {"num_heads": K, "head_dim": P, "eps": math.sqrt(P / (n * step))}
    spec = SimpleNamespace(**{**DEFAULTS["attention"], **sizes})

    def attention(z):
        return oracles.attention("mssa-tied", {"project.weight": bases.mT.flatten(0, 1)}, spec, z)[0]

    codes = oracles.sparsifier(
        sparsifier,
        {"dictionary": dictionary},
        SimpleNamespace(step_size=eta, sparsity=lam, steps=1),
        z + attention(z),
    )
    torch.testing.assert_close(layers.encode(z), codes, rtol=1e-9, atol=1e-12)
    for adjoint, E in ((False, dictionary), (True, dictionary.T)):
        y = torch.stack([E @ token for token in codes[0]])[None]
        torch.testing.assert_close(layers.decode(codes, adjoint), y - attention(y), rtol=1e-9, atol=1e-12)


def test_attention_is_undone_to_second_order(bases):
    errors = [error(bases, 0.0, step) for step in (0.04, 0.02, 0.01, 0.005)]
    for coarse, fine in pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(2, abs=0.02)
    assert error(bases, 0.0, 0.0) < 1e-14  # nothing else is lost without noise and threshold


def test_the_threshold_is_what_remains_of_ista(bases):
    """Every active atom is moved by λ, and E α² = 1: the relative error tends to λ itself."""
    for lam, tolerance in ((0.1, 0.08), (0.01, 0.02), (0.001, 0.02)):  # atoms below λ move by less, a share of about λ
        assert error(bases, 0.0, 0.0, lam) / lam == pytest.approx(1, abs=tolerance)


def test_noise_is_lost_to_first_order(bases):
    """Of the d − p coordinates that hold noise alone the negative half is cut: σ√((d − p)/2p)."""
    slope = math.sqrt((D - P) / (2 * P))
    for sigma in (0.03, 0.01, 0.003, 0.001):
        assert error(bases, sigma, 0.0) / sigma == pytest.approx(slope, rel=0.03)
    assert error(bases, 0.03, 0.0, signed=True, sparsifier="ista-soft") < 1e-14  # both halves stay, λ = 0


def test_as_the_noise_shrinks_the_error_falls_to_what_step_and_threshold_leave(bases):
    step, lam = 0.01, 0.02
    noise = [0.3 / 3**k for k in range(7)]
    errors = [error(bases, sigma, step, lam) for sigma in noise]
    floor = error(bases, 0.0, step, lam)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] > floor
    gaps = [value - floor for value in errors]
    orders = [math.log(coarse / fine, 3) for coarse, fine in pairwise(gaps)]
    # σ ≫ λ is lost to first order; σ ≪ λ is removed where it is alone and adds to the floor in squares.
    assert orders[0] == pytest.approx(1, abs=0.1)
    assert orders[-1] == pytest.approx(2, abs=0.1)
    # On its own each leaves less than both, and both no more than their sum and the leak ISTA cuts: attention gives
    # every token O(β) of the other subspaces, which the threshold takes for noise.
    assert max(error(bases, 0.0, step), error(bases, 0.0, 0.0, lam)) < floor < lam + step


def test_the_adjoint_of_the_papers_remark_is_no_inverse(bases):
    """E = D* gives tokens turned by D twice over: as far from Z as two unrelated vectors, √2, at any noise."""
    for sigma in (0.1, 0.01, 0.0):
        assert error(bases, sigma, 0.001, adjoint=True) == pytest.approx(math.sqrt(2), rel=0.15)
        assert error(bases, sigma, 0.001) < 0.15


def test_signed_codes_need_the_two_sided_step(bases):
    """ISTA keeps the positive half of α: the relative error is √½ of the clean tokens."""
    assert error(bases, 0.0, 0.001, signed=True) == pytest.approx(math.sqrt(0.5), rel=0.03)
    assert error(bases, 0.0, 0.001, signed=True, sparsifier="ista-soft") < 1e-4


def test_a_short_ista_step_is_no_rotation(bases):
    """At the paper's η = 0.1 the step is (1 − η)Z + ηZD, nearer to Z itself than to its code."""
    assert error(bases, 0.0, 0.001, ista_step=0.1) > 0.5
    assert error(bases, 0.0, 0.001, ista_step=1.0) < 1e-4


def test_the_completed_dictionary_is_orthogonal_and_holds_the_bases(bases):
    dictionary = completed(bases)
    torch.testing.assert_close(dictionary.T @ dictionary, torch.eye(D, dtype=torch.float64), rtol=0, atol=1e-12)
    for k in range(K):
        torch.testing.assert_close(dictionary[:, k * P : (k + 1) * P], bases[k], rtol=0, atol=1e-12)
    wide = random_bases(5, 7, 3, coherence="incoherent")
    with pytest.raises(CrateError, match=r"^5 bases of dimension 3 cannot be columns"):
        completed(wide)


def test_bad_settings_are_refused(bases):
    with pytest.raises(CrateError, match=r"^step must not be negative, got -1$"):
        error(bases, 0.0, -1)
    with pytest.raises(CrateError, match=r"^sparsifier 'mlp' has no mirror; use 'ista' or 'ista-soft'$"):
        error(bases, 0.0, 0.1, sparsifier="mlp")
