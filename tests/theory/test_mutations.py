"""Claims fail if the code is wrong: a flipped sign, a lost factor, a transposed dictionary, a wrong score or grid."""

import pytest
import torch

from codingrate.operators import DictionarySparsifier, TiedMSSA
from codingrate.theory import denoising as theory_denoising
from codingrate.theory import diffusion as theory_diffusion
from codingrate.theory.claims import Trial, denoising, diffusion, discretization, verify


def verdict(name):
    (outcome,) = verify([name], Trial(seed=1))
    return outcome.finding.verdict


def flip_mssa(monkeypatch):
    """MSSA with the wrong sign."""
    forward = TiedMSSA.forward

    def flipped(self, *args, **options):
        update, attention = forward(self, *args, **options)
        return -update, attention

    monkeypatch.setattr(TiedMSSA, "forward", flipped)


def drop_beta(monkeypatch):
    """MSSA without its factor β."""
    beta = TiedMSSA.beta
    monkeypatch.setattr(TiedMSSA, "beta", lambda self, *args: torch.ones_like(beta(self, *args)))


def transpose_dictionary(monkeypatch):
    """D* in the place of D."""
    atoms = DictionarySparsifier.atoms
    monkeypatch.setattr(DictionarySparsifier, "atoms", lambda self: atoms(self).mT)


@pytest.mark.parametrize(
    ("mutate", "names"),
    [
        (flip_mssa, ["mssa-gradient", "softmax-membership", "residual-layer", "layer-denoises"]),
        (drop_beta, ["softmax-membership", "attention-inverts"]),
        (transpose_dictionary, ["ista-descends", "ista-majoriser", "prox-step", "attention-inverts"]),
    ],
)
def test_a_wrong_operator_makes_named_claims_fail(monkeypatch, mutate, names):
    assert {outcome.claim.name for outcome in verify(names, Trial()) if outcome.ok} == set(names)
    mutate(monkeypatch)
    outcomes = verify(names, Trial())
    assert {outcome.claim.name for outcome in outcomes if not outcome.ok} == set(names)
    assert all("contradicts" in outcome.finding.reason for outcome in outcomes if outcome.finding.verdict == "fails")


def wrong_temperature(z, bases, sigma):
    return theory_denoising.attention_denoise(z, bases, sigma * 2**0.5)


def no_softmax(z, bases, sigma):
    return torch.einsum("...d,kdp,kep->...e", z, bases, bases) / len(bases)


@pytest.mark.parametrize("wrong", [wrong_temperature, no_softmax])
def test_a_wrong_attention_form_is_found(monkeypatch, wrong):
    monkeypatch.setattr(denoising, "attention_denoise", wrong)
    assert verdict("attention-order") == "fails"
    assert verdict("attention-projects") == "fails"


def test_a_wrong_sign_or_scale_of_the_score_is_found(monkeypatch):
    right = theory_denoising.SubspaceMixture.score
    monkeypatch.setattr(theory_denoising.SubspaceMixture, "score", lambda *args: -right(*args))
    assert verdict("score-closed-form") == "fails"
    assert verdict("reverse-sde") == "fails"
    monkeypatch.setattr(theory_denoising.SubspaceMixture, "score", lambda *args: right(*args) / 2)
    assert verdict("score-closed-form") == "fails"


def test_a_wrong_density_is_found(monkeypatch):
    right = theory_denoising.SubspaceMixture.log_density
    monkeypatch.setattr(theory_denoising.SubspaceMixture, "log_density", lambda self, z, s: 0.9 * right(self, z, s))
    assert verdict("tweedie") == "fails"
    assert verdict("score-closed-form") == "fails"


def test_a_denoiser_without_the_wiener_factor_is_found(monkeypatch):
    monkeypatch.setattr(
        theory_denoising.SubspaceMixture, "_wiener", lambda self, sigma: torch.ones_like(self.variances)
    )
    for name in ("denoiser-minimises-error", "attention-order", "probability-flow", "forward-marginals"):
        assert verdict(name) == "fails", name


@pytest.mark.parametrize("factor", [-1.0, 0.5])
def test_a_wrong_gradient_is_found(monkeypatch, factor):
    right = theory_diffusion.subspace_coding_rate_gradient
    for module in (theory_diffusion, discretization, diffusion):
        monkeypatch.setattr(module, "subspace_coding_rate_gradient", lambda *args: factor * right(*args))
    names = ("structured-first-order", "compression-descends", "compression-as-score")
    assert [verdict(name) == "fails" for name in names] == [True, True, factor < 0]


def test_a_wrong_grid_is_found(monkeypatch):
    right = theory_diffusion.geometric_times
    monkeypatch.setattr(discretization, "geometric_times", lambda first, kappa, n: right(first, kappa / 2, n))
    assert verdict("geometric-grid") == "fails"
    assert verdict("structured-round-trip") == "fails"
