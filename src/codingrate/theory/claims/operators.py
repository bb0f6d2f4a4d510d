"""Claims about attention: from the gradient of R^c to MSSA, and the layer Z + MSSA(Z) (paper 2.3, 2.5, 3.3, A.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

from codingrate import objective as ob

from ..denoising import off_subspace
from ..unrolled import compression_direction, mssa
from . import reference
from .frame import (
    EXACT,
    Finding,
    Trial,
    claim,
    cosine,
    critical,
    estimate,
    judge,
    power_law,
    relative,
    rounding,
    tabulate,
)

BASE = (12, 768, 64, 196)  # K, d, p, n of CRATE-Base


def near_subspaces(generator: torch.Generator, K: int, d: int, p: int, n: int) -> tuple[Tensor, Tensor]:
    """Draw orthogonal bases (K, d, p) and unit-norm tokens (n, d) within 5 % of them, as A.1 assumes."""
    bases = ob.random_bases(K, d, p, "orthonormal", generator, torch.float64)
    return bases, normalize(ob.sample_tokens(bases, n, 0.05 * math.sqrt(p / d), generator).tokens, dim=-1)


def strength(z: Tensor, bases: Tensor, eps: float) -> float:
    """Return max_k β‖U_k*Z‖², the variable of the Neumann series."""
    return reference.beta(z, bases, eps) * float(torch.linalg.matrix_norm(z @ bases, 2).max()) ** 2


@claim(section="2.3", equation="eq:gd_rc_neumann, eqn:approximation-1")
def neumann_order(trial: Trial) -> Finding:
    """∇R^c ≈ β Σ_k U_k(U_k*Z)(I − β(U_k*Z)*(U_k*Z)), the first-order Neumann series.

    With x = β‖U_k*Z‖², 1/(1 + x) − (1 − x) = x²/(1 + x). So the error relative to the gradient is at most x²(1 + x),
    which must hold at every point. Its slope in x is 2 − x/(1 + x), so the fitted slope must be 2 to the largest x.

    Mutations: Neumann step = 0; Neumann step without its second term; ∇R^c = 0.
    """
    bases, z = near_subspaces(trial.generator(), 3, 13, 4, 29)
    top, x, errors = 0.02, [], []
    for eps in torch.logspace(0, 1, 6).tolist():
        scaled = eps * math.sqrt(strength(z, bases, 1.0) / top)
        x.append(strength(z, bases, scaled))
        errors.append(relative(*(compression_direction(z, bases, scaled, how) for how in ("neumann", "exact"))))
    order = power_law(x, errors).exponent
    return Finding(
        f"slope 2 ± {top:g} in x = β‖U_k*Z‖², error ≤ x²(1 + x)",
        f"slope {order:.3f}, error ≤ {max(e / v**2 for e, v in zip(errors, x, strict=True)):.2f} x²",
        judge(abs(order - 2) <= top and all(e <= v**2 * (1 + v) for e, v in zip(errors, x, strict=True))),
        numbers={"slope": order},
        table={"x = β‖U_k*Z‖²": x, "relative error": errors},
    )


@claim(section="2.3", equation="eq:gd_rc_neumann, eqn:approximation-1", expected="holds in a stated range")
def neumann_range(trial: Trial) -> Finding:
    """The first-order Neumann step still descends on R^c at the sizes of the network.

    A singular value s of U_k*Z gets the factor 1 − βs² instead of 1/(1 + βs²), which has the right sign while
    x = β‖U_k*Z‖² < 1. For such x the cosine with ∇R^c must be positive in every draw. The claim holds if the cosine is
    also positive for unit-norm tokens at ε = 0.5 and the sizes of CRATE-Base; otherwise it holds in the range x < 1,
    a range of ε, which the paper leaves open.

    Mutations: Neumann step = 0; Neumann step with the wrong sign.
    """
    generator = trial.generator()

    def angle(z: Tensor, bases: Tensor, eps: float) -> float:
        return cosine(*(compression_direction(z, bases, eps, method) for method in ("neumann", "exact")))

    def points() -> Iterator[dict[str, float]]:
        bases, z = near_subspaces(generator, 4, 32, 8, 32)
        for x in (0.1, 0.3, 0.6, 0.95, 1.5, 2.0, 3.0, 5.0):
            yield {"x = β‖U_k*Z‖²": x, "cosine with ∇R^c": angle(z, bases, math.sqrt(strength(z, bases, 1.0) / x))}

    table = tabulate(point for _ in range(trial.choose(3, 20)) for point in points())
    drawn = list(zip(*table.values(), strict=True))
    bases, z = near_subspaces(generator, *BASE)
    here, base = strength(z, bases, 0.5), angle(z, bases, 0.5)
    inside = all(c > 0 for x, c in drawn if x < 1)
    wrong = min((x for x, c in drawn if c <= 0), default=math.inf)
    return Finding(
        "cosine with ∇R^c > 0",
        f"positive for β‖U_k*Z‖² < 1, negative from {wrong:g}; CRATE-Base has {here:.2f} and cosine {base:.2f}",
        judge(inside and base > 0, ranged=inside),
        f"β‖U_k*Z‖² < 1, which means ε ≥ {0.5 * math.sqrt(here):.2f} at the sizes of CRATE-Base",
        {"first_negative": wrong, "base_strength": here, "base_cosine": base},
        table,
    )


@claim(
    section="A.1",
    equation="thm:grad_codingrate_approx, eq:appendix-mssa-block-variant",
    expected="holds in a stated range",
)
def mssa_gradient(trial: Trial) -> Finding:
    """Z − κ∇R^c(Z | U) ≈ (1 − κβ)Z + κβ MSSA(Z | U): βZ − βMSSA approximates the gradient of R^c.

    The test uses unit-norm tokens near orthogonal subspaces that fill the space, over a range of ε. "Approximates" is
    read in its weakest sense: the cosine with ∇R^c is positive, and subtracting βMSSA brings βZ closer to ∇R^c. The
    claim holds if this is true at every β tried, and in a range (of ε, which the paper leaves open) if it is true for
    all β up to 1 at least, where Neumann's 1 − βA keeps its sign for a softmax A.

    Mutations: MSSA = 0; MSSA with the wrong sign.
    """
    generator, precisions = trial.generator(), torch.logspace(-1, 0.5, 9).tolist()
    bases, z = near_subspaces(generator, *trial.choose((4, 64, 16, 64), BASE))

    def measure(eps: float) -> dict[str, float]:
        beta = bases.shape[-1] / (len(z) * eps**2)
        step, exact = (compression_direction(z, bases, eps, method) for method in ("mssa", "exact"))
        return {
            "β": beta,
            "cosine with ∇R^c": cosine(step, exact),
            "error with MSSA / error without": relative(step, exact) / relative(beta * z, exact),
            "cosine with the term it replaces": cosine(beta * z - step, beta * z - exact),
        }

    table = tabulate(map(measure, precisions))
    beta, angle, gain, part = table.values()
    good = {b: c for b, c, g in zip(beta, angle, gain, strict=True) if c > 0 and g < 1}
    limit = max(good, default=0.0)
    inside = bool(good) and all(b in good for b in beta if b <= limit) and limit >= 1
    return Finding(
        "cosine > 0 and MSSA lowers the error, at β ≤ 1 and beyond",
        f"true for β ≤ {limit:.2g} of {max(beta):.2g}; cosine {good.get(limit, 0):.2f} … "
        f"{max(angle):.3f}, error × {min(gain):.2f} at best",
        judge(inside and len(good) == len(beta), ranged=inside),
        f"β ≤ {limit:.2g}; MSSA alone has cosine {min(part):.2f} … {max(part):.2f} with the term it replaces",
        {"beta_limit": limit, "cosine_best": max(angle), "error_ratio_best": min(gain), "cosine_term": max(part)},
        table,
    )


def constant_vector(update: Tensor, generator: torch.Generator) -> Tensor:
    """Return the control of an update (n, d): one random vector for all tokens, of the same Frobenius norm."""
    vector = torch.randn(1, update.shape[-1], generator=generator, dtype=update.dtype).expand_as(update)
    return vector * (torch.linalg.norm(update) / torch.linalg.norm(vector))


def membership(codes: Tensor, K: int, s: float) -> Tensor:
    """Return π = e^q/(e^q + K − 1) with q = s²‖w‖²/2, the probability that w comes from the head's own subspace."""
    tilt = (s**2 * codes.square().sum(-1, keepdim=True) / 2).exp()
    return tilt / (tilt + K - 1)


@claim(
    section="A.1",
    equation="eqn:approximation-2, eq:appendix-ssa-derivation",
    expected="holds in a stated range",
)
def softmax_membership(trial: Trial) -> Finding:
    """The softmax of the auto-correlation is a subspace membership: SSA keeps what belongs to the head's own subspace.

    The paper gives no formula; this one is ours. For n → ∞ clean tokens with α ~ N(0, s²I) on K orthogonal subspaces
    the softmax average is an exponential tilt of the mixture, SSA(w) = s²π(w)w with π = e^q/(e^q + K − 1) and q =
    s²‖w‖²/2. π is the posterior probability that w came from the head's own subspace. The least-squares factor between
    SSA and s²π(w)w is 1 as n → ∞, for the shorter half of the tokens and for the longer half. Its error falls as 1/n
    (the token itself is one of the n), so twice the factor at 2n minus the factor at n has no error of that order. It
    must be 1 within the Bonferroni limit of its standard error over draws, and that limit must be below 10 %, so that a
    formula wrong by 30 % is rejected. (At s = ½ the weights e^{⟨w, w_j⟩} have moments.)

    "Membership" is read as π > ½ for a token of the head's own subspace, which is e^q > K − 1. The claim holds if that
    is so for the unit-norm tokens that A.1 assumes, at the sizes of CRATE-Base, where s² = 1/p and q = 1/2p. Otherwise
    it holds in the range of norms where it is so. For tokens of norm √d with the factor p^-½, as in the network,
    s² = d/p and q = K²/2.

    Mutations: MSSA = 0; membership 30 % too large; membership without the softmax, 1/K.
    """
    generator, K, p, s, n = trial.generator(), 2, 2, 0.5, 1024
    bases = ob.random_bases(K, K * p, p, "orthonormal", generator, torch.float64)

    def factors(n: int) -> dict[str, float]:
        """Return the factor between MSSA at β = ½ and half the membership form, for short and for long codes."""
        z = s * ob.sample_tokens(bases, n, 0.0, generator).tokens
        codes = z @ bases  # (K, n, p)
        form = ((s**2 * membership(codes, K, s) * codes) @ bases.mT).sum(0) / 2
        moved, length = mssa(z, bases, math.sqrt(2 * p / n)), torch.linalg.norm(z, dim=-1)
        parts = {"short": length <= length.median(), "long": length > length.median()}
        return {name: float((moved[own] * form[own]).sum() / form[own].square().sum()) for name, own in parts.items()}

    once, twice = (tabulate(factors(size) for _ in range(trial.choose(24, 400))) for size in (n, 2 * n))
    short, long = (
        estimate([2 * b - a for a, b in zip(once[name], twice[name], strict=True)]) for name in ("short", "long")
    )
    ok = all(abs(f.mean - 1) <= critical(2) * f.error <= 0.1 for f in (short, long))
    heads, _, width, _ = BASE
    unit = float(membership(torch.ones(1, 1, dtype=torch.float64), heads, width**-0.5))
    return Finding(
        "SSA(w) = s²π(w)w: factor 1 for short and for long codes; π > ½ at norm 1",
        ", ".join(f"{f.mean:.3f} ± {f.error:.3f}" for f in (short, long))
        + f"; π = {unit:.3f} in CRATE-Base, 1/K = 1/{heads}",
        judge(ok and unit > 0.5, ranged=ok),
        "norms above (2p log(K − 1))^¼ on orthogonal subspaces with many clean Gaussian tokens: 4.2 for CRATE-Base; at "
        "norm 1 every token counts alike",
        {"short": short.mean, "long": long.mean, "error": max(short.error, long.error), "unit": unit},
    )


@claim(section="A.1", equation="eq:appendix-ssa-derivation", expected="holds in a stated range")
def identity_projection(trial: Trial) -> Finding:
    """(Σ_k U_kU_k*)Z ≈ Z for tokens near incoherent subspaces.

    The error is that of the code's gradient with and without this step, over β. It is 0 on orthogonal subspaces. On
    independent random subspaces a token also has projections on the K − 1 others, and the error relative to ‖Z‖² is
    E‖·‖² = (K − 1)r + (K − 1)(K − 2)r² with r = p/d. The mean over draws must agree up to chance (Bonferroni at 0.1 %).
    "≈" is read as an error below ½, a reading of ours. The paper asks for incoherent subspaces without a number; the
    claim holds if the error is below ½ up to Kp = d, as in CRATE-Base, and otherwise in the range where it is.

    Mutations: MSSA's gradient = 0; MSSA's gradient without Σ_k U_kU_k*.
    """
    generator, d, p = trial.generator(), 48, 2

    def error(K: int, arrangement: str, n: int) -> float:
        bases = ob.random_bases(K, d, p, arrangement, generator, torch.float64)
        z = ob.sample_tokens(bases, n, 0.0, generator).tokens
        full, short = (
            ob.subspace_coding_rate_gradient(z, bases, 1.0, "attention", identity_projection=step)
            for step in (False, True)
        )
        size = float(torch.linalg.norm(short) / torch.linalg.norm(z))
        return relative(full, short) * size / reference.beta(z, bases, 1)

    def measure(K: int) -> dict[str, float]:
        found = estimate([error(K, "incoherent", 4 * K) ** 2 for _ in range(trial.choose(32, 500))])
        square = (K - 1) * p / d + (K - 1) * (K - 2) * (p / d) ** 2
        score = abs(found.mean - square) / found.error if found.error else math.inf
        return {"Kp/d": K * p / d, "error": math.sqrt(found.mean), "predicted": math.sqrt(square), "score": score}

    table = tabulate(map(measure, (2, 3, 6, 12, 24)))
    filled, errors, predicted, scores = table.values()
    exact = error(6, "orthonormal", 50)
    inside = exact <= rounding(100 * d) and max(scores) <= critical(len(scores))
    small = [f for f, e in zip(filled, errors, strict=True) if e < 0.5]
    return Finding(
        f"0 if orthogonal; {predicted[0]:.2f} … {predicted[-1]:.2f} if random, Kp/d = {filled[0]:.2f} … {filled[-1]:g}",
        f"{exact:.0e}; {errors[0]:.2f} … {errors[-1]:.2f}",
        judge(inside and errors[-1] < 0.5, ranged=inside and bool(small)),
        f"orthogonal, or random with Kp/d ≤ {max(small, default=0):.2f}; "
        f"random subspaces with Kp = d, as in CRATE-Base, give an error of {predicted[-1]:.2f}",
        {f"error_{f:.3g}": e for f, e in zip(filled, errors, strict=True)},
        {name: table[name] for name in ("Kp/d", "error", "predicted")},
    )


@claim(section="2.5", equation="eq:encoder_layer", expected="fails as stated, true in another form")
def residual_layer(trial: Trial) -> Finding:
    """The layer's Z^{ℓ+½} = Z^ℓ + MSSA(Z^ℓ | U) compresses: R^c(Z^{ℓ+½} | U) < R^c(Z^ℓ | U).

    The derivation has (1 − κβ)Z + κβ MSSA. The layer drops the shrinkage, so tokens grow. R^c is measured twice: for
    the layer as it is, and with tokens of unit norm before and after. (LayerNorm gives norm √d: network-layer.) The
    claim holds as stated if R^c falls in every draw. At unit norm any common component of the updates lowers R^c, so
    there are two controls of the same size: one random vector for all tokens, and the updates of other tokens. The
    other form is the layer at unit norm and ε ≥ 0.5, which is β ≤ 1, where I − βA keeps its sign for a softmax A: there
    the mean fall over draws, and its excess over that of each control, must exceed the Bonferroni limit of their
    standard errors. At ε = 0.1 (β = 25) the update is three times as long as the tokens, and the controls fall further.

    Mutations: MSSA = 0; MSSA with the wrong sign.
    """
    generator, precisions = trial.generator(), (0.1, 0.3, 0.5, 1.0, 2.0)

    def measure(z: Tensor, bases: Tensor, eps: float) -> tuple[float, ...]:
        """Return R^c as it is over its value before, its fall at unit norm, and what each control falls less."""
        update = mssa(z, bases, eps)
        controls = constant_vector(update, generator), update[torch.randperm(len(z), generator=generator)]
        moved = (normalize(z + step, dim=-1) for step in (update, *controls))
        start, grown, *rates = (float(reference.compression(x, bases, eps)) for x in (z, z + update, *moved))
        unit, constant, others = (rate / start for rate in rates)
        return grown / start, 1 - unit, constant - unit, others - unit

    draws = (near_subspaces(generator, 4, 64, 16, 64) for _ in range(trial.choose(12, 40)))
    rows = torch.tensor([[measure(z, bases, eps) for eps in precisions] for bases, z in draws], dtype=torch.float64)
    raw = rows[..., 0]
    falls, constant, others = ([estimate(column) for column in rows[..., at].unbind(1)] for at in (1, 2, 3))  # by ε
    tested = (*falls[2:], *constant[2:], *others[2:])
    sure = min((fall.mean / fall.error if fall.error else 0.0) for fall in tested)
    other = sure > critical(len(tested))
    return Finding(
        f"R^c falls; at unit norm, and by more than both controls, by more than {critical(len(tested)):.1f} standard "
        "errors",
        f"× {raw.min():.3f} … {raw.max():.3f} as it is; at unit norm falls by {falls[2].mean:.1%} (ε = 0.5) … "
        f"{falls[-1].mean:.1e} (ε = 2), and more than both controls, by {sure:.0f} standard errors or more; at ε = 0.1 "
        f"by {falls[0].mean:.0%}, a random vector by {falls[0].mean - constant[0].mean:.0%}, updates of other tokens "
        f"by {falls[0].mean - others[0].mean:.0%}",
        judge(other and bool(raw.max() < 1), form=other),
        "at unit norm and for β ≤ 1 R^c falls by more than with updates that know nothing of their token; without "
        "scaling the layer raises it",
        {"raw_most": float(raw.max()), "unit_fall_least": falls[-1].mean, "standard_errors": sure}
        | {"excess_random": -constant[0].mean},
        {"ε": list(precisions), "fall of R^c at unit norm": [fall.mean for fall in falls]},
    )


def off_share(z: Tensor, bases: Tensor, labels: Tensor) -> float:
    """Return the root mean square share of the norm of tokens (n, d) that lies outside their own subspaces."""
    outside = off_subspace(normalize(z, dim=-1), bases, labels)
    return float(torch.linalg.norm(outside, dim=-1).square().mean().sqrt())


@claim(
    section="3.3",
    equation="eq:compression_structured_denoising",
    expected="fails as stated, true in another form",
)
def layer_denoises(trial: Trial) -> Finding:
    """Z^{ℓ+½} = Z^ℓ + MSSA(Z^ℓ | U) is a step of structured denoising: it moves tokens closer to their subspaces.

    As stated, the share of tokens outside their own subspaces must fall at β = 1 for every norm of the tokens; the
    paper names no norm. By softmax-membership a head favors its own tokens over tokens of other subspaces once e^q > K
    with q = ‖z‖⁴/2p, that is for norms above (2p log K)^¼ = 2.6 here. For very long tokens the softmax selects one
    token, possibly of another subspace. The largest norm tried is 8 = √d, that of LayerNorm; the factor p^-½ of the
    network, which the equations do not have, makes it 8/16^¼ = 4 in the softmax (network-layer). So the other form is
    one layer at the norm (2p log K)^¼: there the mean change of the share over draws must be negative by more than the
    Bonferroni limit of its standard error. A layer is also repeated.

    Mutations: MSSA = 0; MSSA with the wrong sign.
    """
    generator, K, p, n = trial.generator(), 4, 16, 64
    limit, eps = (2 * p * math.log(K)) ** 0.25, math.sqrt(p / n)
    norms = (0.5, 1.0, 2.0, limit, 3.0, 4.0, 6.0, 8.0)

    def measure() -> dict[float | str, float]:
        bases = ob.random_bases(K, K * p, p, "orthonormal", generator, torch.float64)
        sample = ob.sample_tokens(bases, n, 0.1, generator)
        unit, start = normalize(sample.tokens, dim=-1), off_share(sample.tokens, bases, sample.labels)
        layers: dict[float | str, Tensor] = {norm: norm * unit + mssa(norm * unit, bases, eps) for norm in norms}
        z = 3 * unit
        for _ in range(8):
            z = 3 * normalize(z + mssa(z, bases, eps), dim=-1)
        layers["repeated"] = z
        return {name: off_share(after, bases, sample.labels) / start for name, after in layers.items()}

    table = tabulate(measure() for _ in range(trial.choose(6, 20)))
    mean = {name: float(torch.tensor(column).mean()) for name, column in table.items()}
    repeated, shares = mean.pop("repeated"), list(mean.values())
    good = [norm for norm, share in mean.items() if share < 1]
    change = estimate([share - 1 for share in table[limit]])
    other = change.mean < -critical(1) * change.error - EXACT
    return Finding(
        f"share outside the own subspace × less than 1, at every norm or at norm {limit:.1f}",
        f"× {shares[1]:.2f} at norm 1, × {shares[3]:.2f} at norm {limit:.1f}, × {shares[-1]:.2f} at norm "
        f"{norms[-1]:g} = √d; "
        f"× {repeated:.1f} after 8 equal layers",
        judge(other and len(good) == len(norms), form=other),
        f"one layer on tokens of norm (2p log K)^¼ moves them closer (here norms {min(good, default=0):g} … "
        f"{max(good, default=0):g} do); shorter, longer or repeatedly transformed tokens move away",
        {f"share_{norm:.2g}": share for norm, share in mean.items()} | {"repeated": repeated},
        {"norm of the tokens": list(norms), "share outside, after / before": shares},
    )
