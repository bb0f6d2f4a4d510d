"""The low-dimensional Gaussian mixture that the paper assumes for tokens (§2.1, model gaussian_tokens)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from codingrate.errors import CrateError, unknown_name

from ._tensors import check_bases

ARRANGEMENTS = ("orthonormal", "incoherent")


class TokenSample(NamedTuple):
    """One draw of the signal model: tokens = clean + σ noise, clean_i = U_{s_i} α_i."""

    tokens: Tensor
    """z (*batch, n, d)."""
    clean: Tensor
    """Tokens before the noise (*batch, n, d)."""
    labels: Tensor
    """Subspace index s_i of each token (*batch, n), int64."""
    codes: Tensor
    """α_i (*batch, n, p), each token's coordinates in its own subspace."""


def random_bases(
    K: int,  # noqa: N803 - the paper's letter
    d: int,
    p: int,
    coherence: str = "orthonormal",
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Draw orthonormal bases U_k of K random p-dimensional subspaces of R^d, (K, d, p).

    coherence="orthonormal": all K·p columns orthonormal together, U_k*U_l = 0 for k ≠ l; needs K·p ≤ d.
    coherence="incoherent": each U_k drawn independently (Haar), so nearly orthogonal when p ≪ d.
    """
    if coherence not in ARRANGEMENTS:
        raise unknown_name("coherence", coherence, ARRANGEMENTS)
    if min(K, d, p) < 1 or p > d:
        raise CrateError(f"bases need K, d, p ≥ 1 and p ≤ d, got K = {K}, d = {d}, p = {p}")
    if coherence == "orthonormal":
        if K * p > d:
            raise CrateError(f'coherence="orthonormal" needs K·p ≤ d, got {K}·{p} > {d}; use coherence="incoherent"')
        return _haar(d, K * p, 1, generator, dtype)[0].view(d, K, p).transpose(0, 1).contiguous()
    return _haar(d, p, K, generator, dtype)


def _haar(d: int, columns: int, count: int, generator: torch.Generator | None, dtype: torch.dtype) -> Tensor:
    """Draw uniform orthonormal frames (count, d, columns): QR of Gaussians, with R's diagonal made positive."""
    device = generator.device if generator is not None else None
    # There is no QR in half precision. With float64 a seed gives the same subspaces in every dtype.
    gaussian = torch.randn(count, d, columns, generator=generator, dtype=torch.float64, device=device)
    q, r = torch.linalg.qr(gaussian)
    return (q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).to(dtype)


def sample_tokens(
    bases: Tensor, n: int, sigma: float = 0.0, generator: torch.Generator | None = None, batch: tuple[int, ...] = ()
) -> TokenSample:
    """Draw z_i = U_{s_i} α_i + σ w_i from bases (K, d, p), in their dtype and on their device.

    s_i is uniform over the K subspaces, α_i ~ N(0, I_p), w_i ~ N(0, I_d), all independent (eq.
    gaussian_tokens_noise). The paper leaves the joint distribution and Σ_k open; these are the simplest choice.
    """
    check_bases(bases)
    if n < 1:
        raise CrateError(f"n must be at least 1, got {n}")
    if not sigma >= 0:
        raise CrateError(f"sigma must not be negative, got {sigma}")
    count, d, p = bases.shape
    dtype, device = bases.dtype, bases.device
    labels = torch.randint(count, (*batch, n), generator=generator, device=device)
    codes = torch.randn((*batch, n, p), generator=generator, dtype=dtype, device=device)
    clean = (bases[labels] @ codes.unsqueeze(-1)).squeeze(-1)
    noise = torch.randn((*batch, n, d), generator=generator, dtype=dtype, device=device)
    return TokenSample(clean + sigma * noise, clean, labels, codes)


def coherence(bases: Tensor) -> Tensor:
    """Compute the maximum over k ≠ l of ‖U_k*U_l‖₂ for bases (K, d, p) → (): 0 when K = 1.

    For orthonormal U_k this is the cosine of the smallest angle between two of the subspaces, 0 when they are
    orthogonal and 1 when two intersect. Bases are not normalized: for those that are not orthonormal, such as
    learned ones, the value scales with them.
    """
    bases = check_bases(bases)
    work = bases.float() if bases.dtype in (torch.float16, torch.bfloat16) else bases
    overlaps = torch.linalg.matrix_norm(torch.einsum("kdp,ldq->klpq", work, work), ord=2)  # (K, K)
    return (overlaps * (1 - torch.eye(len(bases), dtype=work.dtype, device=work.device))).max()
