"""The concentration inequalities of the projection theorem's proof, with explicit constants (paper B.3).

The paper states them with universal constants that it does not give. Here they follow from one inequality of Davidson
and Szarek: a matrix M (q × n) with independent N(0, 1) entries has all singular values in √q ± (√n + t), on either side
up to a probability of e^{−t²/2}.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.stats import binom

from .projection import MixtureSizes


def gaussian_tail(q: int, n: int, scale: float, s: float) -> float:
    """Bound P(‖M‖ > s) for M (q × n) with entries N(0, x²), x = scale (prop. gaussian_concentration_opnorm).

    C₁ exp(−n{(s/x − √q)/(C₂√n) − 1}²) for s > x(√q + C₂√n), and 1 below. C₁ = 1 and C₂ = √2 are valid: with
    s = x(√q + √n + t) the exponent is −(t/√2 − (1 − 1/√2)√n)², which is at least −t²/2.
    """
    c2 = math.sqrt(2)
    reach = (s / scale - math.sqrt(q)) / (c2 * math.sqrt(n)) - 1
    return math.exp(-n * reach**2) if reach > 0 else 1.0


def covariance_tail(q: int, n: int, scale: float, s: float) -> float:
    """Bound P(‖MᵀM − qx²I‖ > s) for M (q × n) with entries N(0, x²) (prop. gaussian_covariance_concentration_opnorm).

    With C₁ = 2, C₂² = 3 and C₃ = √2 it is C₁ exp(−n{s/(C₂²C₃√(nq)x²) − 1}²) for C₂²C₃√(nq)x² ≤ s ≤ C₂²qx², and
    C₁ exp(−n{√s/(C₂C₃√n x) − 1}²) for s ≥ C₂²qx². They are valid because singular values in 1 ± u give
    ‖·‖/q ≤ 2u + u² ≤ 3 max(u, u²). The second case also needs √s ≥ C₂C₃√n x, which the paper leaves out: without it
    the exponent grows again as s falls, and for n ≫ q the printed bound is below the probability. Elsewhere 1 is
    returned.
    """
    c2, c3 = math.sqrt(3), math.sqrt(2)
    if s <= c2**2 * q * scale**2:
        reach = s / (c2**2 * c3 * math.sqrt(n * q) * scale**2) - 1
    else:
        reach = math.sqrt(s) / (c2 * c3 * math.sqrt(n) * scale) - 1
    return min(1.0, 2 * math.exp(-n * reach**2)) if reach > 0 else 1.0


def noise_tail(sizes: MixtureSizes, constant: float) -> float:
    """Bound P(‖Δ‖ > σ(C₁ + √(n/d))) by e^{−d(C₁ − 1)²/2}, C₁ = constant ≥ 1 (prop. delta_concentration_opnorm)."""
    return math.exp(-sizes.d * max(constant - 1, 0.0) ** 2 / 2)


def codes_tail(sizes: MixtureSizes, constant: float) -> float:
    """Bound P(‖A_k‖ > 1 + C₁√(n/d)) for one k, C₁ = constant (prop. xk_concentration_opnorm).

    Given K_k = b tokens, ‖A_k‖ exceeds 1 + √(b/p) + u with probability at most e^{−pu²/2}; the binomial distribution of
    b is summed exactly. If √(n log n) ≤ n/2K, the bound with C₁ = 1 + √1.5 is at most e^{−n/2K} + 2/n².
    """
    reach = constant * math.sqrt(sizes.n / sizes.d)
    return _over_classes(sizes, lambda own: math.exp(-sizes.p * max(reach - own, 0.0) ** 2 / 2))


def gram_tail(sizes: MixtureSizes, constant: float) -> float:
    """Bound P(‖A_kᵀA_k − I‖ > C₁√(n/d)) for one k, C₁ = constant (prop. xktxk_concentration_opnorm).

    Singular values in 1 ± w give ‖A_kᵀA_k − I‖ ≤ 2w + w², and given K_k = b tokens they are in 1 ± (√(b/p) + u) up to a
    probability of 2e^{−pu²/2}. If √(n log n) ≤ n/2K and n ≤ d, the bound with C₁ = 2w + w², w = 1 + √1.5, is at most
    2e^{−n/2K} + 2/n².
    """
    reach = math.sqrt(1 + constant * math.sqrt(sizes.n / sizes.d)) - 1
    return _over_classes(sizes, lambda own: 2 * math.exp(-sizes.p * max(reach - own, 0.0) ** 2 / 2))


def _over_classes(sizes: MixtureSizes, tail: Callable[[float], float]) -> float:
    """Return Σ_b P(K_k = b) min(1, tail(√(b/p))) over b ≥ 1; an empty class has no codes that could be too large."""
    chances = binom.pmf(range(1, sizes.n + 1), sizes.n, 1 / sizes.K)
    return sum(float(chance) * min(1.0, tail(math.sqrt(b / sizes.p))) for b, chance in enumerate(chances, start=1))
