"""The theory as code (paper 2, 3, A, B): the objects that the paper's statements are about, and claims that test them.

Tokens are rows, z (n, d), and bases are (K, d, p). `verify` tests the claims; `docs/theory.md` explains them in order.
"""

from .claims import Finding, Outcome, Trial, claim, verify
from .claims.frame import report_html
from .concentration import codes_tail, covariance_tail, gaussian_tail, gram_tail, noise_tail
from .denoising import SubspaceMixture, attention_denoise, nearest_subspace, off_subspace, project_nearest
from .diffusion import VarianceExploding, geometric_times, sliced_wasserstein, structured_flow, structured_solution
from .projection import (
    MixtureSizes,
    NoisyTokens,
    block_inverse,
    broken_assumptions,
    compress,
    deviation,
    draw_tokens,
    event_constants,
    main_term,
    optimal_eps,
    perturbation,
    projected_noise,
    remark_bound,
    residual,
    residual_bound,
    signal_gain,
)
from .reversal import ItoDiffusion
from .unrolled import (
    Descent,
    alternate,
    compression_change,
    compression_direction,
    compression_smoothness,
    ista,
    mssa,
    proximal_layer,
    proximal_step,
)

__all__ = [
    "Descent", "Finding", "ItoDiffusion", "MixtureSizes", "NoisyTokens", "Outcome", "SubspaceMixture", "Trial",
    "VarianceExploding", "alternate", "attention_denoise", "block_inverse", "broken_assumptions", "claim",
    "codes_tail", "compress", "compression_change", "compression_direction", "compression_smoothness",
    "covariance_tail", "deviation", "draw_tokens", "event_constants", "gaussian_tail", "geometric_times",
    "gram_tail", "ista", "main_term", "mssa", "nearest_subspace", "noise_tail", "off_subspace", "optimal_eps",
    "perturbation", "project_nearest", "projected_noise", "proximal_layer", "proximal_step", "remark_bound",
    "report_html", "residual", "residual_bound", "signal_gain", "sliced_wasserstein", "structured_flow",
    "structured_solution", "verify",
]  # fmt: skip
