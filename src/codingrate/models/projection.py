"""The projection head of self-distillation (paper 4.1.3): from one token to scores over prototypes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import CrateConfig


class Prototypes(nn.Module):
    """A linear map without bias whose rows have a direction and a length of their own (weight normalisation).

    x ↦ x Cᵀ with rows c_j = g_j v_j/‖v_j‖   (x (..., b), `direction` v (P, b), `gain` g (P, 1))

    g starts at 1 and, with `normalize_prototypes`, stays there: scores of unit vectors are then cosines.
    """

    gain: Tensor

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        self.config = config
        self.direction = nn.Parameter(torch.empty(config.prototypes, config.projection_bottleneck))
        gain = torch.empty(config.prototypes, 1)
        if config.normalize_prototypes:
            self.register_buffer("gain", gain)
        else:
            self.gain = nn.Parameter(gain)

    def forward(self, x: Tensor) -> Tensor:
        """Vectors (..., b) to scores (..., P)."""
        return F.linear(x, self.gain * F.normalize(self.direction, dim=1))

    def extra_repr(self) -> str:
        return f"prototypes={self.config.prototypes}, bottleneck={self.config.projection_bottleneck}"


class ProjectionLayer(nn.Linear):
    """A linear map of the projection head, which starts as DINO's do: truncated normal weights, zero bias."""


class ProjectionHead(nn.Module):
    """f^proj: a token's features (..., d) to the logits (..., P) that student and teacher compare.

    Released DINO: y = W₃ GELU(W₂ GELU(W₁z + b₁) + b₂) + b₃ of widths h, h, b, then C y/‖y‖ with `Prototypes` C.
    Paper (eq. dino_head): W₃ ReLU(W₂ ReLU(W₁z + b₁) + b₂) + b₃ of width d throughout, so that P = d. As the paper
    says it follows DINO, its equation reads as a simplification, and the released form is the default.
    """

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        d, released = config.hidden_size, config.projection_head == "released"
        hidden, out = (config.projection_hidden, config.projection_bottleneck) if released else (d, d)
        activation = nn.GELU if released else nn.ReLU
        self.layers = nn.Sequential(
            ProjectionLayer(d, hidden),
            activation(),
            ProjectionLayer(hidden, hidden),
            activation(),
            ProjectionLayer(hidden, out),
        )
        self.prototypes = Prototypes(config) if released else None
        self.outputs = config.prototypes if released else d

    def forward(self, features: Tensor) -> Tensor:
        """Features (..., d) to logits (..., P)."""
        y = self.layers(features)
        return y if self.prototypes is None else self.prototypes(F.normalize(y, dim=-1))

    def last_layer(self) -> nn.Module:
        """The map that gives the logits, which DINO holds still at first: the prototypes, or W₃."""
        return self.layers[-1] if self.prototypes is None else self.prototypes
