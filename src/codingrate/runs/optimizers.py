"""Optimizers, learning-rate schedules and the average of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..errors import CrateError
from ..models.layers import Layer
from ..recipes.schema import OptimizerSection, ScheduleSection
from ..tasks.base import cosine
from .lion import Lion


def build_optimizer(model: nn.Module, section: OptimizerSection) -> Optimizer:
    """Build the optimizer over the trainable parameters, in one group with and one group without weight decay."""
    groups = _groups(model, section)
    if section.name == "muon":
        return Muon(groups, {id(p) for layer in _layers(model) for p in layer.parameters() if p.ndim == 2}, section)
    if section.name == "lion":
        return Lion(groups, lr=section.lr, betas=section.betas or (0.9, 0.99), weight_decay=section.weight_decay)
    optimizer = torch.optim.AdamW if section.name == "adamw" else torch.optim.Adam
    betas = section.betas or (0.9, 0.999)
    return optimizer(groups, lr=section.lr, betas=betas, eps=section.eps, weight_decay=section.weight_decay)


def _groups(model: nn.Module, section: OptimizerSection) -> list[dict[str, Any]]:
    trainable = [p for p in model.parameters() if p.requires_grad]
    decayed = trainable if section.decay == "all" else [p for p in trainable if p.ndim >= 2]
    undecayed = [] if section.decay == "all" else [p for p in trainable if p.ndim < 2]
    groups = [
        {"params": decayed, "weight_decay": section.weight_decay, "decays": True},
        {"params": undecayed, "weight_decay": 0.0, "decays": False},
    ]
    return [group for group in groups if group["params"]]


def _layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, Layer)]


class Muon(Optimizer):
    """Muon for the matrices of the layers and AdamW for all other parameters, as one optimizer.

    Muon replaces the averaged gradient of a matrix by the nearest matrix with orthonormal rows or columns, so that all
    directions of a subspace basis or a dictionary learn at the same rate. Its updates are scaled to the size of
    AdamW's, so both have the same learning rate.
    """

    def __init__(self, groups: list[dict[str, Any]], matrices: set[int], section: OptimizerSection) -> None:
        split = {
            inside: [
                {**group, "params": chosen, "matrices": inside}
                for group in groups
                if (chosen := [p for p in group["params"] if (id(p) in matrices) == inside])
            ]
            for inside in (True, False)
        }
        betas = section.betas or (0.9, 0.999)
        self.parts: list[Optimizer] = []
        if split[True]:
            self.parts.append(torch.optim.Muon(split[True], lr=section.lr, adjust_lr_fn="match_rms_adamw"))
        if split[False]:
            self.parts.append(torch.optim.AdamW(split[False], lr=section.lr, betas=betas, eps=section.eps))
        super().__init__([group for part in self.parts for group in part.param_groups], {"lr": section.lr})
        self._share()

    def _share(self) -> None:
        """Let the two parts see the groups and the state of the whole."""
        for part in self.parts:
            part.state = self.state
            inside = part.param_groups[0]["matrices"]
            part.param_groups = [group for group in self.param_groups if group["matrices"] == inside]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def step(self, closure: Any = None) -> Any:
        """Take a step of both parts."""
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss


def weight_decay_at(step: int, steps: int, start: float, end: float) -> float:
    """Return the weight decay of a step on a cosine from `start` to `end`; released DINO goes from 0.04 to 0.4."""
    return cosine(start, end, min(step, steps) / max(steps, 1))


def rate_factor(section: ScheduleSection, peak: float, warmup: int, total: int) -> Callable[[int], float]:
    """Return the learning rate relative to its peak as a function of the step: linear warm-up, then decay.

    Step t of the warm-up has (t + 1)/warmup of the peak; with `warmup_from_zero` it has t/warmup, as in the released
    scripts of MAE and DINO.
    """
    low = section.final_lr / peak
    first = 0 if section.warmup_from_zero else 1

    def factor(step: int) -> float:
        if step < warmup:
            return (step + first) / warmup
        if section.scheduler == "constant":
            return 1.0
        share = min(1.0, (step - warmup) / max(1, total - warmup))
        return cosine(1.0, low, share) if section.scheduler == "cosine" else 1 + (low - 1) * share

    return factor


def build_schedule(
    optimizer: Optimizer, section: ScheduleSection, peak: float, steps_per_epoch: int | None, total: int
) -> LambdaLR:
    """Build the learning-rate schedule, advanced once per optimizer step."""
    if section.warmup_epochs and not section.warmup_steps and steps_per_epoch is None:
        raise CrateError("schedule.warmup_epochs: the length of a stream is unknown; set schedule.warmup_steps")
    warmup = section.warmup_steps or round(section.warmup_epochs * (steps_per_epoch or 0))
    return LambdaLR(optimizer, rate_factor(section, peak, warmup, total))


class WeightAverage:
    """θ̄ ← decay · θ̄ + (1 − decay) · θ after every step, starting from the initial weights.

    Of a sharded model, every process averages its own part.
    """

    FILE = "ema.safetensors"

    def __init__(self, decay: float) -> None:
        self.average = get_ema_multi_avg_fn(decay)
        self.weights: dict[str, Tensor] = {}
        """The average of each trainable parameter; empty before training starts."""

    def start(self, model: nn.Module) -> None:
        """Start from the weights of a model, unless an average was read from a checkpoint."""
        if not self.weights:
            self.weights = {name: p.detach().clone() for name, p in _parameters(model).items() if p.requires_grad}

    def update(self, model: nn.Module) -> None:
        """Update the average with the current weights."""
        current = _parameters(model)
        self.average([_local(w) for w in self.weights.values()], [_local(current[name]) for name in self.weights], 1)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights inside the block."""
        own = {name: parameter.detach().clone() for name, parameter in _parameters(model).items()}
        _copy_into(_parameters(model), self.weights)
        try:
            yield
        finally:
            _copy_into(_parameters(model), own)

    def whole(self) -> dict[str, Tensor]:
        """Return the average for a checkpoint; sharded weights are gathered from all processes."""
        return {name: w.full_tensor() if isinstance(w, DTensor) else w for name, w in self.weights.items()}

    def load(self, folder: Path, model: nn.Module) -> None:
        """Read the average from a checkpoint; `model` says how it is sharded."""
        self.start(model)
        _copy_into(self.weights, load_file(folder / self.FILE))


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model by name; those of a sharded model as the parts of this process."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # after an evaluation, some weights are still whole
    return dict(model.named_parameters())


def _local(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


@torch.no_grad()
def _copy_into(targets: dict[str, Tensor], weights: dict[str, Tensor]) -> None:
    for name, target in targets.items():
        if name in weights:
            weight = weights[name]
            if isinstance(target, DTensor) and not isinstance(weight, DTensor):
                weight = distribute_tensor(weight.to(target.device), target.device_mesh, target.placements)
            target.copy_(weight)
