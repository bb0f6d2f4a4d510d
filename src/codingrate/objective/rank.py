"""How many directions tokens fill: the effective rank, a rank that does not jump when noise is added (paper §4.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from ._checks import check_tokens


@torch.no_grad()
def effective_rank(z: Tensor) -> Tensor:
    """exp(−Σ_i p_i log p_i), p_i = σ_i / Σ_j σ_j, for the singular values σ of z (..., n, d) → (...).

    Between 1 (all tokens on a line) and min(n, d) (all σ equal); never more than the rank, and unchanged by scaling
    and by rows of zeros, so padding may be zeroed. Zero tokens fill no direction: 0. Tokens that are not finite: NaN.
    The paper says "low-rank" of §4.2's heat maps and gives no number; this is one (Roy and Vetterli, 2007).

    From the eigenvalues σ² of the smaller Gram matrix in float64, cheaper than singular values. A σ under about 1e-7
    of the largest is only rounding then, as it is in float32 tokens, and counts as none. No gradient.
    """
    z = check_tokens(z)
    size = z.abs().amax((-2, -1), keepdim=True)
    finite = size.isfinite()
    scaled = (z / size.masked_fill(size == 0, 1)).masked_fill(~finite, 0).double()  # no overflow in the squares
    gram = scaled @ scaled.mT if z.shape[-2] < z.shape[-1] else scaled.mT @ scaled
    squares = torch.linalg.eigvalsh(gram)  # ascending
    rounding = squares.shape[-1] * torch.finfo(squares.dtype).eps * squares[..., -1:]
    sigma = squares.where(squares > rounding, 0).sqrt()
    p = sigma / sigma.sum(-1, keepdim=True).clamp(min=torch.finfo(sigma.dtype).tiny)
    rank = torch.special.entr(p).sum(-1).exp()
    some = size[..., 0, 0] > 0
    return rank.where(some, 0).masked_fill(~finite[..., 0, 0], torch.nan).to(z.dtype)
