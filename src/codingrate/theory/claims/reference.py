"""The paper's formulas written out densely, as references for claims.

They share no code with `codingrate.objective`, `codingrate.operators` and `codingrate.theory`: a wrong factor there is
not in the reference too. Tokens are rows, z (n, d); bases are (K, d, p).
"""

from __future__ import annotations

import torch
from torch import Tensor


def alpha(z: Tensor, eps: float) -> float:
    """Return α = d/(nε²)."""
    n, d = z.shape[-2:]
    return d / (n * eps * eps)


def beta(z: Tensor, bases: Tensor, eps: float) -> float:
    """Return β = p/(nε²)."""
    return bases.shape[-1] / (z.shape[-2] * eps * eps)


def half_logdet(w: Tensor, scale: float) -> Tensor:
    """Return ½ log det(I + scale · wwᵀ) of rows w (..., n, m), by LU factorization of the smaller side, (...)."""
    gram = w @ w.mT if w.shape[-2] < w.shape[-1] else w.mT @ w
    return torch.linalg.slogdet(torch.eye(gram.shape[-1], dtype=w.dtype) + scale * gram)[1] / 2


def rate(z: Tensor, eps: float) -> Tensor:
    """Return R(Z) = ½ log det(I + αZ*Z)."""
    return half_logdet(z, alpha(z, eps))


def compression(z: Tensor, bases: Tensor, eps: float) -> Tensor:
    """Return R^c(Z | U) = Σ_k ½ log det(I + β(U_k*Z)*(U_k*Z))."""
    scale = beta(z, bases, eps)
    return torch.stack([half_logdet(z @ basis, scale) for basis in bases]).sum(0)


def log_density(z: Tensor, bases: Tensor, eps: float, weight: float, power: float) -> Tensor:
    """Return log of e^{−λ‖Z‖₁} (det(I + αZ*Z)/Π_k det(I + β(U_k*Z)*(U_k*Z)))^power; the paper prints power 1."""
    ratio = 2 * rate(z, eps) - 2 * compression(z, bases, eps)  # log of the ratio of determinants
    return power * ratio - weight * z.abs().sum((-2, -1))


def compression_gradient(z: Tensor, bases: Tensor, eps: float) -> Tensor:
    """Return β Σ_k U_k(U_k*Z)(I + β(U_k*Z)*(U_k*Z))⁻¹ in rows, by explicit inverses, (n, d)."""
    scale = beta(z, bases, eps)

    def term(basis: Tensor) -> Tensor:
        w = z @ basis
        return scale * torch.linalg.inv(torch.eye(len(z), dtype=z.dtype) + scale * w @ w.mT) @ w @ basis.mT

    return sum(map(term, bases), torch.zeros_like(z))


def mixture_score(z: Tensor, bases: Tensor, variances: Tensor, sigma: float) -> Tensor:
    """Return B.2's −Σ_k softmax(−½‖M_k*z‖²)_k M_kM_k*z with M_k = (U_kΛU_k* + σ²I)^{-1/2}, (n, d).

    M_k is formed by an eigendecomposition of the dense covariance.
    """

    def pull(basis: Tensor) -> tuple[Tensor, Tensor]:
        """Return −½‖M_k*z‖² (n,) and M_kM_k*z (n, d)."""
        values, vectors = torch.linalg.eigh((basis * variances) @ basis.mT)
        root = vectors @ torch.diag((values.clamp_min(0) + sigma**2) ** -0.5) @ vectors.mT
        return -(z @ root).square().sum(-1) / 2, z @ root @ root

    affinities, pulls = zip(*map(pull, bases), strict=True)
    shares = torch.stack(affinities, dim=-1).softmax(-1)
    return -(shares.unsqueeze(-1) * torch.stack(pulls, dim=-2)).sum(-2)
