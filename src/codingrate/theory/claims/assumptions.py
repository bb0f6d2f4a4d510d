"""Claims about the assumptions of the theorem on projection, and about the remark that relaxes them (paper B.3)."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor

from codingrate.objective import equiangular_bases

from .. import projection as theorem
from . import reference
from .frame import EXACT, Finding, Trial, claim, gaussian, judge, power_law, relative, tabulate, worst
from .lemmas import SIXTH
from .projection import at_beta, noise_share

H = 1e-6  # half width of the central difference


@claim(section="B.3", equation="ass:parameter_config, K ≥ 2", expected="fails as stated, true in another form")
def assumptions_agree(trial: Trial) -> Finding:
    """The assumption's inequalities d ≥ n ≥ p ≥ K ≥ 2, Kp = d, C₁√(n log n) ≤ n/2K, 6C₂²n ≤ d and 2C₄²n ≤ d can be
    satisfied together for every K ≥ 2 that they admit.

    n ≥ p and 6C₂²n ≤ d = Kp give K ≥ 6C₂². With C₂ = 1 no K < 6 is possible. C₄ is at least 2, because ‖A_k*A_k − I‖ is
    2√(n/d) for large sizes; 2C₄²n ≤ d then needs K ≥ 8. For the smallest K the third inequality, with C₁ = 1, needs n ≥
    4K² log n tokens. As stated every K from 2 on must have sizes. They are searched for n up to 10⁷ and p from K to n;
    p = n is the best case for 6n ≤ d. The other form is that K = 6 (C₄ = 1) and K = 8 (C₄ = 2) are the smallest, with
    the smallest n and d of the derivation. No claim here draws so many dimensions: those about the theorem run outside
    the assumption, and say which inequality they break.

    Mutations: assumptions always satisfied; C₁ = ¼.
    """

    def tokens_needed(K: int) -> int:
        """Return the smallest n > 1 with √(n log n) ≤ n/2K."""
        return next(m for m in count(2) if math.sqrt(m * math.log(m)) <= m / (2 * K))

    def smallest(K: int, gram: float) -> theorem.MixtureSizes | None:
        """Return the smallest sizes by n that satisfy everything, or None."""
        share, numbers = (
            max(6.0, 2 * gram**2),
            (*range(2, tokens_needed(K) + 2), *(10**power for power in (4, 5, 6, 7))),
        )
        tried = (
            at_beta(K, p, n, 1e-3, max(p / n, 1.0))
            for n in numbers
            for p in {K, max(K, math.ceil(share * n / K)), max(K, n // 2), max(K, n)}
        )
        return next((sizes for sizes in tried if not theorem.broken_assumptions(sizes, gram)), None)

    rows = {gram: {K: smallest(K, gram) for K in range(2, 9)} for gram in (1.0, 2.0)}
    first = {gram: next((sizes for sizes in found.values() if sizes), None) for gram, found in rows.items()}
    form = all(
        s is not None and (s.K, s.n, s.d) == (K, tokens_needed(K), K * tokens_needed(K))
        for s, K in zip(first.values(), (6, 8), strict=True)
    )
    text = [f"C₄ = {gram:g}: K = {s.K}, n = {s.n:,}, d = {s.d:,}" for gram, s in first.items() if s]
    stated = all(s is not None and s.K <= s.p <= s.n and 6 * s.n <= s.K * s.p for s in rows[1.0].values())
    return Finding(
        "sizes exist for every K ≥ 2; or from K = 6 (C₄ = 1) and K = 8 (C₄ = 2) on",
        "smallest sizes: " + ("; ".join(text) or "none"),
        judge(stated, form=form),
        "K ≥ 6C₂², and K ≥ 8 with a C₄ that is valid; for smaller K the inequalities contradict each other",
        {f"subspaces_{gram:g}": s.K if s else 0 for gram, s in first.items()}
        | {f"dimensions_{gram:g}": s.d if s else 0 for gram, s in first.items()},
    )


@claim(section="B.3", equation="lem:inverse-term, proof", expected="fails as stated, true in another form")
def beta_exceeds_one(trial: Trial) -> Finding:
    """ε ≤ 1 and the rest of the assumption imply β ≥ 1.

    β = p/(nε²) and the assumption has n ≥ p, so ε ≤ 1 only gives β ≥ p/n, which is at most 1. As stated β must be at
    least 1 for the sizes of CRATE-Base at ε = 1 and for the smallest sizes that satisfy all inequalities with p < n.
    The other form is β ≥ 1 for ε ≤ √(p/n), with equality at that ε, to √ε of float64. The proof uses β ≥ 1 to write √K
    max(1, β)σ² as √Kβσ²; without it the term √Kσ² remains.

    Mutations: β = 0; β without ε².
    """
    settings = {"CRATE-Base": (12, 64, 196), "K = 8": (8, 1900, 2000), "K = 12": (12, 2600, 5000)}
    sizes = {name: theorem.MixtureSizes(*setting, 1e-3, 1.0) for name, setting in settings.items()}
    limits = {name: math.sqrt(m.p / m.n) for name, m in sizes.items()}
    error = max(abs(replace(m, eps=limits[name]).beta - 1) for name, m in sizes.items())
    kept = all(replace(m, eps=limits[name] / 2).beta > 1 for name, m in sizes.items())
    kept = kept and all(abs(m.beta * m.n / m.p - 1) <= EXACT for m in sizes.values())
    inside = not any(theorem.broken_assumptions(m) for name, m in sizes.items() if name != "CRATE-Base")
    form, least = kept and inside and error <= EXACT, min(m.beta for m in sizes.values())
    return Finding(
        "β ≥ 1 for ε ≤ 1, or for ε ≤ √(p/n)",
        "at ε = 1: " + ", ".join(f"{name} {m.beta:.2f}" for name, m in sizes.items()),
        judge(form and least >= 1, form=form),
        "ε ≤ √(p/n) gives β ≥ 1",
        {"least": least, "error_at_limit": error},
    )


def dense_residual(tokens: theorem.NoisyTokens, eta: float) -> Tensor:
    """Return Z⁺ minus the theorem's main term with every term written out, (n, d)."""
    beta, eps, bases, clean = tokens.sizes.beta, tokens.sizes.eps, tokens.bases, tokens.clean
    z, projected = tokens.tokens, torch.zeros_like(clean)
    for k in range(len(bases)):
        own = tokens.labels == k
        codes = clean[own] @ bases[k]
        inner = torch.eye(tokens.sizes.p, dtype=clean.dtype) - codes.mT @ torch.linalg.solve(
            torch.eye(len(codes), dtype=clean.dtype) / beta + codes @ codes.mT, codes
        )
        projected = projected + torch.where(own[:, None], 0.0, tokens.noise @ bases[k] @ inner @ bases[k].mT)
    main = tokens.noise - eta * beta * projected + (1 - eta / (1 + 1 / beta)) * clean
    return z - eta * reference.compression_gradient(z, bases, eps) - main


@claim(section="B.3", equation="rmk:assumptions, coherent subspaces")
def coherent_subspaces(trial: Trial) -> Finding:
    """Near-orthogonal subspaces, ‖U_k*U_l‖ ≤ ν, add error terms to the theorem that are polynomial in ν.

    Tokens keep their codes and noise while their subspaces are tilted until U_k*U_l = νI. The residual minus that at
    ν = 0 must be νG up to order ν², where G is the derivative of the residual at ν = 0, in which U_k moves by
    ½Σ_{l≠k} U_l. G is a central difference of a residual that is written out densely. The second order is a relative
    Kβν, because the codes that other subspaces add enter the inverses as βν does; so at ν ≤ 10⁻⁴ and β = 8, K = 4 the
    slope in ν must be 1 and the constant ‖G‖, both to 0.01. Every residual must also equal the one that is written out,
    to √ε of float64. K = 4 is outside of the assumption, like all sizes that can be
    drawn.

    Mutations: ∇R^c = 0; ∇R^c halved; P(Δ) = 0; coherence 0.
    """
    generator, nus, eta = trial.generator(), (1e-4, 3e-5, 1e-5), 1 / 8

    def measure() -> dict[str, float]:
        tokens = theorem.draw_tokens(at_beta(4, 16, 24, 0.05, 8.0), generator)
        frame = tokens.bases
        codes = torch.einsum("nd,ndp->np", tokens.clean, frame[tokens.labels])

        def tilt(bases: Tensor) -> theorem.NoisyTokens:
            return replace(tokens, bases=bases, clean=torch.einsum("ndp,np->nd", bases[tokens.labels], codes))

        tilted = [tilt(equiangular_bases(frame, nu)) for nu in nus]
        moved, start = [theorem.residual(one, eta) for one in tilted], theorem.residual(tokens, eta)
        extra = [float(torch.linalg.matrix_norm(residual - start, 2)) for residual in moved]
        direction = (frame.sum(0) - frame) / 2
        right, left = (dense_residual(tilt(frame + sign * H * direction), eta) for sign in (1, -1))
        size = float(torch.linalg.matrix_norm((right - left) / (2 * H), 2))
        return {
            "slope": power_law(nus, extra).exponent,
            "constant": extra[-1] / (nus[-1] * size),
            "size": size / float(torch.linalg.matrix_norm(tokens.clean, 2)),
            "error": max(relative(m, dense_residual(one, eta)) for m, one in zip(moved, tilted, strict=True)),
        }

    table = tabulate(measure() for _ in range(trial.choose(3, 20)))
    slopes, constants, added, errors = table.values()
    gap = worst(abs(value - 1) for value in (*slopes, *constants))
    return Finding(
        "slope 1 in ν, constant ‖G‖",
        f"slope {min(slopes):.3f} … {max(slopes):.3f}, constant × {min(constants):.3f} … {max(constants):.3f}; the "
        f"added error is {max(added):.1f} ν‖X‖",
        judge(gap <= 0.01 and max(errors) <= EXACT),
        numbers={"gap": gap, "error": max(errors), "added_error_over_signal": max(added)},
    )


@claim(section="B.3", equation="rmk:assumptions, correlated tokens")
def correlated_tokens(trial: Trial) -> Finding:
    """If bounds on the singular values of A_k are ensured by normalization and incoherence, correlated tokens behave as
    in the theorem.

    Every subspace gets tokens of unit norm with equal inner products μ, which are as dependent as can be. A_k*A_k then
    has the eigenvalues 1 − μ and 1 + (n_k − 1)μ, and ξ = ‖A_k*A_k − I‖ = (n_k − 1)μ takes the place of C√(n/d). Without
    noise the residual is η max|s/(β⁻¹ + s²) − s/(1 + β⁻¹)| over the singular values s, to √ε of float64, and at most
    2√(1 + ξ) ηξ/(1 + β⁻¹) for ξ ≤ √(1/6) (lem:blockwise-pinv). With σ = 10⁻⁴ and βσ = 0.05 the part that noise adds
    must be within the noise terms of the theorem with C₅ = 2, where an error in P would exceed them. With orthogonal
    tokens, μ = 0, the residual of clean tokens must be 0.

    Mutations: ∇R^c = 0; shrinkage halved; P(Δ) = 0; P(Δ) = Δ.
    """
    generator, K, p, each = trial.generator(), 6, 16, 3
    beta, eta, sigma = 500.0, 1 / 500, 1e-4
    sizes = at_beta(K, p, K * each, sigma, beta)
    drawn, labels = theorem.draw_tokens(sizes, generator), torch.arange(K).repeat_interleave(each)

    def measure(mu: float) -> dict[str, float]:
        gram = mu * torch.ones(each, each, dtype=torch.float64) + (1 - mu) * torch.eye(each, dtype=torch.float64)
        frames = [torch.linalg.qr(gaussian(p, each, generator))[0] for _ in range(K)]
        blocks = torch.cat([torch.linalg.cholesky(gram) @ frame.mT for frame in frames])  # A_kᵀ (n_k, p) of each k
        noisy = replace(drawn, clean=torch.einsum("ndp,np->nd", drawn.bases[labels], blocks), labels=labels)
        quiet = replace(noisy, noise=torch.zeros_like(noisy.clean), sizes=replace(sizes, sigma=0.0))
        found = float(torch.linalg.matrix_norm(theorem.residual(quiet, eta), 2))
        s, xi = torch.tensor([1 - mu, 1 + (each - 1) * mu], dtype=torch.float64).sqrt(), (each - 1) * mu
        exact = eta * float((s / (1 / beta + s.square()) - s / (1 + 1 / beta)).abs().max())
        added = float(torch.linalg.matrix_norm(theorem.residual(noisy, eta) - theorem.residual(quiet, eta), 2))
        return {
            "‖A_k*A_k − I‖": xi,
            "residual": found,
            "error": abs(found - exact) / (eta * float(s.max())),
            "share": found / (2 * math.sqrt(1 + xi) * eta * xi / (1 + 1 / beta)) if 0 < xi <= SIXTH else 0.0,
            "noise": noise_share(sizes, eta, added),
        }

    table = tabulate(map(measure, (0.0, 0.01, 0.05, 0.1, 0.2, 0.4)))
    error, share, noise = (max(table.pop(name)) for name in ("error", "share", "noise"))
    return Finding(
        "residual of the spectrum, within the bound with ξ for √(n/d); noise terms with C₅ = 2",
        f"residual to {error:.0e}, {share:.2f} of the bound; noise terms need C₅ = {noise:.2f}",
        judge(error <= EXACT and share <= 1 and 0 < noise <= 2),
        numbers={"error": error, "share_of_bound": share, "noise": noise},
        table=table,
    )
