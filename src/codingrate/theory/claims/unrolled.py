"""Claims about unrolled optimization: descent of the half steps, ISTA and the proximal step (paper 2.2, 2.4, A.2)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from scipy.stats import binom
from torch import Tensor
from torch.nn.functional import normalize

from codingrate import objective as ob

from .. import unrolled
from . import figures as fig
from . import reference
from .frame import EXACT, Finding, Trial, claim, judge, power_law, relative, rounding
from .objective import gaussian
from .operators import strength

DIM, LAMBDA = 13, 0.3  # d and λ of the sparsification claims
WEIGHT = 0.02  # λ of the alternating minimization
GRID = 10 ** (1 / 8)  # ratio of neighboring step lengths


def misfit(x: Tensor, z: Tensor, dictionary: Tensor) -> Tensor:
    """Return ½‖z − Dx‖² of every token: x, z (n, d) → (n,)."""
    return (z - x @ dictionary.mT).square().sum(-1) / 2


def lasso(x: Tensor, z: Tensor, dictionary: Tensor) -> Tensor:
    """Return λ‖x‖₁ + ½‖z − Dx‖² of every token: x, z (n, d) → (n,)."""
    return LAMBDA * x.abs().sum(-1) + misfit(x, z, dictionary)


@claim(section="2.4", equation="eq:sparse-nonnegative, eq:ista-block", expected="holds in a stated range")
def ista_descends(trial: Trial) -> Finding:
    """An ISTA step lowers the non-negative LASSO λ‖X‖₁ + ½‖Z − DX‖², from X = Z ≥ 0.

    By proximal gradient theory, for η ≤ 1/‖D‖² the LASSO of every token falls by at least ‖X⁺ − Z‖²/2η. Beyond 2/‖D‖²
    there is no guarantee. The claim holds if every token does so at every η tried, in a range of η, which the paper
    leaves open, if up to 1/‖D‖².

    Mutations: ISTA = 0; ISTA = identity; D replaced by D*.
    """
    generator, fractions = trial.generator(), (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
    falls = dict.fromkeys(fractions, math.inf)
    for _ in range(trial.choose(5, 50)):
        dictionary, z = gaussian(DIM, DIM, generator), gaussian(40, DIM, generator).abs()
        for fraction in fractions:
            eta = fraction * float(torch.linalg.matrix_norm(dictionary, 2)) ** -2
            x = unrolled.ista(z, dictionary, eta, LAMBDA)
            guaranteed = (x - z).square().sum(-1) / (2 * eta)
            fall = (lasso(z, z, dictionary) - lasso(x, z, dictionary)) / guaranteed
            falls[fraction] = min(falls[fraction], float(fall.nan_to_num(0).min()))  # a step of 0 is no fall
    good = [f for f in fractions if falls[f] >= 1 - rounding(10_000)]
    rises = min((f for f in fractions if falls[f] < 0), default=math.inf)
    labels = ("smallest fall of the LASSO", "η‖D‖²", "fall / (‖X⁺ − Z‖²/2η)")
    return Finding(
        "fall ≥ ‖X⁺ − Z‖²/2η for every token",
        f"≥ {min(falls[f] for f in fractions if f <= 1):.2f} of that for η ≤ 1/‖D‖²; rises from {rises:g}/‖D‖²",
        judge(len(good) == len(fractions), ranged=all(f in good for f in fractions if f <= 1)),
        "η ≤ 1/‖D‖²",
        {f"fall_{f:g}": falls[f] for f in fractions},
        fig.figure(fig.lines(labels, (fractions, list(falls.values()), None), marks=(1,), levels=(0, 1))),
    )


@claim(section="2.4", equation="eq:ista-block")
def ista_majoriser(trial: Trial) -> Finding:
    """ISTA(Z | D) = ReLU(Z − ηD*(DZ − Z) − ηλ1) minimizes over X ≥ 0 the quadratic upper bound of the LASSO at Z.

    The bound is λ‖X‖₁ + ½‖Z − DZ‖² + ⟨D*(DZ − Z), X − Z⟩ + ‖X − Z‖²/2η. Its optimality conditions are g = 0 where X > 0
    and g ≥ 0 where X = 0, with g = D*(DZ − Z) + λ + (X − Z)/η. They must hold up to the rounding of the three products.
    At η = 1/‖D‖² the bound must lie above the LASSO in random directions and in D's steepest one, where they touch.

    Mutations: ISTA = 0; ISTA = identity; D replaced by D*; ISTA without its threshold.
    """
    generator, worst, least = trial.generator(), 0.0, math.inf
    for _ in range(trial.choose(5, 50)):
        dictionary, z = gaussian(DIM, DIM, generator), gaussian(40, DIM, generator)
        eta = float(torch.linalg.matrix_norm(dictionary, 2)) ** -2
        slope = (z @ dictionary.mT - z) @ dictionary  # D*(DZ − Z), in rows
        x = unrolled.ista(z, dictionary, eta, LAMBDA)
        condition = slope + LAMBDA + (x - z) / eta
        failure = torch.where(x > 0, condition.abs(), (-condition).clamp(min=0))
        worst = max(worst, float(failure.max() / slope.abs().max()))
        gap = gaussian(40, DIM, generator)
        gap[0] = torch.linalg.svd(dictionary)[2][0]
        curve = gap.square().sum(-1) / (2 * eta)
        above = misfit(z, z, dictionary) + (slope * gap).sum(-1) + curve - misfit(z + gap, z, dictionary)
        least = min(least, float((above / curve).min()))
    limit = rounding(100 * DIM)
    return Finding(
        "optimality conditions satisfied, bound ≥ LASSO",
        f"conditions violated by {worst:.0e}, (bound − LASSO)/(‖X − Z‖²/2η) ≥ {least:.0e}",
        judge(worst <= limit and least >= -limit),
        numbers={"conditions": worst, "least_gap": least},
    )


def coherent_tokens(n: int, coherence: float, generator: torch.Generator) -> Tensor:
    """Draw unit-norm tokens (n, d) whose inner products are all equal to `coherence` (0: orthogonal)."""
    frame = ob.random_bases(1, DIM, n, "orthonormal", generator, torch.float64)[0]
    gram = coherence * torch.ones(n, n, dtype=torch.float64) + (1 - coherence) * torch.eye(n, dtype=torch.float64)
    return torch.linalg.cholesky(gram) @ frame.mT


@claim(section="A.2", equation="eq:prox_maj_min_iteration", expected="holds in a stated range")
def prox_step(trial: Trial) -> Finding:
    """ReLU((1 + 4/(9(1 + α)))D*Z − 4λ/(9α)1) is one majorize-minimize step on λ‖Z‖₁ − R(Z) over Z ≥ 0, for Z*Z = I.

    At C = D*Z the quadratic λ‖X‖₁ − R(C) − ⟨∇R(C), X − C⟩ + (9α/8)‖X − C‖² has the minimizer
    ReLU(C + 4(∇R(C) − λ)/(9α)), where ∇R(C) = α/(1 + α) C for orthonormal tokens. So the step is an identity for them,
    up to rounding. The quadratic must also lie above λ‖X‖₁ − R(X) in random directions. Inner products μ between tokens
    change ∇R to first order in μ. If the two steps then differ, the claim holds in the range Z*Z = I that it names.

    Mutations: proximal layer = 0; 4/9 replaced by 4/3 in the proximal layer; ∇R = 0; ε² replaced by ε.
    """
    generator, n, eps = trial.generator(), 7, 0.5
    alpha = DIM / (n * eps**2)
    turn = ob.random_bases(1, DIM, DIM, "orthonormal", generator, torch.float64)[0]

    def distance(coherence: float) -> float:
        z = coherent_tokens(n, coherence, generator)
        return relative(unrolled.proximal_layer(z, turn, LAMBDA, alpha), unrolled.proximal_step(z @ turn, eps, LAMBDA))

    exact = distance(0.0)
    center = coherent_tokens(n, 0.0, generator) @ turn
    least = math.inf
    for scale in (0.01, 0.1, 1.0, 10.0):
        gap = scale * gaussian(n, DIM, generator)
        curve = 9 * alpha / 8 * gap.square().sum()
        linear = (gap * ob.coding_rate_gradient(center, eps)).sum()
        above = curve - linear - reference.rate(center, eps) + reference.rate(center + gap, eps)
        least = min(least, float(above / curve))
    products = (0.003, 0.01, 0.03, 0.1)
    apart = [sum(distance(mu) for _ in range(trial.choose(8, 50))) / trial.choose(8, 50) for mu in products]
    order, inside = power_law(products, apart).exponent, exact <= rounding(100 * DIM) and least >= 0
    points = (products, apart, 1, "measured; line: slope 1")
    return Finding(
        "equal to the exact step; bound above −R",
        f"error {exact:.0e} on orthogonal tokens, bound + R ≥ {least:.2f} (9α/8)‖X − C‖²; "
        f"{apart[-1]:.1%} apart at μ = 0.1, slope {order:.2f}",
        judge(inside and apart[-1] <= EXACT, ranged=inside),
        "orthogonal tokens, as the statement assumes",
        {"exact": exact, "least_gap": least, "apart": apart[-1], "slope": order},
        fig.figure(
            fig.laws("the layer's step and the exact step", "inner product μ of tokens", "relative distance", points)
        ),
    )


def aligned_tokens(generator: torch.Generator, K: int = 4, p: int = 8, n: int = 32) -> tuple[Tensor, Tensor]:
    """Draw axis-aligned bases (K, d, p) and unit-norm tokens Z ≥ 0 (n, d) near them, where both half steps agree."""
    bases = torch.eye(K * p, dtype=torch.float64).view(K * p, K, p).transpose(0, 1)
    sample = ob.sample_tokens(bases, n, 0.15, generator)
    return bases, normalize(sample.tokens.abs(), dim=-1)


@claim(section="2.2", equation="eqn:compression, eqn:sparsification")
def half_steps_descend(trial: Trial) -> Finding:
    """The first half step lowers R^c(Z | U) and the second lowers λ‖Z‖₁ − R(Z), when each is taken exactly.

    A gradient step of κ = 1/L with L = β‖Σ_k U_kU_k*‖ lowers R^c by at least κ/2‖∇R^c‖². A proximal step of 4/(9α)
    lowers λ‖Z‖₁ − R over Z ≥ 0 by at least (9α/8)‖Z⁺ − Z‖², because its majorizer is strongly convex with that
    constant. Both falls must be reached in every draw. Rates, ∇R^c and the constants α and β on this side are written
    out densely. The second step must also not be 0, or it would satisfy the guarantee trivially.

    Mutations: ∇R^c = 0; ∇R = 0; ε² replaced by ε.
    """
    generator, falls = trial.generator(), []
    for _ in range(trial.choose(3, 30)):
        bases, z = aligned_tokens(generator)
        overlap = float(torch.linalg.matrix_norm(torch.einsum("kdp,kep->de", bases, bases), 2))
        for eps in (0.1, 0.5, 2.0):
            kappa = 1 / (reference.beta(z, bases, eps) * overlap)
            moved = z - kappa * unrolled.compression_direction(z, bases, eps)
            fall = reference.compression(z, bases, eps) - reference.compression(moved, bases, eps)
            first = fall / (kappa / 2 * reference.compression_gradient(z, bases, eps).square().sum())
            after = unrolled.proximal_step(z, eps, WEIGHT)
            fall = reference.rate(after, eps) - reference.rate(z, eps) + WEIGHT * (z.abs().sum() - after.abs().sum())
            second = fall / (9 * reference.alpha(z, eps) / 8 * (after - z).square().sum())
            falls.append((float(first), float(second)))
    first, second = (min(column) for column in zip(*falls, strict=True))
    return Finding(
        "both fall by at least the guaranteed amount",
        f"R^c by ≥ {first:.2f} times that amount, λ‖Z‖₁ − R by ≥ {second:.2f} times",
        judge(all(one >= 1 and two >= 1 for one, two in falls)),
        numbers={"compression": first, "sparsification": second},
    )


@claim(
    section="2.2", equation="eq:objective-sparse-rate-reduction-l1, eq:incremental", expected="holds in a stated range"
)
def alternating_descends(trial: Trial) -> Finding:
    """Layers of alternating minimization optimize the sparse rate reduction R(Z) − R^c(Z | U) − λ‖Z‖₁.

    Each half step may undo the other: shrinking the tokens lowers R^c, but it lowers R more. Two half steps of equal
    length, κ = 4/(9α), are a split gradient step on the whole objective. κ = 1/β, for which R^c is guaranteed to fall,
    is 9K/4 times as long. In every layer the first half must lower R^c, the second λ‖Z‖₁ − R, and both together the
    objective. The claim holds if this is so at both lengths, in a range of κ, which the paper leaves open, if at the
    shorter one. At small ε the second half alone would lower the objective too; the test of each half excludes that.

    Mutations: ∇R^c = 0; ∇R = 0; ∇R^c with the wrong sign.
    """
    generator, eps, layers = trial.generator(), 0.5, trial.choose(40, 200)
    bases, z = aligned_tokens(generator)
    even = 4 / (9 * reference.alpha(z, eps))
    lengths = {"κ = 4/(9α)": even, "κ = 1/β": 1 / reference.beta(z, bases, eps)}
    runs = {name: unrolled.alternate(z, bases, eps, WEIGHT, layers, step=kappa) for name, kappa in lengths.items()}
    curves = {name: run.objective[::2] for name, run in runs.items()}
    rises, halves = {}, {}
    for name, run in runs.items():
        rises[name] = int((curves[name].diff() > rounding(1000)).sum())
        first, second = run.compression.diff()[::2], (run.sparsity - run.expansion).diff()[1::2]
        halves[name] = int(((first >= 0) | (second >= 0)).sum())
    (short, long), (start, *_) = rises.values(), curves["κ = 1/β"].tolist()
    ends = [float(curve[-1]) for curve in curves.values()]
    shares = {name: float((run.tokens > 0).double().mean()) for name, run in runs.items()}
    paths = [(range(layers + 1), curve, f"{name}; {shares[name]:.0%} non-zero") for name, curve in curves.items()]
    labels = ("R^c + λ‖Z‖₁ − R, to be minimized", "layer (non-zero: entries after the last one)", "")
    inside = not short and not halves["κ = 4/(9α)"]
    return Finding(
        "each half lowers its part and the layer lowers the whole, in every layer",
        f"the whole rises in {short} of {layers} layers at κ = 4/(9α), in {long} at κ = 1/β; a half fails in "
        f"{halves['κ = 4/(9α)']} and {halves['κ = 1/β']}",
        judge(inside and not long, ranged=inside),
        f"κ ≤ 4/(9α), where R^c + λ‖Z‖₁ − R goes from {start:.2f} to {ends[0]:.2f}; at κ = 1/β tokens shrink and it "
        f"ends at {ends[1]:.2f}",
        {"rises_even": short, "rises_long": long, "end_even": ends[0], "end_long": ends[1]},
        fig.figure(fig.lines(labels, *paths, scale="plot", style="-")),
    )


@claim(section="2.3", equation="eq:gd-mcr-parts", expected="holds in a stated range")
def mssa_layers_descend(trial: Trial) -> Finding:
    """Layers with MSSA in the place of ∇R^c optimize the sparse rate reduction as well.

    At κ = 4/(9α), where exact layers improve the objective, it must improve in every layer. But (1 − κβ)Z shrinks the
    tokens even without attention, and that alone improves it. So the layers must also end lower than the same layers
    with MSSA = 0. The objective is not convex, and an entry that becomes zero some layers later in one of the two can
    exchange their order in a draw (one of 200 at β = 1/16). So they must end lower in more than half of all draws, by a
    sign test at 5 %. The claim holds if both are true at every ε tried, and in a range of ε, which the paper leaves
    open, if they are true for β ≤ ¼. This ¼ is not derived: it is the largest β of the grid that passed.

    Mutations: MSSA = 0; MSSA with the wrong sign.
    """
    generator, precisions, layers, rows = trial.generator(), (0.5, 1.0, 2.0), trial.choose(40, 100), []
    draws = trial.choose(8, 20)
    enough = 1 + int(binom.ppf(0.95, draws, 0.5))  # if both were equally good, so many are lower in < 5 %
    for _ in range(draws):
        bases, z = aligned_tokens(generator)
        for eps in precisions:
            even, beta = 4 / (9 * reference.alpha(z, eps)), reference.beta(z, bases, eps)
            curve = unrolled.alternate(z, bases, eps, WEIGHT, layers, "mssa", step=even).objective[::2]
            x = z
            for _ in range(layers):
                x = unrolled.proximal_step((1 - even * beta) * x, eps, WEIGHT)
            control = reference.compression(x, bases, eps) + WEIGHT * x.abs().sum() - reference.rate(x, eps)
            fall = bool((curve.diff() < 0).all())
            rows.append((beta, fall, float((control - curve[-1]) / (curve[0] - control))))
    betas = sorted({beta for beta, *_ in rows})
    gains = {beta: [gain for b, _, gain in rows if b == beta] for beta in betas}
    lower = {beta: sum(gain > 0 for gain in gains[beta]) for beta in betas}
    good = [beta for beta in betas if lower[beta] >= enough and all(fall for b, fall, _ in rows if b == beta)]
    inside = all(beta in good for beta in betas if beta <= 0.25)
    return Finding(
        "improves in every layer, and more than without attention",
        "; ".join(f"β = {b:.2g}: {min(g):+.1%} … {max(g):+.1%} more than without MSSA" for b, g in gains.items()),
        judge(inside and len(good) == len(betas), ranged=inside),
        f"β ≤ {max(good, default=0):.2g}; at β = 1 the improvement is that of the shrinkage, and MSSA lessens it",
        {f"gain_{beta:.2g}": min(values) for beta, values in gains.items()},
    )


class Reach(NamedTuple):
    """The longest steps that still descend, at one setting."""

    orthogonal: bool
    beta: float
    strength: float  # max_k β‖U_k*Z‖²
    guaranteed: float  # κβ below which an exact step is guaranteed to descend, 2/‖Σ_k U_kU_k*‖
    longest: dict[str, float]  # κβ up to which steps descended, by method
    nearer: float  # distance of MSSA's direction from ∇R^c over that of βZ alone


def longest_descent(z: Tensor, bases: Tensor, eps: float, method: str) -> float:
    """Return the largest κβ of a grid up to which every step lowers R^c, or 0 if the shortest step raises it."""
    beta = reference.beta(z, bases, eps)
    grid = [1e-3 * GRID**power for power in range(33)]
    moved = z - torch.tensor(grid, dtype=z.dtype)[:, None, None] / beta * (
        unrolled.compression_direction(z, bases, eps, method)
    )
    falls = reference.compression(moved, bases, eps) < reference.compression(z, bases, eps)
    return grid[int(falls.cummin(0).values.sum()) - 1] if bool(falls[0]) else 0.0


@claim(section="2.2", equation="eq:gd-mcr-parts, eq:appendix-mssa-block-variant", expected="holds in a stated range")
def approximate_steps(trial: Trial) -> Finding:
    """The step (1 − βκ)Z + βκ MSSA(Z | U) lowers R^c incrementally, like the gradient step that it approximates.

    Exact steps are guaranteed to descend for κ < 2/(β‖Σ_k U_kU_k*‖), and the test must show it. MSSA must descend for
    these κ too. But (1 − βκ)Z descends without attention as well. So MSSA must also bring the direction closer to ∇R^c
    than βZ alone is. With the softmax A, I − βA keeps its sign for β < 1, as Neumann's 1 − x does for
    x = β‖U_k*Z‖² < 1. So the claim holds in a range if both are true at every β ≤ 1 for orthogonal subspaces, which
    A.1 assumes, and if MSSA descends at every β ≤ 1 for random ones (Kp = d, ‖Σ_k U_kU_k*‖ up to 4). ε goes from 0.1
    to 2.

    Mutations: MSSA = 0; MSSA with the wrong sign; ∇R^c = 0.
    """
    generator, rows, panels = trial.generator(), [], []
    for arrangement, title in (("orthonormal", "orthogonal subspaces"), ("incoherent", "random subspaces, Kp = d")):
        bases = ob.random_bases(4, 32, 8, arrangement, generator, torch.float64)
        z = normalize(ob.sample_tokens(bases, 32, 0.05, generator).tokens, dim=-1)
        overlap = float(torch.linalg.matrix_norm(torch.einsum("kdp,kep->de", bases, bases), 2))
        own = []
        for eps in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0):
            beta, exact = reference.beta(z, bases, eps), reference.compression_gradient(z, bases, eps)
            longest = {method: longest_descent(z, bases, eps, method) for method in unrolled.COMPRESSIONS}
            nearer = relative(unrolled.compression_direction(z, bases, eps, "mssa"), exact) / relative(beta * z, exact)
            own.append(Reach(overlap < 1.5, beta, strength(z, bases, eps), 2 / overlap, longest, nearer))
        betas, labels = [row.beta for row in own], (title, "β", "longest κβ that descends (lowest: none)")
        curves = [(betas, [max(row.longest[name], 1e-3) for row in own], name) for name in unrolled.COMPRESSIONS]
        panels.append(fig.lines(labels, *curves, scale="loglog", levels=(own[0].guaranteed,)))
        rows += own
    reaches = all(row.longest["exact"] * GRID >= row.guaranteed for row in rows)
    small = [row for row in rows if row.beta <= 1]
    closer = max(row.nearer for row in small if row.orthogonal)
    away = max(row.nearer for row in small if not row.orthogonal)
    inside = reaches and all(row.longest["mssa"] > 0 for row in small) and closer < 1
    everywhere = all(row.longest["mssa"] * GRID >= row.guaranteed and row.nearer < 1 for row in rows)
    rise = min((row.beta for row in rows if not row.longest["mssa"]), default=math.inf)
    neumann = min((row.strength for row in rows if not row.longest["neumann"]), default=math.inf)
    least = min(row.longest["mssa"] / row.guaranteed for row in small)
    return Finding(
        "descends for κβ < 2/‖Σ_k U_kU_k*‖, closer to ∇R^c than βZ alone",
        f"exact: {'yes' if reaches else 'no'}; MSSA at β ≤ 1 up to κβ = {least:.2f} of that or more, and for no κ from "
        f"β = {rise:.2g}; Neumann for no κ from β‖U_k*Z‖² = {neumann:.2g}; MSSA × {closer:.2f} of the distance of βZ "
        f"on orthogonal, × {away:.2f} on random subspaces",
        judge(inside and everywhere, ranged=inside),
        f"β ≤ 1 and orthogonal subspaces; on random ones MSSA descends below β = {rise:.2g}, but it is no closer to "
        "∇R^c than the shrinkage alone",
        {"mssa_first_rise": rise, "neumann_first_rise": neumann, "mssa_reach": least, "nearer": closer, "away": away},
        fig.figure(*panels),
    )
