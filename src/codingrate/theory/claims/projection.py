"""Claims of the theorem on projection: the residual, its orders, its probability and its assumptions (paper B.3)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ..projection import (
    Mixture,
    compressed,
    draw,
    event_constants,
    main_term,
    optimal_eps,
    residual,
    residual_bound,
)
from . import _figures as fig
from ._measure import estimate, law_through, power_law
from .frame import Finding, Trial, claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def at_beta(K: int, p: int, n: int, sigma: float, beta: float) -> Mixture:  # noqa: N803
    """The mixture with the ε of β = p/(nε²)."""
    return Mixture(K, p, n, sigma, math.sqrt(p / (n * beta)))


def at_remark(K: int, p: int, n: int, sigma: float) -> Mixture:  # noqa: N803
    """The mixture with the remark's ε."""
    return Mixture(K, p, n, sigma, optimal_eps(K, K * p, n, sigma))


def sweeps(trial: Trial) -> dict[str, list[tuple[float, Mixture]]]:
    """Settings with d ≥ n ≥ p ≥ K ≥ 2, Kp = d and σ ≤ 1 by what is varied."""
    longer = trial.full
    return {
        "σ": [(s, at_remark(4, 32, 32, s)) for s in (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)],
        "ε": [(e, Mixture(4, 32, 32, 0.03, e)) for e in (0.3, 0.5, 0.7, 1.0)],
        "n": [(n, at_remark(2, 64, n, 0.1)) for n in (64, 80, 96, 128)],
        "K": [(K, at_remark(K, 16, 16, 0.1)) for K in ((2, 4, 8, 16) if longer else (2, 4, 8))],
        "p, d": [(p, at_remark(4, p, 64, 0.1)) for p in ((16, 32, 48, 64) if longer else (16, 32, 64))],
        "n, p, d": [(n, at_remark(4, n, n, 0.1)) for n in ((16, 32, 64, 128) if longer else (16, 32, 64))],
    }


@claim(section="B.3", equation="lem:inverse-term")
def projection_theorem(trial: Trial) -> Finding:
    """‖Z⁺ − main term‖ ≤ C₅Kη(σ²β² + σ(1 + √(n/d)) + √K βσ²(1 + √(n/d)) + √(n/d)) for Z⁺ = Z − η∇R^c(Z | U).

    The main term is (Δ − ηβP(Δ)) + (1 − η/(1 + β⁻¹))X. C₅ is not given, only that one value serves all sizes: over
    sweeps of σ, ε, n, K, p and of all sizes together the residual must stay under the bound with C₅ = 1. The largest
    ratio is the least C₅ that these settings admit.
    """
    generator, ratios = trial.generator(), {}
    for name, settings in sweeps(trial).items():
        ratios[name] = [
            (
                value,
                max(
                    residual(draw(mixture, generator, turned=False), 1 / mixture.beta)
                    for _ in range(trial.choose(2, 10))
                )
                / residual_bound(mixture, 1 / mixture.beta),
            )
            for value, mixture in settings
        ]
    least = max(ratio for points in ratios.values() for _, ratio in points)
    tried = sum(len(points) for points in ratios.values())

    def picture(figure: Figure) -> None:
        names = list(ratios)
        for axes, pair in zip(fig.panels(figure, ["", "", ""]), zip(names[::2], names[1::2], strict=True), strict=True):
            for colour, name in zip(fig.COLOURS, pair, strict=False):
                axes.loglog(*zip(*ratios[name], strict=True), "o-", color=colour, markersize=4, label=name)
            axes.axhline(1, color=fig.GREY, linewidth=0.8, linestyle="--")
            fig.name(axes, " or ".join(pair), "residual / bound with C₅ = 1")

    return Finding(
        "residual ≤ bound with one C₅",
        f"C₅ = {least:.2f} serves all of {tried} settings",
        "holds" if least <= 1 else "fails",
        "" if least <= 1 else "a residual is above the bound with C₅ = 1",
        {"constant": least, "settings": tried},
        picture,
    )


@claim(section="B.3", equation="lem:inverse-term")
def projection_orders(trial: Trial) -> Finding:
    """The residual is of order √(n/d) without noise, grows to first order in σ from there, and at most linearly in K.

    The orders of the theorem's right side at fixed β = 8, one at a time: slope in n/d at σ = 0 at least ½ (next terms
    are a relative √(n/d), so to half of the largest), slope in σ of what noise adds at least 1 as σ → 0 (next terms
    are βσ), slope in K at most 1. Slopes over draws, to three standard errors. Small n/d asks to give up n ≥ p, which
    the proof does not use.
    """
    generator, runs = trial.generator(), trial.choose(4, 16)
    widths, counts, sigmas = (72, 144, 288), (2, 4, 8), (0.0005, 0.001, 0.002, 0.004)
    shares = [24 / (2 * p) for p in widths]

    def size(mixture: Mixture) -> float:
        return residual(draw(mixture, generator, turned=False), 1.0)

    by_share = [[size(at_beta(2, p, 24, 0.0, 8.0)) for p in widths] for _ in range(runs)]
    by_count = [[size(at_beta(K, 32, 4 * K, 0.0, 8.0)) for K in counts] for _ in range(runs)]
    by_noise = []
    for _ in range(runs):
        state, matrices = generator.get_state(), []
        for sigma in (0.0, *sigmas):
            tokens = draw(at_beta(4, 32, 32, sigma, 8.0), generator.set_state(state), turned=False)
            matrices.append(compressed(tokens, 1.0) - main_term(tokens, 1.0))
        by_noise.append([float(torch.linalg.matrix_norm(matrix - matrices[0], 2)) for matrix in matrices[1:]])
    share, noise, count = (
        estimate([power_law(x, y).exponent for y in rows])
        for x, rows in ((shares, by_share), (sigmas, by_noise), (counts, by_count))
    )
    ok = (
        share.mean + 3 * share.error >= 0.5 - math.sqrt(max(shares)) / 2
        and noise.mean + 3 * noise.error >= 1 - 8 * max(sigmas)
        and count.mean - 3 * count.error <= 1
    )

    def picture(figure: Figure) -> None:
        titles = ["no noise", "what noise adds", "subspaces, no noise"]
        for axes, x, rows, order, name in zip(
            fig.panels(figure, titles),
            (shares, sigmas, counts),
            (by_share, by_noise, by_count),
            (0.5, 1.0, 1.0),
            ("n/d", "σ", "K"),
            strict=True,
        ):
            mean = torch.tensor(rows).mean(0).tolist()
            fig.law(axes, x, mean, law_through(x, mean, order), f"measured, slope {order:g} drawn in", 0)
            fig.name(axes, name, "residual / η")

    return Finding(
        "slope ≥ ½ in n/d, ≥ 1 in σ, ≤ 1 in K",
        f"{share.mean:.2f} ± {share.error:.2f}, {noise.mean:.3f}, {count.mean:.2f} ± {count.error:.2f}",
        "holds" if ok else "fails",
        "" if ok else "another order than stated",
        {"n_over_d": share.mean, "sigma": noise.mean, "K": count.mean},
        picture,
    )


@claim(section="B.3", equation="lem:inverse-term, eq:good_event")
def failure_probability(trial: Trial) -> Finding:
    """The good event fails with a probability of at most KC(e^{−C′d} + e^{−C″n/K} + n⁻²).

    Constants are not given; as the sizes grow the event's own tend to 1, 1 and 2 + √(n/d), so it is tried with half as
    much again. With K and n/d fixed, failures must fall at least as n⁻², from n = 16 to the last size: at most
    (16/n)² of the first rate, to three standard errors of a binomial.
    """
    generator, K = trial.generator(), 4
    sizes, runs = trial.choose((16, 32), (16, 32, 64)), trial.choose(200, 2000)
    root = 0.5  # n/d = 1/4
    limits = (1.5, 1.5, 1.5 * (2 + root))
    rates = []
    for n in sizes:
        mixture = at_remark(K, n, n, 0.1)
        failed = 0
        for _ in range(runs):
            needed = event_constants(draw(mixture, generator, turned=False))
            failed += any(c > limit for c, limit in zip(needed, limits, strict=True))
        rates.append(failed / runs)
    due = rates[0] * (sizes[0] / sizes[-1]) ** 2
    spread = 3 * math.sqrt(max(due * (1 - due), 1 / runs) / runs)
    ok = rates[-1] <= due + spread
    shown = ", ".join(f"{rate:.1%} at n = {n}" for n, rate in zip(sizes, rates, strict=True))

    def picture(figure: Figure) -> None:
        (axes,) = fig.panels(figure, [f"failures in {runs} draws, K = 4, n/d = 1/4"])
        seen = [max(rate, 0.5 / runs) for rate in rates]
        fig.law(axes, sizes, seen, [seen[0] * (sizes[0] / n) ** 2 for n in sizes], "measured; line: n⁻²", 0)
        fig.name(axes, "n", "rate")

    return Finding(
        f"falls at least as n⁻²: ≤ {due + spread:.1%} at n = {sizes[-1]}",
        shown,
        "holds" if ok else "fails",
        "" if ok else "failures fall more slowly than n⁻²",
        {f"rate_{n}": rate for n, rate in zip(sizes, rates, strict=True)},
        picture,
    )


@claim(section="B.3", equation="ass:parameter_config", expected="fails")
def base_assumption(trial: Trial) -> Finding:
    """The assumption's inequalities, C₁√(n log n) ≤ n/2K among them, hold for CRATE-Base (n = 196, K = 12).

    C₁ is that of the binomial concentration, P(|B − n/k| ≥ C₁√(n log n)) ≤ C₂n⁻³ for every k. Hoeffding, which the
    proof uses, gives 2n^(−2C₁²), so C₁ = √(3/2); at k = 2 the binomial is as wide as Hoeffding allows, so no smaller
    constant serves all n and k.
    """
    n, K, constant = 196, 12, math.sqrt(1.5)
    left, right = constant * math.sqrt(n * math.log(n)), n / (2 * K)
    enough = 2
    while constant * math.sqrt(enough * math.log(enough)) > enough / (2 * K):
        enough += 1
    ok = left <= right
    return Finding(
        f"C₁√(n log n) ≤ n/2K = {right:.1f}",
        f"{left:.1f} with C₁ = √(3/2)",
        "holds" if ok else "fails",
        "" if ok else f"C₁ ≤ {right / left * constant:.2f} would be needed; with 12 subspaces n ≥ {enough:,} tokens",
        {"left": left, "right": right, "tokens_needed": enough},
    )
