"""Claims about the objective: rates, their gradients and their invariances (paper 2.1, A.2)."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.func import grad, vjp

from codingrate import objective as ob

from . import figures as fig
from .frame import Finding, Trial, claim, judge, relative, rounding

SHAPES = ((5, 13), (13, 13), (29, 13))  # fewer tokens than dimensions, equally many, more
PRECISIONS = (0.1, 0.5, 2.0)


def gaussian(n: int, d: int, generator: torch.Generator) -> Tensor:
    """Draw tokens (n, d) with independent standard normal entries."""
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def rounding_limit(z: Tensor, eps: float) -> float:
    """Return the rounding error of a result that uses (I + αZ*Z)⁻¹, of condition number at most 1 + α‖Z‖²."""
    n, d = z.shape
    return rounding(max(n, d), 1 + d / (n * eps**2) * float(torch.linalg.matrix_norm(z, 2)) ** 2)


def identity(errors: list[float]) -> Finding:
    """Return the finding of an identity from errors in units of the rounding limit."""
    return Finding(
        "equal up to rounding",
        f"error {max(errors):.1g} of the rounding limit, {len(errors)} cases",
        judge(max(errors) <= 1),
        numbers={"error_over_rounding": max(errors)},
    )


@claim(section="2.1", equation="eq:coding_rate, lem:logdet-hessian")
def rate_gradient(trial: Trial) -> Finding:
    """∇R(Z) = αZ(I + αZ*Z)⁻¹ with α = d/(nε²).

    The closed form is compared with automatic differentiation of R. It is an identity, so only rounding may separate
    the two: max(n, d)·(1 + α‖Z‖²) units of 2⁻⁵² relative to the gradient. The factor is the condition of I + αZ*Z.
    """
    generator, errors = trial.generator(), []
    for (n, d), eps in product(SHAPES, PRECISIONS):
        z = gaussian(n, d, generator)
        truth = grad(partial(ob.coding_rate, eps=eps))(z)
        errors.append(relative(ob.coding_rate_gradient(z, eps), truth) / rounding_limit(z, eps))
    return identity(errors)


@claim(section="2.3", equation="eq:rate-gradient")
def compression_gradient(trial: Trial) -> Finding:
    """∇R^c(Z | U) = β Σ_k U_k(U_k*Z)(I + β(U_k*Z)*(U_k*Z))⁻¹ with β = p/(nε²).

    The closed form is compared with automatic differentiation of R^c, for orthogonal and for merely incoherent
    subspaces. It is an identity; the rounding limit is that of ∇R.
    """
    generator, errors = trial.generator(), []
    for (n, d), eps, arrangement in product(SHAPES, PRECISIONS, ("orthonormal", "incoherent")):
        bases = ob.random_bases(3, d, 4, arrangement, generator, torch.float64)
        z = gaussian(n, d, generator)
        truth = grad(partial(ob.subspace_coding_rate, bases=bases, eps=eps))(z)
        errors.append(relative(ob.subspace_coding_rate_gradient(z, bases, eps), truth) / rounding_limit(z, eps))
    return identity(errors)


@claim(section="A.2", equation="lem:logdet-hessian")
def rate_hessian(trial: Trial) -> Finding:
    """∇²R(Z)[Δ] = αΔM − α²ZM(Z*Δ + Δ*Z)M with M = (I + αZ*Z)⁻¹.

    The closed form is compared with automatic differentiation of ⟨∇R, Δ⟩ in random directions Δ. It is an identity;
    the rounding limit is twice that of ∇R, for the second inverse.
    """
    generator, errors = trial.generator(), []
    for (n, d), eps in product(SHAPES, PRECISIONS):
        z, direction = gaussian(n, d, generator), gaussian(n, d, generator)
        gradient = grad(partial(ob.coding_rate, eps=eps))
        truth = vjp(gradient, z)[1](direction)[0]
        errors.append(relative(ob.coding_rate_hvp(z, direction, eps), truth) / (2 * rounding_limit(z, eps)))
    return identity(errors)


@claim(section="A.2", equation="lem:logdet-grad-lipschitz")
def hessian_bound(trial: Trial) -> Finding:
    """‖∇²R(Z)‖ ≤ 9α/4 for every Z, the constant of the majorizer.

    No eigenvalue of the Hessian may exceed 9α/4, for Z from 0 to far beyond α^-½. The paper's bound is a triangle
    inequality. In the singular basis of Z the eigenvalues are α(1 ± xy)/((1 + x²)(1 + y²)), where x, y ≥ 0 are singular
    values times √α. So they lie in [−α/8, α], and the best constant is α, attained at Z = 0.
    """
    n, d, eps = 5, 7, 0.5
    start, alpha = gaussian(n, d, trial.generator()), ob.coding_rate_lipschitz(n, d, eps, tight=True)
    start = start / (torch.linalg.matrix_norm(start, 2) * math.sqrt(alpha))
    scales = torch.cat([torch.zeros(1), torch.logspace(-2, 2, trial.choose(17, 65))]).double()
    directions = torch.eye(n * d, dtype=torch.float64).view(-1, n, d)
    hessians = [ob.coding_rate_hvp((s * start).expand_as(directions), directions, eps).flatten(1) for s in scales]
    ends = torch.stack([torch.linalg.eigvalsh((h + h.mT) / 2) / alpha for h in hessians])
    low, high = float(ends.min()), float(ends.max())
    norm, bound = max(high, -low), ob.coding_rate_lipschitz(n, d, eps) / alpha
    labels = ("spectrum of the Hessian of R", "√α‖Z‖ (dashed: 9/4 (paper), 1 and −1/8)", "eigenvalue / α")
    curves = [(scales[1:], ends[1:, at], name) for at, name in ((-1, "largest eigenvalue"), (0, "smallest eigenvalue"))]
    return Finding(
        f"≤ 9/4 = {bound:.2f} (units of α)",
        f"largest {norm:.3f}, spectrum [{low:.3f}, {high:.3f}]",
        judge(norm <= bound),
        "the best constant is 1",
        {"largest": norm, "lowest": low, "bound": bound},
        fig.figure(fig.lines(labels, *curves, style="-", levels=(2.25, 1, -0.125))),
    )


@claim(section="2.1", equation="eq:sparse-rr")
def rotation_invariance(trial: Trial) -> Finding:
    """ΔR is invariant to joint rotations of tokens and subspaces, and R(DZ) = R(Z), D∇R(Z) = ∇R(DZ); ‖Z‖₁ is not.

    R, R^c and ∇R before and after a random rotation may differ by rounding only: max(n, d) units of 2⁻⁵² for each of
    the five matrix products, times the condition 1 + α‖Z‖². ‖Z‖₁ of axis-aligned tokens must change, because it is the
    term that makes the objective prefer the axes.
    """
    generator, errors, growth = trial.generator(), [], []
    for n in (7, 31):
        bases = ob.random_bases(3, 12, 4, "orthonormal", generator, torch.float64)
        turn = ob.random_bases(1, 12, 12, "orthonormal", generator, torch.float64)[0]
        aligned = torch.eye(12, dtype=torch.float64).view(12, 3, 4).transpose(0, 1)
        z = ob.sample_tokens(aligned, n, 0.0, generator).tokens
        turned = z @ turn.mT
        for eps in PRECISIONS:
            rate = ob.coding_rate(turned, eps) / ob.coding_rate(z, eps)
            parts = ob.subspace_coding_rate(turned, turn @ bases, eps) / ob.subspace_coding_rate(z, bases, eps)
            change = relative(ob.coding_rate_gradient(turned, eps), ob.coding_rate_gradient(z, eps) @ turn.mT)
            limit = 5 * rounding_limit(z, eps)
            errors += [abs(float(rate) - 1) / limit, abs(float(parts) - 1) / limit, change / limit]
        growth.append(float(ob.l1_norm(turned) / ob.l1_norm(z)))
    worst, least = max(errors), min(growth)
    return Finding(
        "R, R^c, ∇R unchanged; ‖Z‖₁ changed",
        f"error {worst:.1g} of the rounding limit; ‖Z‖₁ × {least:.2f}",
        judge(worst <= 1 and least > 1),
        numbers={"error_over_rounding": worst, "l1_growth": least},
    )


@claim(section="2.1", equation="eq:def-mcr-parts", expected="holds in range")
def upper_bound(trial: Trial) -> Finding:
    """R^c(Z | U) = Σ_k R(U_k*Z) is an upper bound of the coding rate of the tokens.

    For orthonormal subspaces that fill the space (Kp = d), Fischer's inequality (det ≤ product of the determinants of
    the diagonal blocks) gives R ≤ R^c at a common scale, with equality if tokens of different subspaces are
    uncorrelated. But R has α = d/(nε²) and R^c has β = p/(nε²) = α/K: each of the K codes may err by ε², together by
    Kε². So no draw may violate the bound at √K·ε, the precision that R^c actually allows, nor at ε itself.
    """
    generator, K, p = trial.generator(), 3, 4
    bases = ob.random_bases(K, K * p, p, "orthonormal", generator, torch.float64)
    spent, nominal = [], []
    for sigma, eps in product((0.0, 0.1, 1.0), PRECISIONS):
        z = ob.sample_tokens(bases, 17, sigma, generator, batch=(trial.choose(20, 500),)).tokens
        rate = ob.subspace_coding_rate(z, bases, eps)
        spent += (ob.coding_rate(z, math.sqrt(K) * eps) / rate).tolist()
        nominal += (ob.coding_rate(z, eps) / rate).tolist()
    clean = ob.sample_tokens(bases, 17, 0.0, generator).tokens
    gap = abs(float(ob.coding_rate(clean, math.sqrt(K) * 0.5) / ob.subspace_coding_rate(clean, bases, 0.5)) - 1)
    broken = sum(r > 1 for r in nominal) / len(nominal)
    return Finding(
        "R ≤ R^c, with equality if uncorrelated",
        f"R(√K·ε)/R^c ≤ {max(spent):.4f}, equal to {gap:.0e} on clean tokens; R(ε)/R^c up to {max(nominal):.2f}",
        judge(max(spent) <= 1 + rounding(1000) and gap <= rounding(1000), everywhere=not broken),
        f"at the precision √K·ε that R^c allows; at equal ε violated in {broken:.0%} of draws (else ΔR ≤ 0 always)",
        {"spent": max(spent), "nominal": max(nominal), "broken": broken, "gap": gap},
    )


@claim(section="2.1", equation="eq:conditional_coding_rate_original")
def class_rate_agrees(trial: Trial) -> Finding:
    """R^c(Z | U) generalizes R^c(Z | Π): the two are equal on tokens that lie in their own orthogonal subspaces.

    With n_k = n/K tokens each, γ_k = d/(n_kε²) and β = p/(nε²) have the ratio K² for d = Kp, so the two rates are equal
    at ε for U and K·ε for Π. This is an identity on clean tokens, up to rounding. Noise must break it, because a noisy
    token has a projection on every subspace but belongs to one class only.
    """
    generator, K, p, each = trial.generator(), 3, 4, 5
    bases = ob.random_bases(K, K * p, p, "orthonormal", generator, torch.float64)
    labels = torch.arange(K).repeat_interleave(each)
    codes = torch.randn(K * each, p, 1, generator=generator, dtype=torch.float64)
    clean = (bases[labels] @ codes).squeeze(-1)
    members = torch.nn.functional.one_hot(labels, K).mT.double()

    def difference(z: Tensor, eps: float) -> float:
        return abs(float(ob.class_coding_rate(z, members, K * eps) / ob.subspace_coding_rate(z, bases, eps)) - 1)

    worst = max(difference(clean, eps) / (5 * rounding_limit(clean, eps)) for eps in PRECISIONS)
    apart = difference(clean + 0.3 * gaussian(K * each, K * p, generator), 0.5)
    return Finding(
        "equal at ε and K·ε on clean tokens",
        f"error {worst:.1g} of the rounding limit; {apart:.1%} apart with noise 0.3",
        judge(worst <= 1 and apart > 1e-3),
        numbers={"error_over_rounding": worst, "apart_with_noise": apart},
    )
