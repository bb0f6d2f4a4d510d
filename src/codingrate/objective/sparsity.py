"""How sparse tokens are: ‖Z‖₀, ‖Z‖₁ and the share of small entries (paper §2.1 and figure of §4.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from codingrate.errors import CrateError

from ._checks import check_floating, check_tokens

Axes = int | tuple[int, ...]


def l0_norm(z: Tensor, dim: Axes = (-2, -1)) -> Tensor:
    """‖Z‖₀, the number of non-zero entries over `dim`, in float32 (float64 for float64 tokens)."""
    z = check_tokens(z)
    return (z != 0).sum(dim).to(z.dtype)


def l1_norm(z: Tensor, dim: Axes = (-2, -1)) -> Tensor:
    """‖Z‖₁, the sum of |entries| over `dim`; half precision is summed and returned in float32."""
    return check_tokens(z).abs().sum(dim)


def l0_fraction(z: Tensor, dim: Axes = (-2, -1)) -> Tensor:
    """‖Z‖₀ / (number of entries) over `dim`: 1 is dense, 0 is all zero."""
    z = check_tokens(z)
    return (z != 0).to(z.dtype).mean(dim)


def fraction_below(z: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Share of entries with |z_ij| < τ for each τ: z (..., n, d) → (..., len(thresholds)).

    Strictly below, so τ = 0 gives 0. Activations that are never exactly zero show here, not in ‖Z‖₀.
    """
    check_floating(z)
    if any(not tau >= 0 for tau in thresholds):
        raise CrateError(f"thresholds must not be negative, got {list(thresholds)}")
    size = check_tokens(z).abs()
    # One pass per threshold: a (..., n, d, thresholds) tensor would not fit for real layers.
    shares = [(size < tau).to(size.dtype).mean((-2, -1)) for tau in thresholds]
    return torch.stack(shares, -1) if shares else size.new_empty(*size.shape[:-2], 0)


NORMS: dict[str, Callable[[Tensor], Tensor]] = {"l0": l0_norm, "l1": l1_norm}
