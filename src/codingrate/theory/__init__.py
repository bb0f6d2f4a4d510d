"""The theory, executable (paper 2, 3, A, B): what the paper states, to run and to check.

Tokens are rows, z (n, d), bases (K, d, p). `verify` tries the claims; `docs/theory.md` walks through them.
"""

from .claims import Finding, Outcome, Trial, claim, verify
from .denoising import SubspaceMixture, attention_denoise, nearest_subspace, project_nearest
from .diffusion import (
    VarianceExploding,
    geometric_times,
    sliced_wasserstein,
    structured_flow,
    structured_solution,
)
from .projection import (
    Mixture,
    Tokens,
    compressed,
    draw,
    event_constants,
    main_term,
    optimal_eps,
    outside,
    projected_noise,
    residual,
    residual_bound,
    signal_gain,
)
from .report import report_html
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
    "Descent",
    "Finding",
    "Mixture",
    "Outcome",
    "SubspaceMixture",
    "Tokens",
    "Trial",
    "VarianceExploding",
    "alternate",
    "attention_denoise",
    "claim",
    "compressed",
    "compression_change",
    "compression_direction",
    "compression_smoothness",
    "draw",
    "event_constants",
    "geometric_times",
    "ista",
    "main_term",
    "mssa",
    "nearest_subspace",
    "optimal_eps",
    "outside",
    "project_nearest",
    "projected_noise",
    "proximal_layer",
    "proximal_step",
    "report_html",
    "residual",
    "residual_bound",
    "signal_gain",
    "sliced_wasserstein",
    "structured_flow",
    "structured_solution",
    "verify",
]
