"""Coding rates and rate reduction (paper §2.1).

Every rate is ½ logdet(I + cG) of a Gram matrix G. One function computes it from the Cholesky factor of the smaller of
the two Gram matrices, batched over all leading axes and differentiable twice.

float64 and float32 are kept. float16 and bfloat16 tokens are computed in float32 and the rate is returned in float32,
since a rate in bfloat16 would have only about three digits. In float32 the 1 in I + cG is lost when c‖Z‖² exceeds
about 10⁷: directions without energy then count as rounding noise. Use float64 for rank-deficient tokens of such size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from codingrate.errors import CrateError, unknown_name

from ._tensors import check_bases, check_tokens, full_precision, half_logdet, shifted_gram, smaller_gram
from .sparsity import NORMS


def rate_scale(n: int, dim: int, eps: float) -> float:
    """Compute dim/(n ε²): the paper's α for dim = d, its β for dim = p."""
    if not eps > 0:
        raise CrateError(f"eps must be positive, got {eps}")
    return dim / (n * eps**2)


def project(z: Tensor, bases: Tensor) -> Tensor:
    """Project tokens to codes U_k* Z on every subspace: z (..., n, d), bases (K, d, p) → (..., K, n, p)."""
    dtype = torch.promote_types(z.dtype, bases.dtype)
    return torch.einsum("...nd,kdp->...knp", z.to(dtype), bases.to(dtype))


def projected_coding_rate(w: Tensor, eps: float = 0.5) -> Tensor:
    """Compute the coding rate of tokens that are already projected, w = zU_k (..., n, p) → (...).

    R(U_k*Z) = ½ logdet(I + β (U_k*Z)*(U_k*Z)), β = p/(nε²)   (§2.1, coding rate on a subspace)

    Put the heads on a leading axis, (..., K, n, p), and sum over it to get R^c(Z | U).
    """
    w = check_tokens(w, "w")
    with full_precision(w):
        return half_logdet(smaller_gram(w, rate_scale(w.shape[-2], w.shape[-1], eps)))


def coding_rate(z: Tensor, eps: float = 0.5) -> Tensor:
    """Compute the lossy coding rate of all tokens under one Gaussian, z (..., n, d) → (...).

    R(Z) = ½ logdet(I + α Z*Z) = ½ logdet(I + α ZZ*), α = d/(nε²)   (eq. coding_rate)

    This is `projected_coding_rate` with d in the place of p.
    """
    return projected_coding_rate(check_tokens(z), eps)


def _check_memberships(memberships: Tensor, z: Tensor) -> Tensor:
    """Check memberships (..., K, n), soft or Boolean; return them in the dtype of the tokens z."""
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
    return memberships.to(z.dtype)


def class_coding_rate(z: Tensor, memberships: Tensor, eps: float = 0.5) -> Tensor:
    """Compute the rate of the tokens given their classes, z (..., n, d), memberships Π (..., K, n) → (...).

    R^c(Z | Π) = ½ Σ_k logdet(I + γ_k Z Π_k Z*), γ_k = d/(n_k ε²), n_k = Σ_i Π_ki
    (eq. conditional_coding_rate_original; Boolean Π there, any non-negative weights here)

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
        # The n×n side needs √Π, whose derivative is infinite at 0; it cannot be used if Π itself is learned.
        if n < d and not pi.requires_grad:
            return half_logdet(smaller_gram(weights.sqrt() * tokens, scale)).sum(-1)
        weighted = weights * tokens  # (..., K, n, d)
        return half_logdet(shifted_gram(weighted.mT, tokens.expand_as(weighted), scale)).sum(-1)


def subspace_coding_rate(z: Tensor, bases: Tensor, eps: float = 0.5) -> Tensor:
    """Compute the rate of the tokens coded on each of K subspaces, z (..., n, d), bases U (K, d, p) → (...).

    R^c(Z | U) = Σ_k R(U_k*Z) = ½ Σ_k logdet(I + β (U_k*Z)*(U_k*Z)), β = p/(nε²)   (eq. def-mcr-parts)

    The bases are used as they are; the paper's are orthonormal, learned ones need not be.
    """
    z = check_tokens(z)
    check_bases(bases, z)
    with full_precision(z):
        return projected_coding_rate(project(z, bases), eps).sum(-1)


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
