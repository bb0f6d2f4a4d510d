"""The Lion optimizer (Chen et al., 2023, arXiv 2302.06675), with which the paper trains its classifiers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer


class Lion(Optimizer):
    """Signs of a blend of momentum and gradient: w ← w(1 − ηλ) − η sign(β₁m + (1 − β₁)g), m ← β₂m + (1 − β₂)g."""

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, (blend, decay) = group["lr"], group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                if not self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
                momentum = self.state[p]["exp_avg"]
                p.mul_(1 - lr * group["weight_decay"])
                p.add_(torch.lerp(p.grad, momentum, blend).sign_(), alpha=-lr)
                momentum.lerp_(p.grad, 1 - decay)
        return loss
