"""Rates as losses of a training loop: maximal coding rate reduction, MCR² (Yu et al. 2020), with and without labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .normalized import unit_tokens
from .rates import class_coding_rate, coding_rate


class CodingRateLoss(nn.Module):
    """−R(Z) of features z (..., n, d), the mean over leading axes: features that spread over all directions.

    R(Z) = ½ logdet(I + d/(nε²) Z*Z). It keeps features from collapsing where another loss draws them together. With
    `normalize` features are scaled to unit length first, without which the loss has no minimum.

        loss = invariance + 0.1 * CodingRateLoss()(encoder(images))
    """

    def __init__(self, eps: float = 0.5, *, normalize: bool = True) -> None:
        super().__init__()
        self.eps, self.normalize = eps, normalize

    def forward(self, z: Tensor) -> Tensor:
        return -coding_rate(unit_tokens(z) if self.normalize else z, self.eps).mean()


class RateReductionLoss(CodingRateLoss):
    """−ΔR = R^c(Z | Π) − R(Z) of features z (..., n, d) with class labels (..., n) from 0 to `num_classes` − 1: MCR².

    R^c(Z | Π) = ½ Σ_k (n_k/n) logdet(I + d/(n_k ε²) Z Π_k Z*). Each class is drawn to a subspace of its own, and the
    subspaces to right angles. The value is at most 0, and a class without features in the batch adds nothing.

        criterion = RateReductionLoss(num_classes=10)
        for images, labels in loader:
            criterion(encoder(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    """

    def __init__(self, num_classes: int, eps: float = 0.5, *, normalize: bool = True) -> None:
        super().__init__(eps, normalize=normalize)
        self.num_classes = num_classes

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        z = unit_tokens(z) if self.normalize else z
        memberships = labels.unsqueeze(-2) == torch.arange(self.num_classes, device=labels.device)[:, None]
        reduction = coding_rate(z, self.eps) - class_coding_rate(z, memberships, self.eps, weighted=True)
        return -reduction.mean()
