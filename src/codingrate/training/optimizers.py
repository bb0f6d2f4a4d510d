"""Optimizers and learning-rate schedules of the recipes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..errors import CrateError
from .recipe import OptimiseSection, ScheduleSection


def build_optimizer(model: nn.Module, spec: OptimiseSection) -> Optimizer:
    """The optimizer of a recipe over the parameters that train, in one group that decays and one that does not."""
    groups = _groups(model, spec)
    if spec.name == "lion":
        from lion_pytorch import Lion

        return Lion(groups, lr=spec.lr, betas=spec.betas or (0.9, 0.99), weight_decay=spec.weight_decay)
    optimizer = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
    return optimizer(groups, lr=spec.lr, betas=spec.betas or (0.9, 0.999), eps=spec.eps, weight_decay=spec.weight_decay)


def _groups(model: nn.Module, spec: OptimiseSection) -> list[dict[str, object]]:
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed = trained if spec.decay == "all" else [p for p in trained if p.ndim >= 2]
    spared = [] if spec.decay == "all" else [p for p in trained if p.ndim < 2]
    groups = [
        {"params": decayed, "weight_decay": spec.weight_decay, "decays": True},
        {"params": spared, "weight_decay": 0.0, "decays": False},
    ]
    return [group for group in groups if group["params"]]


def cosine(start: float, end: float, share: float) -> float:
    """From `start` to `end` along half a cosine, after `share` of the way."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * share))


def rate_factor(spec: ScheduleSection, peak: float, warmup: int, total: int) -> Callable[[int], float]:
    """The learning rate over its peak after each step: a linear rise over `warmup`, then the recipe's fall to the end.

    The first step already moves: step t of the warm-up takes (t + 1)/warmup of the peak, or with `rise_from_zero`
    t/warmup, as the released scripts of MAE and DINO have it.
    """
    low = spec.final_lr / peak
    first = 0 if spec.rise_from_zero else 1

    def factor(step: int) -> float:
        if step < warmup:
            return (step + first) / warmup
        if spec.shape == "constant":
            return 1.0
        share = min(1.0, (step - warmup) / max(1, total - warmup))
        return cosine(1.0, low, share) if spec.shape == "cosine" else 1 + (low - 1) * share

    return factor


def build_schedule(
    optimizer: Optimizer, schedule: ScheduleSection, peak: float, steps_per_epoch: int | None, total: int
) -> LambdaLR:
    """The learning-rate schedule of a recipe, advanced once per optimizer step."""
    if schedule.warmup_epochs and not schedule.warmup_steps and steps_per_epoch is None:
        raise CrateError("schedule.warmup_epochs: a stream has no known length; set schedule.warmup_steps")
    warmup = schedule.warmup_steps or round(schedule.warmup_epochs * (steps_per_epoch or 0))
    return LambdaLR(optimizer, rate_factor(schedule, peak, warmup, total))
