"""Claims about the decoder's layer as the inverse of the encoder's (paper 3.3)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from codingrate.objective import random_bases
from codingrate.operators.inverse import inversion_error

from . import _figures as fig
from ._measure import law_through, power_law
from .frame import Finding, Trial, claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

K, D, P = 3, 17, 5  # two dimensions belong to no subspace


def error(trial: Trial, sigma: float, step: float, sparsity: float = 0.0, *, adjoint: bool = False) -> float:
    """‖g(f(Z)) − Z‖/‖Z‖ with the same tokens and the same noise every time."""
    generator = trial.generator()
    bases = random_bases(K, D, P, generator=generator, dtype=torch.float64)
    n = trial.choose(1000, 3000)
    return inversion_error(bases, n, sigma, step, sparsity, adjoint=adjoint, generator=generator)


@claim(section="3.3", equation="eq:def_decoder_layer")
def attention_inverts(trial: Trial) -> Finding:
    """Z − MSSA(Z | U) inverts Z + MSSA(Z | U): the structured diffusion step undoes the structured denoising step.

    With S = MSSA, (I − S)(Z + S(Z)) − Z = S(Z) − S(Z + S(Z)), of second order in the step β: without noise and
    threshold the slope of the error in β must be 2. The next term is of relative size S ≲ β, so the slope must agree
    to the largest β.
    """
    steps = [0.04, 0.02, 0.01, 0.005]
    errors = [error(trial, 0.0, step) for step in steps]
    fit = power_law(steps, errors)
    ok = abs(fit.exponent - 2) <= max(steps)

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, ["‖g(f(Z)) − Z‖/‖Z‖, no noise, λ = 0"])
        fig.law(axes, steps, errors, law_through(steps, errors, 2), "measured, slope 2 drawn in", 0)
        fig.name(axes, "β", "relative error")

    return Finding(
        f"slope 2 ± {max(steps):g} in β",
        f"slope {fit.exponent:.3f}, error {fit.constant:.2f} β²",
        "holds" if ok else "fails",
        "" if ok else "the error has another order",
        {"slope": fit.exponent, "constant": fit.constant},
        draw,
    )


@claim(section="3.3", equation="eq:def_decoder_layer", expected="holds in range")
def layers_invert(trial: Trial) -> Finding:
    """g with V = U, E = D inverts f = ISTA(Z + MSSA(Z)): consistency of the autoencoder, up to the noise it removes.

    Derived for orthogonal D that holds the bases, η = 1 and codes |α|: the threshold moves every active atom by λ, so
    the error tends to λ; of the d − p coordinates that hold noise alone ISTA cuts the negative half, σ√((d − p)/2p).
    Atoms under λ move by less, a share of about λ ≤ 2 %, and 5,000 codes average to 1 %: both must agree to 5 %. What λ
    leaves does not vanish with σ, so the claim holds in a range unless the error does.
    """
    rate = math.sqrt((D - P) / (2 * P))
    noise = [error(trial, sigma, 0.0) / sigma for sigma in (0.03, 0.01, 0.003)]
    threshold = [error(trial, 0.0, 0.0, lam) / lam for lam in (0.02, 0.01, 0.003)]
    sigmas, step, lam = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001), 0.01, 0.02
    whole = [error(trial, sigma, step, lam) for sigma in sigmas]
    floor = error(trial, 0.0, step, lam)
    ok = all(abs(v / rate - 1) <= 0.05 for v in noise) and all(abs(v - 1) <= 0.05 for v in threshold)

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, [f"‖g(f(Z)) − Z‖/‖Z‖, β = {step}, λ = {lam}"])
        axes.loglog(sigmas, whole, "o-", color=fig.BLUE, markersize=4, label="measured")
        axes.loglog(sigmas, [rate * s for s in sigmas], "--", color=fig.ORANGE, label="σ√((d − p)/2p)")
        axes.axhline(floor, color=fig.GREY, linewidth=0.8, linestyle="--", label="what λ and β leave")
        fig.name(axes, "σ", "relative error")

    return Finding(
        f"{rate:.3f} σ from noise, 1 λ from the threshold",
        f"{noise[-1]:.3f} σ, {threshold[-1]:.3f} λ; with β = {step:g}, λ = {lam:g} it falls to {floor:.3f}",
        "fails" if not ok else "holds in range",
        f"up to λ + O(β): {floor:.3f} stays as σ → 0" if ok else "not the predicted error",
        {"noise": noise[-1], "noise_predicted": rate, "threshold": threshold[-1], "floor": floor},
        draw,
    )


@claim(section="3.3", equation="Remark, lack of weight-tying", expected="fails")
def adjoint_preset(trial: Trial) -> Finding:
    """The derivation suggests the pre-set values V^ℓ = U^{L−ℓ} and E^ℓ = (D^{L−ℓ})*.

    With it g must bring tokens nearer to Z than no answer at all, a relative error of 1, as the noise goes to 0. But f
    codes Z as D*Z (Z^{ℓ+½} = DZ^{ℓ+1}), so D* turns it a second time: two unrelated vectors are √2 apart.
    """
    errors = {adjoint: [error(trial, s, 0.001, adjoint=adjoint) for s in (0.1, 0.01, 0.0)] for adjoint in (True, False)}
    best, mirror = min(errors[True]), errors[False][-1]
    return Finding(
        "relative error < 1 as σ → 0",
        f"{best:.2f} with E = D*, {mirror:.1e} with E = D",
        "holds" if best < 1 else "fails",
        "" if best < 1 else "E = D is the inverse: the paper's own Z^{ℓ+½} = DZ^{ℓ+1} asks for it",
        {"adjoint": best, "dictionary": mirror},
    )
