"""Claims about the theorem on projection: its residual, orders, probability and assumptions (paper B.3)."""

from __future__ import annotations

import math

import torch

from .. import projection as theorem
from . import figures as fig
from .frame import Finding, Trial, claim, judge
from .measure import estimate, power_law


def at_beta(K: int, p: int, n: int, sigma: float, beta: float) -> theorem.MixtureSizes:
    """Return the sizes with the ε of β = p/(nε²)."""
    return theorem.MixtureSizes(K, p, n, sigma, math.sqrt(p / (n * beta)))


def at_remark(K: int, p: int, n: int, sigma: float) -> theorem.MixtureSizes:
    """Return the sizes with the remark's ε."""
    return theorem.MixtureSizes(K, p, n, sigma, theorem.optimal_eps(K, K * p, n, sigma))


def axis_aligned(sizes: theorem.MixtureSizes, generator: torch.Generator) -> theorem.NoisyTokens:
    """Draw tokens on blocks of the axes, which is faster than random subspaces and equal up to a rotation."""
    return theorem.draw_tokens(sizes, generator, rotate=False)


def residual_norm(sizes: theorem.MixtureSizes, eta: float, generator: torch.Generator) -> float:
    """Draw tokens and return the operator norm of the residual, the left side of the theorem."""
    return float(torch.linalg.matrix_norm(theorem.residual(axis_aligned(sizes, generator), eta), 2))


def sweeps(trial: Trial) -> dict[str, list[tuple[float, theorem.MixtureSizes]]]:
    """Return settings with d ≥ n ≥ p ≥ K ≥ 2, Kp = d and σ ≤ 1, by the size that varies."""
    longer = trial.full
    return {
        "σ": [(s, at_remark(4, 32, 32, s)) for s in (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)],
        "ε": [(e, theorem.MixtureSizes(4, 32, 32, 0.03, e)) for e in (0.3, 0.5, 0.7, 1.0)],
        "n": [(n, at_remark(2, 64, n, 0.1)) for n in (64, 80, 96, 128)],
        "K": [(K, at_remark(K, 16, 16, 0.1)) for K in ((2, 4, 8, 16) if longer else (2, 4, 8))],
        "p, d": [(p, at_remark(4, p, 64, 0.1)) for p in ((16, 32, 48, 64) if longer else (16, 32, 64))],
        "n, p, d": [(n, at_remark(4, n, n, 0.1)) for n in ((16, 32, 64, 128) if longer else (16, 32, 64))],
    }


@claim(section="B.3", equation="lem:inverse-term")
def projection_theorem(trial: Trial) -> Finding:
    """‖Z⁺ − main term‖ ≤ C₅Kη(σ²β² + σ(1 + √(n/d)) + √K βσ²(1 + √(n/d)) + √(n/d)) for Z⁺ = Z − η∇R^c(Z | U).

    The main term is (Δ − ηβP(Δ)) + (1 − η/(1 + β⁻¹))X. The paper does not give C₅, only that one value is valid for all
    sizes. Over sweeps of σ, ε, n, K, p and of all sizes together the residual must stay below the bound with C₅ = 1.
    The largest ratio is the smallest C₅ that these settings admit.
    """
    generator, draws = trial.generator(), trial.choose(2, 10)

    def ratio(sizes: theorem.MixtureSizes) -> float:
        eta = 1 / sizes.beta
        return max(residual_norm(sizes, eta, generator) for _ in range(draws)) / theorem.residual_bound(sizes, eta)

    ratios = {name: [(value, ratio(sizes)) for value, sizes in settings] for name, settings in sweeps(trial).items()}
    least = max(ratio for points in ratios.values() for _, ratio in points)
    tried = sum(len(points) for points in ratios.values())

    def draw(figure: fig.Figure) -> None:
        names = list(ratios)
        for axes, pair in zip(fig.panels(figure, ["", "", ""]), zip(names[::2], names[1::2], strict=True), strict=True):
            for color, name in zip(fig.COLORS, pair, strict=False):
                axes.loglog(*zip(*ratios[name], strict=True), "o-", color=color, markersize=4, label=name)
            fig.guides(axes, y=(1,))
            fig.label_axes(axes, " or ".join(pair), "residual / bound with C₅ = 1")

    return Finding(
        "residual ≤ bound with one C₅",
        f"C₅ = {least:.2f} is enough for all {tried} settings",
        judge(least <= 1),
        numbers={"constant": least, "settings": tried},
        draw=draw,
    )


@claim(section="B.3", equation="lem:inverse-term")
def projection_orders(trial: Trial) -> Finding:
    """The residual is of order √(n/d) without noise, grows to first order in σ from there, and at most linearly in K.

    These are the orders of the theorem's right side at fixed β = 8, tested one at a time. The slope in n/d at σ = 0 is
    at least ½, up to half of the largest √(n/d), the relative size of the next terms. The slope in σ of the part that
    noise adds is at least 1 as σ → 0, up to βσ. The slope in K is at most 1. Slopes are means over draws and must agree
    to three standard errors. Small n/d requires giving up n ≥ p, which the proof does not use.
    """
    generator, runs = trial.generator(), trial.choose(4, 16)
    widths, counts, sigmas = (72, 144, 288), (2, 4, 8), (0.0005, 0.001, 0.002, 0.004)
    shares = [24 / (2 * p) for p in widths]

    by_share = [[residual_norm(at_beta(2, p, 24, 0.0, 8.0), 1.0, generator) for p in widths] for _ in range(runs)]
    by_count = [[residual_norm(at_beta(K, 32, 4 * K, 0.0, 8.0), 1.0, generator) for K in counts] for _ in range(runs)]
    by_noise = []
    for _ in range(runs):
        state, matrices = generator.get_state(), []
        for sigma in (0.0, *sigmas):
            tokens = axis_aligned(at_beta(4, 32, 32, sigma, 8.0), generator.set_state(state))
            matrices.append(theorem.residual(tokens, 1.0))
        by_noise.append([float(torch.linalg.matrix_norm(matrix - matrices[0], 2)) for matrix in matrices[1:]])
    sweep = ((shares, by_share, 0.5, "n/d"), (sigmas, by_noise, 1.0, "σ"), (counts, by_count, 1.0, "K"))
    share, noise, count = (estimate([power_law(x, y).exponent for y in norms]) for x, norms, *_ in sweep)
    ok = (
        share.mean + 3 * share.error >= 0.5 - math.sqrt(max(shares)) / 2
        and noise.mean + 3 * noise.error >= 1 - 8 * max(sigmas)
        and count.mean - 3 * count.error <= 1
    )

    def draw(figure: fig.Figure) -> None:
        titles = ["no noise", "part added by noise", "subspaces, no noise"]
        for axes, (x, norms, order, name) in zip(fig.panels(figure, titles), sweep, strict=True):
            fig.plot_laws(axes, (x, torch.tensor(norms).mean(0).tolist(), order, f"measured; line: slope {order:g}"))
            fig.label_axes(axes, name, "residual / η")

    return Finding(
        "slope ≥ ½ in n/d, ≥ 1 in σ, ≤ 1 in K",
        f"{share.mean:.2f} ± {share.error:.2f}, {noise.mean:.3f}, {count.mean:.2f} ± {count.error:.2f}",
        judge(ok),
        numbers={"n_over_d": share.mean, "sigma": noise.mean, "K": count.mean},
        draw=draw,
    )


@claim(section="B.3", equation="lem:inverse-term, eq:good_event")
def failure_probability(trial: Trial) -> Finding:
    """The good event fails with a probability of at most KC(e^{−C′d} + e^{−C″n/K} + n⁻²).

    The paper does not give the constants. Those of the event tend to 1, 1 and 2 + √(n/d) as the sizes grow, and the
    test uses 1.5 times these values. With K and n/d fixed, the failure rate must fall at least as n⁻² from n = 16 to
    the largest size: to at most (16/n)² of the first rate, within three standard errors of a binomial.
    """
    generator, K = trial.generator(), 4
    sizes, runs = trial.choose((16, 32), (16, 32, 64)), trial.choose(200, 2000)
    root = 0.5  # n/d = 1/4
    limits = (1.5, 1.5, 1.5 * (2 + root))
    rates = []
    for n in sizes:
        setting = at_remark(K, n, n, 0.1)
        failed = 0
        for _ in range(runs):
            needed = theorem.event_constants(axis_aligned(setting, generator))
            failed += any(c > limit for c, limit in zip(needed, limits, strict=True))
        rates.append(failed / runs)
    allowed = rates[0] * (sizes[0] / sizes[-1]) ** 2
    spread = 3 * math.sqrt(max(allowed * (1 - allowed), 1 / runs) / runs)
    ok = rates[-1] <= allowed + spread
    shown = [max(rate, 0.5 / runs) for rate in rates]  # a rate of 0 has no place on a logarithmic axis
    curve = (sizes, shown, [shown[0] * (sizes[0] / n) ** 2 for n in sizes], "measured; line: n⁻²")
    return Finding(
        f"falls at least as n⁻²: ≤ {allowed + spread:.1%} at n = {sizes[-1]}",
        ", ".join(f"{rate:.1%} at n = {n}" for n, rate in zip(sizes, rates, strict=True)),
        judge(ok),
        numbers={f"rate_{n}": rate for n, rate in zip(sizes, rates, strict=True)},
        draw=fig.law_figure(f"failures in {runs} draws, K = 4, n/d = 1/4", "n", "rate", curve),
    )


@claim(section="B.3", equation="ass:parameter_config", expected="fails")
def base_assumption(trial: Trial) -> Finding:
    """The assumption's inequalities, C₁√(n log n) ≤ n/2K among them, hold for CRATE-Base (n = 196, K = 12).

    C₁ is the constant of the binomial concentration, P(|B − n/k| ≥ C₁√(n log n)) ≤ C₂n⁻³ for every k. Hoeffding's
    inequality, which the proof uses, gives 2n^(−2C₁²), so C₁ = √(3/2). At k = 2 the binomial is as wide as Hoeffding's
    inequality allows, so no smaller constant is valid for all n and k.
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
        judge(ok),
        f"C₁ ≤ {right / left * constant:.2f} would be needed, or n ≥ {enough:,} tokens with 12 subspaces",
        {"left": left, "right": right, "tokens_needed": enough},
    )
