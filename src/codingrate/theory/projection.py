"""Compression is denoising: one gradient step on R^c at the noisy mixture (paper 3.2, appendix B.3).

The theorem's tokens are z_i = U_{s_i}α_i + δ_i, α_i ~ N(0, I/p), δ_i ~ N(0, σ²I/d), s_i uniform, with K orthogonal
subspaces that fill the space, Kp = d. In rows, with β = p/(nε²) and the clean tokens X,

    Z⁺ = Z − η∇R^c(Z | U) ≈ (Δ − ηβ P(Δ)) + (1 − η/(1 + β⁻¹)) X,
    P(Δ)_i = Σ_{k ≠ s_i} U_k (I − A_k(β⁻¹I + A_kᵀA_k)⁻¹A_kᵀ) U_kᵀ δ_i   (eq. proj-defn-1; A_k the codes of subspace k)

up to a residual of at most C·Kη(σ²β² + σ(1 + √(n/d)) + √K βσ²(1 + √(n/d)) + √(n/d)) in operator norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from codingrate.errors import CrateError
from codingrate.objective import (
    coding_rate_gradient,
    random_bases,
    sample_tokens,
    subspace_coding_rate_gradient,
)

from .denoising import off_own


@dataclass(frozen=True)
class Mixture:
    """The sizes of the theorem: K subspaces of dimension p, n tokens, noise σ, quantization precision ε."""

    K: int
    p: int
    n: int
    sigma: float
    eps: float

    def __post_init__(self) -> None:
        if min(self.K, self.p, self.n) < 1 or self.sigma < 0 or not self.eps > 0:
            raise CrateError(f"a mixture needs K, p, n ≥ 1, sigma ≥ 0 and eps > 0, got {self}")

    @property
    def d(self) -> int:
        """The subspaces fill the space: d = Kp."""
        return self.K * self.p

    @property
    def beta(self) -> float:
        """β = p/(nε²)."""
        return self.p / (self.n * self.eps**2)


@dataclass(frozen=True)
class Tokens:
    """One draw of the mixture, tokens = clean + noise."""

    mixture: Mixture
    bases: Tensor
    """U (K, d, p), orthonormal together."""
    clean: Tensor
    """X (n, d)."""
    noise: Tensor
    """Δ (n, d)."""
    labels: Tensor
    """s_i (n,)."""

    @property
    def tokens(self) -> Tensor:
        """Z (n, d)."""
        return self.clean + self.noise


def draw(mixture: Mixture, generator: torch.Generator | None = None, *, turned: bool = True) -> Tokens:
    """Tokens of the theorem in float64; the same generator state gives the same directions for every σ and ε.

    The subspaces are random, or without `turned` blocks of the axes: quicker, and the same law up to a rotation.
    """
    K, d, p, n = mixture.K, mixture.d, mixture.p, mixture.n
    if turned:
        bases = random_bases(K, d, p, generator=generator, dtype=torch.float64)
    else:
        bases = torch.eye(d, dtype=torch.float64).view(d, K, p).transpose(0, 1)
    sample = sample_tokens(bases, n, 1.0, generator)  # α ~ N(0, I), w ~ N(0, I)
    noise = (sample.tokens - sample.clean) * (mixture.sigma / math.sqrt(d))
    return Tokens(mixture, bases, sample.clean / math.sqrt(p), noise, sample.labels)


def projected_noise(tokens: Tokens) -> Tensor:
    """P(Δ): the noise each token has in the other subspaces, outside what their own tokens span; (n, d).

    As β → ∞ the factor between U_k and U_kᵀ becomes the projection onto the complement of im A_k.
    """
    beta = tokens.mixture.beta
    result = torch.zeros_like(tokens.noise)
    for k, basis in enumerate(tokens.bases):
        own = tokens.labels == k
        codes, seen = tokens.clean[own] @ basis, tokens.noise @ basis  # A_kᵀ (n_k, p), U_kᵀΔ (n, p)
        gram = torch.eye(len(codes), dtype=codes.dtype) / beta + codes @ codes.mT
        part = seen - torch.linalg.solve(gram, codes @ seen.mT).mT @ codes
        result += (part * ~own[:, None]) @ basis.mT
    return result


def compressed(tokens: Tokens, eta: float, *, full: bool = False) -> Tensor:
    """Z⁺ = Z − η∇R^c(Z | U), or with `full` Z + η∇ΔR(Z | U), by the exact gradients; (n, d)."""
    eps, z = tokens.mixture.eps, tokens.tokens
    step = subspace_coding_rate_gradient(z, tokens.bases, eps)
    return z - eta * (step - coding_rate_gradient(z, eps) if full else step)


def main_term(tokens: Tokens, eta: float) -> Tensor:
    """What the theorem says Z⁺ is, up to the residual: (Δ − ηβP(Δ)) + (1 − η/(1 + β⁻¹))X; (n, d)."""
    beta = tokens.mixture.beta
    return tokens.noise - eta * beta * projected_noise(tokens) + (1 - eta / (1 + 1 / beta)) * tokens.clean


def residual(tokens: Tokens, eta: float) -> float:
    """‖Z⁺ − main term‖ in operator norm, the theorem's left side."""
    return float(torch.linalg.matrix_norm(compressed(tokens, eta) - main_term(tokens, eta), 2))


def residual_bound(mixture: Mixture, eta: float) -> float:
    """The theorem's right side with its constant C₅ = 1."""
    K, beta, sigma = mixture.K, mixture.beta, mixture.sigma
    root = math.sqrt(mixture.n / mixture.d)
    terms = sigma**2 * beta**2 + sigma * (1 + root) + math.sqrt(K) * beta * sigma**2 * (1 + root) + root
    return K * eta * terms


def optimal_eps(K: int, d: int, n: int, sigma: float) -> float:  # noqa: N803 - the paper's letter
    """The remark's ε, which minimises the bound at η = β⁻¹: ε² = σd/(nK√(σ + √(n/d)))."""
    return math.sqrt(sigma * d / (n * K * math.sqrt(sigma + math.sqrt(n / d))))


def signal_gain(z: Tensor, clean: Tensor) -> float:
    """⟨Z⁺, X⟩/⟨X, X⟩: how much of the signal a step keeps."""
    return float((z * clean).sum() / clean.square().sum())


def outside(z: Tensor, tokens: Tokens) -> Tensor:
    """The part of tokens (n, d) outside their own subspace, z_i − U_{s_i}U_{s_i}ᵀz_i."""
    return off_own(z, tokens.bases, tokens.labels)


def event_constants(tokens: Tokens) -> tuple[float, float, float]:
    """The smallest C₁, C₂, C₃ with which a draw is in the proof's good event (eq. good_event), σ > 0.

    ‖Δ‖ ≤ σ(C₁ + √(n/d)), and for all k ‖A_k‖ ≤ 1 + C₂√(n/d) and ‖A_kᵀA_k − I‖ ≤ C₃√(n/d). As the sizes grow together
    they tend to 1, 1 and 2 + √(n/d), the edges of the spectra of Gaussian matrices.
    """
    mixture = tokens.mixture
    root = math.sqrt(mixture.n / mixture.d)
    noise = float(torch.linalg.matrix_norm(tokens.noise, 2)) / mixture.sigma - root
    largest, apart = -math.inf, 0.0
    for k, basis in enumerate(tokens.bases):
        codes = tokens.clean[tokens.labels == k] @ basis  # A_kᵀ (n_k, p)
        if len(codes):  # an empty class has A_kᵀA_k = I = (), which is always near
            values = torch.linalg.eigvalsh(codes @ codes.mT)
            largest = max(largest, math.sqrt(max(float(values[-1]), 0.0)) - 1)
            apart = max(apart, float((values - 1).abs().max()))
    return noise, largest / root, apart / root
