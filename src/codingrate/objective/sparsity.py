"""Sparsity and effective rank of tokens: ‖Z‖₀, ‖Z‖₁, the share of small entries, and a rank (paper §2.1, §4.2).

Tokens with NaN or inf give NaN, except that ‖Z‖₁ of inf is inf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from codingrate.errors import CrateError

from ._tensors import check_overflow, check_tokens

Axes = int | tuple[int, ...]
LARGEST_ROUNDING = 0.01
"""Mean relative rounding of σ² up to which singular values are computed in the dtype of the tokens."""


def _not_finite(z: Tensor, dim: Axes) -> Tensor:
    """Return 0, or NaN if an entry over `dim` is NaN or inf, which a count would hide."""
    return (z.detach() * 0).sum(dim)


def l0_norm(z: Tensor, dim: Axes = (-2, -1)) -> Tensor:
    """Compute ‖Z‖₀, the number of non-zero entries over `dim`, in float32 (float64 for float64 tokens)."""
    z = check_tokens(z)
    return (z != 0).sum(dim).to(z.dtype) + _not_finite(z, dim)


def l1_norm(z: Tensor, dim: Axes = (-2, -1)) -> Tensor:
    """Compute ‖Z‖₁, the sum of |entries| over `dim`; half precision is summed and returned in float32."""
    z = check_tokens(z)
    return check_overflow(z.abs().sum(dim), z)


def l0_fraction(z: Tensor, dim: Axes = (-2, -1)) -> Tensor:
    """Compute ‖Z‖₀ / (number of entries) over `dim`: 1 is dense, 0 is all zero."""
    z = check_tokens(z)
    return z.detach().sign().abs().mean(dim) + _not_finite(z, dim)


def fraction_below(z: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Compute the share of entries with |z_ij| < τ for each τ: z (..., n, d) → (..., len(thresholds)).

    τ = 0 gives 0. Small activations that are never exactly zero show here, not in ‖Z‖₀.
    """
    size = check_tokens(z).abs()
    if any(not tau >= 0 for tau in thresholds):
        raise CrateError(f"thresholds must not be negative, got {list(thresholds)}")
    # One pass per threshold: a (..., n, d, thresholds) tensor would not fit for real layers. Signs take half the time
    # of Booleans.
    shares = [-(size - tau).sign().clamp(max=0).mean((-2, -1)) for tau in thresholds]
    bad = _not_finite(size, (-2, -1)).unsqueeze(-1)
    return torch.stack(shares, -1) + bad if shares else size.new_empty(*size.shape[:-2], 0)


def hoyer_sparsity(z: Tensor) -> Tensor:
    """Compute (√d − ‖z‖₁/‖z‖₂)/(√d − 1) of tokens z (..., d) → (...), Hoyer's measure of sparsity (2004).

    It is 0 if all |z_i| are equal and 1 if at most one is not 0, and it does not depend on the norm of a token. The
    share of non-zero entries says less: after a ReLU it is near one half for any model.
    """
    z = check_tokens(z)
    root = z.shape[-1] ** 0.5
    size = torch.linalg.vector_norm(z, dim=-1)
    ratio = z.abs().sum(-1) / size.where(size > 0, 1)
    return ((root - ratio) / max(root - 1, 1e-9)).where((size > 0) | size.isnan(), 1)


@torch.no_grad()
def effective_rank(z: Tensor) -> Tensor:
    """Compute exp(−Σ_i p_i log p_i), p_i = σ_i / Σ_j σ_j, of the singular values σ of z (..., n, d) → (...).

    It counts the directions that tokens fill, without jumps when noise is added (Roy and Vetterli, 2007). The paper
    calls the heat maps of §4.2 "low-rank" and gives no number; this is one. It lies between 1 (all tokens on a line)
    and min(n, d) (all σ equal), is at most the rank, and does not change with scale or with rows of zeros, so that
    padding may be zeroed. All-zero tokens give 0, tokens that are not finite NaN. There is no gradient.
    """
    return entropy_rank(unit_singular_values(z)[0]).to(check_tokens(z).dtype)


def smaller_product(z: Tensor) -> Tensor:
    """Compute zzᵀ or zᵀz of tokens z (..., n, d), whichever is smaller."""
    return z @ z.mT if z.shape[-2] < z.shape[-1] else z.mT @ z


def unit_singular_values(z: Tensor, gram: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute the singular values of z/s (..., n, d) → (..., m) in float64, ascending, and the scale s (...).

    σ² are eigenvalues of the smaller Gram matrix, m = min(n, d), which is cheaper than singular values. They keep the
    dtype of the tokens and s = 1 if rounding by eps · max σ² changes a σ² by less than 1 % on average; the mean of
    σ is then right to about 1e-5 (measured on trained models). The other samples are computed in float64, with the
    largest |entry| as s. A σ below about 1e-7 of the largest is rounding, as it is in float32 tokens, and counts as
    zero. NaN or inf tokens give NaN. `gram` is `smaller_product(z)`, if it is known.
    """
    z = check_tokens(z)
    gram = smaller_product(z) if gram is None else gram
    finite = gram.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    squares = torch.linalg.eigvalsh(gram.masked_fill(~finite, 0))  # ascending
    number = torch.finfo(z.dtype)
    normal = (squares - number.tiny / number.eps).clamp(min=0)
    rounded = ~(number.eps * (squares[..., -1:] / normal).mean(-1) < LARGEST_ROUNDING)  # also where this is NaN
    sigma, size = squares.clamp(min=0).double().sqrt(), torch.ones_like(squares[..., 0], dtype=torch.float64)
    if bool(rounded.any()):
        sigma[rounded], size[rounded] = _exact_singular_values(z[rounded].double())
    return sigma, size


def _exact_singular_values(z: Tensor) -> tuple[Tensor, Tensor]:
    """Compute singular values of z/s (..., m) as above for tokens in float64, and the largest |entry| s (...)."""
    size = z.abs().amax((-2, -1), keepdim=True)
    finite = size.isfinite()
    scaled = z / size.masked_fill(size == 0, 1)  # no overflow in the squares
    squares = torch.linalg.eigvalsh(smaller_product(scaled).masked_fill(~finite, 0))
    rounding = squares.shape[-1] * torch.finfo(squares.dtype).eps * squares[..., -1:]
    sigma = squares.where(squares > rounding, 0).sqrt()
    return sigma.masked_fill(~finite[..., 0], torch.nan), size[..., 0, 0]


def entropy_rank(sigma: Tensor) -> Tensor:
    """Compute the effective rank from singular values (..., m) → (...); 0 if all are zero."""
    p = sigma / sigma.sum(-1, keepdim=True).clamp(min=torch.finfo(sigma.dtype).tiny)
    return torch.special.entr(p).sum(-1).exp().where(sigma[..., -1] != 0, 0)


NORMS: dict[str, Callable[[Tensor], Tensor]] = {"l0": l0_norm, "l1": l1_norm}
