"""The claims on denoising and diffusion: each comes out as expected, can fail, and draws."""

import io

import pytest
import torch
from matplotlib.figure import Figure

from codingrate.theory import denoising as theory_denoising
from codingrate.theory import diffusion as theory_diffusion
from codingrate.theory.claims import CLAIMS, Trial, denoising, diffusion, discretisation, structured, verify
from codingrate.theory.claims._statistics import critical, outer_squares, z_scores

MODULES = (denoising, diffusion, structured, discretisation)
OURS = [name for name, entry in CLAIMS.items() if entry.run.__module__ in {module.__name__ for module in MODULES}]


def outcome(name, seed=1):
    (result,) = verify([name], Trial(seed))
    return result


@pytest.mark.parametrize("name", OURS)
def test_claim_comes_out_as_expected_and_draws(name):
    result = outcome(name)
    assert result.finding.verdict == result.claim.expected, result.finding
    assert result.finding.numbers
    assert (result.finding.verdict == "holds in range") == bool(result.finding.reason)
    if result.finding.draw is not None:
        figure = Figure()
        result.finding.draw(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg")
        assert figure.axes
        assert figure.patch.get_alpha() == 0
        assert "<svg" in out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 7))
@pytest.mark.parametrize("name", OURS)
def test_claims_do_not_hang_on_the_seed(name, seed):
    assert outcome(name, seed).ok


def wrong_temperature(z, bases, sigma):
    return theory_denoising.attention_denoise(z, bases, sigma * 2**0.5)


def no_softmax(z, bases, sigma):
    return torch.einsum("...d,kdp,kep->...e", z, bases, bases) / len(bases)


@pytest.mark.parametrize("wrong", [wrong_temperature, no_softmax])
def test_a_wrong_attention_form_is_found(monkeypatch, wrong):
    monkeypatch.setattr(denoising, "attention_denoise", wrong)
    assert outcome("attention-order").finding.verdict == "fails"
    assert outcome("attention-projects").finding.verdict == "fails"


def test_a_wrong_sign_or_scale_of_the_score_is_found(monkeypatch):
    right = theory_denoising.SubspaceMixture.score
    monkeypatch.setattr(theory_denoising.SubspaceMixture, "score", lambda *args: -right(*args))
    assert outcome("score-closed-form").finding.verdict == "fails"
    assert outcome("reverse-sde").finding.verdict == "fails"
    monkeypatch.setattr(theory_denoising.SubspaceMixture, "score", lambda *args: right(*args) / 2)
    assert outcome("score-closed-form").finding.verdict == "fails"


def test_a_wrong_density_is_found(monkeypatch):
    right = theory_denoising.SubspaceMixture.log_density
    monkeypatch.setattr(theory_denoising.SubspaceMixture, "log_density", lambda self, z, s: 0.9 * right(self, z, s))
    assert outcome("tweedie").finding.verdict == "fails"
    assert outcome("score-closed-form").finding.verdict == "fails"


def test_a_denoiser_that_forgets_the_wiener_factor_is_found(monkeypatch):
    monkeypatch.setattr(
        theory_denoising.SubspaceMixture, "_wiener", lambda self, sigma: torch.ones_like(self.variances)
    )
    for name in ("denoiser-minimises-error", "attention-order", "probability-flow", "forward-marginals"):
        assert outcome(name).finding.verdict == "fails", name


@pytest.mark.parametrize("factor", [-1.0, 0.5])
def test_a_wrong_gradient_is_found(monkeypatch, factor):
    right = theory_diffusion.subspace_coding_rate_gradient
    for module in (theory_diffusion, discretisation, structured):
        monkeypatch.setattr(module, "subspace_coding_rate_gradient", lambda *args: factor * right(*args))
    names = ("structured-first-order", "compression-descends", "compression-as-score")
    assert [outcome(name).finding.verdict == "fails" for name in names] == [True, True, factor < 0]


def test_a_wrong_grid_is_found(monkeypatch):
    right = theory_diffusion.geometric_times
    monkeypatch.setattr(discretisation, "geometric_times", lambda first, kappa, n: right(first, kappa / 2, n))
    assert outcome("geometric-grid").finding.verdict == "fails"
    assert outcome("structured-round-trip").finding.verdict == "fails"


def test_statistics():
    assert critical(1) == pytest.approx(3.29, abs=0.01)
    assert critical(100) == pytest.approx(4.42, abs=0.01)
    sample = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 7.0]])
    torch.testing.assert_close(z_scores(sample, torch.tensor([2.0, 5.0])), torch.tensor([3**0.5 / 2, 0.0]))
    torch.testing.assert_close(outer_squares(torch.tensor([[2.0, 3.0, 5.0]])), torch.tensor([[4.0, 6, 10, 9, 15, 25]]))
