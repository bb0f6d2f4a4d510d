"""Claims about attention: from the gradient of R^c to MSSA, and the layer Z + MSSA(Z) (paper 2.3, 2.5, 3.3, A.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from codingrate import objective as ob

from ..unrolled import compression_direction, mssa, unit_norm
from . import figures as fig
from .frame import Finding, Trial, claim, judge
from .measure import cosine, critical, estimate, power_law, relative, rounding

BASE = (12, 768, 64, 196)  # K, d, p, n of CRATE-Base


def near_subspaces(generator: torch.Generator, K: int, d: int, p: int, n: int) -> tuple[Tensor, Tensor]:
    """Draw orthogonal bases (K, d, p) and unit-norm tokens (n, d) within 5 % of them, as A.1 assumes."""
    bases = ob.random_bases(K, d, p, "orthonormal", generator, torch.float64)
    return bases, unit_norm(ob.sample_tokens(bases, n, 0.05 * math.sqrt(p / d), generator).tokens)


def strength(z: Tensor, bases: Tensor, eps: float) -> float:
    """Return max_k β‖U_k*Z‖², the variable of the Neumann series."""
    beta = bases.shape[-1] / (z.shape[-2] * eps**2)
    return beta * float(torch.linalg.matrix_norm(z @ bases, 2).max()) ** 2


@claim(section="2.3", equation="eq:gd_rc_neumann")
def neumann_order(trial: Trial) -> Finding:
    """∇R^c ≈ β Σ_k U_k(U_k*Z)(I − β(U_k*Z)*(U_k*Z)), the first-order Neumann series.

    With x = β‖U_k*Z‖², 1/(1 + x) − (1 − x) = x²/(1 + x). So the error relative to the gradient is at most x²(1 + x),
    which must hold at every point. Its slope in x is 2 − x/(1 + x), so the fitted slope must be 2 to the largest x.
    """
    generator = trial.generator()
    bases, z = near_subspaces(generator, 3, 13, 4, 29)
    top, x, errors = 0.02, [], []
    for eps in torch.logspace(0, 1, 6).tolist():
        scaled = eps * math.sqrt(strength(z, bases, 1.0) / top)
        exact = ob.subspace_coding_rate_gradient(z, bases, scaled)
        x.append(strength(z, bases, scaled))
        errors.append(relative(ob.subspace_coding_rate_gradient(z, bases, scaled, "neumann"), exact))
    order = power_law(x, errors).exponent
    ok = abs(order - 2) <= top and all(e <= v**2 * (1 + v) for e, v in zip(errors, x, strict=True))
    return Finding(
        f"slope 2 ± {top:g} in x = β‖U_k*Z‖², error ≤ x²(1 + x)",
        f"slope {order:.3f}, error ≤ {max(e / v**2 for e, v in zip(errors, x, strict=True)):.2f} x²",
        judge(ok),
        numbers={"slope": order},
        draw=fig.law_figure("Neumann step", "β‖U_k*Z‖²", "relative error", (x, errors, 2, "measured; line: slope 2")),
    )


@claim(section="2.3", equation="eq:gd_rc_neumann", expected="holds in range")
def neumann_range(trial: Trial) -> Finding:
    """The first-order Neumann step still descends on R^c at the sizes of the network.

    A singular value s of U_k*Z gets the factor 1 − βs² instead of 1/(1 + βs²), which has the right sign while
    x = β‖U_k*Z‖² < 1. For such x the cosine with ∇R^c must be positive in every draw. The claim holds if the cosine is
    also positive for unit-norm tokens at ε = 0.5 and the sizes of CRATE-Base; otherwise it holds in the range x < 1.
    """
    generator = trial.generator()
    points = []
    for _ in range(trial.choose(3, 20)):
        bases, z = near_subspaces(generator, 4, 32, 8, 32)
        for x in (0.1, 0.3, 0.6, 0.95, 1.5, 2.0, 3.0, 5.0):
            eps = math.sqrt(strength(z, bases, 1.0) / x)
            exact = ob.subspace_coding_rate_gradient(z, bases, eps)
            points.append((x, cosine(ob.subspace_coding_rate_gradient(z, bases, eps, "neumann"), exact)))
    bases, z = near_subspaces(generator, *BASE)
    here = strength(z, bases, 0.5)
    base = cosine(
        ob.subspace_coding_rate_gradient(z, bases, 0.5, "neumann"), ob.subspace_coding_rate_gradient(z, bases, 0.5)
    )
    inside = min(c for x, c in points if x < 1) > 0
    wrong = min((x for x, c in points if c <= 0), default=math.inf)

    @fig.panel("Neumann step and gradient", "β‖U_k*Z‖²", "cosine")
    def draw(axes: fig.Axes) -> None:
        axes.semilogx(*zip(*points, strict=True), "o", color=fig.BLUE, markersize=4, label="one draw")
        axes.plot(here, base, "s", color=fig.ORANGE, label="CRATE-Base, ε = 0.5")
        fig.guides(axes, x=(1,), y=(0,))

    return Finding(
        "cosine with ∇R^c > 0",
        f"positive for β‖U_k*Z‖² < 1, negative from {wrong:g}; CRATE-Base has {here:.2f} and cosine {base:.2f}",
        judge(inside, everywhere=base > 0),
        f"β‖U_k*Z‖² < 1, which means ε ≥ {0.5 * math.sqrt(here):.2f} at the sizes of CRATE-Base",
        {"first_negative": wrong, "base_strength": here, "base_cosine": base},
        draw,
    )


@claim(section="A.1", equation="thm:grad_codingrate_approx", expected="holds in range")
def mssa_gradient(trial: Trial) -> Finding:
    """Z − κ∇R^c(Z | U) ≈ (1 − κβ)Z + κβ MSSA(Z | U): βZ − βMSSA approximates the gradient of R^c.

    The test uses unit-norm tokens near orthogonal subspaces that fill the space, over a range of ε. "Approximates" is
    read in its weakest sense: the cosine with ∇R^c is positive, and subtracting βMSSA brings βZ closer to ∇R^c. The
    claim holds if this is true at every β tried, and in a range if it is true for all β up to one.
    """
    generator, eps = trial.generator(), torch.logspace(-1, 0.5, 9).tolist()
    bases, z = near_subspaces(generator, *trial.choose((4, 64, 16, 64), BASE))
    beta = [bases.shape[-1] / (len(z) * e**2) for e in eps]
    angle, gain, part = [], [], []
    for b, e in zip(beta, eps, strict=True):
        exact = ob.subspace_coding_rate_gradient(z, bases, e)
        step = compression_direction(z, bases, e, "mssa")
        angle.append(cosine(step, exact))
        gain.append(relative(step, exact) / relative(b * z, exact))
        part.append(cosine(b * z - step, b * z - exact))
    good = [b for b, c, g in zip(beta, angle, gain, strict=True) if c > 0 and g < 1]
    limit = max(good, default=0.0)
    inside = bool(good) and all(b in good for b in beta if b <= limit) and limit >= 1

    def draw(figure: fig.Figure) -> None:
        left, right = fig.panels(figure, ["cosine", "error with MSSA / error without"])
        left.semilogx(beta, angle, "o-", color=fig.BLUE, markersize=4, label="βZ − βMSSA with ∇R^c")
        left.semilogx(beta, part, "o-", color=fig.ORANGE, markersize=4, label="MSSA with the term it replaces")
        right.loglog(beta, gain, "o-", color=fig.BLUE, markersize=4)
        for axes, level in ((left, 0), (right, 1)):
            fig.guides(axes, y=(level,))
            fig.label_axes(axes, "β", "")

    return Finding(
        "cosine > 0 and MSSA lowers the error, at β ≤ 1 and beyond",
        f"true for β ≤ {limit:.2g} of {max(beta):.2g}; cosine {angle[beta.index(limit)] if good else 0:.2f} … "
        f"{max(angle):.3f}, error × {min(gain):.2f} at best",
        judge(inside, everywhere=len(good) == len(beta)),
        f"β ≤ {limit:.2g}; MSSA alone has cosine {min(part):.2f} … {max(part):.2f} with the term it replaces",
        {"beta_limit": limit, "cosine_best": max(angle), "error_ratio_best": min(gain), "cosine_term": max(part)},
        draw,
    )


@claim(section="A.1", equation="eq:appendix-ssa-derivation")
def softmax_membership(trial: Trial) -> Finding:
    """The softmax of the auto-correlation is a subspace membership: SSA keeps what belongs to the head's own subspace.

    The paper gives no formula. For n → ∞ clean tokens with α ~ N(0, s²I) on K orthogonal subspaces the softmax average
    is an exponential tilt of the mixture, SSA(w) = s²π(w)w with π = e^q/(e^q + K − 1) and q = s²‖w‖²/2. π is the
    posterior probability that w came from the head's own subspace. A mean over n tokens has an error of order n^-½, so
    the slope over draws must be −½ within three standard errors. (At s = ½ the weights e^{⟨w, w_j⟩} have moments.)
    """
    generator, K, p, s = trial.generator(), 2, 2, 0.5
    bases = ob.random_bases(K, K * p, p, "orthonormal", generator, torch.float64)
    sizes, runs = trial.choose((64, 256, 1024), (64, 256, 1024, 4096)), []
    for _ in range(trial.choose(8, 24)):
        errors = []
        for n in sizes:
            z = s * ob.sample_tokens(bases, n, 0.0, generator).tokens
            codes = z @ bases  # (K, n, p)
            tilt = (s**2 * codes.square().sum(-1, keepdim=True) / 2).exp()
            gated = ((s**2 * tilt / (tilt + K - 1) * codes) @ bases.mT).sum(0)
            errors.append(relative(mssa(z, bases, math.sqrt(2 * p / n)), gated / 2))  # ε of β = ½
        runs.append(errors)
    orders = estimate([power_law(sizes, errors).exponent for errors in runs])
    ok = abs(orders.mean + 0.5) <= 3 * orders.error

    def draw(figure: fig.Figure) -> None:
        left, right = fig.panels(figure, ["z → MSSA(z), tokens near two lines", "distance to the membership form"])
        lines, count = fig.plane_lines(20, 110), 600
        points = ob.sample_tokens(lines, count, 0.2, torch.Generator().manual_seed(trial.seed)).tokens
        moved = mssa(points, lines, math.sqrt(1 / count))  # β = 1 = 1/s²: each token goes to Σ_k π_k U_kU_k*z
        fig.plot_plane(left, lines, 2.5)
        fig.plot_arrows(left, points[:150], moved[:150], fig.BLUE)
        fig.plot_laws(right, (sizes, torch.tensor(runs).mean(0).tolist(), -0.5, "measured; line: slope −½"))
        fig.label_axes(right, "tokens n", "relative error")

    return Finding(
        "SSA(w) = s²π(w)w, slope −½ in n",
        f"slope {orders.mean:.3f} ± {orders.error:.3f}, error {torch.tensor(runs).mean(0)[-1]:.3f} at n = {sizes[-1]}",
        judge(ok),
        numbers={"slope": orders.mean, "slope_error": orders.error},
        draw=draw,
    )


@claim(section="A.1", equation="eq:appendix-ssa-derivation", expected="holds in range")
def identity_projection(trial: Trial) -> Finding:
    """(Σ_k U_kU_k*)Z ≈ Z for tokens near incoherent subspaces.

    It is exact on orthogonal subspaces. On independent random subspaces a token also has projections on the K − 1
    others, and the error relative to ‖Z‖² is E‖·‖² = (K − 1)r + (K − 1)(K − 2)r² with r = p/d. The mean over draws must
    agree up to chance (Bonferroni at 0.1 %). The claim holds where the error is below ½; CRATE-Base has Kp = d.
    """
    generator, d, p = trial.generator(), 48, 2
    counts, measured, predicted = (2, 3, 6, 12, 24), [], []
    for K in counts:
        ratio = p / d
        predicted.append(math.sqrt((K - 1) * ratio + (K - 1) * (K - 2) * ratio**2))
        squares = []
        for _ in range(trial.choose(32, 500)):
            bases = ob.random_bases(K, d, p, "incoherent", generator, torch.float64)
            z = ob.sample_tokens(bases, 4 * K, 0.0, generator).tokens
            squares.append(relative(((z @ bases) @ bases.mT).sum(0), z) ** 2)
        measured.append(estimate(squares))
    errors = [math.sqrt(m.mean) for m in measured]
    bases = ob.random_bases(6, d, p, "orthonormal", generator, torch.float64)
    z = ob.sample_tokens(bases, 50, 0.0, generator).tokens
    exact = relative(((z @ bases) @ bases.mT).sum(0), z)
    limit = critical(len(counts))
    near = all(abs(m.mean - q**2) <= limit * m.error for m, q in zip(measured, predicted, strict=True))
    ok = near and exact <= rounding(100 * d)
    filled = [K * p / d for K in counts]
    small = [f for f, e in zip(filled, errors, strict=True) if e < 0.5]
    curve = (filled, errors, predicted, "measured; line: predicted")
    return Finding(
        f"0 if orthogonal; {predicted[0]:.2f} … {predicted[-1]:.2f} if random, Kp/d = {filled[0]:.2f} … {filled[-1]:g}",
        f"{exact:.0e}; {errors[0]:.2f} … {errors[-1]:.2f}",
        judge(ok, everywhere=errors[-1] < 0.5),
        f"orthogonal, or random with Kp/d ≤ {max(small, default=0):.2f}; "
        f"random subspaces with Kp = d, as in CRATE-Base, give an error of {predicted[-1]:.2f}",
        {f"error_{f:.3g}": e for f, e in zip(filled, errors, strict=True)},
        fig.law_figure("‖(Σ_k U_kU_k*)Z − Z‖/‖Z‖, random subspaces", "Kp/d", "relative error", curve, level=0.5),
    )


@claim(section="2.5", equation="eq:encoder_layer", expected="holds in range")
def residual_layer(trial: Trial) -> Finding:
    """The layer's Z^{ℓ+½} = Z^ℓ + MSSA(Z^ℓ | U) compresses: R^c(Z^{ℓ+½} | U) < R^c(Z^ℓ | U).

    The derivation has (1 − κβ)Z + κβ MSSA. The layer drops the shrinkage, so tokens grow. R^c is measured twice: for
    the layer as it is, and with tokens scaled to unit norm before and after, as LayerNorm does. The claim holds if R^c
    falls in both cases in every draw, and in a range if it falls at unit norm.
    """
    generator = trial.generator()
    raw, unit = [], []
    for _ in range(trial.choose(3, 20)):
        bases, z = near_subspaces(generator, 4, 64, 16, 64)
        for eps in (0.1, 0.3, 0.5, 1.0, 2.0):
            before = float(ob.subspace_coding_rate(z, bases, eps))
            after = z + mssa(z, bases, eps)
            raw.append(float(ob.subspace_coding_rate(after, bases, eps)) / before)
            unit.append(float(ob.subspace_coding_rate(unit_norm(after), bases, eps)) / before)

    @fig.panel("the same layer repeated, ε = 0.5", "layers", "R^c / initial R^c")
    def draw(axes: fig.Axes) -> None:
        for color, name, normalize in ((fig.BLUE, "unit norm", True), (fig.ORANGE, "as it is", False)):
            tokens, rates = z, []
            for _ in range(9):
                rates.append(float(ob.subspace_coding_rate(tokens, bases, 0.5)))
                tokens = tokens + mssa(tokens, bases, 0.5)
                tokens = unit_norm(tokens) if normalize else tokens
            axes.plot([rate / rates[0] for rate in rates], "o-", color=color, markersize=4, label=name)

    return Finding(
        "R^c falls",
        f"× {min(raw):.3f} … {max(raw):.3f} as it is, × {min(unit):.3f} … {max(unit):.4f} at unit norm",
        judge(max(unit) < 1, everywhere=max(raw) < 1),
        "with tokens scaled back to unit norm; without scaling the layer raises R^c",
        {"raw_least": min(raw), "raw_most": max(raw), "unit_least": min(unit), "unit_most": max(unit)},
        draw,
    )


def off_share(z: Tensor, bases: Tensor, labels: Tensor) -> float:
    """Return the root mean square share of the norm of tokens (n, d) that lies outside their own subspaces."""
    own = bases[labels]
    inside = torch.linalg.norm((own.mT @ unit_norm(z).unsqueeze(-1)).squeeze(-1), dim=-1)
    return float((1 - inside.square()).mean().sqrt())


@claim(section="3.3", equation="eq:compression_structured_denoising", expected="holds in range")
def layer_denoises(trial: Trial) -> Finding:
    """Z^{ℓ+½} = Z^ℓ + MSSA(Z^ℓ | U) is a step of structured denoising: it moves tokens closer to their subspaces.

    The share of tokens outside their own subspaces must fall, at β = 1 and for every norm of the tokens. By
    softmax-membership a head favors its own tokens over tokens of other subspaces once e^q > K with q = ‖z‖⁴/2p, that
    is for norms above (2p log K)^¼ = 2.6 here. So the claim holds in a range if the share falls there. For very long
    tokens it rises again: the softmax selects one token, possibly of another subspace. A layer is also repeated.
    """
    generator, K, p, n = trial.generator(), 4, 16, 64
    norms, eps = (0.5, 1.0, 2.0, 2.6, 3.0, 4.0, 6.0, 8.0), math.sqrt(p / n)
    once, again = [], []
    for _ in range(trial.choose(3, 20)):
        bases = ob.random_bases(K, K * p, p, "orthonormal", generator, torch.float64)
        sample = ob.sample_tokens(bases, n, 0.1, generator)
        shares = []
        for norm in norms:
            z = norm * unit_norm(sample.tokens)
            shares.append(off_share(z + mssa(z, bases, eps), bases, sample.labels))
        start = off_share(sample.tokens, bases, sample.labels)
        once.append([share / start for share in shares])
        path, z = [1.0], 3 * unit_norm(sample.tokens)
        for _ in range(8):
            z = 3 * unit_norm(z + mssa(z, bases, eps))
            path.append(off_share(z, bases, sample.labels) / start)
        again.append(path)
    mean, repeated = (torch.tensor(runs).mean(0).tolist() for runs in (once, again))
    good = [norm for norm, value in zip(norms, mean, strict=True) if value < 1]
    inside = {2.6, 3.0} <= set(good)

    def draw(figure: fig.Figure) -> None:
        left, right = fig.panels(figure, ["one layer", "repeated layers at norm 3"])
        left.semilogx(norms, mean, "o-", color=fig.BLUE, markersize=4)
        fig.guides(left, x=((2 * p * math.log(K)) ** 0.25,))
        right.plot(repeated, "o-", color=fig.BLUE, markersize=4)
        for axes, name in ((left, "norm of the tokens"), (right, "layers")):
            fig.guides(axes, y=(1,))
            fig.label_axes(axes, name, "share outside, after / before")

    return Finding(
        "share outside the own subspace × less than 1",
        f"× {min(mean):.2f} at norm {norms[mean.index(min(mean))]:g}, × {mean[1]:.2f} at norm 1, × {mean[-1]:.2f} at "
        f"norm {norms[-1]:g}; × {repeated[-1]:.1f} after 8 equal layers",
        judge(inside, everywhere=len(good) == len(norms)),
        f"norms {min(good, default=0):g} … {max(good, default=0):g}, one or two layers; then they gather on few lines",
        {f"share_{norm:g}": value for norm, value in zip(norms, mean, strict=True)} | {"repeated": repeated[-1]},
        draw,
    )
