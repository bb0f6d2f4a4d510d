"""Diffusion and denoising in time (paper 3.1-3.3, B.1, B.4): the mixture's exact processes and the structured ODEs.

Variance exploding, dz = √r dw: at time t the noise level is √(rt), and the score is that of the mixture at this level.
The paper takes r = 1 in 3.1 and r = 2 in B.1. Times are always those of the diffusion, t > 0: an ascending grid
diffuses, a descending one denoises (the paper's denoising time is T − t). Every process returns its whole path,
(len(times), ..., d), which begins with the starting point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from scipy.special import wrightomega
from torch import Tensor

from codingrate.errors import CrateError, unknown_name
from codingrate.objective import coherence, subspace_coding_rate_gradient

from .denoising import ORTHONORMAL, SubspaceMixture, check_orthonormal

METHODS = ("euler", "heun")


def geometric_times(first: float, kappa: float, count: int) -> Tensor:
    """Return the paper's grid t_{ℓ+1} = (1 + 2κ) t_ℓ from t_1 = first, (count,) in float64 (B.4).

    κ > 0 ascends, −½ < κ < 0 descends. t_L = (1 + 2κ)^{L−1} t_1; the paper's exponent L is one too large.
    """
    if not (first > 0 and math.isfinite(first)):
        raise CrateError(f"first must be a positive time, got {first}")
    if not kappa > -0.5 or kappa == 0 or not math.isfinite(kappa):
        raise CrateError(f"kappa must be greater than -1/2 and not 0, got {kappa}")
    if count < 2:
        raise CrateError(f"count must be at least 2, got {count}")
    return first * (1 + 2 * kappa) ** torch.arange(count, dtype=torch.float64)


def check_times(times: Tensor) -> list[float]:
    """Check that times are positive and monotonic, and return them as numbers."""
    values = [float(t) for t in times]
    steps = [after - before for before, after in pairwise(values)]
    if not steps or not (all(s > 0 for s in steps) or all(s < 0 for s in steps)):
        raise CrateError("times must be two or more numbers that all ascend (diffusion) or all descend (denoising)")
    if not min(values) > 0 or not math.isfinite(max(values)):
        raise CrateError(f"times must be positive and finite, got {min(values)} to {max(values)}")
    return values


@dataclass(frozen=True)
class VarianceExploding:
    """The diffusion dz = √r dw of a mixture, its time reversal and its probability flow (3.1, B.1)."""

    mixture: SubspaceMixture
    rate: float = 1.0  # r: 1 in 3.1 (dz = dw, z_t = z♮ + N(0, tI)), 2 in B.1 (dz = √2 dw)

    def __post_init__(self) -> None:
        if not (self.rate > 0 and math.isfinite(self.rate)):
            raise CrateError(f"rate must be positive and finite, got {self.rate}")

    def sigma(self, t: float) -> float:
        """Return the noise level √(rt) at time t."""
        return math.sqrt(self.rate * t)

    def score(self, z: Tensor, t: float) -> Tensor:
        """Return ∇ log q_t(z)."""
        return self.mixture.score(z, self.sigma(t))

    def diffuse(self, z: Tensor, times: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Follow dz = √r dw along ascending times (eq. ve-fwd-decoder), exactly, by its Gaussian increments."""
        values = check_times(times)
        if values[0] > values[-1]:
            raise CrateError("times must ascend for diffuse; use reverse for descending times")
        path = [z]
        for now, later in pairwise(values):
            path.append(path[-1] + self.sigma(later - now) * _noise_like(z, generator))
        return torch.stack(path)

    def reverse(self, z: Tensor, times: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Follow the time reversal dz = r ∇log q_t dt + √r dw along descending times (eq. ve-bwd-decoder).

        Euler-Maruyama, of weak order 1. The drift grows as noise/t, so use a geometric grid, whose steps grow with t.
        """
        values = check_times(times)
        if values[0] < values[-1]:
            raise CrateError("times must descend for reverse; use diffuse for ascending times")
        path = [z]
        for now, later in pairwise(values):
            drift = self.rate * (now - later) * self.score(path[-1], now)
            path.append(path[-1] + drift + self.sigma(now - later) * _noise_like(z, generator))
        return torch.stack(path)

    def flow(self, z: Tensor, times: Tensor, method: str = "heun") -> Tensor:
        """Follow the probability flow dz/dt = −(r/2) ∇log q_t in either direction (eq. ve-bwd-decoder-pfode).

        By Tweedie's formula dz/dσ = (z − E[z♮ | z])/σ with σ = √(rt). Steps are taken in σ, where the noise off the
        subspaces is linear and no step size makes an error in it. "euler" has order 1, "heun" (the default) order 2.
        """
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
        levels = [self.sigma(t) for t in check_times(times)]
        path = [z]
        for now, later in pairwise(levels):
            slope = self._slope(path[-1], now)
            step = path[-1] + (later - now) * slope
            if method == "heun":
                step = path[-1] + (later - now) / 2 * (slope + self._slope(step, later))
            path.append(step)
        return torch.stack(path)

    def _slope(self, z: Tensor, sigma: float) -> Tensor:
        return (z - self.mixture.denoise(z, sigma)) / sigma


def structured_flow(z: Tensor, bases: Tensor, times: Tensor, eps: float = 0.5) -> Tensor:
    """Follow dZ/dt = ∇R^c(Z | U)/2t by Euler steps Z + (t' − t)/2t ∇R^c(Z); z (..., n, d), bases (K, d, p).

    Ascending times are the structured diffusion (eq. compression_ode_diffusion). Descending times are the structured
    denoising (eq. compression_ode), in which the paper's time T − t reverses the sign. With t_{ℓ+1} = (1 + 2κ)t_ℓ a
    step is Z + κ∇R^c(Z) at every t (B.4). The reversed grid has steps of −κ/(1 + 2κ); steps of −κ∇R^c come from
    `geometric_times(T, -κ, L)`, the descending grid of ratio 1 − 2κ.
    """
    values = check_times(times)
    path = [z]
    for now, later in pairwise(values):
        path.append(path[-1] + (later - now) / (2 * now) * subspace_coding_rate_gradient(path[-1], bases, eps))
    return torch.stack(path)


def structured_solution(z: Tensor, bases: Tensor, ratio: float, eps: float = 0.5) -> Tensor:
    """Solve the ODE of `structured_flow` exactly from t to ratio · t for orthogonal subspaces, z (..., n, d) → same.

    In log t the ODE is autonomous, dZ/d log t = ½∇R^c(Z), and keeps the singular vectors of every W_k = U_k*Z. For a
    singular value s, y = βs² obeys dy/d log t = βy/(1 + y). So y + log y grows by β log(ratio), and
    y' = ω(y + log y + β log(ratio)) with Wright's function ω. The part outside all subspaces is constant.
    """
    check_orthonormal(bases)
    if not (ratio > 0 and math.isfinite(ratio)):
        raise CrateError(f"ratio must be a positive ratio of times, got {ratio}")
    if float(coherence(bases)) > ORTHONORMAL:
        raise CrateError("structured_solution needs mutually orthogonal subspaces; structured_flow takes any subspaces")
    w = torch.einsum("...nd,kdp->...knp", z, bases)
    beta = bases.shape[-1] / (z.shape[-2] * eps**2)
    left, s, right = torch.linalg.svd(w, full_matrices=False)
    y = (beta * s.square()).clamp_min(torch.finfo(s.dtype).tiny)
    target = y + y.log() + beta * math.log(ratio)
    moved = (torch.from_numpy(wrightomega(target.cpu().numpy())).to(s) / beta).sqrt()
    change = (left * (moved - s).unsqueeze(-2)) @ right
    return z + torch.einsum("...knp,kdp->...nd", change, bases)


def sliced_wasserstein(x: Tensor, y: Tensor, directions: int = 64, generator: torch.Generator | None = None) -> float:
    """Return √ of the mean over random directions of W₂² between the projections of x and y, both (n, d).

    In one dimension W₂ matches sorted samples, so x and y must have equally many rows.
    """
    if x.ndim != 2 or x.shape != y.shape:
        raise CrateError(f"x and y must be two samples of one shape (n, d), got {tuple(x.shape)} and {tuple(y.shape)}")
    axes = torch.randn(x.shape[-1], directions, generator=generator, dtype=x.dtype, device=x.device)
    axes = axes / torch.linalg.norm(axes, dim=0)
    gap = (x @ axes).sort(0).values - (y @ axes).sort(0).values
    return float(gap.square().mean().sqrt())


def _noise_like(z: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)
