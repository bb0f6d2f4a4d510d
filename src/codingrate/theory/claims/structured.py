"""Claims of 3.2, 3.3 and B.4: the compression gradient in place of the score, its ODEs and their discretisation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from scipy.special import wrightomega
from torch import Tensor

from codingrate.objective import TokenSample, random_bases, subspace_coding_rate_gradient

from ..denoising import SubspaceMixture, off_own
from ..diffusion import structured_solution
from . import _figures as fig
from ._measure import cosine, law_through, power_law
from .denoising import mixture
from .frame import Finding, Trial, claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def uncorrelated(
    generator: torch.Generator,
    sigma: float,
    n: int = 16,
    K: int = 4,  # noqa: N803
    p: int = 32,
) -> tuple[SubspaceMixture, TokenSample]:
    """B.3's model with n = d/8 tokens: orthogonal subspaces that fill R^d, α ~ N(0, I/p), noise N(0, σ²I/d)."""
    bases = random_bases(K, K * p, p, "orthonormal", generator, torch.float64)
    model = SubspaceMixture(bases, 1 / p)
    return model, model.sample(n, sigma / math.sqrt(K * p), generator)


def precision(beta: float, z: Tensor, bases: Tensor) -> float:
    """The ε of β = p/(nε²)."""
    return math.sqrt(bases.shape[-1] / (z.shape[-2] * beta))


def size(rows: Tensor) -> float:
    """Mean norm of rows."""
    return float(torch.linalg.norm(rows, dim=-1).mean())


@claim(section="3.2", equation="thm:informal_rate_score", expected="holds in range")
def compression_as_score(trial: Trial) -> Finding:
    """At low noise the negative compression gradient −∇R^c points from z_i to the nearest U_k, as the score does.

    By B.3, ∇R^c ≈ β P(Δ) + X♮/(1 + 1/β), where P keeps of the noise off the token's subspace the part outside the
    images of other tokens, a share φ = 1 − n/d. So its cosine with the score is φ/√(φ + 1/((1 + β)σ')²), σ'² = σ²(1 −
    1/K). "Points to" is read as 45°, half of the energy, √½. The theorem asks C₁βσ ≤ ½. If −∇R^c passes there, the
    claim holds; if only its part off the token's own subspace passes everywhere and the whole where βσ is large, it
    holds in that range.
    """
    generator, sigma = trial.generator(), 0.03
    strengths = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # βσ
    n, K, p = trial.choose((16, 4, 32), (196, 12, 64))  # full: the Base model of the paper
    cosines = torch.zeros(2, len(strengths), dtype=torch.float64)
    repetitions = trial.choose(8, 4)
    for _ in range(repetitions):
        model, sample = uncorrelated(generator, sigma, n, K, p)
        score = model.score(sample.tokens, sigma / math.sqrt(K * p))
        for at, strength in enumerate(strengths):
            eps = precision(strength / sigma, sample.tokens, model.bases)
            step = -subspace_coding_rate_gradient(sample.tokens, model.bases, eps)
            part = off_own(step, model.bases, sample.labels)
            cosines[:, at] += torch.tensor([cosine(step, score), cosine(part, score)]) / repetitions
    whole, across = cosines.tolist()
    phi, off = 1 - n / (K * p), sigma * math.sqrt(1 - 1 / K)
    predicted = [phi / math.sqrt(phi + ((1 + strength / sigma) * off) ** -2) for strength in strengths]
    passed = [s for s, value in zip(strengths, whole, strict=True) if value > math.sqrt(0.5)]
    inside = (
        all(value > math.sqrt(0.5) for value in across) and bool(passed) and passed == list(strengths[-len(passed) :])
    )

    def draw(figure: Figure) -> None:
        left, middle, right = fig.panels(
            figure, ["E[z♮ | z] − z, σ = 0.3", "−∇R^c/β, each point alone, β = 10", "cosine with the score"]
        )
        bases = fig.lines(20, 110)
        planar = SubspaceMixture(bases)
        points = planar.sample(120, 0.3, torch.Generator().manual_seed(trial.seed)).tokens
        step = subspace_coding_rate_gradient(points.unsqueeze(-2), bases, precision(10.0, points.unsqueeze(-2), bases))
        for axes, end, colour in (
            (left, planar.denoise(points, 0.3), fig.BLUE),
            (middle, points - step.squeeze(-2) / 10, fig.ORANGE),
        ):
            fig.plane(axes, bases, 2.5)
            fig.arrows(axes, points, end, colour)
        right.semilogx(strengths, whole, "o", color=fig.BLUE, markersize=4, label="−∇R^c")
        right.semilogx(strengths, predicted, "-", color=fig.BLUE, linewidth=1, label="predicted")
        right.semilogx(strengths, across, "o", color=fig.GREEN, markersize=4, label="off its own subspace")
        right.axvspan(strengths[0], 0.5, color=fig.GREY, alpha=0.15, linewidth=0, label="the theorem's βσ ≤ ½")
        fig.name(right, "βσ", "cosine")

    return Finding(
        f"cosine above 0.71 also at βσ ≤ ½; by B.3's main term {predicted[0]:.2f} … {predicted[-1]:.2f}",
        f"βσ = {strengths[0]}: {whole[0]:.2f}, ½: {whole[2]:.2f}, {strengths[-1]:.0f}: {whole[-1]:.2f}; "
        f"off its own subspace {min(across):.2f} … {max(across):.2f}",
        "holds" if inside and len(passed) == len(strengths) else "holds in range" if inside else "fails",
        f"βσ ≥ {passed[0]:g}; below, as the theorem asks, −∇R^c points to 0 along the subspace"
        if inside
        else "no range",
        {f"cosine_{s:g}": value for s, value in zip(strengths, whole, strict=True)}
        | {"worst_gap_to_prediction": max(abs(a - b) for a, b in zip(whole, predicted, strict=True))},
        draw,
    )


@claim(section="3.2", equation="eq:compression_ode", expected="holds in range")
def structured_limit(trial: Trial) -> Finding:
    """dZ = −∇R^c(Z)/2(T−t) dt carries noisy tokens to the signal model as t → T.

    In u = log T/(T−t) the ODE is −½∇R^c, which moves a singular value s of U_k*Z by y + log y = const − βu, y = βs²:
    noise (y ≪ 1) loses its energy as e^{−βu}, signal (s ≈ 1, y = β) only 1 of s² per unit u. At u₀ = log(100)/β, noise
    off the tokens' subspaces must be down to the share in the images of other tokens, n/d, plus 1 %, to three
    deviations √(2(n/d)/(n(d−p))); the signal must keep the share ω(β + log β − log 100)/β, where three deviations
    √(2/np) of the mean s² change what it loses. The limit is u → ∞: if less than half of the signal is left there, the
    claim holds in a range.
    """
    n, K, p = trial.choose((16, 4, 32), (96, 12, 64))
    sigma, beta, d = 0.03, 100.0, K * p
    model, sample = uncorrelated(trial.generator(), sigma, n, K, p)
    z = sample.tokens
    eps, unit = precision(beta, z, model.bases), math.log(100) / beta
    clocks = [unit * step for step in (0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0)]
    noise, signal = [], []
    for clock in clocks:
        moved = structured_solution(z, model.bases, math.exp(-clock), eps)
        off = off_own(moved, model.bases, sample.labels)
        noise.append(float(off.square().sum()))
        signal.append(float((moved - off).square().sum()))
    noise, signal = [value / noise[0] for value in noise], [value / signal[0] for value in signal]
    allowed = n / d + 0.01 + 3 * math.sqrt(2 * (n / d) / (n * (d - p)))
    kept = float(wrightomega(beta + math.log(beta) - math.log(100))) / beta
    ok = noise[3] < allowed and abs(signal[3] - kept) < 3 * math.sqrt(2 / (n * p)) * (1 - kept)

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, [f"structured denoising ODE, β = {beta:g}"])
        dense = torch.linspace(0, clocks[-1], 400).tolist()
        law = [float(wrightomega(beta + math.log(beta) - beta * u)) / beta for u in dense]
        axes.plot(clocks, signal, "o", color=fig.BLUE, markersize=4, label="signal")
        axes.plot(dense, law, "-", color=fig.BLUE, linewidth=1, label="law, s = 1")
        axes.plot(clocks, noise, "o", color=fig.ORANGE, markersize=4, label="noise")
        axes.plot(dense, [n / d + (1 - n / d) * math.exp(-beta * u) for u in dense], "-", color=fig.ORANGE, linewidth=1)
        axes.set_xscale("symlog", linthresh=unit / 4)
        fig.name(axes, "u = log T/(T − t)", "share of the energy left")

    return Finding(
        f"u₀ = {unit:.3f}: noise below {allowed:.3f}, signal {kept:.3f}; signal there as u → ∞",
        f"noise {noise[3]:.3f}, signal {signal[3]:.3f}; at u = {clocks[-1]:.1f} signal {signal[-1]:.1e}",
        "fails" if not ok else "holds" if signal[-1] > 0.5 else "holds in range",
        "log(100)/β ≤ u ≪ 1; then the signal goes too, to Z = 0 at t = T, and n/d of the noise stays till then"
        if ok
        else "noise left or signal lost at u₀",
        {"noise_left": noise[3], "signal_left": signal[3], "signal_predicted": kept, "signal_at_end": signal[-1]},
        draw,
    )


@claim(section="B.4", equation="‖∇q_t(Z_t)‖ ∝ 1/σ_t²", expected="holds in range")
def score_magnitude(trial: Trial) -> Finding:
    """‖∇log q_t(Z_t)‖ ∝ 1/σ_t² while ∇R^c(Z_t) is of constant size, so ∇R^c/σ_t² is a drop-in for the score.

    Slopes in σ, to 0.05 (corrections are (βσ)²/2 ≤ 0.02 of ∇R^c and σ² of the score): the score's is −2 at a fixed
    point off the support, where σ²∇log q tends to projection − z ≠ 0. But Z_t is itself only σ_t away from the support,
    so there σ²∇log q is of size σ_t and the slope should be −1. If it is, the statement is one about points that stay
    where they are.
    """
    generator, beta = trial.generator(), 10.0
    model, sigmas = mixture(generator), (0.02, 0.01, 0.005, 0.002, 0.001)
    sample = model.sample(trial.choose(2_000, 50_000), 1.0, generator)
    dense, tokens = uncorrelated(generator, 1.0)
    eps = precision(beta, tokens.tokens, dense.bases)
    sizes = []
    for sigma in sigmas:
        fixed, moving = ((1 - s) * sample.clean + s * sample.tokens for s in (0.5, sigma))  # clean + s · noise
        z = (1 - sigma) * tokens.clean + sigma * tokens.tokens
        gradient = subspace_coding_rate_gradient(z, dense.bases, eps)
        sizes.append((size(model.score(fixed, sigma)), size(model.score(moving, sigma)), size(gradient)))
    columns = [list(column) for column in zip(*sizes, strict=True)]
    at_fixed, along, constant = (power_law(sigmas, column).exponent for column in columns)
    ok = abs(at_fixed + 2) < 0.05 and abs(constant) < 0.05

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, ["size of the score and of ∇R^c"])
        labels = ("score at fixed z, line −2", "score at Z_t, line −1", "∇R^c at Z_t, line 0")
        for at, (column, power, label) in enumerate(zip(columns, (-2, -1, 0), labels, strict=True)):
            fig.law(axes, sigmas, column, law_through(sigmas, column, power), label, at)
        fig.name(axes, "σ_t", "mean norm")

    return Finding(
        "slope −2 of the score, 0 of ∇R^c",
        f"score {at_fixed:.3f} at fixed z, {along:.3f} at Z_t; ∇R^c {constant:.3f}",
        "fails" if not ok else "holds" if abs(along + 2) < 0.05 else "holds in range",
        f"fixed z off the support; at Z_t the score grows as σ^{along:.2f} only"
        if ok
        else "a slope is off by over 0.05",
        {"slope_fixed": at_fixed, "slope_along": along, "slope_rate": constant},
        draw,
    )
