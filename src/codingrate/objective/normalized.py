"""The compression measure under the paper's assumptions: unit tokens and orthonormal bases (§2.1, §2.3, appendix A).

R^c(Z | U) of learned bases and raw tokens follows their norms: tokens that are half as long cost fewer bits on any
subspaces. The paper derives its steps for orthonormal U_k and normalized tokens. The normalized rate is R^c of the unit
tokens z_i/‖z_i‖ on orthonormal bases of the same subspaces. It depends on the directions of the tokens and on the
subspaces only, not on the norms of tokens nor on the basis that a network happens to use.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ._tensors import half_logdet, unit_scaled
from .rates import coding_rate, rate_reduction, rate_scale, subspace_coding_rate, subspace_coding_rate_gradient
from .signal import orthonormal_columns

SMALLEST_SQUARE = 1e-30
"""Squared norm up to which a token counts as zero where only its Gram matrix is read."""


def unit_tokens(z: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scale tokens z (..., n, d) to unit length, in float32 at least; a zero token stays zero.

    With a `mask` (..., n), True for real tokens, padding becomes zero, and the others have the length √(n/m) for m real
    tokens: then every rate, whose scale is p/(nε²), is that of the m unit tokens alone.
    """
    unit = F.normalize(z.to(torch.promote_types(z.dtype, torch.float32)), dim=-1)
    if mask is None:
        return unit
    real = mask.to(unit.dtype)
    return unit * (real * (mask.shape[-1] / real.sum(-1, keepdim=True).clamp(min=1)).sqrt())[..., None]


def normalized_rate(z: Tensor, eps: float = 0.5, gram: Tensor | None = None) -> Tensor:
    """Compute R(Z) of unit tokens, z (..., n, d) → (...); `gram` is `smaller_product(z)`, if it is known."""
    n, d = z.shape[-2:]
    if gram is None or n >= d or not bool((gram.diagonal(dim1=-2, dim2=-1) > SMALLEST_SQUARE).all()):
        return coding_rate(unit_tokens(z), eps)
    alpha, length = rate_scale(n, d, eps), gram.diagonal(dim1=-2, dim2=-1).sqrt()
    cosines = gram / length.unsqueeze(-1) / length.unsqueeze(-2)
    identity = torch.eye(n, dtype=gram.dtype, device=gram.device)
    return half_logdet(identity + alpha * cosines, alpha, lambda: unit_scaled(unit_tokens(z)))


def normalized_compression(z: Tensor, bases: Tensor, eps: float = 0.5, mask: Tensor | None = None) -> Tensor:
    """Compute R^c(Z | U) of unit tokens on orthonormal bases; z (..., n, d), bases (K, d, p) → (...)."""
    return subspace_coding_rate(unit_tokens(z, mask), orthonormal_columns(bases.to(_work(bases))), eps)


def normalized_reduction(z: Tensor, bases: Tensor, eps: float = 0.5, mask: Tensor | None = None) -> Tensor:
    """Compute ΔR(Z | U) = R(Z) − R^c(Z | U) of unit tokens on orthonormal bases; z (..., n, d) → (...)."""
    return rate_reduction(unit_tokens(z, mask), orthonormal_columns(bases.to(_work(bases))), eps)


def tangential(direction: Tensor, z: Tensor) -> Tensor:
    """Remove from each row of a direction (..., n, d) its part along the token z_i: what changes only the length."""
    unit = unit_tokens(z)
    direction = direction.to(unit.dtype)
    return direction - (direction * unit).sum(-1, keepdim=True) * unit


def descent_direction(z: Tensor, bases: Tensor, eps: float = 0.5) -> Tensor:
    """Compute the tangential part of −∇R^c at the unit tokens on orthonormal bases; z (..., n, d) → (..., n, d).

    It is the steepest descent of `normalized_compression` over the directions of the tokens.
    """
    unit = unit_tokens(z)
    return tangential(-subspace_coding_rate_gradient(unit, orthonormal_columns(bases.to(_work(bases))), eps), unit)


def _work(bases: Tensor) -> torch.dtype:
    return torch.promote_types(bases.dtype, torch.float32)
