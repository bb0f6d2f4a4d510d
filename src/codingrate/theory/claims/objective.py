"""Claims about the objective: rates, their gradients and their invariances (paper 2.1, A.2)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.func import grad, vjp
from torch.nn.functional import one_hot

from codingrate import objective as ob

from . import reference
from .frame import EXACT, Finding, Trial, axis_bases, claim, gaussian, judge, relative, rounding, tabulate, worst

SHAPES = ((5, 13), (13, 13), (29, 13))  # fewer tokens than dimensions, equally many, more
PRECISIONS = (0.1, 0.5, 2.0)
Sides = tuple[Tensor, float, tuple[tuple[Tensor, Tensor], ...]]
"""Tokens, ε, and pairs of values that an identity says are equal."""


def rounding_limit(z: Tensor, eps: float) -> float:
    """Return the rounding error of a result that uses (I + αZ*Z)⁻¹, of condition number at most 1 + α‖Z‖²."""
    return rounding(max(z.shape), 1 + reference.alpha(z, eps) * float(torch.linalg.matrix_norm(z, 2)) ** 2)


def identity(sides: Iterable[Sides], inverses: int = 1) -> Finding:
    """Compare values with their truths; only the rounding of this many inverses (I + αZ*Z)⁻¹ may separate them."""
    errors = [
        relative(value, truth) / (inverses * rounding_limit(z, eps))
        for z, eps, pairs in sides
        for value, truth in pairs
    ]
    return Finding(
        "equal up to rounding",
        f"error {max(errors):.1g} of the rounding limit, {len(errors)} cases",
        judge(all(error <= 1 for error in errors)),  # NaN is not below the limit
        numbers={"error_over_rounding": max(errors)},
    )


@claim(section="2.1", equation="eq:coding_rate, lem:logdet-hessian")
def rate_gradient(trial: Trial) -> Finding:
    """∇R(Z) = αZ(I + αZ*Z)⁻¹ with α = d/(nε²).

    R is compared with a dense determinant, and the closed form of ∇R with automatic differentiation of that. These are
    identities, so only rounding may separate the sides: max(n, d)·(1 + α‖Z‖²) units of 2⁻⁵² relative to the result. The
    factor is the condition of I + αZ*Z.

    Mutations: ∇R = 0; R = 0; ε² replaced by ε.
    """
    generator = trial.generator()

    def sides(n: int, d: int, eps: float) -> Sides:
        z, rate = gaussian(n, d, generator), partial(reference.rate, eps=eps)
        return z, eps, ((ob.coding_rate_gradient(z, eps), grad(rate)(z)), (ob.coding_rate(z, eps), rate(z)))

    return identity(sides(*shape, eps) for shape, eps in product(SHAPES, PRECISIONS))


@claim(section="2.3", equation="eq:rate-gradient")
def compression_gradient(trial: Trial) -> Finding:
    """∇R^c(Z | U) = β Σ_k U_k(U_k*Z)(I + β(U_k*Z)*(U_k*Z))⁻¹ with β = p/(nε²).

    R^c is compared with a sum of dense determinants, and the closed form of ∇R^c with automatic differentiation of
    that, for orthogonal and for merely incoherent subspaces. These are identities; the rounding limit is that of ∇R.

    Mutations: ∇R^c = 0; R^c = 0; ε² replaced by ε.
    """
    generator = trial.generator()

    def sides(n: int, d: int, eps: float, arrangement: str) -> Sides:
        bases = ob.random_bases(3, d, 4, arrangement, generator, torch.float64)
        z, rate = gaussian(n, d, generator), partial(reference.compression, bases=bases, eps=eps)
        value = ob.subspace_coding_rate(z, bases, eps)
        return z, eps, ((ob.subspace_coding_rate_gradient(z, bases, eps), grad(rate)(z)), (value, rate(z)))

    grid = product(SHAPES, PRECISIONS, ("orthonormal", "incoherent"))
    return identity(sides(*shape, eps, arrangement) for shape, eps, arrangement in grid)


@claim(section="A.2", equation="lem:logdet-hessian")
def rate_hessian(trial: Trial) -> Finding:
    """∇²R(Z)[Δ] = αΔM − α²ZM(Z*Δ + Δ*Z)M with M = (I + αZ*Z)⁻¹.

    The closed form is compared with two automatic differentiations of a dense determinant, in random directions Δ. It
    is an identity; the rounding limit is twice that of ∇R, for the second inverse.

    Mutations: ∇²R = 0; ∇²R doubled; ε² replaced by ε.
    """
    generator = trial.generator()

    def sides(n: int, d: int, eps: float) -> Sides:
        z, direction = gaussian(n, d, generator), gaussian(n, d, generator)
        truth = vjp(grad(partial(reference.rate, eps=eps)), z)[1](direction)[0]
        return z, eps, ((ob.coding_rate_hvp(z, direction, eps), truth),)

    return identity((sides(*shape, eps) for shape, eps in product(SHAPES, PRECISIONS)), inverses=2)


@claim(section="A.2", equation="lem:logdet-grad-lipschitz")
def hessian_bound(trial: Trial) -> Finding:
    """‖∇²R(Z)‖ ≤ 9α/4 for every Z, the constant of the majorizer.

    No eigenvalue of the Hessian may exceed 9α/4, for Z from 0 to far beyond α^-½. The paper's bound is a triangle
    inequality that leaves room, so a wrong Hessian could pass. In the singular basis of Z the eigenvalues are
    α(1 ± xy)/((1 + x²)(1 + y²)) for every pair of singular values x, y ≥ 0 times √α, and α/(1 + x²) for the rest. So
    they lie in [−α/8, α], and the best constant is α. All of them must be reproduced, to √ε of float64 = 1.5e-8 of α.

    Mutations: ∇²R = 0; ∇²R doubled; ε² replaced by ε; 9/4 replaced by 3/4.
    """
    n, d, eps = 5, 7, 0.5
    start = gaussian(n, d, trial.generator())
    alpha = reference.alpha(start, eps)
    start = start / (torch.linalg.matrix_norm(start, 2) * math.sqrt(alpha))
    scales = torch.cat([torch.zeros(1), torch.logspace(-2, 2, trial.choose(17, 65))]).double()
    directions = torch.eye(n * d, dtype=torch.float64).view(-1, n, d)
    hessians = [ob.coding_rate_hvp((s * start).expand_as(directions), directions, eps).flatten(1) for s in scales]
    ends = torch.stack([torch.linalg.eigvalsh((h + h.mT) / 2) / alpha for h in hessians])
    expected = torch.stack([hessian_spectrum(math.sqrt(alpha) * s * start) for s in scales])
    error, low, high = float((ends - expected).abs().max()), float(ends.min()), float(ends.max())
    norm, bound = max(high, -low), ob.coding_rate_lipschitz(n, d, eps) / alpha
    return Finding(
        f"≤ 9/4 = {bound:.2f} (units of α), all eigenvalues as derived",
        f"largest {norm:.3f}, spectrum [{low:.3f}, {high:.3f}], off by {error:.0e}",
        judge(norm <= bound and error <= EXACT),
        "the best constant is 1",
        {"largest": norm, "lowest": low, "bound": bound, "spectrum_error": error},
        tabulate(
            {"√α‖Z‖": s, "largest eigenvalue / α": e[-1], "smallest": e[0]}
            for s, e in zip(scales[1:], ends[1:], strict=True)
        ),
    )


def hessian_spectrum(z: Tensor) -> Tensor:
    """Return the n·d eigenvalues of ∇²R/α in ascending order from √αZ = z (n, d), n ≤ d, by its singular values."""
    x = torch.linalg.svdvals(z)
    both = (1 + x.square())[:, None] * (1 + x.square())
    above = torch.triu(torch.ones_like(both), diagonal=1).bool()
    product = x[:, None] * x
    pairs = [((1 + sign * product) / both)[above] for sign in (1, -1)]
    rest = (1 / (1 + x.square())).repeat_interleave(z.shape[1] - z.shape[0])
    return torch.cat([*pairs, ((1 - product) / both).diagonal(), rest]).sort().values


@claim(section="2.1", equation="eq:sparse-rr")
def rotation_invariance(trial: Trial) -> Finding:
    """ΔR is invariant to joint rotations of tokens and subspaces, and R(DZ) = R(Z), D∇R(Z) = ∇R(DZ); ‖Z‖₁ is not.

    R, R^c and ∇R after a random rotation are compared with dense references before it. They may differ by rounding
    only: max(n, d) units of 2⁻⁵² for each of the five matrix products, times the condition 1 + α‖Z‖². ‖Z‖₁ of
    axis-aligned tokens must change, because it is the term that makes the objective prefer the axes.

    Mutations: R = 0; R^c = 0; ∇R = 0; ‖Z‖₁ replaced by ‖Z‖₂.
    """
    generator = trial.generator()

    def measure(n: int) -> dict[str, float]:
        bases = ob.random_bases(3, 12, 4, "orthonormal", generator, torch.float64)
        turn = ob.random_bases(1, 12, 12, "orthonormal", generator, torch.float64)[0]
        z = ob.sample_tokens(axis_bases(3, 4), n, 0.0, generator).tokens
        turned = z @ turn.mT
        errors = [
            relative(after, before) / (5 * rounding_limit(z, eps))
            for eps in PRECISIONS
            for after, before in (
                (ob.coding_rate(turned, eps), reference.rate(z, eps)),
                (ob.subspace_coding_rate(turned, turn @ bases, eps), reference.compression(z, bases, eps)),
                (ob.coding_rate_gradient(turned, eps), grad(partial(reference.rate, eps=eps))(z) @ turn.mT),
            )
        ]
        return {"error": worst(errors), "growth": float(ob.l1_norm(turned) / ob.l1_norm(z))}

    table = tabulate(measure(n) for n in (7, 31))
    error, least = max(table["error"]), min(table["growth"])
    return Finding(
        "R, R^c, ∇R unchanged; ‖Z‖₁ changed",
        f"error {error:.1g} of the rounding limit; ‖Z‖₁ × {least:.2f}",
        judge(error <= 1 and least > 1 + EXACT),
        numbers={"error_over_rounding": error, "l1_growth": least},
    )


def gaussian_rate(variances: Tensor, distortion: float) -> float:
    """Return the rate of a Gaussian with these variances (m,) at a squared error, by reverse water-filling, in nats."""
    high, low = float(variances.max()), 0.0
    if distortion >= float(variances.sum()):
        return 0.0
    for _ in range(80):  # bisection for the water level θ with Σ min(λ_i, θ) = D
        level = (high + low) / 2
        low, high = (level, high) if float(variances.clamp(max=level).sum()) < distortion else (low, level)
    return float((variances / high).log().clamp(min=0).sum()) / 2


@claim(section="2.1", equation="eq:def-mcr-parts")
def upper_bound(trial: Trial) -> Finding:
    """R^c(Z | U) = Σ_k R(U_k*Z) is an upper bound of the coding rate of tokens from the mixture, which is unknown.

    The best code has at most the rate of any other code of the same precision. Two are known, for codebooks of
    Gaussians and a squared error of ε² for each token. The first writes the subspace of each token, at the entropy of
    the labels, and then the token on that subspace at its Gaussian rate-distortion function. The second takes all
    tokens as one Gaussian. So R^c is an upper bound if it is at least the smaller of the two. For isotropic tokens and
    x = pλ/ε² it is ½Kp log(1 + x/K) against log K + ½p log x; by the minimum of (1 + x/K)^K/x at x = K/(K − 1) it is
    larger for every ε if p ≥ 2 log K/((K − 1) log(K/(K − 1))), which is 2.7 here and 5.2 for CRATE-Base. This must hold
    in every draw of clean tokens. R(Z) is a bound of the same kind and need not be smaller: ΔR > 0 asks for the
    opposite.

    With R^c(ε) each of the K codes may err by ε², which is Kε² together if no token lies on one subspace. At that
    precision R(√K·ε) ≤ R^c(ε) by Fischer's inequality (det ≤ product of the determinants of the diagonal blocks), for
    noisy tokens too, with equality on clean tokens. Both are tested, up to rounding.

    Mutations: R^c = 0; R^c halved; R = 0; ε² replaced by ε.
    """
    generator, K, p, n = trial.generator(), 3, 8, 60
    bases = ob.random_bases(K, K * p, p, "orthonormal", generator, torch.float64)

    def share(eps: float) -> float:
        """Return the rate of the better known code over R^c, on clean tokens."""
        sample = ob.sample_tokens(bases, n, 0.0, generator)
        shares = torch.bincount(sample.labels, minlength=K).double() / n
        parts = [sample.tokens[sample.labels == k] @ bases[k] for k in range(K)]
        rates = [gaussian_rate(torch.linalg.svdvals(own).square() / len(own), eps**2) for own in parts]
        entropy = -float(torch.xlogy(shares, shares).sum())
        labeled = sum((float(s) * rate for s, rate in zip(shares, rates, strict=True)), entropy)
        single = gaussian_rate(torch.linalg.svdvals(sample.tokens).square() / n, eps**2)
        return float(min(labeled, single) / ob.subspace_coding_rate(sample.tokens, bases, eps))

    known = [share(eps) for eps, _ in product((0.05, 0.2, 0.5, 1.0, 1.5, 2.0, 2.5), range(trial.choose(3, 50)))]

    def spent(z: Tensor, eps: float) -> list[float]:
        ratio = ob.coding_rate(z, math.sqrt(K) * eps) / ob.subspace_coding_rate(z, bases, eps)
        return ratio.flatten().tolist()

    batch = (trial.choose(20, 500),)
    noisy = [
        ratio
        for sigma, eps in product((0.0, 0.1, 1.0), PRECISIONS)
        for ratio in spent(ob.sample_tokens(bases, 17, sigma, generator, batch=batch).tokens, eps)
    ]
    gap = abs(spent(ob.sample_tokens(bases, 17, 0.0, generator).tokens, 0.5)[0] - 1)
    return Finding(
        "rate of the better known code ≤ R^c(ε) on clean tokens; R(√K·ε) ≤ R^c(ε), with equality on clean tokens",
        f"known code / R^c up to {max(known):.2f}; R(√K·ε)/R^c ≤ {max(noisy):.4f}, equal to {gap:.0e} on clean tokens",
        judge(max(known) <= 1 and all(ratio <= 1 + rounding(1000) for ratio in noisy) and gap <= rounding(1000)),
        "noisy tokens lie on no subspace, and K codes of precision ε err by √K·ε together: the bound is one at √K·ε",
        {"known": max(known), "spent": max(noisy), "gap": gap},
    )


@claim(section="2.1", equation="eq:conditional_coding_rate_original, eq:def-mcr-parts")
def class_rate_agrees(trial: Trial) -> Finding:
    """R^c(Z | U) may be viewed as a generalization of R^c(Z | Π): a token may have projections on several subspaces.

    Where every token has a projection on one subspace only, projecting must do what the memberships do: R^c(Z | U) is
    Σ_k ½ log det(I + βZΠ_kZ*), the printed R^c(Z | Π) with β in the place of γ_k. With n_k = n/K tokens each,
    γ_k = d/(n_kε²) is K²β for d = Kp, so the rate of classes at K·ε must be equal up to rounding. Noise must break
    this, because a noisy token has a projection on every subspace but belongs to one class only. The paper does not say
    that the values at one ε agree, and they do not.

    Mutations: R^c = 0; R^c(Z | Π) = 0; ε² replaced by ε.
    """
    generator, K, p, each = trial.generator(), 3, 4, 5
    bases = ob.random_bases(K, K * p, p, "orthonormal", generator, torch.float64)
    labels = torch.arange(K).repeat_interleave(each)
    codes = torch.randn(K * each, p, 1, generator=generator, dtype=torch.float64)
    clean = (bases[labels] @ codes).squeeze(-1)
    members = one_hot(labels, K).mT.double()

    def difference(z: Tensor, eps: float, factor: float) -> float:
        return abs(float(ob.class_coding_rate(z, members, factor * eps) / ob.subspace_coding_rate(z, bases, eps)) - 1)

    errors = [difference(clean, eps, K) / (5 * rounding_limit(clean, eps)) for eps in PRECISIONS]
    same = [difference(clean, eps, 1) for eps in PRECISIONS]
    apart = difference(clean + 0.3 * gaussian(K * each, K * p, generator), 0.5, K)
    return Finding(
        "equal on clean tokens if β = γ_k, that is at ε and K·ε; different with noise",
        f"error {max(errors):.1g} of the rounding limit; {apart:.1%} apart with noise 0.3",
        judge(all(error <= 1 for error in errors) and apart > EXACT),
        f"the values at one ε differ by {min(same):.0%} … {max(same):.0%}, because β and γ_k do",
        {"error_over_rounding": max(errors), "apart_at_equal_precision": max(same), "apart_with_noise": apart},
    )


@claim(
    section="2.1",
    equation="eqn:rate-reduction, eq:conditional_coding_rate_original",
    expected="fails as stated, true in another form",
)
def class_rate_weights(trial: Trial) -> Finding:
    """R^c(Z | Π) = ½ Σ_k log det(I + γ_kZΠ_kZ*) is the rate under a more precise codebook than that of R(Z).

    A more precise codebook needs no more than R(Z), so ΔR = R − R^c must not be negative. The cited MCR² weights each
    class by its share of the tokens, R^c = Σ_k (n_k/2n) log det(I + γ_kZΠ_kZ*), which is a rate for each token like R.
    Then ΔR ≥ 0 by the concavity of log det (Jensen), because Σ_k (n_k/n)γ_kZΠ_kZ* = αZZ*, with equality for classes of
    equal second moments. As printed R^c is a sum of K rates without weights, so that K equal classes cost K times R(Z).
    As stated no draw may have ΔR < 0. The other form is that of MCR²: no draw has ΔR < 0, and ΔR is 0 for K copies of
    the same tokens, both up to rounding. Classes are of unequal sizes and lie on random subspaces of d/2 dimensions.

    Mutations: R = 0; R^c(Z | Π) = 0; R^c(Z | Π) doubled.
    """
    generator, K, d = trial.generator(), 3, 8
    labels = torch.arange(K).repeat_interleave(torch.tensor([4, 9, 17]))

    def reductions(z: Tensor, labels: Tensor, eps: float) -> list[float]:
        """Return ΔR over R as printed and with the weights of MCR²."""
        members, rate = one_hot(labels, K).mT.double(), float(reference.rate(z, eps))
        own = torch.stack([ob.class_coding_rate(z, one[None], eps) for one in members])
        totals = own.sum(), (members.mean(-1) * own).sum()
        return [(float(ob.coding_rate(z, eps)) - float(total)) / rate for total in totals]

    def measure(eps: float) -> list[float]:
        bases = ob.random_bases(K, d, d // 2, "incoherent", generator, torch.float64)
        codes = torch.randn(len(labels), d // 2, 1, generator=generator, dtype=torch.float64)
        drawn = reductions((bases[labels] @ codes).squeeze(-1), labels, eps)
        copies = reductions(gaussian(10, d, generator).repeat(K, 1), torch.arange(K).repeat_interleave(10), eps)
        return [*drawn, abs(copies[1])]

    draws = [measure(eps) for eps, _ in product(PRECISIONS, range(trial.choose(10, 200)))]
    printed, weighted, copies = zip(*draws, strict=True)
    negative, limit = sum(value < 0 for value in printed) / len(printed), rounding(10_000)
    form = min(weighted) >= -limit and max(copies) <= limit
    return Finding(
        "ΔR ≥ 0 as printed; or with the weights n_k/n, and ΔR = 0 for copies",
        f"ΔR/R {min(printed):.2f} … {max(printed):.2f} as printed, negative in {negative:.0%}; with weights "
        f"{min(weighted):.2f} … {max(weighted):.2f}, and {max(copies):.0e} for copies",
        judge(form and not negative, form=form),
        "R^c(Z | Π) = Σ_k (n_k/2n) log det(I + γ_kZΠ_kZ*), as in MCR²",
        {"least_printed": min(printed), "least_weighted": min(weighted), "negative": negative},
    )
