"""The objective of the network (paper §2.1): rates, their gradients, sparsity, and the signal model.

Tokens are rows, z (..., n, d), and bases are (K, d, p); the paper writes tokens as columns,
Z ∈ R^{d×n}, so our z is its Zᵀ and every formula here is its transpose.
"""

from .losses import CodingRateLoss, RateReductionLoss
from .normalized import (
    descent_direction,
    normalized_compression,
    normalized_reduction,
    tangential,
    unit_tokens,
)
from .rates import (
    class_coding_rate,
    coding_rate,
    coding_rate_gradient,
    coding_rate_hvp,
    coding_rate_lipschitz,
    energy,
    project,
    projected_coding_rate,
    rate_and_rank,
    rate_reduction,
    sparse_rate_reduction,
    sparse_rate_reduction_gradient,
    subspace_coding_rate,
    subspace_coding_rate_gradient,
)
from .signal import TokenSample, coherence, equiangular_bases, orthonormal_columns, random_bases, sample_tokens
from .sparsity import effective_rank, fraction_below, hoyer_sparsity, l0_fraction, l0_norm, l1_norm

__all__ = [
    "CodingRateLoss", "RateReductionLoss", "TokenSample", "class_coding_rate", "coding_rate", "coding_rate_gradient",
    "coding_rate_hvp", "coding_rate_lipschitz", "coherence", "descent_direction", "effective_rank", "energy",
    "equiangular_bases", "fraction_below", "hoyer_sparsity", "l0_fraction", "l0_norm", "l1_norm",
    "normalized_compression", "normalized_reduction", "orthonormal_columns", "project",
    "projected_coding_rate", "random_bases", "rate_and_rank", "rate_reduction", "sample_tokens",
    "sparse_rate_reduction", "sparse_rate_reduction_gradient", "subspace_coding_rate",
    "subspace_coding_rate_gradient", "tangential", "unit_tokens",
]  # fmt: skip
