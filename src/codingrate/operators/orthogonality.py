"""Orthonormal bases as a diagnostic, a penalty or a reparametrization.

The derivation assumes U_kᵀU_k = I, incoherent subspaces and DᵀD ≈ I (paper 2.3 and 2.4); training enforces none of
it. These functions measure the deviation, penalize it, or exclude it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def orthonormal_columns(matrix: Tensor) -> Tensor:
    """Return the orthonormal factor Q of a tall or square matrix (d, m), m ≤ d, differentiable in the matrix.

    QR with the sign of R's diagonal fixed, so that the map is continuous and leaves an orthonormal matrix
    unchanged. Half precision is factored in float32.
    """
    work = matrix.float() if matrix.dtype in (torch.bfloat16, torch.float16) else matrix
    q, r = torch.linalg.qr(work)
    sign = torch.where(r.diagonal() < 0, -1.0, 1.0).to(q.dtype)
    return (q * sign).to(matrix.dtype)


def orthogonality_gap(matrix: Tensor) -> Tensor:
    """Compute ‖MᵀM − I‖_F of a matrix (..., d, m): zero if and only if the columns are orthonormal."""
    work = matrix.float() if matrix.dtype in (torch.bfloat16, torch.float16) else matrix
    gram = work.mT @ work
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.linalg.matrix_norm(gram - eye)
