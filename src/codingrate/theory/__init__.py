"""The theory as code (paper 2, 3, A, B): the objects that the paper's statements are about, and claims that test them.

Tokens are rows, z (n, d), and bases are (K, d, p). `verify` tests the claims; `docs/theory.md` explains them in order.
"""

from .claims import Finding, Outcome, Trial, claim, verify
from .claims.frame import report_html
from .denoising import SubspaceMixture, attention_denoise, nearest_subspace, off_subspace, project_nearest
from .diffusion import VarianceExploding, geometric_times, sliced_wasserstein, structured_flow, structured_solution
from .projection import (
    MixtureSizes,
    NoisyTokens,
    compress,
    draw_tokens,
    event_constants,
    main_term,
    optimal_eps,
    projected_noise,
    residual,
    residual_bound,
    signal_gain,
)
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
    "Descent", "Finding", "MixtureSizes", "NoisyTokens", "Outcome", "SubspaceMixture", "Trial", "VarianceExploding",
    "alternate", "attention_denoise", "claim", "compress", "compression_change", "compression_direction",
    "compression_smoothness", "draw_tokens", "event_constants", "geometric_times", "ista", "main_term", "mssa",
    "nearest_subspace", "off_subspace", "optimal_eps", "project_nearest", "projected_noise", "proximal_layer",
    "proximal_step", "report_html", "residual", "residual_bound", "signal_gain", "sliced_wasserstein",
    "structured_flow", "structured_solution", "verify",
]  # fmt: skip
