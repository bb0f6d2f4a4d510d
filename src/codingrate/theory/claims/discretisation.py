"""Claims of 3.2, 3.3 and B.4 on layers: the structured ODEs in steps, descent, and denoising undone by diffusion."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from codingrate.objective import subspace_coding_rate, subspace_coding_rate_gradient

from ..diffusion import geometric_times, structured_flow, structured_solution
from . import _figures as fig
from ._measure import law_through, power_law, relative
from .denoising import EXACT
from .frame import Finding, Trial, claim
from .structured import precision, uncorrelated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETA = 8.0
LAYERS = (10, 20, 40, 80)  # κβL = 1 always


def tokens(trial: Trial) -> tuple[Tensor, Tensor, float]:
    """Tokens z (n, d) of B.3's model, its bases, and the ε that makes β = 8."""
    model, sample = uncorrelated(trial.generator(), 0.3, *trial.choose((16, 4, 32), (48, 6, 64)))
    return sample.tokens, model.bases, precision(BETA, sample.tokens, model.bases)


def layers(z: Tensor, bases: Tensor, eps: float, step: float, count: int) -> Tensor:
    """Z, Z + step ∇R^c(Z), … through so many layers, (count + 1, n, d)."""
    path = [z]
    for _ in range(count):
        path.append(path[-1] + step * subspace_coding_rate_gradient(path[-1], bases, eps))
    return torch.stack(path)


@claim(section="B.4", equation="t_{ℓ+1} = (1 + 2κ)t_ℓ")
def geometric_grid(trial: Trial) -> Finding:
    """On times t_{ℓ+1} = (1 + 2κ)t_ℓ the first-order step of the structured diffusion is Z + κ∇R^c(Z) at every ℓ.

    An identity, so equal to √ε of float64. The paper adds that denoising goes likewise: the same times taken backwards
    give steps of κ/(1 + 2κ), and it is times of ratio 1 − 2κ that give Z − κ∇R^c(Z); both must come out to √ε. (t_1 is
    T/(1 + 2κ)^{L−1}; the paper's exponent L is one step too many.)
    """
    z, bases, eps = tokens(trial)
    kappa, count = 0.05, 8
    up = geometric_times(0.01, kappa, count + 1)
    grids = {
        "diffusion": (up, kappa),
        "backwards": (up.flip(0), -kappa / (1 + 2 * kappa)),
        "denoising": (geometric_times(0.01, -kappa, count + 1), -kappa),
    }
    errors = {
        name: relative(structured_flow(z, bases, grid, eps), layers(z, bases, eps, step, count))
        for name, (grid, step) in grids.items()
    }
    return Finding(
        "steps of κ; of κ/(1 + 2κ) on the same times backwards, of κ on ratio 1 − 2κ; to 1.5e-8",
        ", ".join(f"{name} {error:.0e}" for name, error in errors.items()),
        "holds" if max(errors.values()) < EXACT else "fails",
        numbers=errors,
    )


@claim(section="B.4", equation="eq:structured_diffusion_discretized")
def structured_first_order(trial: Trial) -> Finding:
    """Steps of κ∇R^c on the geometric grid are a first-order discretisation of the structured ODEs, both ways.

    At fixed T/t_1 (here κβL ≈ 1) the distance to the exact solution, which is Wright's function of the singular values,
    must fall with slope 1 in κ. Corrections are of relative size κβ ≤ 0.1, so slopes must agree to 0.1.
    """
    z, bases, eps = tokens(trial)
    span = 2 / BETA  # log T/t_1
    kappas, rows = [], []
    for count in LAYERS:
        kappas.append(math.expm1(span / count) / 2)
        up = geometric_times(math.exp(-span), kappas[-1], count + 1)
        ends = [structured_flow(z, bases, grid, eps)[-1] for grid in (up, up.flip(0))]
        exact = [structured_solution(z, bases, math.exp(sign * span), eps) for sign in (1, -1)]
        rows.append([relative(end, true) for end, true in zip(ends, exact, strict=True)])
    columns = [list(column) for column in zip(*rows, strict=True)]
    slopes = [power_law(kappas, column).exponent for column in columns]

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, ["distance from the exact solution"])
        for at, (column, label) in enumerate(zip(columns, ("diffusion", "denoising"), strict=True)):
            fig.law(axes, kappas, column, law_through(kappas, column, 1), f"{label}, line 1", at)
        fig.name(axes, "κ", "relative error at the end")

    return Finding(
        "slope 1 in κ, for diffusion and denoising",
        f"slopes {slopes[0]:.3f} and {slopes[1]:.3f}; error {columns[0][-1]:.1e} with {LAYERS[-1]} layers",
        "holds" if all(abs(slope - 1) < 0.1 for slope in slopes) else "fails",
        numbers={"slope_diffusion": slopes[0], "slope_denoising": slopes[1]},
        draw=draw,
    )


@claim(section="3.2", equation="eq:compression_ode", expected="holds in range")
def compression_descends(trial: Trial) -> Finding:
    """The structured denoising ODE compresses: R^c falls along it, and along its layers Z − κ∇R^c(Z).

    Along the ODE dR^c/du = −½‖∇R^c‖² with u = log T/(T−t), here by a central difference of half width h = 0.001, to
    h²β². For layers ∇R^c of orthogonal subspaces is β-Lipschitz (its Hessian is at most β, and β at Z = 0), so R^c
    cannot rise while κβ < 2, at any Z; for κβ > 2 it must rise near Z = 0.
    """
    z, bases, eps = tokens(trial)
    h, drops = 1e-3, []
    for clock in (0.05, 0.2, 0.5):
        before, here, after = (structured_solution(z, bases, math.exp(-clock + s), eps) for s in (h, 0.0, -h))
        change = float(subspace_coding_rate(after, bases, eps) - subspace_coding_rate(before, bases, eps)) / (2 * h)
        energy = float(subspace_coding_rate_gradient(here, bases, eps).square().sum())
        drops.append(abs(change / (-energy / 2) - 1))

    def worst_rise(strength: float) -> float:
        """Largest relative rise of R^c in a layer with κβ = strength, from tokens of all sizes."""
        paths = torch.stack([layers(scale * z, bases, eps, -strength / BETA, 20) for scale in (3.0, 1.0, 0.3, 0.01)])
        rate = subspace_coding_rate(paths, bases, eps)
        rise = (rate[:, 1:] / rate[:, :-1] - 1)[
            rate[:, :-1] > EXACT * rate[:, :1]
        ]  # what is 0 but for rounding is done
        return float(rise.max())

    strengths = (0.1, 0.5, 1.0, 1.5, 1.9, 2.1)
    rises = {strength: worst_rise(strength) for strength in strengths}
    ok = max(drops) < (h * BETA) ** 2 and all(rise < 0 for strength, rise in rises.items() if strength < 2)

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, ["R^c from layer to layer, tokens of size 0.3"])
        for strength, colour in ((0.5, fig.BLUE), (1.9, fig.GREEN), (2.1, fig.ORANGE)):
            path = layers(0.3 * z, bases, eps, -strength / BETA, 30)
            axes.semilogy(subspace_coding_rate(path, bases, eps), color=colour, label=f"κβ = {strength}")
        fig.name(axes, "layer ℓ", "R^c")

    return Finding(
        "dR^c/du = −½‖∇R^c‖²; in layers a fall for κβ < 2, a rise for κβ = 2.1",
        f"derivative to {max(drops):.0e}; a layer adds at most {rises[1.9]:+.1%} at κβ = 1.9, {rises[2.1]:+.1%} at 2.1",
        "fails" if not ok else "holds in range" if rises[2.1] > 0 else "holds",
        "layers: κβ < 2, that is κ < 2nε²/p" if ok else "R^c rises, or not at the rate of the gradient",
        {"derivative_error": max(drops)} | {f"rise_{strength:g}": rise for strength, rise in rises.items()},
        draw,
    )


@claim(section="3.3", equation="eq:structured_diffusion_discretized")
def structured_round_trip(trial: Trial) -> Finding:
    """Structured diffusion undoes structured denoising; layer by layer they are approximate mutual inverses.

    Z' = Z − κ∇R^c(Z) and back Z' + κ∇R^c(Z') leave −κ²∇²R^c[∇R^c] + O(κ³): per layer slope 2 in κ with that constant.
    Over L layers with κβL = 1 kept, slope 1. Corrections are of relative size κβ ≤ 0.1, so slopes must agree to 0.1 and
    the constant at the smallest κβ = 1/80 to 0.05.
    """
    z, bases, eps = tokens(trial)
    gradient = subspace_coding_rate_gradient(z, bases, eps)
    leaf = z.clone().requires_grad_()
    (curved,) = torch.autograd.grad((subspace_coding_rate_gradient(leaf, bases, eps) * gradient).sum(), leaf)
    kappas = [1 / (BETA * count) for count in LAYERS]

    def error(kappa: float, count: int) -> float:
        down = structured_flow(z, bases, geometric_times(1.0, -kappa, count + 1), eps)[-1]
        return relative(structured_flow(down, bases, geometric_times(1.0, kappa, count + 1), eps)[-1], z)

    single = [error(kappa, 1) for kappa in kappas]
    whole = [error(kappa, count) for kappa, count in zip(kappas, LAYERS, strict=True)]
    constant = single[-1] / (kappas[-1] ** 2 * float(torch.linalg.norm(curved) / torch.linalg.norm(z)))
    layer, trip = power_law(kappas, single).exponent, power_law(kappas, whole).exponent

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, ["denoise, then diffuse"])
        for at, (values, power, label) in enumerate([(single, 2, "one layer, line 2"), (whole, 1, "κβL = 1, line 1")]):
            fig.law(axes, kappas, values, law_through(kappas, values, power), label, at)
        fig.name(axes, "κ", "‖back − Z‖ / ‖Z‖")

    return Finding(
        "slope 2 in κ per layer, constant ‖∇²R^c[∇R^c]‖; slope 1 over κβL = 1",
        f"slope {layer:.3f}, constant × {constant:.3f}; slope {trip:.3f}, {whole[-1]:.2%} off with {LAYERS[-1]} layers",
        "holds" if abs(layer - 2) < 0.1 and abs(trip - 1) < 0.1 and abs(constant - 1) < 0.05 else "fails",
        numbers={"slope_layer": layer, "constant_layer": constant, "slope_trip": trip},
        draw=draw,
    )
