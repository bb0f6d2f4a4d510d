"""Claims about the theorem on projection and its remark: residual, orders, probability, ε, noise left (paper B.3)."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import torch
from scipy.stats import binom
from torch import Tensor

from .. import projection as theorem
from ..denoising import off_subspace
from .frame import EXACT, Finding, Trial, claim, estimate, judge, power_law, tabulate

SIGMAS = (0.1, 0.03, 0.01, 0.003, 0.001)


def at_beta(K: int, p: int, n: int, sigma: float, beta: float) -> theorem.MixtureSizes:
    """Return the sizes with the ε of β = p/(nε²)."""
    return theorem.MixtureSizes(K, p, n, sigma, math.sqrt(p / (n * beta)))


def at_remark(K: int, p: int, n: int, sigma: float) -> theorem.MixtureSizes:
    """Return the sizes with the remark's ε."""
    return theorem.MixtureSizes(K, p, n, sigma, theorem.optimal_eps(K, K * p, n, sigma))


def residual_norm(sizes: theorem.MixtureSizes, eta: float, generator: torch.Generator) -> float:
    """Draw tokens and return the operator norm of the residual, the left side of the theorem."""
    return float(torch.linalg.matrix_norm(theorem.residual(theorem.draw_tokens(sizes, generator), eta), 2))


def step(tokens: theorem.NoisyTokens, *, full: bool = False) -> Tensor:
    """Return Z after one step of η = β⁻¹ on R^c, or on ΔR if `full`, (n, d)."""
    return theorem.compress(tokens.tokens, tokens.bases, tokens.sizes.eps, 1 / tokens.sizes.beta, full=full)


def outside(z: Tensor, tokens: theorem.NoisyTokens) -> Tensor:
    """Return the part of z (n, d) outside the subspaces of the tokens."""
    return off_subspace(z, tokens.bases, tokens.labels)


def noise_part(sizes: theorem.MixtureSizes, eta: float, generator: torch.Generator) -> float:
    """Return the operator norm of the part of the residual that noise adds to that of the same clean tokens."""
    state = generator.get_state()
    noisy = theorem.draw_tokens(sizes, generator)
    clean = theorem.draw_tokens(replace(sizes, sigma=0.0), generator.set_state(state))
    return float(torch.linalg.matrix_norm(theorem.residual(noisy, eta) - theorem.residual(clean, eta), 2))


def noise_share(sizes: theorem.MixtureSizes, eta: float, added: float) -> float:
    """Return the norm that noise adds to the residual over the noise terms of the theorem's bound with C₅ = 1."""
    return added / (theorem.residual_bound(sizes, eta) - theorem.residual_bound(replace(sizes, sigma=0.0), eta))


@claim(section="B.3", equation="thm:informal_rate_score, lem:inverse-term")
def projection_theorem(trial: Trial) -> Finding:
    """‖Z⁺ − main term‖ ≤ C₅Kη(σ²β² + σ(1 + √(n/d)) + √K βσ²(1 + √(n/d)) + √(n/d)) for Z⁺ = Z − η∇R^c(Z | U).

    The main term is (Δ − ηβP(Δ)) + (1 − η/(1 + β⁻¹))X. The paper does not give C₅, only that one value is valid for all
    sizes; the tests take C₅ = 2 and print the smallest value that they admit. For clean tokens of two equal classes the
    residual tends to η‖A_k*A_k − I‖ = 2η√(n/d), the bound with C₅ = 1, and 2 leaves room for chance. There are three
    parts.

    (a) The whole residual, over sweeps of σ, βσ, n, K and all sizes together that satisfy ε ≤ 1, d ≥ n ≥ p ≥ K ≥ 2,
    6n ≤ d, σ ≤ 1 and βσ ≤ ½. They break √(n log n) ≤ n/2K, which serves only the probability and needs n ≥ 994 and
    d ≥ 5,964. Here the bound exceeds the whole of ηβP(Δ) and half of the shrinkage, because n ≥ p makes K√(n/d) ≥ √K.
    So this part says nothing about P and little about the shrinkage. (b) The part that noise adds, within the noise
    terms of the bound, at βσ ≤ 0.05 and σ = 10⁻⁴, which are inside the same assumptions. There an error in ηβP(Δ) would
    exceed them. (c) The residual of clean tokens, within C₅Kη√(n/d), at n ≪ p. That is outside the assumption n ≥ p,
    which the proof does not use, and there half a shrinkage would exceed the bound. A full trial adds to (b) one draw
    of the smallest sizes that satisfy every inequality (assumptions-agree): K = 6, p = n = 994, d = 5,964.

    Mutations: P(Δ) = 0; P(Δ) = Δ; shrinkage halved; ∇R^c = 0.
    """
    generator, draws = trial.generator(), trial.choose(2, 10)
    sweeps = {  # by the size that varies
        "σ": [at_beta(8, 16, 16, s, 0.5 / s) for s in (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)],
        "βσ": [at_beta(8, 32, 32, 0.01, b / 0.01) for b in (0.05, 0.1, 0.2, 0.5)],
        "n": [at_beta(12, 16, n, 0.03, 0.5 / 0.03) for n in (16, 20, 24, 32)],
        "K": [at_beta(K, 16, 16, 0.03, 0.5 / 0.03) for K in trial.choose((6, 8, 12), (6, 8, 12, 16))],
        "n, p, d": [at_beta(6, n, n, 0.03, 0.5 / 0.03) for n in trial.choose((16, 32, 64), (16, 32, 64, 128))],
    }

    def ratio(sizes: theorem.MixtureSizes, eta: float, draws: int) -> float:
        return max(residual_norm(sizes, eta, generator) for _ in range(draws)) / theorem.residual_bound(sizes, eta)

    curves = {name: [ratio(sizes, 1 / sizes.beta, draws) for sizes in settings] for name, settings in sweeps.items()}
    inner = [(K, p, n, share) for K, p, n in ((6, 16, 16), (8, 32, 32), (12, 32, 64)) for share in (0.01, 0.05)]
    inner += trial.choose([], [(6, 994, 994, 0.05)])
    small = [at_beta(K, p, n, 1e-4, strength / 1e-4) for K, p, n, strength in inner]
    noise = [noise_share(sizes, 1 / sizes.beta, noise_part(sizes, 1 / sizes.beta, generator)) for sizes in small]
    clean = [ratio(at_beta(2, p, 8, 0.0, 8.0), 1.0, 1) for p in (512, 1024)]
    whole = [value for ratios in curves.values() for value in ratios]
    broken = [theorem.broken_assumptions(sizes) for settings in (*sweeps.values(), small) for sizes in settings]
    parts = (max(whole), max(noise), max(clean))
    inside = any(not names for names in broken[len(whole) :])
    ok = all(set(names) <= {"√(n log n) ≤ n/2K"} for names in broken) and all(part <= 2 for part in parts)
    return Finding(
        "residual ≤ bound with C₅ = 2: the whole, the part that noise adds, and that of clean tokens at n ≪ p",
        f"C₅ = {parts[0]:.2f} is enough for all {len(whole)} settings, {parts[1]:.2f} for the part that noise adds, "
        f"{parts[2]:.2f} at n ≪ p" + trial.choose("", f"; {noise[-1]:.2f} inside the assumption"),
        judge(ok and inside == trial.full),
        numbers={"constant": parts[0], "constant_noise": parts[1], "constant_clean": parts[2], "settings": len(whole)},
        table={"σ": [sizes.sigma for sizes in sweeps["σ"]], "residual / bound with C₅ = 1": curves["σ"]},
    )


@claim(section="B.3", equation="lem:inverse-term")
def projection_orders(trial: Trial) -> Finding:
    """The residual is of order √(n/d) without noise; what noise adds is of first order in σ and of order 1 in β.

    These are the orders of the theorem's right side over η, tested one at a time. The slope in n/d at σ = 0 is ½ as
    n/d → 0; with n/d ≤ 1/16 the next term is a relative √(n/d) ≤ ¼, which lowers the slope over these four octaves by
    at most 0.25/log 16 = 0.09. The slope in σ of the part that noise adds is at least 1 as σ → 0, up to βσ. The slope
    in β of that part, at βσ ≤ 0.005, is at most ¼ for β ≥ 32: the theorem says 0 in the limit, and ηβP(Δ) itself has
    slope 1, so a wrong P shows. The ¼ is our choice between the two. Slopes are means over draws and must agree to
    three standard errors. The first sweep is outside n ≥ p, which the proof does not use; the others break only
    √(n log n) ≤ n/2K.

    Mutations: P(Δ) = 0; P(Δ) = Δ; shrinkage halved; ∇R^c = 0.
    """
    generator, runs = trial.generator(), range(trial.choose(6, 24))
    widths, sigmas, betas = (64, 128, 256, 512, 1024), (0.0005, 0.001, 0.002, 0.004), (32.0, 128.0, 512.0)
    shares = [8 / (2 * p) for p in widths]
    by_share = [[residual_norm(at_beta(2, p, 8, 0.0, 8.0), 1.0, generator) for p in widths] for _ in runs]

    def parts() -> tuple[list[float], list[float]]:
        """Return the part that noise adds to one draw, for each σ and for each β."""
        state = generator.get_state()
        norms = [
            noise_part(at_beta(6, 16, 16, sigma, beta), 1.0, generator.set_state(state))
            for sigma, beta in (*((sigma, 8.0) for sigma in sigmas), *((1e-5, beta) for beta in betas))
        ]
        return norms[: len(sigmas)], norms[len(sigmas) :]

    by_noise, by_beta = zip(*(parts() for _ in runs), strict=True)
    share, noise, strength = (
        estimate([power_law(x, y).exponent for y in norms])
        for x, norms in ((shares, by_share), (sigmas, by_noise), (betas, by_beta))
    )
    ok = (
        share.mean + 3 * share.error >= 0.5 - math.sqrt(max(shares)) / math.log(max(shares) / min(shares))
        and noise.mean + 3 * noise.error >= 1 - 8 * max(sigmas)
        and strength.mean - 3 * strength.error <= 0.25
    )
    return Finding(
        "slope ≥ ½ in n/d, ≥ 1 in σ, ≤ 0 in β",
        f"{share.mean:.2f} ± {share.error:.2f}, {noise.mean:.3f}, {strength.mean:.2f} ± {strength.error:.2f}",
        judge(ok),
        numbers={"n_over_d": share.mean, "sigma": noise.mean, "beta": strength.mean},
        table={"n/d": shares, "residual / η without noise": torch.tensor(by_share).mean(0).tolist()},
    )


@claim(section="B.3", equation="lem:inverse-term, eq:good_event")
def failure_probability(trial: Trial) -> Finding:
    """The good event fails with a probability of at most KC(e^{−C′d} + e^{−C″n/K} + n⁻²).

    The paper does not give the constants. Those of the event tend to 1, 1 and 2 + √(n/d) as the sizes grow; the test
    uses 1.5 times these values, a choice of ours for which failures are frequent enough to count. With K and n/d fixed,
    the failure rate must fall at least as n⁻² from n = 16 to n = 64: to at most 1/16 of the first rate, within three
    standard errors of a binomial. The number of draws is such that a fall as 1/n would be rejected: a quarter of the
    first rate must lie above that limit, by three of its own standard errors. K = 4 and n = p are outside
    √(n log n) ≤ n/2K and 6n ≤ d, which no size that can be drawn this often satisfies.

    Mutations: good event always; good event fails as 1/n.
    """
    generator, sizes, runs = trial.generator(), (16, 64), trial.choose(2500, 10_000)
    limits = torch.tensor([1.5, 1.5, 1.5 * (2 + 0.5)])  # √(n/d) = ½

    def rate(n: int) -> float:
        setting = at_beta(4, n, n, 0.1, 5.0)
        needed = [theorem.event_constants(theorem.draw_tokens(setting, generator)) for _ in range(runs)]
        return float((torch.tensor(needed, dtype=torch.float64) > limits).any(-1).double().mean())

    def spread(rate: float) -> float:
        return 3 * math.sqrt(max(rate * (1 - rate), 1 / runs) / runs)

    rates = [rate(n) for n in sizes]
    fast, slow = (rates[0] * (sizes[0] / sizes[-1]) ** order for order in (2, 1))
    allowed = fast + spread(fast)
    return Finding(
        f"falls at least as n⁻²: ≤ {allowed:.2%} at n = {sizes[-1]}; a fall as 1/n would give {slow:.2%}",
        ", ".join(f"{rate:.2%} at n = {n}" for n, rate in zip(sizes, rates, strict=True)),
        judge(rates[-1] <= allowed < slow - spread(slow)),
        numbers={f"rate_{n}": rate for n, rate in zip(sizes, rates, strict=True)} | {"allowed": allowed, "slow": slow},
    )


@claim(section="B.3", equation="ass:parameter_config", expected="fails")
def base_assumption(trial: Trial) -> Finding:
    """The assumption's inequalities hold for CRATE-Base (n = 196, K = 12, d = 768), C₁√(n log n) ≤ n/2K and 6C₂²n ≤ d
    among them.

    C₁ is the constant of the proposition on binomials, whose statement asks for P(|B − n/k| > C₁√(n log n)) ≤ C₂n⁻².
    Hoeffding's inequality, which the proof uses, gives 2n^(−2C₁²), so C₁ = 1. No smaller constant is valid for all n:
    at k = 2, n² times the exact probability must grow with n for C₁ = 0.9 and not for C₁ = 1, from n = 10² to 10⁶. The
    other inequality is printed with C₂ = 1, with which it needs n ≤ 128; 2C₄²n ≤ d needs C₄ ≤ 1.4, where C₄ is at least
    2 for large sizes.

    Mutations: C₁ = ¼.
    """
    n, K, d = 196, 12, 768
    left, right = theorem.deviation(n), n / (2 * K)
    grid = (10**2, 10**4, 10**6)
    tails = {
        c: [m**2 * 2 * float(binom.sf(m / 2 + c * theorem.deviation(m), m, 0.5)) for m in grid] for c in (0.9, 1.0)
    }
    valid = tails[1.0][0] >= tails[1.0][-1] and tails[0.9][0] < tails[0.9][1] < tails[0.9][-1]
    enough = next(m for m in count(2) if theorem.deviation(m) <= m / (2 * K))
    most = next(k for k in count(2) if theorem.deviation(n) > n / (2 * (k + 1)))
    return Finding(
        f"C₁√(n log n) ≤ n/2K = {right:.1f}, 6C₂²n ≤ d = {d}",
        f"{left:.1f} with C₁ = 1; {6 * n:,} with C₂ = 1",
        judge(left <= right or not valid),
        f"C₁ ≤ {right / left:.2f} would be needed, n ≥ {enough:,} tokens with 12 subspaces, or at most {most} of them",
        {"left": left, "right": right, "six_n": 6 * n, "tokens_needed": enough, "subspaces_allowed": most},
    )


@claim(section="B.3", equation="Remark on lem:inverse-term, optimal ε")
def best_precision(trial: Trial) -> Finding:
    """The bound K^{3/2}σ² + σ²d/(nε²) + (nK²/d)(σ + √(n/d))ε² of the residual at η = β⁻¹ is minimized by
    ε² = σd/(nK√(σ + √(n/d))), where β⁻¹ = √(σ/(1 + √(n/(dσ²)))) and the theorem's bound is at most a constant times
    Kσ(√Kσ + √(σ + √(n/d))).

    The optimum is one of calculus: the bound at this ε must be below that at 0.99 and 1.01 times it, and must be
    Kσ(√Kσ + 2√(σ + √(n/d))), to √ε of float64, and so must β⁻¹. The remark simplifies by 1 + √(n/d) ≤ 2, so the
    theorem's bound with C₅ = 1 must be at most twice the remark's, and within a factor 2 of its own minimum over ε. The
    paper says nothing of the residual itself; the figure shows that it is smallest at a smaller ε, where βσ > ½. The
    residuals of the figure are drawn at K = 4 and n = p = 32, outside of the assumption.

    Mutations: the remark's ε² doubled; the remark's ε² without K; the remark's bound without its last term.
    """
    K, p, n, factors = 4, 32, 32, [2 ** (power / 2) for power in range(-9, 6)]

    def measure(sigma: float) -> dict[str, Any]:
        best, at = theorem.optimal_eps(K, K * p, n, sigma), factors.index(1.0)
        settings = [theorem.MixtureSizes(K, p, n, sigma, best * f) for f in factors]
        here, root = settings[at], math.sqrt(sigma + math.sqrt(n / (K * p)))
        value, bounds = theorem.remark_bound(here), [theorem.residual_bound(m, 1 / m.beta) for m in settings]
        measured = [residual_norm(m, 1 / m.beta, trial.generator()) for m in settings]
        return {
            "least": all(value < theorem.remark_bound(replace(here, eps=best * f)) for f in (0.99, 1.01)),
            "value": abs(value / (K * sigma * (math.sqrt(K) * sigma + 2 * root)) - 1),
            "beta": abs(1 / here.beta / math.sqrt(sigma / (1 + math.sqrt(n / (K * p * sigma**2)))) - 1),
            "ratio": bounds[at] / value,
            "slack": bounds[at] / min(bounds),
            "excess": measured[at] / min(measured),
            "residual": measured,
        }

    rows = [measure(sigma) for sigma in SIGMAS]
    most = {name: max(row[name] for row in rows) for name in ("value", "beta", "ratio", "slack", "excess")}
    least, error = all(row["least"] for row in rows), max(most["value"], most["beta"])
    return Finding(
        "the remark's bound is least at this ε, with the remark's value; the theorem's is at most twice that",
        f"{'least' if least else 'not least'}, value to {error:.0e}; the theorem's bound is {most['ratio']:.2f} "
        f"times it and ≤ {most['slack']:.2f} times its own minimum",
        judge(least and error <= EXACT and max(most["slack"], most["ratio"]) <= 2),
        f"the residual itself is up to {most['excess']:.0f} times its own minimum at this ε",
        {"error": error, "bound_over_least": most["slack"], "residual_over_least": most["excess"]},
        {"ε / the remark's ε": factors}
        | {f"residual, σ = {sigma:g}": row["residual"] for sigma, row in zip(SIGMAS, rows, strict=True)},
    )


@claim(section="B.3", equation="Remark on lem:inverse-term, shrinkage")
def signal_shrinkage(trial: Trial) -> Finding:
    """A step of η = β⁻¹ multiplies the signal by 1/(1 + β⁻¹) at the remark's ε: a shrinkage that vanishes as σ → 0.

    ⟨Z⁺, X⟩/⟨X, X⟩ is compared with 1/(1 + β⁻¹). The theorem leaves a relative √(n/d) of the shrinkage (its residual at
    σ = 0 is η√(n/d)), and ⟨Δ, X⟩ adds a random σ/√(nd). They must agree to that, and shrinkage must fall with σ. This
    alone would accept a wrong β. Without noise the shrinkage is η Σs²/(β⁻¹ + s²)/Σs² over the singular values s of all
    A_k. Noise changes the spectra by a relative βσ²(1 + √(n/d))², so to that and chance they must agree too. K = 4,
    p = 64 and n = 32 are outside of the assumption (n ≥ p and √(n log n) ≤ n/2K are broken), like every K < 6.

    Mutations: ∇R^c = 0; ε² replaced by ε; ∇R^c halved.
    """

    def measure(sigma: float) -> dict[str, float]:
        sizes = at_remark(4, 64, 32, sigma)
        tokens = theorem.draw_tokens(sizes, trial.generator(), rotate=True)
        lost, predicted = 1 - theorem.signal_gain(step(tokens), tokens.clean), 1 / (1 + sizes.beta)
        own = [torch.linalg.svdvals(tokens.clean[tokens.labels == k] @ basis) for k, basis in enumerate(tokens.bases)]
        squares = torch.cat(own).square()
        exact = float((squares / (1 / sizes.beta + squares)).sum() / squares.sum()) / sizes.beta
        root, chance = math.sqrt(sizes.n / sizes.d), 3 * sigma / math.sqrt(sizes.n * sizes.d)
        near = abs(lost - predicted) / (root * predicted + chance)
        nearer = abs(lost - exact) / (sizes.beta * sigma**2 * (1 + root) ** 2 * exact + chance)
        return {"σ": sigma, "1 − ⟨Z⁺, X⟩/⟨X, X⟩": lost, "1/(1 + β)": predicted, "gap": max(near, nearer)}

    table = tabulate(map(measure, SIGMAS))
    gaps = table.pop("gap")
    _, lost, predicted = table.values()
    order = power_law(SIGMAS[2:], lost[2:]).exponent
    return Finding(
        f"1/(1 + β): {predicted[0]:.4f} … {predicted[-1]:.5f}",
        f"{lost[0]:.4f} … {lost[-1]:.5f} for σ = {SIGMAS[0]:g} … {SIGMAS[-1]:g}, slope {order:.2f} at the end",
        judge(all(gap <= 1 for gap in gaps) and all(a > b for a, b in pairwise(lost))),
        numbers={f"lost_{sigma:g}": value for sigma, value in zip(SIGMAS, lost, strict=True)},
        table=table,
    )


@claim(section="B.3", equation="eq:proj-defn-1, eq:proj-defn-2, Remark on lem:inverse-term, projection")
def noise_reduction(trial: Trial) -> Finding:
    """Meanwhile the noise is reduced: P_k → Σ_{k′≠k} U_k′ proj(im A_k′)^⊥ U_k′* as σ → 0, and Δ − P(Δ) remains.

    Of a token's noise outside its own subspace, a step of β⁻¹ leaves the part in the images of other tokens, n − n_k of
    d − p dimensions: a share √(n/d) of its norm. The mean over draws at σ = 10⁻³, βσ = 0.1 must be that, to three
    standard errors plus the relative corrections β⁻¹ + (βσ)². So noise is reduced, but it vanishes only for n ≪ d. Of
    the sizes, n ≥ p is given up at p = 64 and 128, and 6n ≤ d and √(n log n) ≤ n/2K at p = 32.

    Mutations: ∇R^c = 0; ∇R^c replaced by βZ; ∇R^c halved.
    """
    generator, K, n, sigma = trial.generator(), 4, 32, 1e-3

    def part(sizes: theorem.MixtureSizes) -> dict[str, float]:
        """Return the remaining share of the noise outside, and that over its prediction, of one draw."""
        tokens = theorem.draw_tokens(sizes, generator)
        own = torch.bincount(tokens.labels, minlength=K)[tokens.labels].double()  # n_k of each token
        expected = math.sqrt(float((n - own).mean()) / (sizes.d - sizes.p))
        before, after = outside(tokens.noise, tokens), outside(step(tokens), tokens)
        left = float(torch.linalg.norm(after) / torch.linalg.norm(before))
        return {"left": left, "ratio": left / expected}

    def measure(p: int) -> dict[str, float]:
        sizes = at_beta(K, p, n, sigma, 0.1 / sigma)
        parts = tabulate(part(sizes) for _ in range(trial.choose(3, 20)))
        ratio, correction = estimate(parts["ratio"]), 1 / sizes.beta + (sizes.beta * sigma) ** 2
        left = sum(parts["left"]) / len(parts["left"])
        return {"n/d": n / sizes.d, "left": left, "gap": abs(ratio.mean - 1) / (3 * ratio.error + correction)}

    table = tabulate(map(measure, (32, 64, 128)))
    shares, left, gaps = table.values()
    roots = [math.sqrt(share) for share in shares]
    return Finding(
        "√(n/d) remains: " + ", ".join(f"{root:.3f}" for root in roots),
        ", ".join(f"{value:.3f}" for value in left),
        judge(all(gap <= 1 for gap in gaps)),
        "noise in the images of the other tokens remains, unless n ≪ d",
        {f"left_{s:.3g}": v for s, v in zip(shares, left, strict=True)},
        {"n/d": shares, "remaining share of the noise outside": left, "√(n/d)": roots},
    )


@claim(section="B.3", equation="Remark on lem:inverse-term, ΔR", expected="fails as stated, true in another form")
def full_objective_keeps_signal(trial: Trial) -> Finding:
    """A step on ΔR instead of R^c has zero shrinkage, and denoises perfectly for a wider variety of step sizes η.

    ∇R ≈ X/(1 + α⁻¹) on the signal, so a step of β⁻¹ multiplies it by 1 + β⁻¹(1/(1 + α⁻¹) − 1/(1 + β⁻¹)), at most
    1 + β⁻². With chance, the gain must be 1 to β⁻² + 3σ/√(nd). A single step leaves |1 − ηβ| of the noise, which is 0
    at one η only. Twelve steps of ηβ from ¼ to 1¾ leave ¾¹² = 3 %. The noise must fall to that plus the √(n/d) of the
    first step, and the signal may grow by 12ηβ⁻¹. As stated one step must be enough for every η; the other form is the
    gain of 1 and twelve steps. K = 4, p = 32 and n = 16 are outside of the assumption (n ≥ p and √(n log n) ≤ n/2K are
    broken), like every K < 6.

    Mutations: ∇R = 0; ∇R^c = 0; ∇R doubled.
    """
    K, p, n = 4, 32, 16

    def draw(sigma: float) -> theorem.NoisyTokens:
        return theorem.draw_tokens(at_remark(K, p, n, sigma), trial.generator())

    def gap(tokens: theorem.NoisyTokens) -> float:
        gain, chance = theorem.signal_gain(step(tokens, full=True), tokens.clean), 3 * tokens.sizes.sigma
        return abs(gain - 1) / (tokens.sizes.beta**-2 + chance / math.sqrt(n * tokens.sizes.d))

    gaps, tokens, lengths = [gap(draw(sigma)) for sigma in SIGMAS], draw(0.05), (0.25, 0.5, 1.0, 1.5, 1.75)
    sizes, start = tokens.sizes, torch.linalg.norm(outside(tokens.tokens, tokens))
    root = math.sqrt(n / sizes.d)

    def iterate(length: float, full: bool) -> tuple[list[float], list[float]]:
        """Return the remaining noise outside and the signal gain after 0 to 12 steps on ΔR (`full`) or R^c."""
        path = [tokens.tokens]
        for _ in range(12):
            path.append(theorem.compress(path[-1], tokens.bases, sizes.eps, length / sizes.beta, full=full))
        noise = [float(torch.linalg.norm(outside(z, tokens)) / start) for z in path]
        return noise, [theorem.signal_gain(z, tokens.clean) for z in path]

    paths = {length: iterate(length, True) for length in lengths}
    one, last = ([noise[at] for noise, _ in paths.values()] for at in (1, -1))
    kept, chance = iterate(1.0, False)[1][-1], 3 * sizes.sigma / math.sqrt(n * sizes.d)
    grown = all(abs(gain[-1] - 1) <= 12 * at * sizes.beta**-2 + chance for at, (_, gain) in paths.items())
    other = all(gap <= 1 for gap in gaps) and max(last) <= root + 0.75**12 and grown
    return Finding(
        "gain 1, and no noise remains for any η",
        f"gain off by {max(gaps):.2f} of β⁻² and chance; one step leaves {min(one):.2f} … {max(one):.2f} of the noise, "
        f"twelve {min(last):.2f} … {max(last):.2f} (√(n/d) = {root:.2f}); twelve on R^c keep {kept:.0%} of the signal",
        judge(other and max(one) <= root + 0.75**12, form=other),
        "a step keeps the signal, and repeated steps of any of these η remove all noise but that in the images of "
        "other tokens; a single step does so at η = β⁻¹ only",
        {"gain_gap": max(gaps), "one_step_worst": max(one), "repeated_worst": max(last), "kept_rc": kept},
        {"steps on ΔR": list(map(float, range(13)))}
        | {f"remaining noise, ηβ = {at:g}": path[0] for at, path in paths.items()},
    )
