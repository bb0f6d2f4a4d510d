"""The objective in three dimensions: tokens near lines, and layers that compress and sparsify them (paper 2.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from .. import objective as ob
from ..errors import CrateError
from ..theory import compression_direction, compression_smoothness, ista

METHODS = {"exact gradient": "exact", "Neumann approximation": "neumann", "attention (MSSA)": "mssa"}
"""Ways to lower R^c, by the name that people read."""
EPS = 0.5
"""Precision ε of all rates."""


@dataclass(frozen=True)
class PlaySettings:
    """Settings of the playground."""

    subspaces: int = 3
    angle: float = 70.0
    """Angle between any two lines, in degrees."""
    sigma: float = 0.2
    """Standard deviation of the noise."""
    tokens: int = 150
    method: str = "mssa"
    step: float = 0.5
    """Step size of the compression, as a share of the largest one that is sure to lower R^c."""
    sparsify: bool = True
    """Whether an ISTA step follows each compression."""
    threshold: float = 0.05
    """Threshold ηλ, which ISTA subtracts from every entry."""
    rescale: bool = True
    """Whether each layer gives the tokens back their total size, which in the network is the task of layer norm."""
    layers: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        ranges = {
            "subspaces": (2, 3), "angle": (5, 90), "sigma": (0, 1), "tokens": (10, 1000), "step": (0.01, 4),
            "threshold": (0, 1), "layers": (1, 40), "seed": (0, 2**31),
        }  # fmt: skip
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                raise CrateError(f"{name} is {getattr(self, name)}; it must be from {low} to {high}")
        if self.method not in METHODS.values():
            raise CrateError(f"method is {self.method!r}; it must be one of {', '.join(METHODS.values())}")


@dataclass(frozen=True, eq=False)
class Play:
    """Tokens and measures along the layers."""

    bases: Tensor  # a line for each subspace, (K, 3, 1)
    labels: Tensor  # the line that each token was drawn near, (n,)
    tokens: tuple[Tensor, ...]  # Z^1 … Z^{L+1}, each (n, 3)
    table: pd.DataFrame
    """A row per layer from 0: `compression` R^c, `rate` R, `reduction` ΔR, `nonzero`, `distance` to the lines."""


def lines(count: int, angle: float) -> Tensor:
    """Return unit vectors with the same angle between any two of them, in the positive octant, (count, 3, 1).

    v_i = a e_i + b 1 with a, b such that ‖v_i‖ = 1 and ⟨v_i, v_j⟩ = cos θ. At 90° they are coordinate axes.
    """
    cosine = math.cos(math.radians(angle))
    a = math.sqrt(1 - cosine)  # ⟨v_i, v_i⟩ − ⟨v_i, v_j⟩ = a²
    axes = torch.eye(3, dtype=torch.float64)[:count, :]
    flat = torch.zeros(3, dtype=torch.float64)
    flat[:count] = 1  # two lines stay in a plane
    b = (-a + math.sqrt(a * a + count * cosine)) / count  # count·b² + 2ab = cos θ
    return (a * axes + b * flat)[:, :, None]


def play(settings: PlaySettings) -> Play:
    """Draw tokens near the lines and let the layers act on them.

    Tokens are z = |α|v_k + σw, so that ISTA, which sets negative entries to zero, does not erase half of them. A layer
    subtracts κ times the direction of `theory.compression_direction`, and ISTA with D = I thresholds the
    coordinates. Without rescaling both only shrink the tokens.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    bases = lines(settings.subspaces, settings.angle)
    drawn = ob.sample_tokens(bases, settings.tokens, settings.sigma, generator)
    z = drawn.tokens * drawn.codes.sign()  # in law the same noise, with codes |α|
    kappa = settings.step / compression_smoothness(bases, settings.tokens, EPS)
    states, eye = [z], torch.eye(3, dtype=z.dtype)
    for _ in range(settings.layers):
        z = z - kappa * compression_direction(z, bases, EPS, settings.method)
        if settings.sparsify:
            z = ista(z, eye, 1.0, settings.threshold)
        if settings.rescale:
            z = z * states[0].norm() / z.norm().clamp(min=1e-12)
        if not bool(z.isfinite().all()) or float(z.abs().max()) > 1e6:
            raise CrateError("the tokens have grown without bound; use a smaller step or another method")
        states.append(z)
    return Play(
        bases, drawn.labels, tuple(states), pd.DataFrame([_measures(z, bases, i) for i, z in enumerate(states)])
    )


def _measures(z: Tensor, bases: Tensor, layer: int) -> dict[str, float]:
    unit = torch.nn.functional.normalize(z, dim=-1)
    cosines = torch.einsum("nd,kdp->nk", unit, bases).abs().amax(-1)
    alive = z.norm(dim=-1) > 0
    angles = torch.rad2deg(torch.acos(cosines.clamp(max=1)))[alive]
    return {
        "layer": layer,
        "compression": float(ob.subspace_coding_rate(z, bases, EPS)),
        "rate": float(ob.coding_rate(z, EPS)),
        "reduction": float(ob.rate_reduction(z, bases, EPS)),
        "nonzero": float(ob.l0_fraction(z)),
        "distance": float(angles.mean()) if len(angles) else math.nan,
    }
