"""Denoising under the low-dimensional Gaussian mixture (paper 3.1, B.2): score, Tweedie's formula, attention form.

Points are rows, z (..., d), and each is denoised by itself; bases are (K, d, p). The model is z = z♮ + σw with
z♮ = U_s α, s uniform on the K subspaces, α ~ N(0, Λ), Λ diagonal. One Λ and equal weights lose no generality: the
paper's normalization, π_k / √det(Σ_k + σ²I) equal for all k, holds at every σ only if all Λ_k are equal up to order.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from codingrate.errors import CrateError
from codingrate.objective import TokenSample, sample_tokens

ORTHONORMAL = 1e-4  # float32 bases are orthonormal to about 1e-6, learned ones are off by much more


class SubspaceMixture:
    """The distribution of U_s α, α ~ N(0, Λ), and of its noisy versions U_s α + σw (eq. gaussian_tokens_noise).

    bases: orthonormal U_k, (K, d, p). variances: the diagonal of Λ, (p,), or one number for all p directions.
    Every function of z takes rows (..., d) in the dtype of the bases, and a noise level σ > 0.
    """

    def __init__(self, bases: Tensor, variances: Tensor | float = 1.0) -> None:
        self.bases = check_orthonormal(bases)
        self.variances = torch.as_tensor(variances, dtype=bases.dtype, device=bases.device).expand(bases.shape[-1])
        """Diagonal of Λ, (p,)."""

    def sample(self, n: int, sigma: float = 0.0, generator: torch.Generator | None = None) -> TokenSample:
        """Draw n independent samples of U_s α + σw; their codes are α / √Λ."""
        return sample_tokens(self.bases * self.variances.sqrt(), n, sigma, generator)

    def covariance(self, sigma: float = 0.0) -> Tensor:
        """Return E zz* = (1/K) Σ_k U_k Λ U_k* + σ²I, (d, d)."""
        count, d, _ = self.bases.shape
        signal = torch.einsum("kdp,p,kep->de", self.bases, self.variances, self.bases) / count
        return signal + sigma**2 * torch.eye(d, dtype=signal.dtype, device=signal.device)

    def log_density(self, z: Tensor, sigma: float) -> Tensor:
        """Return log q(z) = log (1/K) Σ_k N(z; 0, U_k Λ U_k* + σ²I), (..., d) → (...).

        By Woodbury z*(Σ_k + σ²I)⁻¹z = (‖z‖² − Σ_j s_j (U_k*z)_j²)/σ² with s = Λ/(Λ + σ²), without a d × d matrix.
        """
        count, d, _ = self.bases.shape
        constant = d * math.log(2 * math.pi * sigma**2) + torch.log1p(self.variances / sigma**2).sum()
        quadratic = z.square().sum(-1) / sigma**2
        return self._affinity(z, sigma).logsumexp(-1) - math.log(count) - (constant + quadratic) / 2

    def responsibilities(self, z: Tensor, sigma: float) -> Tensor:
        """Return P(s = k | z), (..., d) → (..., K): the softmax of Σ_j s_j (U_k*z)_j² / 2σ², s = Λ/(Λ + σ²)."""
        return self._affinity(z, sigma).softmax(-1)

    def denoise(self, z: Tensor, sigma: float) -> Tensor:
        """Return the exact E[z♮ | z] = Σ_k P(s = k | z) U_k s ∘ U_k*z, s = Λ/(Λ + σ²), (..., d) → (..., d).

        Given s = k the pair (z♮, z) is Gaussian, and U_k s ∘ U_k*z is its Wiener filter.
        """
        return _combine(self.responsibilities(z, sigma), codes(z, self.bases) * self._wiener(sigma), self.bases)

    def score(self, z: Tensor, sigma: float) -> Tensor:
        """Return ∇ log q(z) = −Σ_k P(s = k | z) (Σ_k + σ²I)⁻¹ z, (..., d) → (..., d) (B.2, score_multi_subspaces).

        With Woodbury's (Σ_k + σ²I)⁻¹z = (z − U_k s ∘ U_k*z)/σ² the sum is (z − E[z♮ | z])/σ², Tweedie's formula.
        """
        return (self.denoise(z, sigma) - z) / sigma**2

    def _wiener(self, sigma: float) -> Tensor:
        return self.variances / (self.variances + sigma**2)

    def _affinity(self, z: Tensor, sigma: float) -> Tensor:
        """Return log q(z | k) up to a term that is equal for all k, (..., K)."""
        return (codes(z, self.bases).square() * self._wiener(sigma)).sum(-1) / (2 * sigma**2)


def attention_denoise(z: Tensor, bases: Tensor, sigma: float) -> Tensor:
    """Return Σ_k softmax(‖U_k*z‖² / 2σ²)_k U_k U_k*z, the paper's approximation of E[z♮ | z], (..., d) → (..., d).

    Eq. mog-score-as-attention: one token attends to K heads. The Wiener factor s = Λ/(Λ + σ²) of
    `SubspaceMixture.denoise` is left out of the softmax and of the value, so no Λ is needed.
    """
    w = codes(z, check_orthonormal(bases))
    return _combine((w.square().sum(-1) / (2 * sigma**2)).softmax(-1), w, bases)


def nearest_subspace(z: Tensor, bases: Tensor) -> Tensor:
    """Return the index of the subspace nearest to z, argmax_k ‖U_k*z‖, (..., d) → (...) in int64."""
    return codes(z, check_orthonormal(bases)).square().sum(-1).argmax(-1)


def project_nearest(z: Tensor, bases: Tensor) -> Tensor:
    """Project z onto its nearest subspace, the limit of both denoisers as σ → 0 (3.1), (..., d) → (..., d)."""
    return own_part(z, bases, nearest_subspace(z, bases))


def own_part(z: Tensor, bases: Tensor, labels: Tensor) -> Tensor:
    """Return the part of each token in its own subspace, U_{s_i}U_{s_i}ᵀz_i; z (..., d), labels s (...)."""
    own = bases[labels]  # (..., d, p)
    return (own @ (own.mT @ z.unsqueeze(-1))).squeeze(-1)


def off_subspace(z: Tensor, bases: Tensor, labels: Tensor) -> Tensor:
    """Return the part of each token outside its own subspace, z_i − U_{s_i}U_{s_i}ᵀz_i; z (..., d), labels s (...)."""
    return z - own_part(z, bases, labels)


def codes(z: Tensor, bases: Tensor) -> Tensor:
    """Return U_k*z for every k, (..., d) → (..., K, p)."""
    return torch.einsum("...d,kdp->...kp", z, bases)


def _combine(share: Tensor, values: Tensor, bases: Tensor) -> Tensor:
    """Return Σ_k share_k U_k values_k: shares (..., K), values (..., K, p) → (..., d)."""
    return torch.einsum("...kp,kdp->...d", share.unsqueeze(-1) * values, bases)


def check_orthonormal(bases: Tensor) -> Tensor:
    """Check that bases (K, d, p) have orthonormal columns, and return them."""
    defect = float((bases.mT @ bases - torch.eye(bases.shape[-1]).to(bases)).abs().max())
    if not defect < ORTHONORMAL:
        raise CrateError(
            f"bases must have orthonormal columns, but U*U differs from I by {defect:.1e}; use their QR factor"
        )
    return bases
