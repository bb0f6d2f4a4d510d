"""Diffusion and denoising in time (paper 3.1-3.3, B.1, B.4): exact processes and the structured ODEs.

Times are always those of the diffusion, t > 0: an ascending grid diffuses, a descending one denoises (the paper's
denoising time is T − t). Every process returns its whole path, (len(times), ..., d), which begins with the starting
point. The general process is `ItoDiffusion`. The network uses variance exploding, dz = √r dw: at time t the noise level
is √(rt), and the score is that of the mixture at this level. The paper takes r = 1 in 3.1 and r = 2 in B.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from scipy.special import wrightomega
from torch import Tensor
from torch.func import jacrev, vmap

from codingrate.errors import CrateError
from codingrate.objective import coherence, subspace_coding_rate_gradient

from .denoising import ORTHONORMAL, SubspaceMixture, check_orthonormal

Field = Callable[[Tensor, float], Tensor]
"""A function of one point (m,) and a time, written with operations that torch.func can differentiate."""


def geometric_times(first: float, kappa: float, count: int) -> Tensor:
    """Return the paper's grid t_{ℓ+1} = (1 + 2κ) t_ℓ from t_1 = first, (count,) in float64 (B.4).

    κ > 0 ascends, −½ < κ < 0 descends. t_L = (1 + 2κ)^{L−1} t_1; the paper's exponent L is one too large.
    """
    return first * (1 + 2 * kappa) ** torch.arange(count, dtype=torch.float64)


def follow(step: Callable[[Tensor, float, float], Tensor], z: Tensor, times: Tensor) -> Tensor:
    """Return the path of z under z ← step(z, t, t′) for each pair of consecutive times, (len(times), *z.shape)."""
    values = [float(t) for t in times]
    if not min(values) > 0 or {(after > now) - (after < now) for now, after in pairwise(values)} not in ({1}, {-1}):
        raise CrateError(f"times must be positive and all ascend (diffusion) or all descend (denoising), got {values}")
    return torch.stack(list(accumulate(pairwise(values), lambda x, pair: step(x, *pair), initial=z)))


@dataclass(frozen=True)
class ItoDiffusion:
    """The diffusion dz = b(z, t)dt + Σ(z, t)dw with its score s(z, t) = ∇log p(z, t) (eq. forward_general_diffusion).

    All three functions take one point (m,). Methods take rows (n, m). Ψ = ΣΣ* may depend on z, so that ∇·Ψ enters
    every reversed process.
    """

    drift: Field  # b, (m,) → (m,)
    diffusion: Field  # Σ, (m,) → (m, m)
    score: Field  # s, (m,) → (m,)

    def covariance(self, z: Tensor, t: float) -> Tensor:
        """Return Ψ(z, t) = ΣΣ*, (n, m) → (n, m, m)."""
        return vmap(lambda x: self._psi(x, t))(z)

    def divergence(self, z: Tensor, t: float) -> Tensor:
        """Return ∇·Ψ, whose i-th entry is Σ_j ∂Ψ_ij/∂z_j, (n, m) → (n, m)."""
        return vmap(lambda x: jacrev(lambda y: self._psi(y, t))(x).diagonal(dim1=1, dim2=2).sum(-1))(z)

    def reverse_drift(self, z: Tensor, t: float) -> Tensor:
        """Return −b + ∇·Ψ + Ψs at the diffusion's time t, the drift of the time reversal, (n, m) → (n, m).

        The paper writes b^←(z, t) for this drift at T − t (eq. backward_general_diffusion).
        """
        return self._field(self.drift, z, t).neg() + self._correction(z, t)

    def flow_drift(self, z: Tensor, t: float) -> Tensor:
        """Return b − ½∇·Ψ − ½Ψs, the velocity of the ODE with the same marginals (eq. general_diffusion_ode).

        The ODE of the time reversal has the velocity −flow_drift at T − t (eq. backward_general_diffusion_ode).
        """
        return self._field(self.drift, z, t) - self._correction(z, t) / 2

    def flow(self, z: Tensor, times: Tensor) -> Tensor:
        """Follow the ODE in either direction of time by Runge-Kutta steps of order 4, (n, m) → (len(times), n, m)."""
        return runge_kutta(self.flow_drift, z, times)

    def _psi(self, x: Tensor, t: float) -> Tensor:
        sigma = self.diffusion(x, t)
        return sigma @ sigma.mT

    def _field(self, field: Field, z: Tensor, t: float) -> Tensor:
        return vmap(lambda x: field(x, t))(z)

    def _correction(self, z: Tensor, t: float) -> Tensor:
        """Return ∇·Ψ + Ψs = ∇·(Ψp)/p, (n, m)."""
        pull = self.covariance(z, t) @ self._field(self.score, z, t).unsqueeze(-1)
        return self.divergence(z, t) + pull.squeeze(-1)


def runge_kutta(velocity: Field, z: Tensor, times: Tensor) -> Tensor:
    """Follow dz/dt = velocity(z, t) by Runge-Kutta steps of order 4, (n, m) → (len(times), n, m)."""

    def step(x: Tensor, now: float, later: float) -> Tensor:
        h, half = later - now, (now + later) / 2
        one = velocity(x, now)
        two = velocity(x + h / 2 * one, half)
        three = velocity(x + h / 2 * two, half)
        return x + h / 6 * (one + 2 * two + 2 * three + velocity(x + h * three, later))

    return follow(step, z, times)


@dataclass(frozen=True)
class VarianceExploding:
    """The diffusion dz = √r dw of a mixture, its time reversal and its probability flow (3.1, B.1)."""

    mixture: SubspaceMixture
    rate: float = 1.0  # r: 1 in 3.1 (dz = dw, z_t = z♮ + N(0, tI)), 2 in B.1 (dz = √2 dw)

    def sigma(self, t: float) -> float:
        """Return the noise level √(rt) at time t; a time that runs the wrong way has none."""
        if t < 0:
            raise CrateError("times must ascend for diffuse and descend for reverse")
        return math.sqrt(self.rate * t)

    def score(self, z: Tensor, t: float) -> Tensor:
        """Return ∇ log q_t(z)."""
        return self.mixture.score(z, self.sigma(t))

    def diffuse(self, z: Tensor, times: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Follow dz = √r dw along ascending times (eq. ve-fwd-decoder), exactly, by its Gaussian increments."""
        return follow(lambda x, now, later: x + self._noise(x, later - now, generator), z, times)

    def reverse(self, z: Tensor, times: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Follow the time reversal dz = r ∇log q_t dt + √r dw along descending times (eq. ve-bwd-decoder).

        Euler-Maruyama, of weak order 1. The drift grows as noise/t, so use a geometric grid, whose steps grow with t.
        """

        def step(x: Tensor, now: float, later: float) -> Tensor:
            return x + self.rate * (now - later) * self.score(x, now) + self._noise(x, now - later, generator)

        return follow(step, z, times)

    def flow(self, z: Tensor, times: Tensor) -> Tensor:
        """Follow the probability flow dz/dt = −(r/2) ∇log q_t in either direction (eq. ve-bwd-decoder-pfode).

        By Tweedie's formula dz/dσ = (z − E[z♮ | z])/σ with σ = √(rt). Heun's steps of order 2 are taken in σ, where the
        noise off the subspaces is linear and no step size makes an error in it.
        """

        def slope(x: Tensor, level: float) -> Tensor:
            return (x - self.mixture.denoise(x, level)) / level

        def step(x: Tensor, now: float, later: float) -> Tensor:
            before, after = self.sigma(now), self.sigma(later)
            first = slope(x, before)
            return x + (after - before) / 2 * (first + slope(x + (after - before) * first, after))

        return follow(step, z, times)

    def _noise(self, z: Tensor, t: float, generator: torch.Generator | None) -> Tensor:
        """Draw the noise that the diffusion adds in a time t."""
        return self.sigma(t) * torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)


def structured_flow(z: Tensor, bases: Tensor, times: Tensor, eps: float = 0.5) -> Tensor:
    """Follow dZ/dt = ∇R^c(Z | U)/2t by Euler steps Z + (t' − t)/2t ∇R^c(Z); z (..., n, d), bases (K, d, p).

    Ascending times are the structured diffusion (eq. compression_ode_diffusion). Descending times are the structured
    denoising (eq. compression_ode), in which the paper's time T − t reverses the sign. With t_{ℓ+1} = (1 + 2κ)t_ℓ a
    step is Z + κ∇R^c(Z) at every t (B.4). The reversed grid has steps of −κ/(1 + 2κ); steps of −κ∇R^c come from
    `geometric_times(T, -κ, L)`, the descending grid of ratio 1 − 2κ.
    """

    def step(x: Tensor, now: float, later: float) -> Tensor:
        return x + (later - now) / (2 * now) * subspace_coding_rate_gradient(x, bases, eps)

    return follow(step, z, times)


def structured_solution(z: Tensor, bases: Tensor, ratio: float, eps: float = 0.5) -> Tensor:
    """Solve the ODE of `structured_flow` exactly from t to ratio · t for orthogonal subspaces, z (..., n, d) → same.

    In log t the ODE is autonomous, dZ/d log t = ½∇R^c(Z), and keeps the singular vectors of every W_k = U_k*Z. For a
    singular value s, y = βs² obeys dy/d log t = βy/(1 + y). So y + log y grows by β log(ratio), and
    y' = ω(y + log y + β log(ratio)) with Wright's function ω. The part outside all subspaces is constant.
    """
    if float(coherence(check_orthonormal(bases))) > ORTHONORMAL:
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
    axes = torch.randn(x.shape[-1], directions, generator=generator, dtype=x.dtype, device=x.device)
    axes = axes / torch.linalg.norm(axes, dim=0)
    gap = (x @ axes).sort(0).values - (y @ axes).sort(0).values
    return float(gap.square().mean().sqrt())
