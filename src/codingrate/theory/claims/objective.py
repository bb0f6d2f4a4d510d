"""Claims about the objective: rates, their gradients and what they are invariant to (paper 2.1, A.2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from codingrate.objective import (
    class_coding_rate,
    coding_rate,
    coding_rate_gradient,
    coding_rate_hvp,
    coding_rate_lipschitz,
    l1_norm,
    random_bases,
    sample_tokens,
    subspace_coding_rate,
    subspace_coding_rate_gradient,
)

from . import _figures as fig
from ._measure import relative, rounding
from .frame import Finding, Trial, Verdict, claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPES = ((5, 13), (13, 13), (29, 13))  # fewer tokens than dimensions, as many, more
PRECISIONS = (0.1, 0.5, 2.0)


def gaussian(n: int, d: int, generator: torch.Generator) -> Tensor:
    """Tokens (n, d) of independent standard normal entries."""
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def allowed(z: Tensor, eps: float) -> float:
    """Rounding of a quantity made with (I + αZ*Z)⁻¹, whose condition number is at most 1 + α‖Z‖²."""
    n, d = z.shape
    return rounding(max(n, d), 1 + d / (n * eps**2) * float(torch.linalg.matrix_norm(z, 2)) ** 2)


def automatic(function: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of a scalar function of tokens by automatic differentiation, with the tokens it can go on from."""
    z = z.clone().requires_grad_()
    return torch.autograd.grad(function(z), z, create_graph=True)[0], z


def identity(worst: float, cases: int) -> Finding:
    """The finding of an identity: `worst` is the largest error in units of what rounding allows."""
    verdict: Verdict = "holds" if worst <= 1 else "fails"
    reason = "" if worst <= 1 else "the two sides differ by more than rounding"
    return Finding(
        "equal up to rounding",
        f"off by {worst:.1g} of what rounding allows, {cases} cases",
        verdict,
        reason,
        {"error_over_rounding": worst},
    )


@claim(section="2.1", equation="eq:coding_rate, lem:logdet-hessian")
def rate_gradient(trial: Trial) -> Finding:
    """∇R(Z) = αZ(I + αZ*Z)⁻¹ with α = d/(nε²).

    The closed form against automatic differentiation of R. An identity, so the two may differ by rounding only:
    max(n, d)·(1 + α‖Z‖²) units of 2⁻⁵² relative to the gradient, the factor being the condition of I + αZ*Z.
    """
    generator = trial.generator()
    errors = []
    for n, d in SHAPES:
        for eps in PRECISIONS:
            z = gaussian(n, d, generator)
            truth, _ = automatic(partial(coding_rate, eps=eps), z)
            errors.append(relative(coding_rate_gradient(z, eps), truth.detach()) / allowed(z, eps))
    return identity(max(errors), len(errors))


@claim(section="2.3", equation="eq:rate-gradient")
def compression_gradient(trial: Trial) -> Finding:
    """∇R^c(Z | U) = β Σ_k U_k(U_k*Z)(I + β(U_k*Z)*(U_k*Z))⁻¹ with β = p/(nε²).

    The closed form against automatic differentiation of R^c, with orthogonal and with merely incoherent subspaces. An
    identity; rounding is allowed as for ∇R.
    """
    generator = trial.generator()
    errors = []
    for n, d in SHAPES:
        for eps in PRECISIONS:
            for arrangement in ("orthonormal", "incoherent"):
                bases = random_bases(3, d, 4, arrangement, generator, torch.float64)
                z = gaussian(n, d, generator)
                truth, _ = automatic(partial(subspace_coding_rate, bases=bases, eps=eps), z)
                errors.append(relative(subspace_coding_rate_gradient(z, bases, eps), truth.detach()) / allowed(z, eps))
    return identity(max(errors), len(errors))


@claim(section="A.2", equation="lem:logdet-hessian")
def rate_hessian(trial: Trial) -> Finding:
    """∇²R(Z)[Δ] = αΔM − α²ZM(Z*Δ + Δ*Z)M with M = (I + αZ*Z)⁻¹.

    The closed form against automatic differentiation of ⟨∇R, Δ⟩, in random directions Δ. An
    identity; rounding is allowed as for ∇R, once more for the second inverse.
    """
    generator = trial.generator()
    errors = []
    for n, d in SHAPES:
        for eps in PRECISIONS:
            z, direction = gaussian(n, d, generator), gaussian(n, d, generator)
            gradient, point = automatic(partial(coding_rate, eps=eps), z)
            truth = torch.autograd.grad((gradient * direction).sum(), point)[0]
            errors.append(relative(coding_rate_hvp(z, direction, eps), truth) / (2 * allowed(z, eps)))
    return identity(max(errors), len(errors))


@claim(section="A.2", equation="lem:logdet-grad-lipschitz")
def hessian_bound(trial: Trial) -> Finding:
    """‖∇²R(Z)‖ ≤ 9α/4 for every Z, the constant of the majoriser.

    All eigenvalues of the Hessian for Z from 0 to far beyond α^-½; none may exceed 9/4 in units of α. The bound is a
    triangle inequality; in the singular basis of Z the eigenvalues are α(1 ± xy)/((1 + x²)(1 + y²)) with x, y ≥ 0
    the singular values times √α, so they lie in [−α/8, α] and the best constant is α, met at Z = 0.
    """
    n, d, eps = 5, 7, 0.5
    generator = trial.generator()
    start, alpha = gaussian(n, d, generator), coding_rate_lipschitz(n, d, eps, tight=True)
    start = start / (torch.linalg.matrix_norm(start, 2) * math.sqrt(alpha))
    scales = torch.cat([torch.zeros(1), torch.logspace(-2, 2, trial.choose(17, 65))]).double()
    directions = torch.eye(n * d, dtype=torch.float64).view(-1, n, d)
    ends = []
    for scale in scales:
        hessian = coding_rate_hvp((scale * start).expand_as(directions), directions, eps).reshape(n * d, n * d)
        values = torch.linalg.eigvalsh((hessian + hessian.mT) / 2) / alpha
        ends.append((float(values[0]), float(values[-1])))
    low, high = min(e[0] for e in ends), max(e[1] for e in ends)
    norm, bound = max(high, -low), coding_rate_lipschitz(n, d, eps) / alpha

    def draw(figure: Figure) -> None:
        (axes,) = fig.panels(figure, ["spectrum of the Hessian of R"])
        for index, colour, name in ((1, fig.BLUE, "largest"), (0, fig.ORANGE, "smallest")):
            axes.semilogx(scales[1:], [e[index] for e in ends[1:]], color=colour, label=f"{name} eigenvalue")
        for level, name in ((2.25, "9/4, the paper's"), (1, "1"), (-0.125, "−1/8")):
            axes.axhline(level, color=fig.GREY, linewidth=0.8, linestyle="--")
            axes.text(float(scales[1]), level + 0.04, name, color=fig.GREY, fontsize=8)
        fig.name(axes, "√α‖Z‖", "eigenvalue / α")

    return Finding(
        f"≤ 9/4 = {bound:.2f} (units of α)",
        f"largest {norm:.3f}, spectrum [{low:.3f}, {high:.3f}]",
        "holds" if norm <= bound else "fails",
        "the best constant is 1" if norm <= bound else "an eigenvalue is above 9α/4",
        {"largest": norm, "lowest": low, "bound": bound},
        draw,
    )


@claim(section="2.1", equation="eq:sparse-rr")
def rotation_invariance(trial: Trial) -> Finding:
    """ΔR is invariant to joint rotations of tokens and subspaces, and R(DZ) = R(Z), D∇R(Z) = ∇R(DZ); ‖Z‖₁ is not.

    R, R^c and ∇R before and after a random rotation may differ by rounding, max(n, d) units of 2⁻⁵² for each of the
    five products on the way and the condition 1 + α‖Z‖². ‖Z‖₁ of axis-aligned tokens must change: it is what
    makes the objective prefer the axes.
    """
    generator = trial.generator()
    errors, growth = [], []
    for n in (7, 31):
        bases = random_bases(3, 12, 4, "orthonormal", generator, torch.float64)
        turn = random_bases(1, 12, 12, "orthonormal", generator, torch.float64)[0]
        aligned = torch.eye(12, dtype=torch.float64).view(12, 3, 4).transpose(0, 1)
        z = sample_tokens(aligned, n, 0.0, generator).tokens
        for eps in PRECISIONS:
            limit = 5 * allowed(z, eps)
            whole, part = coding_rate(z, eps), subspace_coding_rate(z, bases, eps)
            moved = subspace_coding_rate(z @ turn.mT, turn @ bases, eps)
            errors.append(abs(float(coding_rate(z @ turn.mT, eps) / whole) - 1) / limit)
            errors.append(abs(float(moved / part) - 1) / limit)
            errors.append(
                relative(coding_rate_gradient(z @ turn.mT, eps), coding_rate_gradient(z, eps) @ turn.mT) / limit
            )
        growth.append(float(l1_norm(z @ turn.mT) / l1_norm(z)))
    worst, least = max(errors), min(growth)
    return Finding(
        "R, R^c, ∇R unchanged; ‖Z‖₁ changed",
        f"off by {worst:.1g} of what rounding allows; ‖Z‖₁ × {least:.2f}",
        "holds" if worst <= 1 and least > 1 else "fails",
        "" if worst <= 1 else "a rate moved with the rotation",
        {"error_over_rounding": worst, "l1_growth": least},
    )


@claim(section="2.1", equation="eq:def-mcr-parts", expected="holds in range")
def upper_bound(trial: Trial) -> Finding:
    """R^c(Z | U) = Σ_k R(U_k*Z) is an upper bound of the coding rate of the tokens.

    For subspaces that fill the space (Kp = d, orthonormal) Fischer's inequality, det ≤ product of the determinants of
    the diagonal blocks, gives R ≤ R^c at one common scale, with equality when tokens of different subspaces are
    uncorrelated. But R has α = d/(nε²) and R^c β = p/(nε²) = α/K: each of the K codes may err by ε², together by Kε².
    So the bound is asked for at the precision √K·ε that R^c spends, and at ε itself, never to be broken.
    """
    generator, K, p = trial.generator(), 3, 4
    bases = random_bases(K, K * p, p, "orthonormal", generator, torch.float64)
    spent, nominal = [], []
    for sigma in (0.0, 0.1, 1.0):
        for eps in PRECISIONS:
            z = sample_tokens(bases, 17, sigma, generator, batch=(trial.choose(20, 500),)).tokens
            rate = subspace_coding_rate(z, bases, eps)
            spent += (coding_rate(z, math.sqrt(K) * eps) / rate).tolist()
            nominal += (coding_rate(z, eps) / rate).tolist()
    clean = sample_tokens(bases, 17, 0.0, generator).tokens
    gap = abs(float(coding_rate(clean, math.sqrt(K) * 0.5) / subspace_coding_rate(clean, bases, 0.5)) - 1)
    bounded = max(spent) <= 1 + rounding(1000)
    broken = sum(r > 1 for r in nominal) / len(nominal)
    inside: Verdict = "holds in range" if broken else "holds"
    return Finding(
        "R ≤ R^c; equal when uncorrelated",
        f"R(√K·ε)/R^c ≤ {max(spent):.4f}, equal to {gap:.0e} on clean tokens; R(ε)/R^c up to {max(nominal):.2f}",
        inside if bounded and gap <= rounding(1000) else "fails",
        f"at the precision √K·ε that R^c spends; at equal ε broken in {broken:.0%} of draws (else ΔR ≤ 0 always)",
        {"spent": max(spent), "nominal": max(nominal), "broken": broken, "gap": gap},
    )


@claim(section="2.1", equation="eq:conditional_coding_rate_original")
def class_rate_agrees(trial: Trial) -> Finding:
    """R^c(Z | U) generalises R^c(Z | Π): on tokens that lie in their own orthogonal subspaces the two are one.

    With n_k = n/K tokens each, γ_k = d/(n_kε²) and β = p/(nε²) are in the ratio K² for d = Kp, so the two are equal at
    ε for U and K·ε for Π. An identity on clean tokens, up to rounding; noise must break it, as a noisy token has a
    projection on every subspace and one class only.
    """
    generator, K, p, each = trial.generator(), 3, 4, 5
    bases = random_bases(K, K * p, p, "orthonormal", generator, torch.float64)
    labels = torch.arange(K).repeat_interleave(each)
    codes = torch.randn(K * each, p, 1, generator=generator, dtype=torch.float64)
    clean = (bases[labels] @ codes).squeeze(-1)
    members = torch.nn.functional.one_hot(labels, K).mT.double()

    def ratio(z: Tensor, eps: float) -> float:
        return abs(float(class_coding_rate(z, members, K * eps) / subspace_coding_rate(z, bases, eps)) - 1)

    worst = max(ratio(clean, eps) / (5 * allowed(clean, eps)) for eps in PRECISIONS)
    apart = ratio(clean + 0.3 * gaussian(K * each, K * p, generator), 0.5)
    return Finding(
        "equal at ε and K·ε on clean tokens",
        f"off by {worst:.1g} of what rounding allows; {apart:.1%} apart with noise 0.3",
        "holds" if worst <= 1 and apart > 1e-3 else "fails",
        "" if worst <= 1 else "the two rates differ on clean tokens",
        {"error_over_rounding": worst, "apart_with_noise": apart},
    )
