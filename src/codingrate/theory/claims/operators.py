"""Claims about the way from the gradient of R^c to attention (paper 2.3, A.1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from codingrate.objective import random_bases, sample_tokens, subspace_coding_rate_gradient

from ..unrolled import compression_direction, mssa, unit
from . import _figures as fig
from ._measure import cosine, estimate, law_through, power_law, relative, rounding
from ._statistics import critical
from .frame import Finding, Trial, claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = (12, 768, 64, 196)  # K, d, p, n of CRATE-Base


def near_subspaces(
    generator: torch.Generator,
    K: int,  # noqa: N803
    d: int,
    p: int,
    n: int,
) -> tuple[Tensor, Tensor]:
    """Orthogonal bases (K, d, p) and unit-norm tokens (n, d) within 5 % of their subspaces, as A.1 assumes them."""
    bases = random_bases(K, d, p, "orthonormal", generator, torch.float64)
    return bases, unit(sample_tokens(bases, n, 0.05 * math.sqrt(p / d), generator).tokens)


def strength(z: Tensor, bases: Tensor, eps: float) -> float:
    """max_k β‖U_k*Z‖², what the Neumann series is a series in."""
    beta = bases.shape[-1] / (z.shape[-2] * eps**2)
    return beta * float(torch.linalg.matrix_norm(z @ bases, 2).max()) ** 2


@claim(section="2.3", equation="eq:gd_rc_neumann")
def neumann_order(trial: Trial) -> Finding:
    """∇R^c ≈ β Σ_k U_k(U_k*Z)(I − β(U_k*Z)*(U_k*Z)), the first-order Neumann series.

    With x = β‖U_k*Z‖², 1/(1 + x) − (1 − x) = x²/(1 + x): relative to the gradient the error is at most x²(1 + x), which
    must hold at every point, and its slope in x is 2 − x/(1 + x), so the fitted one must lie within the largest x of 2.
    """
    generator = trial.generator()
    bases, z = near_subspaces(generator, 3, 13, 4, 29)
    top, x, errors = 0.02, [], []
    for eps in torch.logspace(0, 1, 6).tolist():
        scaled = eps * math.sqrt(strength(z, bases, 1.0) / top)
        exact = subspace_coding_rate_gradient(z, bases, scaled)
        x.append(strength(z, bases, scaled))
        errors.append(relative(subspace_coding_rate_gradient(z, bases, scaled, "neumann"), exact))
    order = power_law(x, errors).exponent
    ok = abs(order - 2) <= top and all(e <= v**2 * (1 + v) for e, v in zip(errors, x, strict=True))

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, ["error of the Neumann step"])
        fig.law(axes, x, errors, law_through(x, errors, 2), "measured, slope 2 drawn in", 0)
        fig.name(axes, "β‖U_k*Z‖²", "relative error")

    return Finding(
        f"slope 2 ± {top:g} in β‖U_k*Z‖², error ≤ x²(1 + x)",
        f"slope {order:.3f}, error ≤ {max(e / v**2 for e, v in zip(errors, x, strict=True)):.2f} x²",
        "holds" if ok else "fails",
        "" if ok else "the error has another order",
        {"slope": order},
        draw,
    )


@claim(section="2.3", equation="eq:gd_rc_neumann", expected="holds in range")
def neumann_range(trial: Trial) -> Finding:
    """The first-order Neumann step still descends on R^c where the network works.

    Singular value s of U_k*Z gets the factor 1 − βs² for 1/(1 + βs²): right in sign while x = β‖U_k*Z‖² < 1. There the
    cosine with ∇R^c must be positive in every draw. The claim holds if it is positive at ε = 0.5 and the sizes of
    CRATE-Base as well, with unit-norm tokens; if only for x < 1, it holds in that range.
    """
    generator = trial.generator()
    points = []
    for _ in range(trial.choose(3, 20)):
        bases, z = near_subspaces(generator, 4, 32, 8, 32)
        for x in (0.1, 0.3, 0.6, 0.95, 1.5, 2.0, 3.0, 5.0):
            eps = math.sqrt(strength(z, bases, 1.0) / x)
            exact = subspace_coding_rate_gradient(z, bases, eps)
            points.append((x, cosine(subspace_coding_rate_gradient(z, bases, eps, "neumann"), exact)))
    bases, z = near_subspaces(generator, *BASE)
    here = strength(z, bases, 0.5)
    base = cosine(subspace_coding_rate_gradient(z, bases, 0.5, "neumann"), subspace_coding_rate_gradient(z, bases, 0.5))
    inside = min(c for x, c in points if x < 1) > 0
    wrong = min((x for x, c in points if c <= 0), default=math.inf)

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, ["Neumann step and gradient"])
        axes.semilogx(*zip(*points, strict=True), "o", color=fig.BLUE, markersize=4, label="one draw")
        axes.plot(here, base, "s", color=fig.ORANGE, label="CRATE-Base, ε = 0.5")
        axes.axvline(1, color=fig.GREY, linewidth=0.8, linestyle="--")
        axes.axhline(0, color=fig.GREY, linewidth=0.8)
        fig.name(axes, "β‖U_k*Z‖²", "cosine")

    return Finding(
        "cosine with ∇R^c > 0",
        f"positive for β‖U_k*Z‖² < 1, negative from {wrong:g}; CRATE-Base has {here:.2f} and cosine {base:.2f}",
        ("holds" if base > 0 else "holds in range") if inside else "fails",
        f"β‖U_k*Z‖² < 1, at CRATE-Base's sizes ε ≥ {0.5 * math.sqrt(here):.2f}" if inside else "wrong sign below 1",
        {"first_negative": wrong, "base_strength": here, "base_cosine": base},
        draw,
    )


@claim(section="A.1", equation="thm:grad_codingrate_approx", expected="holds in range")
def mssa_gradient(trial: Trial) -> Finding:
    """Z − κ∇R^c(Z | U) ≈ (1 − κβ)Z + κβ MSSA(Z | U): βZ − βMSSA is near the gradient of R^c.

    On unit-norm tokens near orthogonal subspaces that fill the space, over ε. "Near" is read as the least it can mean:
    the cosine with ∇R^c is positive, and MSSA brings βZ nearer to ∇R^c than leaving it out. The claim holds if this is
    so at every β tried, and in a range if for all β up to one.
    """
    generator, eps = trial.generator(), torch.logspace(-1, 0.5, 9).tolist()
    bases, z = near_subspaces(generator, *trial.choose((4, 64, 16, 64), BASE))
    beta = [bases.shape[-1] / (len(z) * e**2) for e in eps]
    angle, gain, part = [], [], []
    for b, e in zip(beta, eps, strict=True):
        exact = subspace_coding_rate_gradient(z, bases, e)
        step = compression_direction(z, bases, e, "mssa")
        angle.append(cosine(step, exact))
        gain.append(relative(step, exact) / relative(b * z, exact))
        part.append(cosine(b * z - step, b * z - exact))
    good = [b for b, c, g in zip(beta, angle, gain, strict=True) if c > 0 and g < 1]
    limit = max(good, default=0.0)
    inside = bool(good) and all(b in good for b in beta if b <= limit) and limit >= 1

    def draw(figure: Figure) -> None:
        left, right = fig.panels(figure, ["cosine", "error with MSSA / error without"])
        left.semilogx(beta, angle, "o-", color=fig.BLUE, markersize=4, label="βZ − βMSSA with ∇R^c")
        left.semilogx(beta, part, "o-", color=fig.ORANGE, markersize=4, label="MSSA with what it stands for")
        left.axhline(0, color=fig.GREY, linewidth=0.8)
        right.loglog(beta, gain, "o-", color=fig.BLUE, markersize=4)
        right.axhline(1, color=fig.GREY, linewidth=0.8, linestyle="--")
        fig.name(left, "β", "")
        fig.name(right, "β", "")

    return Finding(
        "cosine > 0 and MSSA lowers the error, at β ≤ 1 and beyond",
        f"so for β ≤ {limit:.2g} of {max(beta):.2g}; cosine {angle[beta.index(limit)] if good else 0:.2f} … "
        f"{max(angle):.3f}, error × {min(gain):.2f} at best",
        ("holds" if len(good) == len(beta) else "holds in range") if inside else "fails",
        f"β ≤ {limit:.2g}; MSSA alone has cosine {min(part):.2f} … {max(part):.2f} with the term it stands for"
        if inside
        else "βZ without attention is as near to the gradient",
        {"beta_limit": limit, "cosine_best": max(angle), "error_ratio_best": min(gain), "cosine_term": max(part)},
        draw,
    )


@claim(section="A.1", equation="eq:appendix-ssa-derivation")
def softmax_membership(trial: Trial) -> Finding:
    """The softmax of the auto-correlation is a subspace membership: SSA keeps what belongs to the head's own subspace.

    The paper gives no formula. For n → ∞ clean tokens with α ~ N(0, s²I) on K orthogonal subspaces the softmax average
    is an exponential tilt of the mixture, SSA(w) = s²π(w)w with π = e^q/(e^q + K − 1), q = s²‖w‖²/2: the posterior
    that w came from the head's own subspace. A mean over n tokens errs to order n^-½; over draws the slope must be −½
    within three standard errors. (s = ½, so that the weights e^{⟨w, w_j⟩} have moments to average.)
    """
    generator, K, p, s = trial.generator(), 2, 2, 0.5
    bases = random_bases(K, K * p, p, "orthonormal", generator, torch.float64)
    sizes, runs = trial.choose((64, 256, 1024), (64, 256, 1024, 4096)), []
    for _ in range(trial.choose(8, 24)):
        errors = []
        for n in sizes:
            z = s * sample_tokens(bases, n, 0.0, generator).tokens
            codes = z @ bases  # (K, n, p)
            tilt = (s**2 * codes.square().sum(-1, keepdim=True) / 2).exp()
            gated = ((s**2 * tilt / (tilt + K - 1) * codes) @ bases.mT).sum(0)
            errors.append(relative(mssa(z, bases, math.sqrt(2 * p / n)), gated / 2))  # ε of β = ½
        runs.append(errors)
    orders = estimate([power_law(sizes, errors).exponent for errors in runs])
    ok = abs(orders.mean + 0.5) <= 3 * orders.error

    def draw(figure: Figure) -> None:
        left, right = fig.panels(figure, ["z → MSSA(z), tokens near two lines", "distance to the membership form"])
        lines, count = fig.lines(20, 110), 600
        points = sample_tokens(lines, count, 0.2, torch.Generator().manual_seed(trial.seed)).tokens
        moved = mssa(points, lines, math.sqrt(1 / count))  # β = 1 = 1/s²: each token goes to Σ_k π_k U_kU_k*z
        fig.plane(left, lines, 2.5)
        fig.arrows(left, points[:150], moved[:150], fig.BLUE)
        mean = torch.tensor(runs).mean(0).tolist()
        fig.law(right, sizes, mean, law_through(sizes, mean, -0.5), "measured, slope −½ drawn in", 0)
        fig.name(right, "tokens n", "relative error")

    return Finding(
        "SSA(w) = s²π(w)w, slope −½ in n",
        f"slope {orders.mean:.3f} ± {orders.error:.3f}, error {torch.tensor(runs).mean(0)[-1]:.3f} at n = {sizes[-1]}",
        "holds" if ok else "fails",
        "" if ok else "the average does not tend to the membership form",
        {"slope": orders.mean, "slope_error": orders.error},
        draw,
    )


@claim(section="A.1", equation="eq:appendix-ssa-derivation", expected="holds in range")
def identity_projection(trial: Trial) -> Finding:
    """(Σ_k U_kU_k*)Z ≈ Z for tokens near incoherent subspaces.

    Exact on orthogonal subspaces. For independent random ones a token of subspace k also meets the K − 1 others: the
    error has E‖·‖² = (K − 1)r + (K − 1)(K − 2)r² with r = p/d, relative to ‖Z‖². The mean over draws must agree up to
    chance (Bonferroni at 0.1 %); the claim holds where the error is under ½, and CRATE-Base has Kp = d.
    """
    generator, d, p = trial.generator(), 48, 2
    counts, measured, predicted = (2, 3, 6, 12, 24), [], []
    for K in counts:
        ratio = p / d
        predicted.append(math.sqrt((K - 1) * ratio + (K - 1) * (K - 2) * ratio**2))
        squares = []
        for _ in range(trial.choose(32, 500)):
            bases = random_bases(K, d, p, "incoherent", generator, torch.float64)
            z = sample_tokens(bases, 4 * K, 0.0, generator).tokens
            squares.append(relative(((z @ bases) @ bases.mT).sum(0), z) ** 2)
        measured.append(estimate(squares))
    errors = [math.sqrt(m.mean) for m in measured]
    bases = random_bases(6, d, p, "orthonormal", generator, torch.float64)
    z = sample_tokens(bases, 50, 0.0, generator).tokens
    exact = relative(((z @ bases) @ bases.mT).sum(0), z)
    limit = critical(len(counts))
    near = all(abs(m.mean - q**2) <= limit * m.error for m, q in zip(measured, predicted, strict=True))
    ok = near and exact <= rounding(100 * d)
    filled = [K * p / d for K in counts]

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, ["‖(Σ_k U_kU_k*)Z − Z‖/‖Z‖, random subspaces"])
        fig.law(axes, filled, errors, predicted, "measured and predicted", 0)
        axes.axhline(0.5, color=fig.GREY, linewidth=0.8, linestyle="--")
        fig.name(axes, "Kp/d", "relative error")

    return Finding(
        f"0 if orthogonal; {predicted[0]:.2f} … {predicted[-1]:.2f} if random, Kp/d = {filled[0]:.2f} … {filled[-1]:g}",
        f"{exact:.0e}; {errors[0]:.2f} … {errors[-1]:.2f}",
        "fails" if not ok else "holds" if errors[-1] < 0.5 else "holds in range",
        f"orthogonal, or random with Kp/d ≤ {max(f for f, e in zip(filled, errors, strict=True) if e < 0.5):.2f}; "
        f"random subspaces with CRATE-Base's Kp = d err by {predicted[-1]:.2f}"
        if ok
        else "not the predicted error",
        {f"error_{f:.3g}": e for f, e in zip(filled, errors, strict=True)},
        draw,
    )
