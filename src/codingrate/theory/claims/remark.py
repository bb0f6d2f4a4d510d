"""Claims of the remark on the theorem: best ε, shrinkage, remaining noise, and ΔR in place of R^c (paper B.3)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from .. import projection as theorem
from ..denoising import off_subspace
from . import figures as fig
from .frame import Finding, Trial, claim, judge
from .measure import estimate, power_law
from .projection import at_beta, at_remark, axis_aligned, residual_norm

SIGMAS = (0.1, 0.03, 0.01, 0.003, 0.001)


def step(tokens: theorem.NoisyTokens, *, full: bool = False) -> Tensor:
    """Return Z after one step of η = β⁻¹ on R^c, or on ΔR if `full`, (n, d)."""
    return theorem.compress(tokens.tokens, tokens.bases, tokens.sizes.eps, 1 / tokens.sizes.beta, full=full)


def outside(z: Tensor, tokens: theorem.NoisyTokens) -> Tensor:
    """Return the part of z (n, d) outside the subspaces of the tokens."""
    return off_subspace(z, tokens.bases, tokens.labels)


@claim(section="B.3", equation="Remark on lem:inverse-term, optimal ε", expected="holds in range")
def best_precision(trial: Trial) -> Finding:
    """At η = β⁻¹ the residual is optimized by ε² = σd/(nK√(σ + √(n/d))), of first order in σ as σ → 0.

    The remark minimizes its bound after simplifying it by 1 + √(n/d) ≤ 2. So the theorem's bound at this ε must be
    within a factor 2 of its minimum over ε. For the claim to hold, the residual itself must be within the same factor
    of its minimum, at an ε² of slope 1 in σ to 0.15 (the grid has factors 2 in ε²); else it holds for the bound only.
    """
    generator, K, p, n = trial.generator(), 4, 32, 32
    state, factors = generator.get_state(), [2 ** (power / 2) for power in range(-9, 6)]
    best, excess, slack, curves = [], [], [], []
    for sigma in SIGMAS:
        center = theorem.optimal_eps(K, K * p, n, sigma)
        settings = [theorem.MixtureSizes(K, p, n, sigma, center * f) for f in factors]
        measured = [residual_norm(m, 1 / m.beta, generator.set_state(state)) for m in settings]
        bounds = [theorem.residual_bound(m, 1 / m.beta) for m in settings]
        here = factors.index(1.0)
        best.append((center * factors[measured.index(min(measured))]) ** 2)
        excess.append(measured[here] / min(measured))
        slack.append(bounds[here] / min(bounds))
        curves.append((sigma, measured, bounds))
    order = power_law(SIGMAS, best).exponent
    inside = max(slack) <= 2

    def draw(figure: fig.Figure) -> None:
        left, right = fig.panels(figure, ["residual (points) and bound (lines)", "ε² with the smallest residual"])
        fig.plot_laws(left, *((factors, norms, bounds, f"σ = {sigma:g}") for sigma, norms, bounds in curves[::2]))
        fig.label_axes(left, "ε / the remark's ε", "")
        fig.plot_laws(right, (SIGMAS, best, 1, "measured; line: slope 1"))
        fig.label_axes(right, "σ", "best ε²")

    return Finding(
        "smallest residual at this ε, ε² of slope 1 in σ",
        f"bound ≤ {max(slack):.2f} times its minimum; residual up to {max(excess):.0f} times its own, "
        f"which is at ε² of slope {order:.2f}",
        judge(inside, everywhere=max(excess) <= 2 and abs(order - 1) <= 0.15),
        "for the bound; the residual is smallest at a smaller ε, beyond the theorem's βσ ≤ ½",
        {"bound_over_least": max(slack), "residual_over_least": max(excess), "slope": order},
        draw,
    )


@claim(section="B.3", equation="Remark on lem:inverse-term, shrinkage")
def signal_shrinkage(trial: Trial) -> Finding:
    """A step of η = β⁻¹ multiplies the signal by 1/(1 + β⁻¹) at the remark's ε: a shrinkage that vanishes as σ → 0.

    ⟨Z⁺, X⟩/⟨X, X⟩ is compared with 1/(1 + β⁻¹). The theorem leaves a relative √(n/d) of the shrinkage (its residual at
    σ = 0 is η√(n/d)), and ⟨Δ, X⟩ adds a random σ/√(nd). They must agree to that, and shrinkage must fall with σ.
    """
    generator, K, p, n = trial.generator(), 4, 64, 32
    state, lost, predicted, near = generator.get_state(), [], [], []
    for sigma in SIGMAS:
        sizes = at_remark(K, p, n, sigma)
        tokens = theorem.draw_tokens(sizes, generator.set_state(state))
        lost.append(1 - theorem.signal_gain(step(tokens), tokens.clean))
        predicted.append(1 / (1 + sizes.beta))
        tolerance = math.sqrt(n / sizes.d) * predicted[-1] + 3 * sigma / math.sqrt(n * sizes.d)
        near.append(abs(lost[-1] - predicted[-1]) / tolerance)
    ok = max(near) <= 1 and all(a > b for a, b in pairwise(lost))
    order = power_law(SIGMAS[2:], lost[2:]).exponent
    return Finding(
        f"1/(1 + β): {predicted[0]:.4f} … {predicted[-1]:.5f}",
        f"{lost[0]:.4f} … {lost[-1]:.5f} for σ = {SIGMAS[0]:g} … {SIGMAS[-1]:g}, slope {order:.2f} at the end",
        judge(ok),
        numbers={f"lost_{sigma:g}": value for sigma, value in zip(SIGMAS, lost, strict=True)},
        draw=fig.law_figure(
            "shrinkage of the signal", "σ", "1 − ⟨Z⁺, X⟩/⟨X, X⟩", (SIGMAS, lost, predicted, "measured; line: 1/(1 + β)")
        ),
    )


@claim(section="B.3", equation="Remark on lem:inverse-term, projection", expected="holds in range")
def noise_reduction(trial: Trial) -> Finding:
    """Meanwhile the noise is reduced: P_k → Σ_{k′≠k} U_k′ proj(im A_k′)^⊥ U_k′* as σ → 0, and Δ − P(Δ) remains.

    Of a token's noise outside its own subspace, a step of β⁻¹ leaves the part in the images of other tokens, n − n_k of
    d − p dimensions: a share √(n/d) of its norm. The mean over draws at σ = 10⁻³, βσ = 0.1 must be that, to three
    standard errors plus the relative corrections β⁻¹ + (βσ)². If √(n/d) and not 0 remains, the claim holds for n ≪ d.
    """
    generator, K, sigma = trial.generator(), 4, 1e-3
    shares, left, ratios = [], [], []
    for p in (32, 64, 128):
        sizes = at_beta(K, p, 32, sigma, 0.1 / sigma)
        draws = []
        for _ in range(trial.choose(3, 20)):
            tokens = axis_aligned(sizes, generator)
            after = outside(step(tokens), tokens)
            own = torch.bincount(tokens.labels, minlength=K)[tokens.labels].double()  # n_k of each token
            expected = math.sqrt(float((32 - own).mean()) / (sizes.d - p))
            share = float(torch.linalg.norm(after) / torch.linalg.norm(outside(tokens.noise, tokens)))
            draws.append((share, share / expected))
        shares.append(32 / sizes.d)
        left.append(sum(share for share, _ in draws) / len(draws))
        ratio = estimate([ratio for _, ratio in draws])
        ratios.append(abs(ratio.mean - 1) / (3 * ratio.error + 1 / sizes.beta + (sizes.beta * sigma) ** 2))
    ok = max(ratios) <= 1

    def draw(figure: fig.Figure) -> None:
        before, after, law = fig.panels(figure, ["before", "after one step", "remaining noise outside"])
        tokens = axis_aligned(at_remark(4, 256, 64, 0.1), torch.Generator().manual_seed(trial.seed))
        for axes, z in ((before, tokens.tokens), (after, step(tokens))):
            off = torch.linalg.norm(outside(z, tokens), dim=-1)
            on = torch.linalg.norm(z - outside(z, tokens), dim=-1)
            axes.plot(on, off, ".", color=fig.BLUE, markersize=5)
            axes.set(xlim=(0, 1.3), ylim=(0, 0.12))
            fig.label_axes(axes, "norm in its subspace", "norm outside")
        fig.plot_laws(law, (shares, left, [math.sqrt(s) for s in shares], "measured; line: √(n/d)"))
        fig.label_axes(law, "n/d", "remaining share")

    return Finding(
        f"√(n/d) remains: {math.sqrt(shares[0]):.3f}, {math.sqrt(shares[1]):.3f}, {math.sqrt(shares[2]):.3f}",
        ", ".join(f"{value:.3f}" for value in left),
        judge(ok, everywhere=left[-1] <= 0.01),
        "n ≪ d: noise in the images of the other tokens remains",
        {f"left_{s:.3g}": v for s, v in zip(shares, left, strict=True)},
        draw,
    )


@claim(section="B.3", equation="Remark on lem:inverse-term, ΔR", expected="holds in range")
def full_objective_keeps_signal(trial: Trial) -> Finding:
    """A step on ΔR instead of R^c has zero shrinkage, and denoises perfectly for a wider variety of step sizes η.

    ∇R ≈ X/(1 + α⁻¹) on the signal, so a step of β⁻¹ multiplies it by 1 + β⁻¹(1/(1 + α⁻¹) − 1/(1 + β⁻¹)), at most
    1 + β⁻². With chance, the gain must be 1 to β⁻² + 3σ/√(nd). A single step leaves |1 − ηβ| of the noise, which is 0
    at one η only. Twelve steps of ηβ from ¼ to 1¾ leave ¾¹² = 3 %. The noise must fall to that plus the √(n/d) of the
    first step, and the signal may grow by 12ηβ⁻¹. The claim holds if one step is enough, in a range if twelve are.
    """
    generator, K, p, n = trial.generator(), 4, 32, 16
    state, gaps = generator.get_state(), []
    for sigma in SIGMAS:
        sizes = at_remark(K, p, n, sigma)
        tokens = axis_aligned(sizes, generator.set_state(state))
        gain = theorem.signal_gain(step(tokens, full=True), tokens.clean)
        gaps.append(abs(gain - 1) / (sizes.beta**-2 + 3 * sigma / math.sqrt(n * sizes.d)))
    sizes = at_remark(K, p, n, 0.05)
    tokens = axis_aligned(sizes, generator.set_state(state))
    steps, root = (0.25, 0.5, 1.0, 1.5, 1.75), math.sqrt(n / sizes.d)
    paths = {full: [iterate(tokens, length / sizes.beta, full) for length in steps] for full in (True, False)}
    one = [path[1][0] for path in paths[True]]
    last = [path[-1] for path in paths[True]]
    growth = [12 * length * sizes.beta**-2 + 3 * sizes.sigma / math.sqrt(n * sizes.d) for length in steps]
    reached = all(
        noise <= root + 0.75**12 and abs(gain - 1) <= limit for (noise, gain), limit in zip(last, growth, strict=True)
    )
    kept = paths[False][2][-1][1]

    def draw(figure: fig.Figure) -> None:
        axes = fig.panels(figure, ["remaining noise", "remaining signal"])
        for at, panel in enumerate(axes):
            for color, full, name in ((fig.BLUE, True, "ΔR"), (fig.ORANGE, False, "R^c")):
                for length, path in zip(steps, paths[full], strict=True):
                    label = name if length == 1.0 else None
                    panel.plot([point[at] for point in path], color=color, linewidth=1, label=label)
            fig.label_axes(panel, "steps, ηβ from ¼ to 1¾", "")
        fig.guides(axes[0], y=(root,))

    return Finding(
        "gain 1, and no noise remains for any η",
        f"gain off by {max(gaps):.2f} of β⁻² and chance; one step leaves {min(one):.2f} … {max(one):.2f} of the noise, "
        f"twelve {min(v[0] for v in last):.2f} … {max(v[0] for v in last):.2f} (√(n/d) = {root:.2f}); "
        f"twelve on R^c keep {kept:.0%} of the signal",
        judge(max(gaps) <= 1 and reached, everywhere=max(one) <= root + 0.75**12),
        "repeated steps; a single step is perfect only at η = β⁻¹, and noise in the images of other tokens remains",
        {"gain_gap": max(gaps), "one_step_worst": max(one), "repeated_worst": max(v[0] for v in last), "kept_rc": kept},
        draw,
    )


def iterate(tokens: theorem.NoisyTokens, eta: float, full: bool, steps: int = 12) -> list[tuple[float, float]]:
    """Return the remaining noise outside and the signal gain after 0, 1, … steps on ΔR (`full`) or R^c."""
    z = tokens.tokens
    start, path = torch.linalg.norm(outside(z, tokens)), []
    for _ in range(steps + 1):
        path.append((float(torch.linalg.norm(outside(z, tokens)) / start), theorem.signal_gain(z, tokens.clean)))
        z = theorem.compress(z, tokens.bases, tokens.sizes.eps, eta, full=full)
    return path
