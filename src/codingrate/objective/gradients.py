"""Gradients of the rates in closed form (paper §2.3, appendix A) and the Hessian lemma (appendix B).

Written with tokens as rows. With A = (I_n + c zzᵀ)⁻¹ and B = (I_d + c zᵀz)⁻¹ the push-through identity
A z = z B lets us always invert the smaller side: the paper's Z(I + cZ*Z)⁻¹ is Az here.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, cholesky_solve, einsum

from codingrate.errors import CrateError, unknown_name

from ._tensors import check_bases, check_tokens, cholesky, full_precision, smaller_gram
from .rates import project, rate_scale

METHODS = ("exact", "neumann", "attention")


def _solve(rows: Tensor, factor: Tensor) -> Tensor:
    """Compute A·rows or rows·B for rows (..., n, p), by the size of the factor (n×n or p×p).

    For n = p the factor is that of the p×p side, as in `smaller_gram`.
    """
    if rows.shape[-2] < rows.shape[-1]:
        return cholesky_solve(rows, factor)
    return cholesky_solve(rows.mT, factor).mT


def _rate_gradient(w: Tensor, scale: float) -> Tensor:
    """Compute ∇ ½ logdet(I + c wwᵀ) = c (I + c wwᵀ)⁻¹ w = c w (I + c wᵀw)⁻¹ for w (..., n, p)."""
    return scale * _solve(w, cholesky(smaller_gram(w, scale)))


def coding_rate_gradient(z: Tensor, eps: float = 0.5) -> Tensor:
    """Compute ∇R(Z) = α Z (I + α Z*Z)⁻¹, α = d/(nε²); z (..., n, d) → (..., n, d)."""
    z = check_tokens(z)
    with full_precision(z):
        return _rate_gradient(z, rate_scale(z.shape[-2], z.shape[-1], eps))


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
            codes = _rate_gradient(w, beta)
        elif method == "neumann":
            codes = beta * (w - beta * (w @ (w.mT @ w)))
        else:
            # Softmax down the paper's columns is over the keys, the last axis of our rows.
            ssa = F.scaled_dot_product_attention(w, w, w, scale=1.0)
            codes = beta * (0.0 if identity_projection else w) - beta**2 * ssa
        gradient = einsum("...knp,kdp->...nd", codes, bases)
        return gradient + beta * z if identity_projection else gradient


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
            return half - (half @ z.mT + gradient @ direction.mT) @ gradient
        return half - gradient @ (z.mT @ half + direction.mT @ gradient)  # half = αδB; A = I − gzᵀ


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
