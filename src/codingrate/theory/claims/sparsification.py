"""Claims about the second half of a layer: ISTA and the proximal step (paper 2.4, A.2)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from codingrate.objective import coding_rate, coding_rate_gradient, random_bases

from ..unrolled import ista, proximal_layer, proximal_step
from . import _figures as fig
from ._measure import law_through, power_law, relative, rounding
from .frame import Finding, Trial, claim
from .objective import gaussian

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIM, LAMBDA = 13, 0.3


def misfit(x: Tensor, z: Tensor, dictionary: Tensor) -> Tensor:
    """½‖z − Dx‖² of every token: x, z (n, d) → (n,)."""
    return (z - x @ dictionary.mT).square().sum(-1) / 2


def lasso(x: Tensor, z: Tensor, dictionary: Tensor) -> Tensor:
    """λ‖x‖₁ + ½‖z − Dx‖² of every token: x, z (n, d) → (n,)."""
    return LAMBDA * x.abs().sum(-1) + misfit(x, z, dictionary)


def longest_step(dictionary: Tensor) -> float:
    """1/‖D‖², up to which the quadratic of an ISTA step lies above the LASSO."""
    return float(torch.linalg.matrix_norm(dictionary, 2)) ** -2


@claim(section="2.4", equation="eq:ista-block", expected="holds in range")
def ista_descends(trial: Trial) -> Finding:
    """An ISTA step lowers the non-negative LASSO λ‖X‖₁ + ½‖Z − DX‖², from X = Z ≥ 0.

    Proximal gradient theory: for η ≤ 1/‖D‖² every token's LASSO falls by at least ‖X⁺ − Z‖²/2η; that must hold for each
    token. Beyond 2/‖D‖² it need not: the claim holds if it does at every η tried, and in a range if up to 1/‖D‖².
    """
    generator = trial.generator()
    fractions = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
    falls = dict.fromkeys(fractions, math.inf)
    for _ in range(trial.choose(5, 50)):
        dictionary, z = gaussian(DIM, DIM, generator), gaussian(40, DIM, generator).abs()
        for fraction in fractions:
            eta = fraction * longest_step(dictionary)
            x = ista(z, dictionary, eta, LAMBDA)
            owed = (x - z).square().sum(-1) / (2 * eta)
            fall = (lasso(z, z, dictionary) - lasso(x, z, dictionary)) / owed
            falls[fraction] = min(falls[fraction], float(fall.min()))
    good = [f for f in fractions if falls[f] >= 1 - rounding(10_000)]
    inside = all(f in good for f in fractions if f <= 1)
    rises = min((f for f in fractions if falls[f] < 0), default=math.inf)

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, ["least fall of the LASSO / ‖X⁺ − Z‖²/2η"])
        axes.semilogx(fractions, [falls[f] for f in fractions], "o-", color=fig.BLUE, markersize=4)
        axes.axhline(1, color=fig.GREY, linewidth=0.8, linestyle="--")
        axes.axhline(0, color=fig.GREY, linewidth=0.8)
        axes.axvline(1, color=fig.GREY, linewidth=0.8, linestyle="--")
        fig.name(axes, "η‖D‖²", "")

    return Finding(
        "fall ≥ ‖X⁺ − Z‖²/2η for every token",
        f"≥ {min(falls[f] for f in fractions if f <= 1):.2f} of that for η ≤ 1/‖D‖²; rises from {rises:g}/‖D‖²",
        ("holds" if len(good) == len(fractions) else "holds in range") if inside else "fails",
        "η ≤ 1/‖D‖²" if inside else "a valid step raises the LASSO",
        {f"fall_{f:g}": falls[f] for f in fractions},
        draw,
    )


@claim(section="2.4", equation="eq:ista-block")
def ista_majoriser(trial: Trial) -> Finding:
    """ISTA(Z | D) = ReLU(Z − ηD*(DZ − Z) − ηλ1) minimises over X ≥ 0 the quadratic upper bound of the LASSO at Z.

    The bound is λ‖X‖₁ + ½‖Z − DZ‖² + ⟨D*(DZ − Z), X − Z⟩ + ‖X − Z‖²/2η. Its optimality conditions are g = 0 where X > 0
    and g ≥ 0 where X = 0, g = D*(DZ − Z) + λ + (X − Z)/η; they must hold up to rounding of the three products. At
    η = 1/‖D‖² it must lie above the LASSO, in random directions and in D's steepest one, where the two touch.
    """
    generator = trial.generator()
    worst, least = 0.0, math.inf
    for _ in range(trial.choose(5, 50)):
        dictionary, z = gaussian(DIM, DIM, generator), gaussian(40, DIM, generator)
        eta = longest_step(dictionary)
        slope = (z @ dictionary.mT - z) @ dictionary  # D*(DZ − Z), in rows
        x = ista(z, dictionary, eta, LAMBDA)
        condition = slope + LAMBDA + (x - z) / eta
        failure = torch.where(x > 0, condition.abs(), (-condition).clamp(min=0))
        worst = max(worst, float(failure.max() / slope.abs().max()))
        gap = gaussian(40, DIM, generator)
        gap[0] = torch.linalg.svd(dictionary)[2][0]
        curve = gap.square().sum(-1) / (2 * eta)
        above = misfit(z, z, dictionary) + (slope * gap).sum(-1) + curve - misfit(z + gap, z, dictionary)
        least = min(least, float((above / curve).min()))
    allowed = rounding(100 * DIM)
    ok = worst <= allowed and least >= -allowed
    return Finding(
        "optimality conditions met, bound ≥ LASSO",
        f"conditions off by {worst:.0e}, (bound − LASSO)/(‖X − Z‖²/2η) ≥ {least:.0e}",
        "holds" if ok else "fails",
        "" if ok else "the step is not the minimiser of the bound" if worst > allowed else "the bound is no bound",
        {"conditions": worst, "least_gap": least},
    )


def coherent_tokens(n: int, coherence: float, generator: torch.Generator) -> Tensor:
    """Unit-norm tokens (n, d) that are orthogonal at coherence 0, with all products ±coherence otherwise."""
    frame = random_bases(1, DIM, n, "orthonormal", generator, torch.float64)[0]
    gram = coherence * torch.ones(n, n, dtype=torch.float64) + (1 - coherence) * torch.eye(n, dtype=torch.float64)
    return torch.linalg.cholesky(gram) @ frame.mT


@claim(section="A.2", equation="eq:prox_maj_min_iteration", expected="holds in range")
def prox_step(trial: Trial) -> Finding:
    """ReLU((1 + 4/(9(1 + α)))D*Z − 4λ/(9α)1) is one majorise-minimise step on λ‖Z‖₁ − R(Z) over Z ≥ 0, for Z*Z = I.

    At C = D*Z the quadratic λ‖X‖₁ − R(C) − ⟨∇R(C), X − C⟩ + (9α/8)‖X − C‖² has the minimiser
    ReLU(C + 4(∇R(C) − λ)/(9α)), where ∇R(C) = α/(1 + α) C for orthonormal tokens: an identity then, up to rounding. It
    must also lie above λ‖X‖₁ − R(X) in random directions. Tokens with equal products μ move ∇R to first order in μ, so
    the two steps part with slope 1; the claim holds in the range of orthogonal tokens if they do part.
    """
    generator, n, eps = trial.generator(), 7, 0.5
    alpha = DIM / (n * eps**2)
    turn = random_bases(1, DIM, DIM, "orthonormal", generator, torch.float64)[0]

    def distance(coherence: float) -> float:
        z = coherent_tokens(n, coherence, generator)
        return relative(proximal_layer(z, turn, LAMBDA, alpha), proximal_step(z @ turn, eps, LAMBDA))

    exact = distance(0.0)
    centre = coherent_tokens(n, 0.0, generator) @ turn
    least = math.inf
    for scale in (0.01, 0.1, 1.0, 10.0):
        gap = scale * gaussian(n, DIM, generator)
        curve = 9 * alpha / 8 * gap.square().sum()
        linear = (gap * coding_rate_gradient(centre, eps)).sum()
        above = curve - linear - coding_rate(centre, eps) + coding_rate(centre + gap, eps)
        least = min(least, float(above / curve))
    products = (0.003, 0.01, 0.03, 0.1)
    apart = [sum(distance(mu) for _ in range(trial.choose(8, 50))) / trial.choose(8, 50) for mu in products]
    order = power_law(products, apart).exponent
    ok = exact <= rounding(100 * DIM) and least >= 0

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, ["the layer's step and the exact one"])
        fig.law(axes, products, apart, law_through(products, apart, 1), "measured, slope 1 drawn in", 0)
        fig.name(axes, "product μ of two tokens", "relative distance")

    return Finding(
        "equal to the exact step; bound above −R",
        f"off by {exact:.0e} on orthogonal tokens, bound + R ≥ {least:.2f} (9α/8)‖X − C‖²; "
        f"apart by {apart[-1]:.1%} at μ = 0.1, slope {order:.2f}",
        "fails" if not ok else "holds in range" if apart[-1] > 1e-6 else "holds",
        "orthogonal tokens" if ok else "not the minimiser of the majoriser",
        {"exact": exact, "least_gap": least, "apart": apart[-1], "slope": order},
        draw,
    )
