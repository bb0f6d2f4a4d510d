"""Itô diffusions with any drift and diffusion coefficient, their time reversal and their flows (paper B.1).

`VarianceExploding` is the case b = 0, Σ = √r I, the only one that the network uses. There Ψ = ΣΣ* is constant; here
it may depend on z, and ∇·Ψ enters every reversed process. Times are those of the diffusion, as in `diffusion`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from codingrate.errors import CrateError

from .diffusion import check_times

Field = Callable[[Tensor, float], Tensor]
"""A function of one point (m,) and a time, written with operations that torch.func can differentiate."""


@dataclass(frozen=True)
class ItoDiffusion:
    """The diffusion dz = b(z, t)dt + Σ(z, t)dw with its score s(z, t) = ∇log p(z, t) (eq. forward_general_diffusion).

    All three functions take one point (m,). Methods take rows (n, m).
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

    def reverse(self, z: Tensor, times: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Follow the time reversal along descending times by Euler-Maruyama, (n, m) → (len(times), n, m)."""
        values, path = check_times(times), [z]
        if values[0] < values[-1]:
            raise CrateError("times must descend for reverse")
        for now, later in pairwise(values):
            noise = torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)
            spread = self._field(self.diffusion, path[-1], now) @ noise.unsqueeze(-1)
            step = now - later
            path.append(path[-1] + step * self.reverse_drift(path[-1], now) + step**0.5 * spread.squeeze(-1))
        return torch.stack(path)

    def flow(self, z: Tensor, times: Tensor) -> Tensor:
        """Follow the ODE in either direction of time by Runge-Kutta steps of order 4, (n, m) → (len(times), n, m)."""
        path = [z]
        for now, later in pairwise(check_times(times)):
            h, half, x = later - now, (now + later) / 2, path[-1]
            one = self.flow_drift(x, now)
            two = self.flow_drift(x + h / 2 * one, half)
            three = self.flow_drift(x + h / 2 * two, half)
            four = self.flow_drift(x + h * three, later)
            path.append(x + h / 6 * (one + 2 * two + 2 * three + four))
        return torch.stack(path)

    def _psi(self, x: Tensor, t: float) -> Tensor:
        sigma = self.diffusion(x, t)
        return sigma @ sigma.mT

    def _field(self, field: Field, z: Tensor, t: float) -> Tensor:
        return vmap(lambda x: field(x, t))(z)

    def _correction(self, z: Tensor, t: float) -> Tensor:
        """Return ∇·Ψ + Ψs = ∇·(Ψp)/p, (n, m)."""
        pull = self.covariance(z, t) @ self._field(self.score, z, t).unsqueeze(-1)
        return self.divergence(z, t) + pull.squeeze(-1)
