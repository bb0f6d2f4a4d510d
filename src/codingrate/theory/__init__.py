"""The theory as code (paper 2, 3, A, B): the objects that the paper's statements are about, and claims that test them.

Tokens are rows, z (n, d), and bases are (K, d, p). `verify` tests the claims; `docs/theory.md` explains them in order.
What the claims measure is in modules by subject: `unrolled`, `denoising`, `diffusion`, `projection`, `concentration`.
"""

from .claims import Finding, Trial, claim, verify
from .denoising import SubspaceMixture, attention_denoise
from .diffusion import ItoDiffusion, VarianceExploding, geometric_times, structured_flow, structured_solution
from .unrolled import alternate, compression_direction, compression_smoothness, ista

__all__ = [
    "Finding", "ItoDiffusion", "SubspaceMixture", "Trial", "VarianceExploding", "alternate", "attention_denoise",
    "claim", "compression_direction", "compression_smoothness", "geometric_times", "ista", "structured_flow",
    "structured_solution", "verify",
]  # fmt: skip
