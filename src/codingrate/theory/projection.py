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

from codingrate import objective as ob


@dataclass(frozen=True)
class MixtureSizes:
    """The sizes of the theorem: K subspaces of dimension p, n tokens, noise σ, quantization precision ε."""

    K: int
    p: int
    n: int
    sigma: float
    eps: float

    @property
    def d(self) -> int:
        """Dimension of the space, which the subspaces fill: d = Kp."""
        return self.K * self.p

    @property
    def beta(self) -> float:
        """β = p/(nε²)."""
        return self.p / (self.n * self.eps**2)


@dataclass(frozen=True)
class NoisyTokens:
    """One draw of the mixture: clean tokens and their noise."""

    sizes: MixtureSizes
    bases: Tensor  # U (K, d, p), orthonormal together
    clean: Tensor  # X (n, d)
    noise: Tensor  # Δ (n, d)
    labels: Tensor  # s_i (n,)

    @property
    def tokens(self) -> Tensor:
        """Z = X + Δ, (n, d)."""
        return self.clean + self.noise


def draw_tokens(sizes: MixtureSizes, generator: torch.Generator | None = None, *, rotate: bool = False) -> NoisyTokens:
    """Draw the tokens of the theorem in float64.

    A generator in the same state gives the same directions for every σ and ε. The subspaces are blocks of the axes;
    with `rotate` they are random, which is slower and gives the same distribution up to a rotation.
    """
    K, d, p, n = sizes.K, sizes.d, sizes.p, sizes.n
    if rotate:
        bases = ob.random_bases(K, d, p, generator=generator, dtype=torch.float64)
        sample = ob.sample_tokens(bases, n, 1.0, generator)  # α ~ N(0, I), w ~ N(0, I)
        clean, noise, labels = sample.clean, sample.tokens - sample.clean, sample.labels
    else:  # a product with each token's basis would be almost all zeros
        bases = torch.eye(d, dtype=torch.float64).view(d, K, p).transpose(0, 1)
        labels = torch.randint(K, (n,), generator=generator)
        blocks = torch.zeros(n, K, p, dtype=torch.float64)
        blocks[torch.arange(n), labels] = torch.randn(n, p, generator=generator, dtype=torch.float64)
        clean, noise = blocks.flatten(1), torch.randn(n, d, generator=generator, dtype=torch.float64)
    return NoisyTokens(sizes, bases, clean / math.sqrt(p), noise * (sizes.sigma / math.sqrt(d)), labels)


def block_inverse(codes: Tensor, beta: float) -> Tensor:
    """Return (β⁻¹I + A_kᵀA_k)⁻¹ for the codes A_kᵀ (n_k, p) of one subspace, (n_k, n_k) (lem. blockwise-pinv)."""
    return torch.linalg.inv(torch.eye(len(codes), dtype=codes.dtype) / beta + codes @ codes.mT)


def perturbation(tokens: NoisyTokens, k: int) -> tuple[Tensor, Tensor]:
    """Return the proof's D_k and Ξ_k, both (n, n), with β⁻¹I + (U_k*Z)*(U_k*Z) = D_k + Ξ_k.

    D_k = β⁻¹I + A_k*A_k in the block of the tokens of subspace k (eq. ak-defn), and Ξ_k = Δ*U_kU_k*Δ + Δ*U_kA_k +
    A_k*U_k*Δ holds every term with noise (eq. xik-defn). The paper sorts tokens by subspace; here they keep their
    order.
    """
    basis = tokens.bases[k]
    noise, codes = tokens.noise @ basis, tokens.clean @ basis * (tokens.labels == k)[:, None]  # (n, p)
    block = torch.eye(len(codes), dtype=codes.dtype) / tokens.sizes.beta + codes @ codes.mT
    return block, noise @ noise.mT + noise @ codes.mT + codes @ noise.mT


def projected_noise(tokens: NoisyTokens) -> Tensor:
    """Return P(Δ), (n, d): the noise in the other subspaces, outside the span of the tokens there.

    As β → ∞ the factor between U_k and U_kᵀ becomes the projection onto the complement of im A_k.
    """
    beta = tokens.sizes.beta
    result = torch.zeros_like(tokens.noise)
    for k, basis in enumerate(tokens.bases):
        own = tokens.labels == k
        codes, noise = tokens.clean[own] @ basis, tokens.noise @ basis  # A_kᵀ (n_k, p), U_kᵀΔ (n, p)
        part = noise - noise @ codes.mT @ block_inverse(codes, beta) @ codes
        result += (part * ~own[:, None]) @ basis.mT
    return result


def compress(z: Tensor, bases: Tensor, eps: float, eta: float, *, full: bool = False) -> Tensor:
    """Return Z⁺ = Z − η∇R^c(Z | U), or Z + η∇ΔR(Z | U) if `full`, by the exact gradients, z (n, d) → (n, d)."""
    step = ob.subspace_coding_rate_gradient(z, bases, eps)
    return z - eta * (step - ob.coding_rate_gradient(z, eps) if full else step)


def main_term(tokens: NoisyTokens, eta: float) -> Tensor:
    """Return the theorem's approximation of Z⁺, (Δ − ηβP(Δ)) + (1 − η/(1 + β⁻¹))X, (n, d)."""
    beta = tokens.sizes.beta
    return tokens.noise - eta * beta * projected_noise(tokens) + (1 - eta / (1 + 1 / beta)) * tokens.clean


def residual(tokens: NoisyTokens, eta: float) -> Tensor:
    """Return Z⁺ minus its main term, (n, d); the left side of the theorem is its operator norm."""
    return compress(tokens.tokens, tokens.bases, tokens.sizes.eps, eta) - main_term(tokens, eta)


def residual_bound(sizes: MixtureSizes, eta: float) -> float:
    """Return the right side of the theorem with the constant C₅ = 1."""
    K, beta, sigma = sizes.K, sizes.beta, sizes.sigma
    root = math.sqrt(sizes.n / sizes.d)
    terms = sigma**2 * beta**2 + sigma * (1 + root) + math.sqrt(K) * beta * sigma**2 * (1 + root) + root
    return K * eta * terms


def optimal_eps(K: int, d: int, n: int, sigma: float) -> float:
    """Return the remark's ε, which minimizes the bound at η = β⁻¹: ε² = σd/(nK√(σ + √(n/d)))."""
    return math.sqrt(sigma * d / (n * K * math.sqrt(sigma + math.sqrt(n / d))))


def remark_bound(sizes: MixtureSizes) -> float:
    """Return the remark's bound at η = β⁻¹: K^{3/2}σ² + σ²d/(nε²) + (nK²/d)(σ + √(n/d))ε²."""
    K, sigma, square, share = sizes.K, sizes.sigma, sizes.eps**2, sizes.n / sizes.d
    return K**1.5 * sigma**2 + sigma**2 / (share * square) + share * K**2 * (sigma + math.sqrt(share)) * square


def deviation(n: int, constant: float = 1.0) -> float:
    """Return C₁√(n log n), the deviation of a class's number of tokens that B.3 excludes.

    C₁ is the constant of its proposition on binomials, P(|B − n/k| > C₁√(n log n)) ≤ C₂n⁻² for all n and k. Hoeffding's
    inequality bounds the left side by 2n^(−2C₁²), so C₁ = 1 is enough. At k = 2 the binomial is as wide as Hoeffding's
    inequality allows, so no smaller constant is valid for all n. (The proof aims at n⁻³, for which C₁ = √1.5.)
    """
    return constant * math.sqrt(n * math.log(n))


def broken_assumptions(sizes: MixtureSizes, gram: float = 1.0) -> list[str]:
    """Return the conditions of the theorem that these sizes break, with every constant that the paper leaves open as 1.

    The orthogonality of the subspaces and Kp = d are built into `MixtureSizes`. `gram` is C₄, the constant of
    ‖A_kᵀA_k − I‖ ≤ C₄√(n/d). No value below 2 is valid for large sizes, where the spectrum of A_kᵀA_k ends at
    1 ± 2√(n/d); the default is 1 all the same, so that what is broken is broken with every constant.
    """
    K, p, n, d = sizes.K, sizes.p, sizes.n, sizes.d
    share = max(6.0, 2 * gram**2)  # 6C₂²n ≤ d and 2C₄²n ≤ d
    conditions = {
        "ε ≤ 1": sizes.eps <= 1,
        "d ≥ n ≥ p ≥ K ≥ 2": d >= n >= p >= K >= 2,
        "√(n log n) ≤ n/2K": deviation(n) <= n / (2 * K),
        f"{share:g}n ≤ d": share * n <= d,
        "σ ≤ 1": sizes.sigma <= 1,
        "βσ ≤ ½": sizes.beta * sizes.sigma <= 0.5 * (1 + 1e-12),
    }
    return [name for name, holds in conditions.items() if not holds]


def signal_gain(z: Tensor, clean: Tensor) -> float:
    """Return ⟨Z⁺, X⟩/⟨X, X⟩, the share of the signal that a step keeps."""
    return float((z * clean).sum() / clean.square().sum())


def event_constants(tokens: NoisyTokens) -> tuple[float, float, float]:
    """Return the smallest C₁, C₂, C₃ for which a draw is in the proof's good event (eq. good_event), σ > 0.

    ‖Δ‖ ≤ σ(C₁ + √(n/d)), and for all k ‖A_k‖ ≤ 1 + C₂√(n/d) and ‖A_kᵀA_k − I‖ ≤ C₃√(n/d). As all sizes grow, the
    constants tend to 1, 1 and 2 + √(n/d), the edges of the spectra of Gaussian matrices.
    """
    sizes = tokens.sizes
    root = math.sqrt(sizes.n / sizes.d)
    gram = tokens.noise @ tokens.noise.mT  # its eigenvalues are cheaper than singular values
    noise = math.sqrt(float(torch.linalg.eigvalsh(gram)[-1])) / sizes.sigma - root
    largest, deviation = -math.inf, 0.0
    for k, basis in enumerate(tokens.bases):
        codes = tokens.clean[tokens.labels == k] @ basis  # A_kᵀ (n_k, p)
        if len(codes):  # for an empty class both matrices are empty, and the condition holds
            values = torch.linalg.eigvalsh(codes @ codes.mT)
            largest = max(largest, math.sqrt(max(float(values[-1]), 0.0)) - 1)
            deviation = max(deviation, float((values - 1).abs().max()))
    return noise, largest / root, deviation / root
