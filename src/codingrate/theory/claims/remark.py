"""Claims of the remark on the theorem (paper B.3): the best ε, shrinkage, the noise that is left, and ΔR instead."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from codingrate.objective import coding_rate_gradient, subspace_coding_rate_gradient

from ..projection import (
    Mixture,
    Tokens,
    compressed,
    draw,
    optimal_eps,
    outside,
    residual,
    residual_bound,
    signal_gain,
)
from . import _figures as fig
from ._measure import estimate, law_through, power_law
from .frame import Finding, Trial, claim
from .projection import at_beta, at_remark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIGMAS = (0.1, 0.03, 0.01, 0.003, 0.001)


@claim(section="B.3", equation="Remark on lem:inverse-term, optimal ε", expected="holds in range")
def best_precision(trial: Trial) -> Finding:
    """At η = β⁻¹ the residual is optimised by ε² = σd/(nK√(σ + √(n/d))), of first order in σ as σ → 0.

    The remark minimises its bound, simplified by 1 + √(n/d) ≤ 2, so the theorem's bound at this ε must be within 2 of
    its minimum over ε. The residual itself, over ε at each σ, must have its minimum within the same factor and at an ε²
    of slope 1 in σ, to the 0.15 a grid of factors 2 in ε² can tell, for the claim to hold; if only the bound does, it
    holds for the bound.
    """
    generator, K, p, n = trial.generator(), 4, 32, 32
    state, factors = generator.get_state(), [2 ** (power / 2) for power in range(-9, 6)]
    best, excess, slack, curves = [], [], [], []
    for sigma in SIGMAS:
        centre = optimal_eps(K, K * p, n, sigma)
        settings = [Mixture(K, p, n, sigma, centre * f) for f in factors]
        measured = [residual(draw(m, generator.set_state(state), turned=False), 1 / m.beta) for m in settings]
        bounds = [residual_bound(m, 1 / m.beta) for m in settings]
        here = factors.index(1.0)
        best.append((centre * factors[measured.index(min(measured))]) ** 2)
        excess.append(measured[here] / min(measured))
        slack.append(bounds[here] / min(bounds))
        curves.append((sigma, measured, bounds))
    order = power_law(SIGMAS, best).exponent
    inside = max(slack) <= 2
    whole = max(excess) <= 2 and abs(order - 1) <= 0.15

    def picture(figure: Figure) -> None:
        left, right = fig.panels(figure, ["residual (points) and bound (lines)", "where the residual is least"])
        for at, (sigma, measured, bounds) in enumerate(curves[::2]):
            fig.law(left, factors, measured, bounds, f"σ = {sigma:g}", at)
        fig.name(left, "ε / the remark's ε", "")
        fig.law(right, SIGMAS, best, law_through(SIGMAS, best, 1), "measured, slope 1 drawn in", 0)
        fig.name(right, "σ", "best ε²")

    return Finding(
        "least residual at this ε, ε² of slope 1 in σ",
        f"bound ≤ {max(slack):.2f} of its minimum; residual up to {max(excess):.0f} times its own, "
        f"which is at ε² of slope {order:.2f}",
        ("holds" if whole else "holds in range") if inside else "fails",
        "for the bound; the residual is least at a smaller ε, beyond the theorem's βσ ≤ ½"
        if inside
        else "not its minimum",
        {"bound_over_least": max(slack), "residual_over_least": max(excess), "slope": order},
        picture,
    )


@claim(section="B.3", equation="Remark on lem:inverse-term, shrinkage")
def signal_shrinkage(trial: Trial) -> Finding:
    """A step of η = β⁻¹ multiplies the signal by 1/(1 + β⁻¹) at the remark's ε: a shrinkage that vanishes as σ → 0.

    ⟨Z⁺, X⟩/⟨X, X⟩ against 1/(1 + β⁻¹). The theorem leaves a relative √(n/d) of the shrinkage (its residual at σ = 0 is
    η√(n/d)) and ⟨Δ, X⟩ adds chance of σ/√(nd): the two must agree to that, and the shrinkage fall with every σ.
    """
    generator, K, p, n = trial.generator(), 4, 64, 32
    state, lost, predicted, near = generator.get_state(), [], [], []
    for sigma in SIGMAS:
        mixture = at_remark(K, p, n, sigma)
        tokens = draw(mixture, generator.set_state(state))
        lost.append(1 - signal_gain(compressed(tokens, 1 / mixture.beta), tokens.clean))
        predicted.append(1 / (1 + mixture.beta))
        room = math.sqrt(n / mixture.d) * predicted[-1] + 3 * sigma / math.sqrt(n * mixture.d)
        near.append(abs(lost[-1] - predicted[-1]) / room)
    ok = max(near) <= 1 and all(a > b for a, b in pairwise(lost))
    order = power_law(SIGMAS[2:], lost[2:]).exponent

    def picture(figure: Figure) -> None:
        (axes,) = fig.panels(figure, ["shrinkage of the signal"])
        fig.law(axes, SIGMAS, lost, predicted, "measured; line: 1/(1 + β)", 0)
        fig.name(axes, "σ", "1 − ⟨Z⁺, X⟩/⟨X, X⟩")

    return Finding(
        f"1/(1 + β): {predicted[0]:.4f} … {predicted[-1]:.5f}",
        f"{lost[0]:.4f} … {lost[-1]:.5f} for σ = {SIGMAS[0]:g} … {SIGMAS[-1]:g}, slope {order:.2f} at the end",
        "holds" if ok else "fails",
        "" if ok else "not the predicted shrinkage",
        {f"lost_{sigma:g}": value for sigma, value in zip(SIGMAS, lost, strict=True)},
        picture,
    )


@claim(section="B.3", equation="Remark on lem:inverse-term, projection", expected="holds in range")
def noise_reduction(trial: Trial) -> Finding:
    """Meanwhile the noise is reduced: P_k → Σ_{k′≠k} U_k′ proj(im A_k′)^⊥ U_k′* as σ → 0, and Δ − P(Δ) stays.

    Of a token's noise outside its own subspace a step of β⁻¹ then leaves what lies in the images of the other tokens,
    n − n_k of d − p dimensions: a share √(n/d) of its norm. Draws at σ = 10⁻³, βσ = 0.1 must average to that, to three
    standard errors and the corrections, relative β⁻¹ + (βσ)². The claim holds if nothing is left, and if √(n/d) is, for
    n ≪ d.
    """
    generator, K, sigma = trial.generator(), 4, 1e-3
    shares, left, ratios = [], [], []
    for p in (32, 64, 128):
        mixture = at_beta(K, p, 32, sigma, 0.1 / sigma)
        rows = []
        for _ in range(trial.choose(3, 20)):
            tokens = draw(mixture, generator, turned=False)
            after = outside(compressed(tokens, 1 / mixture.beta), tokens)
            own = torch.bincount(tokens.labels, minlength=K)[tokens.labels].double()  # n_k of each token
            due = math.sqrt(float((32 - own).mean()) / (mixture.d - p))
            share = float(torch.linalg.norm(after) / torch.linalg.norm(outside(tokens.noise, tokens)))
            rows.append((share, share / due))
        shares.append(32 / mixture.d)
        left.append(sum(row[0] for row in rows) / len(rows))
        ratio = estimate([row[1] for row in rows])
        ratios.append(abs(ratio.mean - 1) / (3 * ratio.error + 1 / mixture.beta + (mixture.beta * sigma) ** 2))
    ok = max(ratios) <= 1

    def picture(figure: Figure) -> None:
        before, after, law = fig.panels(figure, ["before", "after one step", "noise left outside"])
        mixture = at_remark(4, 256, 64, 0.1)
        tokens = draw(mixture, torch.Generator().manual_seed(trial.seed), turned=False)
        for axes, z in ((before, tokens.tokens), (after, compressed(tokens, 1 / mixture.beta))):
            off = torch.linalg.norm(outside(z, tokens), dim=-1)
            on = torch.linalg.norm(z - outside(z, tokens), dim=-1)
            axes.plot(on, off, ".", color=fig.BLUE, markersize=5)
            axes.set(xlim=(0, 1.3), ylim=(0, 0.12))
            fig.name(axes, "norm in its subspace", "norm outside")
        fig.law(law, shares, left, [math.sqrt(s) for s in shares], "measured; line: √(n/d)", 0)
        fig.name(law, "n/d", "share left")

    return Finding(
        f"√(n/d) left: {math.sqrt(shares[0]):.3f}, {math.sqrt(shares[1]):.3f}, {math.sqrt(shares[2]):.3f}",
        ", ".join(f"{value:.3f}" for value in left),
        "fails" if not ok else "holds in range" if left[-1] > 0.01 else "holds",
        "n ≪ d: noise in the images of the other tokens stays" if ok else "not the predicted share",
        {f"left_{s:.3g}": v for s, v in zip(shares, left, strict=True)},
        picture,
    )


@claim(section="B.3", equation="Remark on lem:inverse-term, ΔR", expected="holds in range")
def full_objective_keeps_signal(trial: Trial) -> Finding:
    """A step on ΔR instead of R^c has zero shrinkage, and denoises perfectly for a wider variety of step sizes η.

    ∇R ≈ X/(1 + α⁻¹) on the signal, so a step of β⁻¹ multiplies it by 1 + β⁻¹(1/(1 + α⁻¹) − 1/(1 + β⁻¹)), at most
    1 + β⁻²; with chance, the gain must be 1 to β⁻² + 3σ/√(nd). Of the noise a single step leaves |1 − ηβ|, which is 0
    at one η only. Twelve steps of ηβ from ¼ to 1¾ leave ¾¹² = 3 %: the noise must come down to that and the √(n/d)
    which the first step leaves, while the signal grows by no more than 12ηβ⁻¹. The claim holds if one step does it
    for all η, in a range if twelve do.
    """
    generator, K, p, n = trial.generator(), 4, 32, 16
    state, gaps = generator.get_state(), []
    for sigma in SIGMAS:
        mixture = at_remark(K, p, n, sigma)
        tokens = draw(mixture, generator.set_state(state), turned=False)
        gain = signal_gain(compressed(tokens, 1 / mixture.beta, full=True), tokens.clean)
        gaps.append(abs(gain - 1) / (mixture.beta**-2 + 3 * sigma / math.sqrt(n * mixture.d)))
    mixture = at_remark(K, p, n, 0.05)
    tokens = draw(mixture, generator.set_state(state), turned=False)
    steps, root = (0.25, 0.5, 1.0, 1.5, 1.75), math.sqrt(n / mixture.d)
    paths = {full: [iterate(tokens, step / mixture.beta, full) for step in steps] for full in (True, False)}
    one = [path[1][0] for path in paths[True]]
    last = [path[-1] for path in paths[True]]
    room = [12 * step * mixture.beta**-2 + 3 * mixture.sigma / math.sqrt(n * mixture.d) for step in steps]
    reached = all(
        noise <= root + 0.75**12 and abs(gain - 1) <= grown for (noise, gain), grown in zip(last, room, strict=True)
    )
    kept = paths[False][2][-1][1]

    def picture(figure: Figure) -> None:
        axes = fig.panels(figure, ["noise left", "signal kept"])
        for at, panel in enumerate(axes):
            for colour, full, name in ((fig.BLUE, True, "ΔR"), (fig.ORANGE, False, "R^c")):
                for step, path in zip(steps, paths[full], strict=True):
                    label = name if step == 1.0 else None
                    panel.plot([point[at] for point in path], color=colour, linewidth=1, label=label)
            fig.name(panel, "steps, ηβ from ¼ to 1¾", "")
        axes[0].axhline(root, color=fig.GREY, linewidth=0.8, linestyle="--")

    return Finding(
        "gain 1, and no noise left for any η",
        f"gain off by {max(gaps):.2f} of β⁻² and chance; one step leaves {min(one):.2f} … {max(one):.2f} of the noise, "
        f"twelve {min(v[0] for v in last):.2f} … {max(v[0] for v in last):.2f} (√(n/d) = {root:.2f}); "
        f"twelve on R^c keep {kept:.0%} of the signal",
        "fails" if max(gaps) > 1 or not reached else "holds" if max(one) <= root + 0.75**12 else "holds in range",
        "repeated steps; a single one is perfect at η = β⁻¹ only, and noise in the images of other tokens stays"
        if reached
        else "noise or signal off after twelve steps",
        {"gain_gap": max(gaps), "one_step_worst": max(one), "repeated_worst": max(v[0] for v in last), "kept_rc": kept},
        picture,
    )


def iterate(tokens: Tokens, eta: float, full: bool, steps: int = 12) -> list[tuple[float, float]]:
    """Share of the noise outside that is left and gain of the signal after 0, 1, … steps on ΔR (`full`) or R^c."""
    eps, z = tokens.mixture.eps, tokens.tokens
    start, path = torch.linalg.norm(outside(z, tokens)), []
    for _ in range(steps + 1):
        path.append((float(torch.linalg.norm(outside(z, tokens)) / start), signal_gain(z, tokens.clean)))
        step = subspace_coding_rate_gradient(z, tokens.bases, eps)
        z = z - eta * (step - coding_rate_gradient(z, eps) if full else step)
    return path
