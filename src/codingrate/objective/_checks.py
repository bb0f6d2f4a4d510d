"""Argument checks of this room: every mistake is one line that names the argument."""

from __future__ import annotations

import torch
from torch import Tensor

from codingrate.errors import CrateError


def check_floating(z: Tensor, name: str = "z") -> None:
    """Refuse what is not a floating-point tensor."""
    if not isinstance(z, Tensor) or not z.is_floating_point():
        kind = z.dtype if isinstance(z, Tensor) else type(z).__name__
        raise CrateError(f"{name} must be a floating-point tensor, got {kind}; convert it with .float()")


def check_tokens(z: Tensor, name: str = "z") -> Tensor:
    """Tokens (..., n, d) ready to compute with: float32 or float64, half precision raised to float32."""
    check_floating(z, name)
    if z.ndim < 2 or 0 in z.shape[-2:]:
        raise CrateError(f"{name} must be tokens (..., n, d) with n, d ≥ 1, got shape {tuple(z.shape)}")
    return z.float() if z.dtype in (torch.float16, torch.bfloat16) else z


def check_bases(bases: Tensor, z: Tensor | None = None) -> Tensor:
    """Bases (K, d, p), floating, with the d of the tokens when these are given."""
    check_floating(bases, "bases")
    if bases.ndim != 3 or 0 in bases.shape:
        raise CrateError(f"bases must be (K, d, p), got shape {tuple(bases.shape)}")
    if z is not None and bases.shape[1] != z.shape[-1]:
        raise CrateError(f"bases have d = {bases.shape[1]} but the tokens z have d = {z.shape[-1]}")
    return bases


def check_eps(eps: float) -> None:
    """The quantization precision ε must be positive."""
    if not eps > 0:
        raise CrateError(f"eps must be positive, got {eps}")


def check_memberships(memberships: Tensor, z: Tensor) -> Tensor:
    """Memberships (..., K, n), soft or Boolean, in the dtype of the tokens z."""
    shape = tuple(memberships.shape)
    if memberships.ndim < 2 or shape[-1] != z.shape[-2]:
        raise CrateError(f"memberships must be (..., K, n) with n = {z.shape[-2]} tokens, got shape {shape}")
    try:
        torch.broadcast_shapes(shape[:-2], z.shape[:-2])
    except RuntimeError:
        lead = tuple(z.shape[:-2])
        raise CrateError(
            f"memberships have leading axes {shape[:-2]} but the tokens z have {lead}; they must broadcast"
        ) from None
    if bool((memberships < 0).any()):
        raise CrateError("memberships must not be negative")
    return memberships.to(z.dtype)
