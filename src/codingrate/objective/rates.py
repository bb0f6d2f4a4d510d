"""Coding rates and rate reduction (paper §2.1), their gradients (§2.3, appendix A) and the Hessian (appendix B).

Every rate is ½ logdet(I + cG) of a Gram matrix G. One function computes it from the Cholesky factor of the smaller of
the two Gram matrices, batched over all leading axes and differentiable twice.

float64 and float32 are kept. float16 and bfloat16 tokens are computed in float32 and the rate is returned in float32,
since a rate in bfloat16 would have only about three digits. In float32 the 1 in I + cG is lost when c‖Z‖² exceeds
about 10⁷: directions without energy then count as rounding noise. Use float64 for rank-deficient tokens of such size.
If the Gram matrix of finite tokens overflows, singular values of the rescaled tokens in float64 take its place.
NaN or inf tokens give NaN for their sample. A result that overflows by itself raises an error.

Gradients are in closed form. With A = (I_n + c zzᵀ)⁻¹ and B = (I_d + c zᵀz)⁻¹ the push-through identity A z = z B lets
us always invert the smaller side: the paper's Z(I + cZ*Z)⁻¹ is Az here.
"""

from __future__ import annotations

import math
from numbers import Real

import torch
import torch.nn.functional as F
from torch import Tensor, cholesky_inverse

from codingrate.errors import CrateError, unknown_name

from ._tensors import (
    all_finite,
    check_bases,
    check_overflow,
    check_tokens,
    cholesky,
    full_precision,
    half_logdet,
    shifted_gram,
    smaller_gram,
    spectral_gradient,
    unit_scaled,
)
from .sparsity import NORMS, entropy_rank, unit_singular_values

SMALLEST_EPS = 1e-12
"""Smallest ε; its inverse is the largest. Beyond them dim/(nε²) or its inverse is lost in float32."""
METHODS = ("exact", "neumann", "attention")


def rate_scale(n: int, dim: int, eps: float) -> float:
    """Compute dim/(n ε²): the paper's α for dim = d, its β for dim = p."""
    if isinstance(eps, bool) or not isinstance(eps, Real):
        raise CrateError(f"eps must be a number, got a {type(eps).__name__}")
    if not eps > 0:
        raise CrateError(f"eps must be positive, got {eps}")
    if not SMALLEST_EPS <= eps <= 1 / SMALLEST_EPS:
        raise CrateError(f"eps must lie between {SMALLEST_EPS:g} and {1 / SMALLEST_EPS:g}")
    return dim / (n * float(eps) ** 2)


def project(z: Tensor, bases: Tensor) -> Tensor:
    """Project tokens to codes U_k* Z on every subspace: z (..., n, d), bases (K, d, p) → (..., K, n, p).

    Bases of several layers, (..., K, d, p), broadcast with the leading axes of z.
    """
    check_tokens(z)
    check_bases(bases, z, batched=True)
    dtype = torch.promote_types(z.dtype, bases.dtype)
    return torch.einsum("...nd,...kdp->...knp", z.to(dtype), bases.to(dtype))


def projected_coding_rate(w: Tensor, eps: float = 0.5) -> Tensor:
    """Compute the coding rate of tokens that are already projected, w = zU_k (..., n, p) → (...).

    R(U_k*Z) = ½ logdet(I + β (U_k*Z)*(U_k*Z)), β = p/(nε²)   (§2.1, coding rate on a subspace)

    Put the heads on a leading axis, (..., K, n, p), and sum over it to get R^c(Z | U).
    """
    w = check_tokens(w, "w")
    beta = rate_scale(w.shape[-2], w.shape[-1], eps)
    with full_precision(w):
        return half_logdet(smaller_gram(w, beta), beta, lambda: unit_scaled(w))


def projected_rate_and_gradient(w: Tensor, eps: float = 0.5) -> tuple[Tensor, Tensor]:
    """Compute R(w) and ∇R(w) = β w (I + β w*w)⁻¹ of projected tokens (..., n, p) → (...), (..., n, p) from one Gram."""
    w = check_tokens(w, "w")
    beta = rate_scale(w.shape[-2], w.shape[-1], eps)
    with full_precision(w):
        gram = smaller_gram(w, beta)
        rate = half_logdet(gram, beta, lambda: unit_scaled(w))
        return rate, check_overflow(_rate_gradient(w, beta, gram), w)


def coding_rate(z: Tensor, eps: float = 0.5) -> Tensor:
    """Compute the lossy coding rate of all tokens under one Gaussian, z (..., n, d) → (...).

    R(Z) = ½ logdet(I + α Z*Z) = ½ logdet(I + α ZZ*), α = d/(nε²)   (eq. coding_rate)

    This is `projected_coding_rate` with d in the place of p.
    """
    return projected_coding_rate(check_tokens(z), eps)


@torch.no_grad()
def rate_and_rank(z: Tensor, eps: float = 0.5, gram: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute R(Z) and the effective rank of z (..., n, d) → (...), (...) from one set of singular values σ.

    R(Z) = ½ Σ_i log(1 + ασ_i²), α = d/(nε²). This is cheaper than `coding_rate` and `effective_rank` in turn, which
    need a Gram matrix each. The sum is taken in float64, and there is no gradient. `gram` is `smaller_product(z)`, if
    it is known.
    """
    sigma, size = unit_singular_values(z, gram)
    scale = rate_scale(z.shape[-2], z.shape[-1], eps)
    rate = F.softplus(2 * (sigma * size[..., None]).log() + math.log(scale)).sum(-1) / 2
    dtype = check_tokens(z).dtype
    return rate.to(dtype), entropy_rank(sigma).to(dtype)


def _check_memberships(memberships: Tensor, z: Tensor) -> Tensor:
    """Check memberships (..., K, n), soft or Boolean; return them in the dtype of the tokens z."""
    if not isinstance(memberships, Tensor) or memberships.is_complex():
        raise CrateError("memberships must be a tensor of real numbers or of truth values")
    shape = tuple(memberships.shape)
    if memberships.ndim < 2 or shape[-1] != z.shape[-2]:
        raise CrateError(f"memberships must be (..., K, n) with n = {z.shape[-2]} tokens, got shape {shape}")
    try:
        torch.broadcast_shapes(shape[:-2], z.shape[:-2])
    except RuntimeError:
        axes = f"{shape[:-2]} but the tokens z have {tuple(z.shape[:-2])}"
        raise CrateError(f"memberships have leading axes {axes}; they must broadcast") from None
    if bool((memberships < 0).any()):
        raise CrateError("memberships must not be negative")
    memberships = memberships.to(z.dtype)
    if not bool(memberships.sum(-1).isfinite().all()):
        raise CrateError("memberships must be finite, and so must be their sums over the tokens")
    return memberships


def class_coding_rate(z: Tensor, memberships: Tensor, eps: float = 0.5, *, weighted: bool = False) -> Tensor:
    """Compute the rate of the tokens given their classes, z (..., n, d), memberships Π (..., K, n) → (...).

    R^c(Z | Π) = ½ Σ_k logdet(I + γ_k Z Π_k Z*), γ_k = d/(n_k ε²), n_k = Σ_i Π_ki
    (eq. conditional_coding_rate_original; Boolean Π there, any non-negative weights here)

    With `weighted` each class counts by its share n_k/n of the tokens, ½ Σ_k (n_k/n) logdet(I + γ_k Z Π_k Z*): the rate
    of MCR² (Yu et al. 2020), which the paper cites and prints without the weights. If the memberships of every token
    sum to 1, this rate is at most R(Z), because logdet is concave, so that ΔR ≥ 0; the printed one may exceed it.

    An empty class (n_k = 0) contributes 0. The leading axes of z and Π broadcast.
    """
    z = check_tokens(z)
    pi = _check_memberships(memberships, z)
    n, d = z.shape[-2:]
    scale = rate_scale(1, d, eps)  # d/ε²; the 1/n_k is in the weights
    with full_precision(z):
        counts = pi.sum(-1, keepdim=True)  # (..., K, 1)
        weights = (pi / torch.where(counts > 0, counts, 1)).unsqueeze(-1)  # (..., K, n, 1)
        tokens = z.unsqueeze(-3)  # (..., 1, n, d)

        def summed(rates: Tensor) -> Tensor:
            return (rates * counts[..., 0] / n).sum(-1) if weighted else rates.sum(-1)

        def again() -> tuple[Tensor, Tensor]:
            if pi.requires_grad:
                raise CrateError("tokens are too large for a gradient in the memberships; divide them")
            unit, log_size = unit_scaled(tokens)
            return weights.double().sqrt() * unit, log_size

        # The n×n side needs √Π, whose derivative is infinite at 0; it cannot be used if Π itself is learned.
        if n < d and not pi.requires_grad:
            return summed(half_logdet(smaller_gram(weights.sqrt() * tokens, scale), scale, again))
        members = weights * tokens  # (..., K, n, d)
        return summed(half_logdet(shifted_gram(members.mT, tokens.expand_as(members), scale), scale, again))


def subspace_coding_rate(z: Tensor, bases: Tensor, eps: float = 0.5) -> Tensor:
    """Compute the rate of the tokens coded on each of K subspaces, z (..., n, d), bases U (K, d, p) → (...).

    R^c(Z | U) = Σ_k R(U_k*Z) = ½ Σ_k logdet(I + β (U_k*Z)*(U_k*Z)), β = p/(nε²)   (eq. def-mcr-parts)

    The bases are used as they are; the paper's are orthonormal, learned ones need not be.
    """
    z = check_tokens(z)
    check_bases(bases, z)
    beta = rate_scale(z.shape[-2], bases.shape[-1], eps)

    def again() -> tuple[Tensor, Tensor]:
        (unit, log_size), (frames, log_norms) = unit_scaled(z), unit_scaled(bases)
        return project(unit, frames), log_size[..., None] + log_norms

    with full_precision(z):
        return half_logdet(smaller_gram(project(z, bases), beta), beta, again).sum(-1)


def rate_reduction(z: Tensor, bases: Tensor, eps: float = 0.5) -> Tensor:
    """Compute ΔR(Z | U) = R(Z) − R^c(Z | U), the information gain to maximize; z (..., n, d) → (...)."""
    return coding_rate(z, eps) - subspace_coding_rate(z, bases, eps)


def sparse_rate_reduction(z: Tensor, bases: Tensor, eps: float = 0.5, weight: float = 0.1, norm: str = "l1") -> Tensor:
    """Compute the objective that the network maximizes; z (..., n, d), bases (K, d, p) → (...).

    ΔR(Z | U) − λ‖Z‖₀ (eq. sparse-rr, norm="l0") or ΔR(Z | U) − λ‖Z‖₁ (its relaxation, norm="l1"),
    with λ = weight. ‖Z‖₀ counts the non-zero entries and has no gradient.
    """
    if norm not in NORMS:
        raise unknown_name("norm", norm, NORMS)
    z = check_tokens(z)
    return rate_reduction(z, bases, eps) - weight * NORMS[norm](z)


def energy(z: Tensor, bases: Tensor, eps: float = 0.5, weight: float = 0.1) -> Tensor:
    """Compute E(Z | U) = −[R(Z) − R^c(Z | U) − λ‖Z‖₁] with λ = weight; z (..., n, d), bases (K, d, p) → (...).

    The paper's remark on energy-based models reads e^{−E} as an un-normalized density of the tokens,

    p(Z | U) = C e^{−λ‖Z‖₁} (det(I + αZ*Z) / Π_k det(I + β(U_k*Z)*(U_k*Z)))^½   (eqn. sparse-rate-reduction-density)

    The paper prints the ratio of determinants without the power ½, which comes from the ½ of both rates. For λ > 0 the
    density has a finite integral, because determinants grow as a power of ‖Z‖ only.
    """
    return -sparse_rate_reduction(z, bases, eps, weight)


def _solve(rows: Tensor, factor: Tensor) -> Tensor:
    """Compute A·rows or rows·B for rows (..., n, p), by the size of the factor (n×n or p×p).

    For n = p the factor is that of the p×p side, as in `smaller_gram`.
    """
    inverse = cholesky_inverse(factor)  # a product is faster than a solve with many columns
    return inverse @ rows if rows.shape[-2] < rows.shape[-1] else rows @ inverse


def _rate_gradient(w: Tensor, scale: float, gram: Tensor) -> Tensor:
    """Compute ∇ ½ logdet(I + c wwᵀ) = c (I + c wwᵀ)⁻¹ w = c w (I + c wᵀw)⁻¹, w (..., n, p), from its smaller Gram."""
    gradient = scale * _solve(w, cholesky(gram))
    if all_finite(gradient):
        return gradient
    spectral = spectral_gradient(scale, *unit_scaled(w)).to(w.dtype)  # the Gram matrix overflows, or w is not finite
    return spectral if bool((spectral.isfinite() & ~gradient.isfinite()).any()) else gradient


def coding_rate_gradient(z: Tensor, eps: float = 0.5) -> Tensor:
    """Compute ∇R(Z) = α Z (I + α Z*Z)⁻¹, α = d/(nε²); z (..., n, d) → (..., n, d)."""
    z = check_tokens(z)
    alpha = rate_scale(z.shape[-2], z.shape[-1], eps)
    with full_precision(z):
        return check_overflow(_rate_gradient(z, alpha, smaller_gram(z, alpha)), z)


def subspace_coding_rate_gradient(
    z: Tensor, bases: Tensor, eps: float = 0.5, method: str = "exact", *, identity_projection: bool = False
) -> Tensor:
    """Compute ∇R^c(Z | U) or an approximation that leads to attention; z (..., n, d), U (K, d, p) → (..., n, d).

    With W_k = U_k*Z and β = p/(nε²):
    "exact"      β Σ_k U_k W_k (I + β W_k*W_k)⁻¹              (eq. rate-gradient)
    "neumann"    β Σ_k U_k W_k (I − β W_k*W_k)                (eq. gd_rc_neumann; error O(‖Z‖⁵) as Z → 0)
    "attention"  β (Σ_k U_k U_k*) Z − β MSSA(Z | U),          (appendix A, eq. appendix-ssa-derivation)
                 MSSA(Z | U) = β Σ_k U_k W_k softmax(W_k*W_k), no scale in the softmax

    With method="attention", `identity_projection` also takes the last step of the appendix, Σ_k U_k U_k* Z ≈ Z, so
    that the result is βZ − β MSSA(Z | U), which the layer uses.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if identity_projection and method != "attention":
        raise CrateError(f'identity_projection is a step of method="attention", not of method={method!r}')
    z = check_tokens(z)
    check_bases(bases, z)
    beta = rate_scale(z.shape[-2], bases.shape[-1], eps)
    with full_precision(z):
        w = project(z, bases)  # (..., K, n, p)
        bases = bases.to(w.dtype)
        if method == "exact":
            codes = _rate_gradient(w, beta, smaller_gram(w, beta))
        elif method == "neumann":
            codes = beta * (w - beta * (w @ (w.mT @ w)))
        else:
            # Softmax down the paper's columns is over the keys, the last axis of our rows.
            ssa = F.scaled_dot_product_attention(w, w, w, scale=1.0)
            codes = beta * (0.0 if identity_projection else w) - beta**2 * ssa
        gradient = torch.einsum("...knp,kdp->...nd", codes, bases)
        return check_overflow(gradient + beta * z if identity_projection else gradient, z, bases)


def sparse_rate_reduction_gradient(z: Tensor, bases: Tensor, eps: float = 0.5, weight: float = 0.1) -> Tensor:
    """Compute ∇R(Z) − ∇R^c(Z | U) − λ sign(Z); z (..., n, d), bases (K, d, p) → (..., n, d).

    It is the gradient of the objective (eqn. sparse-rate-reduction-gradient) and the score ∇log p(Z | U) of the density
    e^{−E} (eqn. sparse-rate-reduction-score). Where an entry is 0, λ‖Z‖₁ has no gradient and its smallest subgradient,
    0, is taken.
    """
    rates = coding_rate_gradient(z, eps) - subspace_coding_rate_gradient(z, bases, eps)
    return rates - weight * z.to(rates.dtype).sign()


def coding_rate_hvp(z: Tensor, direction: Tensor, eps: float = 0.5) -> Tensor:
    """Apply the Hessian of R at z to a direction Δ; z, direction (..., n, d) → (..., n, d).

    ∇²R(Z)[Δ] = α Δ M − α² Z M (Z*Δ + Δ*Z) M, M = (I + α Z*Z)⁻¹   (appendix B, Hessian lemma)

    In rows δ, with g = ∇R = αAz and I − zᵀg = B, I − gzᵀ = A, this is αAδB − gδᵀg: one factorization
    of the smaller side, and no n×n matrix when d ≤ n.
    """
    z, direction = check_tokens(z), check_tokens(direction, "direction")
    if z.shape[-2:] != direction.shape[-2:]:
        raise CrateError(f"direction must be (..., n, d) = (..., {z.shape[-2]}, {z.shape[-1]}) like z")
    alpha = rate_scale(z.shape[-2], z.shape[-1], eps)
    direction = direction.to(z.dtype)
    with full_precision(z):
        factor = cholesky(smaller_gram(z, alpha))
        gradient = alpha * _solve(z, factor)
        half = alpha * _solve(direction, factor)
        if z.shape[-2] < z.shape[-1]:  # half = αAδ; times B = I − zᵀg
            hessian = half - (half @ z.mT + gradient @ direction.mT) @ gradient
        else:  # half = αδB; A = I − gzᵀ
            hessian = half - gradient @ (z.mT @ half + direction.mT @ gradient)
        return check_overflow(hessian, z, direction)


def coding_rate_lipschitz(n: int, d: int, eps: float = 0.5, *, tight: bool = False) -> float:
    """Return the Lipschitz constant of ∇R: the paper's 9α/4, α = d/(nε²) (appendix B, logdet-grad-lipschitz).

    tight=True gives α, which we found to be the best constant: in the singular basis of Z the Hessian
    has the eigenvalues α(1 ± α s_i s_j) / ((1 + α s_i²)(1 + α s_j²)), at most α since
    (1 + x²)(1 + y²) ≥ (1 + xy)², and Z = 0 attains it.
    """
    if n < 1 or d < 1:
        raise CrateError(f"n and d must be at least 1, got n = {n}, d = {d}")
    alpha = rate_scale(n, d, eps)
    return alpha if tight else 9 * alpha / 4
