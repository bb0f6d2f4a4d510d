"""Unrolled optimization run as an optimizer: the subspaces are known and nothing is learned (paper 2.2 to 2.5, A).

A layer takes two half steps. The first lowers R^c(Z | U), by its exact gradient or by one of the approximations that
lead to attention. The second lowers λ‖Z‖₁ − R(Z) over Z ≥ 0, or the LASSO that replaces it. The operators are those
of `codingrate.operators`, with weights passed in by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from codingrate import objective as ob
from codingrate.operators import ATTENTION, SPARSIFIERS

COMPRESSIONS = ("exact", "neumann", "mssa")


def mssa(z: Tensor, bases: Tensor, eps: float) -> Tensor:
    """Apply `TiedMSSA`: MSSA(Z | U) = β Σ_k SSA(Z | U_k)U_kᵀ, z (n, d), bases (K, d, p) → (n, d)."""
    K, d, p = bases.shape
    weights = {"project.weight": bases.mT.flatten(0, 1)}
    return ATTENTION.apply("mssa-tied", weights, z[None], dim=d, num_heads=K, head_dim=p, eps=eps)[0]


def ista(z: Tensor, dictionary: Tensor, step_size: float, sparsity: float) -> Tensor:
    """Apply `ISTA`: ReLU(Z − ηDᵀ(DZ − Z) − ηλ), z (n, d), D (d, d) → (n, d)."""
    settings = {"dim": z.shape[-1], "step_size": step_size, "sparsity": sparsity}
    return SPARSIFIERS.apply("ista", {"dictionary": dictionary}, z, **settings)


def proximal_layer(z: Tensor, dictionary: Tensor, sparsity: float, alpha: float) -> Tensor:
    """Apply `ProximalStep`: ReLU((1 + 4/(9(1 + α)))DᵀZ − 4λ/(9α)), z (n, d), D (d, d) → (n, d)."""
    return SPARSIFIERS.apply("prox", {"dictionary": dictionary}, z, dim=z.shape[-1], sparsity=sparsity, alpha=alpha)


def compression_smoothness(bases: Tensor, n: int, eps: float) -> float:
    """Return the Lipschitz constant β‖Σ_k U_kU_kᵀ‖ of ∇R^c( · | U) for n tokens.

    Each R(U_kᵀZ) has a Hessian of at most β on the codes (`coding_rate_lipschitz(tight=True)`). A step κ of at most
    the inverse lowers R^c by κ/2 ‖∇R^c‖² or more.
    """
    total = torch.einsum("kdp,kep->de", bases, bases)
    return ob.coding_rate_lipschitz(n, bases.shape[-1], eps, tight=True) * float(torch.linalg.matrix_norm(total, 2))


def compression_direction(z: Tensor, bases: Tensor, eps: float, method: str = "exact") -> Tensor:
    """Return the direction that a step subtracts κ times, z (n, d) → (n, d).

    It is ∇R^c ("exact"), its Neumann form ("neumann") or βZ − βMSSA(Z | U) ("mssa").
    """
    if method != "mssa":
        return ob.subspace_coding_rate_gradient(z, bases, eps, method)
    beta = bases.shape[-1] / (z.shape[-2] * eps**2)
    return beta * (z - mssa(z, bases, eps))


def proximal_step(z: Tensor, eps: float, weight: float) -> Tensor:
    """Take one majorize-minimize step on λ‖Z‖₁ − R(Z) over Z ≥ 0, for any tokens z (n, d) → (n, d).

    Z⁺ = ReLU(Z + ∇R(Z)/L − λ/L),  L = 9α/4   (eq. mm-iter)

    The paper's simplification for orthogonal tokens, `proximal_layer`, is not made here.
    """
    smooth = ob.coding_rate_lipschitz(z.shape[-2], z.shape[-1], eps)
    return torch.relu(z + (ob.coding_rate_gradient(z, eps) - weight) / smooth)


@dataclass(frozen=True)
class Descent:
    """The terms of the objective along the layers: one value before the first and one after every half layer."""

    compression: Tensor  # R^c(Z | U), (2·layers + 1,)
    expansion: Tensor  # R(Z)
    sparsity: Tensor  # λ‖Z‖₁
    tokens: Tensor  # Z after the last layer, (n, d)

    @property
    def objective(self) -> Tensor:
        """The quantity that the network minimizes, R^c + λ‖Z‖₁ − R: the negative sparse rate reduction."""
        return self.compression + self.sparsity - self.expansion


def alternate(
    z: Tensor,
    bases: Tensor,
    eps: float,
    weight: float,
    layers: int,
    compression: str = "exact",
    sparsification: str = "proximal",
    step: float | None = None,
) -> Descent:
    """Run the alternating minimization of eq. compression and eq. sparsification from z ≥ 0 (n, d).

    κ is `step`. Its default is 4/(9α), the step of the second half, so that both halves together follow the gradient
    of the whole objective. "proximal" lowers λ‖Z‖₁ − R itself. "ista" takes an ISTA step with D = I and the same
    threshold; its LASSO preserves R by staying near Z.
    """
    eta = 1 / ob.coding_rate_lipschitz(z.shape[-2], z.shape[-1], eps)
    kappa = eta if step is None else step
    eye, states = torch.eye(z.shape[-1], dtype=z.dtype), [z]
    sparsify = {"proximal": lambda x: proximal_step(x, eps, weight), "ista": lambda x: ista(x, eye, eta, weight)}
    for _ in range(layers):
        half = states[-1] - kappa * compression_direction(states[-1], bases, eps, compression)
        states += [half, sparsify[sparsification](half)]
    path = torch.stack(states)
    compressions, expansions = ob.subspace_coding_rate(path, bases, eps), ob.coding_rate(path, eps)
    return Descent(compressions, expansions, weight * ob.l1_norm(path), path[-1])
