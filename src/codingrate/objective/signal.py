"""The low-dimensional Gaussian mixture that the paper assumes for tokens (§2.1, model gaussian_tokens), and its bases.

The derivation assumes U_kᵀU_k = I, incoherent subspaces and DᵀD ≈ I (§2.3, §2.4); training enforces none of it.
`coherence` and `orthogonality_gap` measure the deviation, and `orthonormal_columns` excludes it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from codingrate.errors import CrateError, unknown_name

from ._tensors import check_bases

ARRANGEMENTS = ("orthonormal", "incoherent")


class TokenSample(NamedTuple):
    """One draw of the signal model: tokens = clean + σ noise, clean_i = U_{s_i} α_i."""

    tokens: Tensor  # z (*batch, n, d)
    clean: Tensor  # tokens before the noise (*batch, n, d)
    labels: Tensor  # subspace index s_i of each token (*batch, n), int64
    codes: Tensor  # α_i (*batch, n, p), each token's coordinates in its own subspace


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
    together = coherence == "orthonormal"
    if together and K * p > d:
        raise CrateError(f'coherence="orthonormal" needs K·p ≤ d, got {K}·{p} > {d}; use coherence="incoherent"')
    device = generator.device if generator is not None else None
    # There is no QR in half precision. With float64 a seed gives the same subspaces in every dtype.
    shape = (1, d, K * p) if together else (K, d, p)
    gaussian = torch.randn(shape, generator=generator, dtype=torch.float64, device=device)
    frames = orthonormal_columns(gaussian).to(dtype)
    return frames[0].view(d, K, p).transpose(0, 1).contiguous() if together else frames


def equiangular_bases(frame: Tensor, coherence: float) -> Tensor:
    """Tilt the subspaces of a frame (K, d, p) that is orthonormal together until U_k*U_l = νI for all k ≠ l.

    ν = coherence is the cosine of all angles between two subspaces, and must lie in (−1/(K − 1), 1); ν = 0 returns the
    frame. U_1 … U_K are the frame times M^½ ⊗ I_p, where M has ones on its diagonal and ν elsewhere.
    """
    check_bases(frame)
    count = len(frame)
    least = -1 / (count - 1) if count > 1 else -math.inf
    if not least < coherence < 1:
        raise CrateError(f"coherence must lie between {least:g} and 1 for {count} subspaces, got {coherence}")
    own = math.sqrt(1 - coherence)  # M^½ has the eigenvalue `own`, and `shared` for the sum of all subspaces
    shared = math.sqrt(1 + (count - 1) * coherence)
    return own * frame + (shared - own) / count * frame.sum(0)


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
    if not 0 <= sigma < math.inf:
        raise CrateError(f"sigma must be finite and not negative, got {sigma}")
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
    if not bool(bases.isfinite().all()):
        return bases.new_tensor(torch.nan)
    work = bases.float() if bases.dtype in (torch.float16, torch.bfloat16) else bases
    overlaps = torch.linalg.matrix_norm(torch.einsum("kdp,ldq->klpq", work, work), ord=2)  # (K, K)
    return (overlaps * (1 - torch.eye(len(bases), dtype=work.dtype, device=work.device))).max()


def orthonormal_columns(matrix: Tensor) -> Tensor:
    """Return the orthonormal factor Q of a tall or square matrix (..., d, m), m ≤ d, differentiable in the matrix.

    QR with the sign of R's diagonal fixed, so that the map is continuous, leaves an orthonormal matrix unchanged and
    makes a Gaussian matrix uniform (Haar). Half precision is factored in float32.
    """
    work = matrix.float() if matrix.dtype in (torch.bfloat16, torch.float16) else matrix
    q, r = torch.linalg.qr(work)
    sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q.dtype)
    return (q * sign.unsqueeze(-2)).to(matrix.dtype)


def orthogonality_gap(matrix: Tensor) -> Tensor:
    """Compute ‖MᵀM − I‖_F of a matrix (..., d, m): zero if and only if the columns are orthonormal."""
    work = matrix.float() if matrix.dtype in (torch.bfloat16, torch.float16) else matrix
    gram = work.mT @ work
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.linalg.matrix_norm(gram - eye)
