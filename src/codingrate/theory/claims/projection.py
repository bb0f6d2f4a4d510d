"""Claims about the theorem on projection and its remark: residual, orders, probability, ε, noise left (paper B.3)."""

from __future__ import annotations

import math
from functools import partial
from itertools import count, pairwise

import torch
from torch import Tensor

from .. import projection as theorem
from ..denoising import off_subspace
from . import figures as fig
from .frame import Finding, Trial, claim, estimate, judge, power_law

SIGMAS = (0.1, 0.03, 0.01, 0.003, 0.001)

axis_aligned = partial(theorem.draw_tokens, rotate=False)
"""Draw tokens on blocks of the axes, which is faster than random subspaces and equal up to a rotation."""


def at_beta(K: int, p: int, n: int, sigma: float, beta: float) -> theorem.MixtureSizes:
    """Return the sizes with the ε of β = p/(nε²)."""
    return theorem.MixtureSizes(K, p, n, sigma, math.sqrt(p / (n * beta)))


def at_remark(K: int, p: int, n: int, sigma: float) -> theorem.MixtureSizes:
    """Return the sizes with the remark's ε."""
    return theorem.MixtureSizes(K, p, n, sigma, theorem.optimal_eps(K, K * p, n, sigma))


def residual_norm(sizes: theorem.MixtureSizes, eta: float, generator: torch.Generator) -> float:
    """Draw tokens and return the operator norm of the residual, the left side of the theorem."""
    return float(torch.linalg.matrix_norm(theorem.residual(axis_aligned(sizes, generator), eta), 2))


def step(tokens: theorem.NoisyTokens, *, full: bool = False) -> Tensor:
    """Return Z after one step of η = β⁻¹ on R^c, or on ΔR if `full`, (n, d)."""
    return theorem.compress(tokens.tokens, tokens.bases, tokens.sizes.eps, 1 / tokens.sizes.beta, full=full)


def outside(z: Tensor, tokens: theorem.NoisyTokens) -> Tensor:
    """Return the part of z (n, d) outside the subspaces of the tokens."""
    return off_subspace(z, tokens.bases, tokens.labels)


@claim(section="B.3", equation="lem:inverse-term")
def projection_theorem(trial: Trial) -> Finding:
    """‖Z⁺ − main term‖ ≤ C₅Kη(σ²β² + σ(1 + √(n/d)) + √K βσ²(1 + √(n/d)) + √(n/d)) for Z⁺ = Z − η∇R^c(Z | U).

    The main term is (Δ − ηβP(Δ)) + (1 − η/(1 + β⁻¹))X. The paper does not give C₅, only that one value is valid for all
    sizes. Over sweeps of σ, ε, n, K, p and of all sizes together the residual must stay below the bound with C₅ = 1.
    The largest ratio is the smallest C₅ that these settings admit.
    """
    generator, draws = trial.generator(), trial.choose(2, 10)
    sweeps: dict[str, list[tuple[float, theorem.MixtureSizes]]]
    sweeps = {  # settings with d ≥ n ≥ p ≥ K ≥ 2, Kp = d and σ ≤ 1, by the size that varies
        "σ": [(s, at_remark(4, 32, 32, s)) for s in (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)],
        "ε": [(e, theorem.MixtureSizes(4, 32, 32, 0.03, e)) for e in (0.3, 0.5, 0.7, 1.0)],
        "n": [(n, at_remark(2, 64, n, 0.1)) for n in (64, 80, 96, 128)],
        "K": [(K, at_remark(K, 16, 16, 0.1)) for K in trial.choose((2, 4, 8), (2, 4, 8, 16))],
        "p, d": [(p, at_remark(4, p, 64, 0.1)) for p in trial.choose((16, 32, 64), (16, 32, 48, 64))],
        "n, p, d": [(n, at_remark(4, n, n, 0.1)) for n in trial.choose((16, 32, 64), (16, 32, 64, 128))],
    }

    def ratio(sizes: theorem.MixtureSizes) -> float:
        eta = 1 / sizes.beta
        return max(residual_norm(sizes, eta, generator) for _ in range(draws)) / theorem.residual_bound(sizes, eta)

    curves = {
        name: ([value for value, _ in settings], [ratio(sizes) for _, sizes in settings], name)
        for name, settings in sweeps.items()
    }
    least, tried = max(max(ratios) for _, ratios, _ in curves.values()), sum(map(len, sweeps.values()))
    panels = []
    for a, b in (("σ", "ε"), ("n", "K"), ("p, d", "n, p, d")):
        labels = ("", f"{a} or {b}", "residual / bound with C₅ = 1")
        panels.append(fig.lines(labels, curves[a], curves[b], scale="loglog", levels=(1,)))
    return Finding(
        "residual ≤ bound with one C₅",
        f"C₅ = {least:.2f} is enough for all {tried} settings",
        judge(least <= 1),
        numbers={"constant": least, "settings": tried},
        draw=fig.figure(*panels),
    )


@claim(section="B.3", equation="lem:inverse-term")
def projection_orders(trial: Trial) -> Finding:
    """The residual is of order √(n/d) without noise, grows to first order in σ from there, and at most linearly in K.

    These are the orders of the theorem's right side at fixed β = 8, tested one at a time. The slope in n/d at σ = 0 is
    at least ½, up to half of the largest √(n/d), the relative size of the next terms. The slope in σ of the part that
    noise adds is at least 1 as σ → 0, up to βσ. The slope in K is at most 1. Slopes are means over draws and must agree
    to three standard errors. Small n/d requires giving up n ≥ p, which the proof does not use.
    """
    generator, runs = trial.generator(), range(trial.choose(4, 16))
    widths, counts, sigmas = (72, 144, 288), (2, 4, 8), (0.0005, 0.001, 0.002, 0.004)
    shares = [24 / (2 * p) for p in widths]

    by_share = [[residual_norm(at_beta(2, p, 24, 0.0, 8.0), 1.0, generator) for p in widths] for _ in runs]
    by_count = [[residual_norm(at_beta(K, 32, 4 * K, 0.0, 8.0), 1.0, generator) for K in counts] for _ in runs]
    by_noise = []
    for _ in runs:
        state, matrices = generator.get_state(), []
        for sigma in (0.0, *sigmas):
            tokens = axis_aligned(at_beta(4, 32, 32, sigma, 8.0), generator.set_state(state))
            matrices.append(theorem.residual(tokens, 1.0))
        by_noise.append([float(torch.linalg.matrix_norm(matrix - matrices[0], 2)) for matrix in matrices[1:]])
    sweeps = (
        (shares, by_share, 0.5, "n/d", "no noise"),
        (sigmas, by_noise, 1.0, "σ", "part added by noise"),
        (counts, by_count, 1.0, "K", "subspaces, no noise"),
    )
    panels = []
    for x, norms, order, name, title in sweeps:
        curve = (x, torch.tensor(norms).mean(0).tolist(), order, f"measured; line: slope {order:g}")
        panels.append(fig.laws(title, name, "residual / η", curve))
    share, noise, number = (estimate([power_law(x, y).exponent for y in norms]) for x, norms, *_ in sweeps)
    ok = (
        share.mean + 3 * share.error >= 0.5 - math.sqrt(max(shares)) / 2
        and noise.mean + 3 * noise.error >= 1 - 8 * max(sigmas)
        and number.mean - 3 * number.error <= 1
    )
    return Finding(
        "slope ≥ ½ in n/d, ≥ 1 in σ, ≤ 1 in K",
        f"{share.mean:.2f} ± {share.error:.2f}, {noise.mean:.3f}, {number.mean:.2f} ± {number.error:.2f}",
        judge(ok),
        numbers={"n_over_d": share.mean, "sigma": noise.mean, "K": number.mean},
        draw=fig.figure(*panels),
    )


@claim(section="B.3", equation="lem:inverse-term, eq:good_event")
def failure_probability(trial: Trial) -> Finding:
    """The good event fails with a probability of at most KC(e^{−C′d} + e^{−C″n/K} + n⁻²).

    The paper does not give the constants. Those of the event tend to 1, 1 and 2 + √(n/d) as the sizes grow, and the
    test uses 1.5 times these values. With K and n/d fixed, the failure rate must fall at least as n⁻² from n = 16 to
    the largest size: to at most (16/n)² of the first rate, within three standard errors of a binomial.
    """
    generator, sizes, runs = trial.generator(), trial.choose((16, 32), (16, 32, 64)), trial.choose(200, 2000)
    limits = torch.tensor([1.5, 1.5, 1.5 * (2 + 0.5)])  # √(n/d) = ½
    rates = []
    for n in sizes:
        setting = at_remark(4, n, n, 0.1)
        needed = [theorem.event_constants(axis_aligned(setting, generator)) for _ in range(runs)]
        rates.append(float((torch.tensor(needed, dtype=torch.float64) > limits).any(-1).double().mean()))
    allowed = rates[0] * (sizes[0] / sizes[-1]) ** 2
    spread = 3 * math.sqrt(max(allowed * (1 - allowed), 1 / runs) / runs)
    shown = [max(rate, 0.5 / runs) for rate in rates]  # a rate of 0 has no place on a logarithmic axis
    curve = (sizes, shown, [shown[0] * (sizes[0] / n) ** 2 for n in sizes], "measured; line: n⁻²")
    return Finding(
        f"falls at least as n⁻²: ≤ {allowed + spread:.1%} at n = {sizes[-1]}",
        ", ".join(f"{rate:.1%} at n = {n}" for n, rate in zip(sizes, rates, strict=True)),
        judge(rates[-1] <= allowed + spread),
        numbers={f"rate_{n}": rate for n, rate in zip(sizes, rates, strict=True)},
        draw=fig.figure(fig.laws(f"failures in {runs} draws, K = 4, n/d = 1/4", "n", "rate", curve)),
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
    enough = next(m for m in count(2) if constant * math.sqrt(m * math.log(m)) <= m / (2 * K))
    return Finding(
        f"C₁√(n log n) ≤ n/2K = {right:.1f}",
        f"{left:.1f} with C₁ = √(3/2)",
        judge(left <= right),
        f"C₁ ≤ {right / left * constant:.2f} would be needed, or n ≥ {enough:,} tokens with 12 subspaces",
        {"left": left, "right": right, "tokens_needed": enough},
    )


@claim(section="B.3", equation="Remark on lem:inverse-term, optimal ε", expected="holds in range")
def best_precision(trial: Trial) -> Finding:
    """At η = β⁻¹ the residual is optimized by ε² = σd/(nK√(σ + √(n/d))), of first order in σ as σ → 0.

    The remark minimizes its bound after simplifying it by 1 + √(n/d) ≤ 2. So the theorem's bound at this ε must be
    within a factor 2 of its minimum over ε. For the claim to hold, the residual itself must be within the same factor
    of its minimum, at an ε² of slope 1 in σ to 0.15 (the grid has factors 2 in ε²); else it holds for the bound only.
    """
    K, p, n, factors = 4, 32, 32, [2 ** (power / 2) for power in range(-9, 6)]
    best, excess, slack, curves = [], [], [], []
    for sigma in SIGMAS:
        center = theorem.optimal_eps(K, K * p, n, sigma)
        settings = [theorem.MixtureSizes(K, p, n, sigma, center * f) for f in factors]
        measured = [residual_norm(m, 1 / m.beta, trial.generator()) for m in settings]
        bounds = [theorem.residual_bound(m, 1 / m.beta) for m in settings]
        here = factors.index(1.0)
        best.append(settings[measured.index(min(measured))].eps ** 2)
        excess.append(measured[here] / min(measured))
        slack.append(bounds[here] / min(bounds))
        curves.append((factors, measured, bounds, f"σ = {sigma:g}"))
    order = power_law(SIGMAS, best).exponent
    return Finding(
        "smallest residual at this ε, ε² of slope 1 in σ",
        f"bound ≤ {max(slack):.2f} times its minimum; residual up to {max(excess):.0f} times its own, "
        f"which is at ε² of slope {order:.2f}",
        judge(max(slack) <= 2, everywhere=max(excess) <= 2 and abs(order - 1) <= 0.15),
        "for the bound; the residual is smallest at a smaller ε, beyond the theorem's βσ ≤ ½",
        {"bound_over_least": max(slack), "residual_over_least": max(excess), "slope": order},
        fig.figure(
            fig.laws("residual (points) and bound (lines)", "ε / the remark's ε", "", *curves[::2]),
            fig.laws("ε² with the smallest residual", "σ", "best ε²", (SIGMAS, best, 1, "measured; line: slope 1")),
        ),
    )


@claim(section="B.3", equation="Remark on lem:inverse-term, shrinkage")
def signal_shrinkage(trial: Trial) -> Finding:
    """A step of η = β⁻¹ multiplies the signal by 1/(1 + β⁻¹) at the remark's ε: a shrinkage that vanishes as σ → 0.

    ⟨Z⁺, X⟩/⟨X, X⟩ is compared with 1/(1 + β⁻¹). The theorem leaves a relative √(n/d) of the shrinkage (its residual at
    σ = 0 is η√(n/d)), and ⟨Δ, X⟩ adds a random σ/√(nd). They must agree to that, and shrinkage must fall with σ.
    """
    lost, predicted, near = [], [], []
    for sigma in SIGMAS:
        sizes = at_remark(4, 64, 32, sigma)
        tokens = theorem.draw_tokens(sizes, trial.generator())
        lost.append(1 - theorem.signal_gain(step(tokens), tokens.clean))
        predicted.append(1 / (1 + sizes.beta))
        tolerance = math.sqrt(sizes.n / sizes.d) * predicted[-1] + 3 * sigma / math.sqrt(sizes.n * sizes.d)
        near.append(abs(lost[-1] - predicted[-1]) / tolerance)
    order = power_law(SIGMAS[2:], lost[2:]).exponent
    curve = (SIGMAS, lost, predicted, "measured; line: 1/(1 + β)")
    return Finding(
        f"1/(1 + β): {predicted[0]:.4f} … {predicted[-1]:.5f}",
        f"{lost[0]:.4f} … {lost[-1]:.5f} for σ = {SIGMAS[0]:g} … {SIGMAS[-1]:g}, slope {order:.2f} at the end",
        judge(max(near) <= 1 and all(a > b for a, b in pairwise(lost))),
        numbers={f"lost_{sigma:g}": value for sigma, value in zip(SIGMAS, lost, strict=True)},
        draw=fig.figure(fig.laws("shrinkage of the signal", "σ", "1 − ⟨Z⁺, X⟩/⟨X, X⟩", curve)),
    )


@claim(section="B.3", equation="Remark on lem:inverse-term, projection", expected="holds in range")
def noise_reduction(trial: Trial) -> Finding:
    """Meanwhile the noise is reduced: P_k → Σ_{k′≠k} U_k′ proj(im A_k′)^⊥ U_k′* as σ → 0, and Δ − P(Δ) remains.

    Of a token's noise outside its own subspace, a step of β⁻¹ leaves the part in the images of other tokens, n − n_k of
    d − p dimensions: a share √(n/d) of its norm. The mean over draws at σ = 10⁻³, βσ = 0.1 must be that, to three
    standard errors plus the relative corrections β⁻¹ + (βσ)². If √(n/d) and not 0 remains, the claim holds for n ≪ d.
    """
    generator, K, n, sigma = trial.generator(), 4, 32, 1e-3
    shares, left, ratios = [], [], []
    for p in (32, 64, 128):
        sizes = at_beta(K, p, n, sigma, 0.1 / sigma)
        measured, relative = [], []
        for _ in range(trial.choose(3, 20)):
            tokens = axis_aligned(sizes, generator)
            own = torch.bincount(tokens.labels, minlength=K)[tokens.labels].double()  # n_k of each token
            expected = math.sqrt(float((n - own).mean()) / (sizes.d - p))
            before, after = outside(tokens.noise, tokens), outside(step(tokens), tokens)
            measured.append(float(torch.linalg.norm(after) / torch.linalg.norm(before)))
            relative.append(measured[-1] / expected)
        shares.append(n / sizes.d)
        left.append(sum(measured) / len(measured))
        ratio = estimate(relative)
        ratios.append(abs(ratio.mean - 1) / (3 * ratio.error + 1 / sizes.beta + (sizes.beta * sigma) ** 2))
    roots = [math.sqrt(share) for share in shares]
    curve = (shares, left, roots, "measured; line: √(n/d)")
    shown = axis_aligned(at_remark(4, 256, 64, 0.1), trial.generator())
    clouds = []
    for z, label in ((shown.tokens, "before"), (step(shown), "after one step")):
        off = outside(z, shown)
        clouds.append((torch.linalg.norm(z - off, dim=-1), torch.linalg.norm(off, dim=-1), label))
    return Finding(
        "√(n/d) remains: " + ", ".join(f"{root:.3f}" for root in roots),
        ", ".join(f"{value:.3f}" for value in left),
        judge(max(ratios) <= 1, everywhere=left[-1] <= 0.01),
        "n ≪ d: noise in the images of the other tokens remains",
        {f"left_{s:.3g}": v for s, v in zip(shares, left, strict=True)},
        fig.figure(
            fig.lines(("tokens", "norm in its subspace", "norm outside"), *clouds, scale="plot", style="."),
            fig.laws("remaining noise outside", "n/d", "remaining share", curve),
        ),
    )


@claim(section="B.3", equation="Remark on lem:inverse-term, ΔR", expected="holds in range")
def full_objective_keeps_signal(trial: Trial) -> Finding:
    """A step on ΔR instead of R^c has zero shrinkage, and denoises perfectly for a wider variety of step sizes η.

    ∇R ≈ X/(1 + α⁻¹) on the signal, so a step of β⁻¹ multiplies it by 1 + β⁻¹(1/(1 + α⁻¹) − 1/(1 + β⁻¹)), at most
    1 + β⁻². With chance, the gain must be 1 to β⁻² + 3σ/√(nd). A single step leaves |1 − ηβ| of the noise, which is 0
    at one η only. Twelve steps of ηβ from ¼ to 1¾ leave ¾¹² = 3 %. The noise must fall to that plus the √(n/d) of the
    first step, and the signal may grow by 12ηβ⁻¹. The claim holds if one step is enough, in a range if twelve are.
    """
    K, p, n, gaps = 4, 32, 16, []
    for sigma in SIGMAS:
        sizes = at_remark(K, p, n, sigma)
        tokens = axis_aligned(sizes, trial.generator())
        gain = theorem.signal_gain(step(tokens, full=True), tokens.clean)
        gaps.append(abs(gain - 1) / (sizes.beta**-2 + 3 * sigma / math.sqrt(n * sizes.d)))
    sizes = at_remark(K, p, n, 0.05)
    tokens = axis_aligned(sizes, trial.generator())
    start = torch.linalg.norm(outside(tokens.tokens, tokens))

    def iterate(eta: float, full: bool) -> list[tuple[float, float]]:
        """Return the remaining noise outside and the signal gain after 0 to 12 steps on ΔR (`full`) or R^c."""
        z, path = tokens.tokens, []
        for _ in range(13):
            path.append((float(torch.linalg.norm(outside(z, tokens)) / start), theorem.signal_gain(z, tokens.clean)))
            z = theorem.compress(z, tokens.bases, sizes.eps, eta, full=full)
        return path

    steps, root = (0.25, 0.5, 1.0, 1.5, 1.75), math.sqrt(n / sizes.d)
    on_delta, on_rc = (
        torch.tensor([iterate(length / sizes.beta, full) for length in steps], dtype=torch.float64)
        for full in (True, False)
    )  # (steps, 13, 2)
    one, last, kept = on_delta[:, 1, 0].tolist(), on_delta[:, -1, 0].tolist(), float(on_rc[2, -1, 1])
    growth = 12 * torch.tensor(steps, dtype=torch.float64) * sizes.beta**-2 + 3 * sizes.sigma / math.sqrt(n * sizes.d)
    reached = max(last) <= root + 0.75**12 and bool(((on_delta[:, -1, 1] - 1).abs() <= growth).all())
    panels = []
    for at, title in ((0, "remaining noise"), (1, "remaining signal")):
        curves = [(range(13), path[..., at].T, [name, *["_"] * 4]) for path, name in ((on_delta, "ΔR"), (on_rc, "R^c"))]
        labels, levels = (title, "steps, ηβ from ¼ to 1¾", ""), () if at else (root,)
        panels.append(fig.lines(labels, *curves, scale="plot", style="-", levels=levels))
    return Finding(
        "gain 1, and no noise remains for any η",
        f"gain off by {max(gaps):.2f} of β⁻² and chance; one step leaves {min(one):.2f} … {max(one):.2f} of the noise, "
        f"twelve {min(last):.2f} … {max(last):.2f} (√(n/d) = {root:.2f}); twelve on R^c keep {kept:.0%} of the signal",
        judge(max(gaps) <= 1 and reached, everywhere=max(one) <= root + 0.75**12),
        "repeated steps; a single step is perfect only at η = β⁻¹, and noise in the images of other tokens remains",
        {"gain_gap": max(gaps), "one_step_worst": max(one), "repeated_worst": max(last), "kept_rc": kept},
        fig.figure(*panels),
    )
