"""Claims about the sparse rate reduction as an energy, and about what its two terms prefer (paper 2.1, 2.2)."""

from __future__ import annotations

from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.func import grad

from codingrate import objective as ob

from . import figures as fig
from . import reference
from .frame import EXACT, Finding, Trial, claim, judge, relative
from .objective import PRECISIONS, SHAPES, gaussian

WEIGHT = 0.1  # λ


def draws(trial: Trial) -> list[tuple[Tensor, Tensor, float]]:
    """Draw tokens (n, d) of several shapes with bases (3, d, 4) in general position, at several ε."""
    generator, cases = trial.generator(), []
    for (n, d), eps in product(SHAPES, PRECISIONS):
        bases = ob.random_bases(3, d, 4, "incoherent", generator, torch.float64)
        cases.append((gaussian(n, d, generator), bases, eps))
    return cases


@claim(
    section="2.1",
    equation="rmk:energy_based_models, eqn:sparse-rate-reduction-density",
    expected="fails as stated, true in another form",
)
def energy_density(trial: Trial) -> Finding:
    """p(Z | U) = Ce^{−E(Z | U)} = C e^{−λ‖Z‖₁} det(I + αZ*Z)/Π_k det(I + β(U_k*Z)*(U_k*Z)).

    The constant C drops out of log p(Z) − log p(2Z), in which −E must equal the right side to √ε of float64. R and R^c
    are ½ log det, so e^{−E} has the square root of the ratio of determinants. As stated the power of the ratio is 1;
    the other form is ½. Both right sides are dense determinants.

    Mutations: energy = 0; energy halved; R = 0; R^c = 0; ε² replaced by ε.
    """
    errors = {1.0: 0.0, 0.5: 0.0}
    for z, bases, eps in draws(trial):
        left = ob.energy(2 * z, bases, eps, WEIGHT) - ob.energy(z, bases, eps, WEIGHT)
        for power in errors:
            right = [reference.log_density(factor * z, bases, eps, WEIGHT, power) for factor in (1, 2)]
            errors[power] = max(errors[power], relative(left, right[0] - right[1]))
    return Finding(
        "log p(Z) − log p(2Z) = E(2Z) − E(Z) with the ratio as printed, or with its square root",
        f"{errors[1.0]:.0%} apart as printed, {errors[0.5]:.0e} with the square root",
        judge(errors[1.0] <= EXACT, form=errors[0.5] <= EXACT),
        "e^{−E} has (det(I + αZ*Z)/Π_k det(I + β(U_k*Z)*(U_k*Z)))^½",
        {"as_printed": errors[1.0], "square_root": errors[0.5]},
    )


@claim(section="2.2", equation="eqn:sparse-rate-reduction-gradient, eqn:sparse-rate-reduction-score")
def energy_score(trial: Trial) -> Finding:
    """∇[R − R^c − λ‖Z‖₁] is the score ∇log p(Z | U) of the density e^{−E}, and Z + η∇log p moves to a larger p.

    The closed form ∇R − ∇R^c − λ sign(Z) must equal automatic differentiation of the log of dense determinants (with
    their square root) to √ε of float64. (log p(Z + ηs) − log p(Z))/η‖s‖² is 1 up to ηL/2, where L = α + Kβ bounds the
    curvature of both rates; η = 10⁻³/L and entries of at least 10⁻² in size, which no step takes across 0, so that it
    must be 1 to 10⁻³.

    Mutations: score of the energy = 0; score of the energy without λ; ∇R = 0; ∇R^c halved; energy = 0.
    """
    errors, gains = [], []
    for z, bases, eps in draws(trial):
        z = torch.where(z.abs() < 1e-2, 1e-2, z)
        density = partial(reference.log_density, bases=bases, eps=eps, weight=WEIGHT, power=0.5)
        score = ob.sparse_rate_reduction_gradient(z, bases, eps, WEIGHT)
        errors.append(relative(score, grad(density)(z)))
        eta = 1e-3 / (reference.alpha(z, eps) + len(bases) * reference.beta(z, bases, eps))
        rise = ob.energy(z, bases, eps, WEIGHT) - ob.energy(z + eta * score, bases, eps, WEIGHT)
        gains.append(abs(float(rise / (eta * grad(density)(z).square().sum())) - 1))
    return Finding(
        "closed form = ∇log p; a step of η raises log p by η‖∇log p‖²",
        f"error {max(errors):.0e}; the rise is off by {max(gains):.0e}",
        judge(all(error <= EXACT for error in errors) and all(gain <= 1e-3 for gain in gains)),
        numbers={"error": max(errors), "rise_error": max(gains)},
    )


@claim(section="2.1", equation="fig:diagram_compare_compression_sparsification")
def three_configurations(trial: Trial) -> Finding:
    """The rate reduction increases from (a), subspaces at small angles, to (b), orthogonal subspaces. It remains the
    same from (b) to (c), the same subspaces along the axes, where tokens become sparse.

    The same codes are put on subspaces with U_k*U_l = 0.9 I (a), 0 in a random rotation (b) and 0 along the axes (c).
    ΔR must be larger in (b) than in (a) in every draw, and equal in (b) and (c) to √ε of float64. ‖Z‖₀ must be nd in
    (a) and (b), and np in (c), because a token uses the p axes of its subspace. So ΔR − λ‖Z‖₀ must be largest in (c). R
    and R^c are also compared with dense determinants, to √ε.

    Mutations: R = 0; R^c = 0; R^c halved; ‖Z‖₀ = 0; coherence 0.
    """
    generator, K, p, n, eps = trial.generator(), 3, 4, 15, 0.5
    d, gains, errors, rows = K * p, [], [], []
    axes = torch.eye(d, dtype=torch.float64).view(d, K, p).transpose(0, 1)
    for _ in range(trial.choose(10, 200)):
        frame = ob.random_bases(K, d, p, "orthonormal", generator, torch.float64)
        sample = ob.sample_tokens(axes, n, 0.0, generator)
        values = []
        for bases in (ob.equiangular_bases(frame, 0.9), frame, axes):
            z = torch.einsum("ndp,np->nd", bases[sample.labels], sample.codes)
            reduction = ob.rate_reduction(z, bases, eps)
            errors.append(relative(reduction, reference.rate(z, eps) - reference.compression(z, bases, eps)))
            values.append((float(reduction), float(ob.sparse_rate_reduction(z, bases, eps, WEIGHT, "l0")), z))
        (low, first, near), (high, second, turned), (same, third, sparse) = values
        gains.append(high - low)
        errors.append(abs(same / high - 1))
        counts = [float(ob.l0_norm(z)) for z in (near, turned, sparse)]
        rows.append((low, high, same, *counts))
        errors.append(0.0 if counts == [n * d, n * d, n * p] and third > max(first, second) else 1.0)
    low, high, same, *counts = rows[0]
    bars = ((1, 2, 3), (low, high, same), "ΔR"), ((1, 2, 3), [WEIGHT * c for c in counts], "λ‖Z‖₀")
    return Finding(
        f"ΔR: (a) < (b) = (c); ‖Z‖₀: {n * d}, {n * d}, {n * p}",
        f"ΔR: {low:.2f}, {high:.2f}, {same:.2f}; ‖Z‖₀: " + ", ".join(f"{count:.0f}" for count in counts),
        judge(min(gains) > 0 and all(error <= EXACT for error in errors)),
        numbers={"least_gain": min(gains), "error": max(errors), "a": low, "b": high, "c": same},
        draw=fig.figure(fig.lines(("three configurations", "1: (a), 2: (b), 3: (c)", ""), *bars, scale="plot")),
    )
