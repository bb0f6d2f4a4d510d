"""Claims about layers as steps of the structured ODEs, and about the decoder as their inverse (paper 3.2, 3.3, B.4)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp

from codingrate.objective import random_bases, subspace_coding_rate, subspace_coding_rate_gradient

from ..diffusion import geometric_times, structured_flow, structured_solution
from ..inverse import TiedLayers, inversion_error
from . import reference
from .diffusion import precision, uncorrelated
from .frame import EXACT, Finding, Trial, claim, judge, power_law, relative, tabulate

BETA = 8.0
LAYERS = (10, 20, 40, 80)  # with κβL = 1 in every case
K, D, P = 3, 17, 5  # sizes of the inversion claims; two dimensions belong to no subspace


def draw_tokens(trial: Trial) -> tuple[Tensor, Tensor, float]:
    """Draw tokens z (n, d) of B.3's model; return them, the bases and the ε for which β = 8."""
    model, sample = uncorrelated(trial.generator(), 0.3, *trial.choose((16, 4, 32), (48, 6, 64)))
    return sample.tokens, model.bases, precision(BETA, sample.tokens, model.bases)


def layers(z: Tensor, bases: Tensor, eps: float, step: float, count: int, *, dense: bool = False) -> Tensor:
    """Return Z, Z + step ∇R^c(Z), … through `count` layers, (count + 1, n, d); `dense` takes the reference of ∇R^c."""
    gradient = reference.compression_gradient if dense else subspace_coding_rate_gradient
    return torch.stack(list(accumulate(range(count), lambda x, _: x + step * gradient(x, bases, eps), initial=z)))


@claim(section="B.4", equation="eq:structured_denoising_ode_discretized, t_{ℓ+1} = (1 + 2κ)t_ℓ")
def geometric_grid(trial: Trial) -> Finding:
    """On times t_{ℓ+1} = (1 + 2κ)t_ℓ the first-order step of the structured diffusion is Z + κ∇R^c(Z) at every ℓ.

    It is an identity, so both sides must be equal to √ε of float64; ∇R^c is written out densely on the right. The paper
    adds that denoising works in the same way. But the reversed times give steps of κ/(1 + 2κ), and times of ratio
    1 − 2κ give Z − κ∇R^c(Z). Both must be equal to √ε too. (t_1 is T/(1 + 2κ)^{L−1}; the paper's exponent L is one too
    large.)

    Mutations: ∇R^c = 0; κ halved in the grid; ε² replaced by ε.
    """
    z, bases, eps = draw_tokens(trial)
    kappa, count = 0.05, 8
    up = geometric_times(0.01, kappa, count + 1)
    grids = {  # with the step that each should make
        "diffusion": (up, kappa),
        "backwards": (up.flip(0), -kappa / (1 + 2 * kappa)),
        "denoising": (geometric_times(0.01, -kappa, count + 1), -kappa),
    }
    errors = {
        name: relative(structured_flow(z, bases, grid, eps), layers(z, bases, eps, step, count, dense=True))
        for name, (grid, step) in grids.items()
    }
    return Finding(
        "steps of κ; of κ/(1 + 2κ) on the reversed times, of κ on ratio 1 − 2κ; to 1.5e-8",
        ", ".join(f"{name} {error:.0e}" for name, error in errors.items()),
        judge(max(errors.values()) < EXACT),
        numbers=errors,
    )


@claim(section="B.4", equation="eq:structured_denoising_ode_prediscretized, eq:structured_diffusion_discretized")
def structured_first_order(trial: Trial) -> Finding:
    """Steps of κ∇R^c on the geometric grid are a first-order discretization of the structured ODEs, both ways.

    At fixed T/t_1 (here κβL ≈ 1) the distance to the exact solution, Wright's function of the singular values, must
    fall with slope 1 in κ. Corrections are of relative size κβ ≤ 0.1, so slopes must agree to 0.1.

    Mutations: ∇R^c = 0; ∇R^c halved; structured solution = Z.
    """
    z, bases, eps = draw_tokens(trial)
    span = 2 / BETA  # log T/t_1

    def measure(count: int) -> dict[str, float]:
        kappa = math.expm1(span / count) / 2
        up = geometric_times(math.exp(-span), kappa, count + 1)
        grids = {"diffusion": (up, 1), "denoising": (up.flip(0), -1)}
        return {"κ": kappa} | {
            name: relative(
                structured_flow(z, bases, grid, eps)[-1], structured_solution(z, bases, math.exp(sign * span), eps)
            )
            for name, (grid, sign) in grids.items()
        }

    table = tabulate(map(measure, LAYERS))
    kappas, *columns = table.values()
    slopes = [power_law(kappas, column).exponent for column in columns]
    return Finding(
        "slope 1 in κ, for diffusion and denoising",
        f"slopes {slopes[0]:.3f} and {slopes[1]:.3f}; error {columns[0][-1]:.1e} with {LAYERS[-1]} layers",
        judge(all(abs(slope - 1) < 0.1 for slope in slopes)),
        numbers={"slope_diffusion": slopes[0], "slope_denoising": slopes[1]},
        table=table,
    )


@claim(section="3.2", equation="eq:compression_ode", expected="holds in a stated range")
def compression_descends(trial: Trial) -> Finding:
    """The structured denoising ODE compresses: R^c falls along it, and along its layers Z − κ∇R^c(Z).

    Along the ODE dR^c/du = −½‖∇R^c‖² with u = log T/(T−t). It is measured by a central difference of half width
    h = 0.001, with an error of h²β². For orthogonal subspaces ∇R^c is β-Lipschitz (its Hessian is at most β, and β at
    Z = 0). So R^c cannot rise in a layer with κβ < 2, at any Z, and it must rise near Z = 0 for κβ > 2. κ is a size
    that the paper leaves open.

    Mutations: ∇R^c = 0; ∇R^c with the wrong sign; ∇R^c halved; structured solution = Z.
    """
    z, bases, eps = draw_tokens(trial)
    h = 1e-3

    def drop(clock: float) -> float:
        """Return the relative error of dR^c/du = −½‖∇R^c‖² by a central difference."""
        before, here, after = (structured_solution(z, bases, math.exp(-clock + s), eps) for s in (h, 0.0, -h))
        rates = [float(reference.compression(state, bases, eps)) for state in (before, after)]
        energy = float(subspace_coding_rate_gradient(here, bases, eps).square().sum())
        return abs((rates[1] - rates[0]) / (2 * h) / (-energy / 2) - 1) if energy else math.inf

    def worst_rise(strength: float) -> float:
        """Return the largest relative rise of R^c in a layer with κβ = strength, from tokens of several sizes."""
        paths = torch.stack([layers(scale * z, bases, eps, -strength / BETA, 20) for scale in (3.0, 1.0, 0.3, 0.01)])
        rate = subspace_coding_rate(paths, bases, eps)
        nonzero = rate[:, :-1] > EXACT * rate[:, :1]  # leave out rates that are zero up to rounding
        return float((rate[:, 1:] / rate[:, :-1] - 1)[nonzero].max())

    error = max(drop(clock) for clock in (0.05, 0.2, 0.5))
    rises = {strength: worst_rise(strength) for strength in (0.1, 0.5, 1.0, 1.5, 1.9, 2.1)}
    ok = error < (h * BETA) ** 2 and all(rise < 0 for strength, rise in rises.items() if strength < 2)
    return Finding(
        "dR^c/du = −½‖∇R^c‖²; in layers a fall for κβ < 2, a rise for κβ = 2.1",
        f"derivative to {error:.0e}; a layer adds at most {rises[1.9]:+.1%} at κβ = 1.9, {rises[2.1]:+.1%} at 2.1",
        judge(ok and rises[2.1] <= 0, ranged=ok and rises[2.1] > 0),
        "in layers κβ < 2, that is κ < 2nε²/p",
        {"derivative_error": error} | {f"rise_{strength:g}": rise for strength, rise in rises.items()},
        {"κβ": list(rises), "largest relative rise of R^c in a layer": list(rises.values())},
    )


@claim(
    section="3.3",
    equation="eq:compression_ode_diffusion, eq:structured-diffusion-conceptual, "
    "eq:structured_diffusion_ode_prediscretized, eq:structured_diffusion_discretized",
)
def structured_round_trip(trial: Trial) -> Finding:
    """Structured diffusion undoes structured denoising; layer by layer they are approximate mutual inverses.

    Z' = Z − κ∇R^c(Z) followed by Z' + κ∇R^c(Z') leaves −κ²∇²R^c[∇R^c] + O(κ³). So one layer has slope 2 in κ with that
    constant, and L layers with κβL = 1 have slope 1. Corrections are of relative size κβ ≤ 0.1, so slopes must agree to
    0.1, and the constant at the smallest κβ = 1/80 to 0.05, four times that. ∇²R^c is that of a dense determinant.

    Mutations: ∇R^c = 0; ∇R^c halved; κ halved in the grid.
    """
    z, bases, eps = draw_tokens(trial)
    gradient, pull_back, *_ = vjp(lambda x: reference.compression_gradient(x, bases, eps), z)
    (curved,) = pull_back(gradient)  # ∇²R^c[∇R^c]
    kappas = [1 / (BETA * count) for count in LAYERS]

    def error(kappa: float, count: int) -> float:
        down = structured_flow(z, bases, geometric_times(1.0, -kappa, count + 1), eps)[-1]
        return relative(structured_flow(down, bases, geometric_times(1.0, kappa, count + 1), eps)[-1], z)

    single = [error(kappa, 1) for kappa in kappas]
    whole = [error(kappa, count) for kappa, count in zip(kappas, LAYERS, strict=True)]
    constant = single[-1] / (kappas[-1] ** 2 * float(torch.linalg.norm(curved) / torch.linalg.norm(z)))
    layer, trip = power_law(kappas, single).exponent, power_law(kappas, whole).exponent
    return Finding(
        "slope 2 in κ per layer, constant ‖∇²R^c[∇R^c]‖; slope 1 over κβL = 1",
        f"slope {layer:.3f}, constant × {constant:.3f}; slope {trip:.3f}, error {whole[-1]:.2%} in {LAYERS[-1]} layers",
        judge(abs(layer - 2) < 0.1 and abs(trip - 1) < 0.1 and abs(constant - 1) < 0.05),
        numbers={"slope_layer": layer, "constant_layer": constant, "slope_trip": trip},
        table={"κ": kappas, "‖result − Z‖/‖Z‖, one layer": single, "κβL = 1": whole},
    )


def error(trial: Trial, sigma: float, step: float, sparsity: float = 0.0, **options: Any) -> float:
    """Return ‖g(f(Z)) − Z‖/‖Z‖, with the same tokens and the same noise in every call."""
    generator, n = trial.generator(), trial.choose(1000, 3000)
    bases = random_bases(K, D, P, generator=generator, dtype=torch.float64)
    return inversion_error(bases, n, sigma, step, sparsity, generator=generator, **options)


@claim(section="3.3", equation="eq:structured_diffusion_discretized, eq:def_decoder_layer")
def attention_inverts(trial: Trial) -> Finding:
    """Z − MSSA(Z | U) inverts Z + MSSA(Z | U): the structured diffusion step undoes the structured denoising step.

    With S = MSSA, (I − S)(Z + S(Z)) − Z = S(Z) − S(Z + S(Z)), which is of second order in the step β. So without noise
    and threshold the error has slope 2 in β, up to the largest β, the relative size of the next term.

    Mutations: MSSA = 0; MSSA without β; MSSA with the wrong sign in the decoder; D replaced by D*.
    """
    steps = [0.04, 0.02, 0.01, 0.005]
    errors = [error(trial, 0.0, step) for step in steps]
    fit = power_law(steps, errors)
    return Finding(
        f"slope 2 ± {max(steps):g} in β",
        f"slope {fit.exponent:.3f}, error {fit.constant:.2f} β²",
        judge(abs(fit.exponent - 2) <= max(steps)),
        numbers={"slope": fit.exponent, "constant": fit.constant},
        table={"β": steps, "‖g(f(Z)) − Z‖/‖Z‖": errors},
    )


@claim(section="3.3", equation="eq:def_decoder_layer", expected="fails as stated, true in another form")
def layers_invert(trial: Trial) -> Finding:
    """g with V = U, E = D inverts f = ISTA(Z + MSSA(Z)): consistency of the autoencoder, up to the noise it removes.

    As stated, the error must vanish with the noise for the ISTA of the network (η = 0.1, λ = 0.1) and the signed codes
    of the signal model; it must be below that of the answer 0, which is 1. The other form has an orthogonal D that
    contains the bases, η = 1 and codes |α|. There the threshold moves every active atom by λ, so the error tends to λ.
    ISTA cuts the negative half of the d − p coordinates that hold only noise, which gives σ√((d − p)/2p). Atoms below λ
    move by less, a share of about λ ≤ 2 %, and 5,000 codes average to 1 %, so both must agree to 5 %.

    Mutations: ISTA = 0; D replaced by D*; ISTA without its threshold.
    """
    rate = math.sqrt((D - P) / (2 * P))
    noise = [error(trial, sigma, 0.0) / sigma for sigma in (0.03, 0.01, 0.003)]
    threshold = [error(trial, 0.0, 0.0, lam) / lam for lam in (0.02, 0.01, 0.003)]
    sigmas, step, lam = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001), 0.01, 0.02
    whole = [error(trial, sigma, step, lam) for sigma in sigmas]
    floor, network = error(trial, 0.0, step, lam), error(trial, 0.0, step, 0.1, ista_step=0.1, signed=True)
    ok = all(abs(v / rate - 1) <= 0.05 for v in noise) and all(abs(v - 1) <= 0.05 for v in threshold)
    return Finding(
        f"below 1 for the ISTA of the network; {rate:.3f} σ from noise and 1 λ from the threshold for η = 1 and |α|",
        f"{network:.2f} for the network's; {noise[-1]:.3f} σ, {threshold[-1]:.3f} λ; with β = {step:g}, λ = {lam:g} it "
        f"falls to {floor:.3f}",
        judge(ok and network < 1 and floor <= 0.05 * lam, form=ok),
        f"with η = 1, orthogonal D and non-negative codes g inverts f up to λ + O(β): {floor:.3f} remains as σ → 0",
        {"noise": noise[-1], "noise_predicted": rate, "threshold": threshold[-1], "floor": floor, "network": network},
        {"σ": list(sigmas), "‖g(f(Z)) − Z‖/‖Z‖": whole, "σ√((d − p)/2p)": [rate * s for s in sigmas]},
    )


@claim(
    section="3.3",
    equation="eq:def_decoder_layer, Remark, lack of weight-tying",
    expected="fails as stated, true in another form",
)
def adjoint_preset(trial: Trial) -> Finding:
    """The derivation suggests the pre-set values U^{L−ℓ} for V^ℓ and (D^ℓ)* for E^ℓ.

    With these values g must bring tokens closer to Z than the answer 0, which has a relative error of 1, as the noise
    goes to 0. But f codes Z as D*Z (Z^{ℓ+½} = DZ^{ℓ+1}), so D* rotates it once more; unrelated vectors are √2 apart.
    The other form is E = D. There attention with a step of β = 0.001 is undone to second order: an error below 10β².

    Mutations: ISTA = 0; MSSA with the wrong sign in the decoder.
    """
    step = 0.001
    errors = {adjoint: [error(trial, s, step, adjoint=adjoint) for s in (0.1, 0.01, 0.0)] for adjoint in (True, False)}
    best, mirror = min(errors[True]), errors[False][-1]
    return Finding(
        "relative error < 1 as σ → 0 with E = D*, or below 10β² = 1e-05 with E = D",
        f"{best:.2f} with E = D*, {mirror:.1e} with E = D",
        judge(best < 1, form=mirror < 10 * step**2),
        "E = D is the inverse, by the paper's own Z^{ℓ+½} = DZ^{ℓ+1}",
        {"adjoint": best, "dictionary": mirror},
    )


@claim(
    section="3.3",
    equation="eq:def_decoder_layer, Remark, lack of weight-tying, index of E^ℓ",
    expected="fails as stated, true in another form",
)
def mirrored_index(trial: Trial) -> Finding:
    """With V^ℓ = U^{L−ℓ} and E^ℓ = (D^ℓ)* the decoder layers g^0 … g^{L−1} undo the encoder layers f^1 … f^L.

    g^ℓ undoes f^{L−ℓ}, as the index of V^ℓ says, so E^ℓ needs the same index: with layers that differ, E^ℓ must be a
    matrix of f^{L−ℓ}, and D itself, because Z^{ℓ+½} = DZ^{ℓ+1}. (There is no D^0 for g^0; E^ℓ is read as that of the
    (ℓ+1)-st layer.) The dictionaries are permutations and the bases blocks of permuted axes, so that tokens stay
    non-negative and ISTA with η = 1 and λ = 0 is inverted exactly; attention with a step of β = 0.001 is undone to
    second order. As stated the error must be below 10Lβ², for L = 4; the other form is E^ℓ = D^{L−ℓ}.

    Mutations: ISTA = 0; D replaced by D*; MSSA with the wrong sign in the decoder; MSSA = 0.
    """
    generator, depth, step = trial.generator(), 4, 0.001
    axes = torch.eye(12, dtype=torch.float64)
    shuffled = [axes[torch.randperm(12, generator=generator)] for _ in range(2 * depth)]
    layers = [
        TiedLayers(basis.view(12, 3, 4).transpose(0, 1), dictionary, step)
        for basis, dictionary in zip(shuffled[:depth], shuffled[depth:], strict=True)
    ]
    z = torch.rand(1, 20, 12, generator=generator, dtype=torch.float64)
    codes = reduce(lambda x, layer: layer.encode(x), layers, z)
    undone = max(float(torch.linalg.norm(layer.attention(z)) / torch.linalg.norm(z)) for layer in layers)

    def error(mirrored: bool, adjoint: bool) -> float:
        """Decode with E^ℓ = D^{L−ℓ} (mirrored) or D^ℓ, or with its adjoint; return the relative error."""
        y, dictionaries = codes, [layer.dictionary for layer in layers]
        for layer, dictionary in zip(layers[::-1], dictionaries[::-1] if mirrored else dictionaries, strict=True):
            y = replace(layer, dictionary=dictionary).decode(y, adjoint)
        return relative(y, z)

    errors = {(mirrored, adjoint): error(mirrored, adjoint) for mirrored in (True, False) for adjoint in (True, False)}
    limit = 10 * depth * step**2
    form = errors[True, False] <= limit and undone > step / 10  # attention does something that is undone
    return Finding(
        f"relative error ≤ 10Lβ² = {limit:.0e} with E^ℓ = (D^ℓ)*, or with E^ℓ = D^{{L−ℓ}}",
        f"{errors[False, True]:.2f} with (D^ℓ)*, {errors[False, False]:.2f} with D^ℓ, {errors[True, True]:.2f} with "
        f"(D^{{L−ℓ}})*, {errors[True, False]:.0e} with D^{{L−ℓ}}",
        judge(errors[False, True] <= limit, form=form),
        "E^ℓ = D^{L−ℓ}, with the index of V^ℓ and without the adjoint",
        {"as_printed": errors[False, True], "mirrored": errors[True, False], "attention": undone},
    )
