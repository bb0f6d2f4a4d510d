"""An exponential moving average of the weights, evaluated and saved in their place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

FILE = "ema.safetensors"


class WeightAverage:
    """θ̄ ← decay · θ̄ + (1 − decay) · θ after every step, for every parameter that trains."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.average = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take one step of the average."""
        for name, parameter in self._pairs(model):
            self.average[name].lerp_(parameter, 1 - self.decay)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model with averaged weights; its own come back afterwards."""
        own = {name: p.detach().clone() for name, p in self._pairs(model)}
        self._copy(model, self.average)
        try:
            yield
        finally:
            self._copy(model, own)

    def save(self, folder: Path) -> None:
        """Write the average beside a checkpoint."""
        save_file(self.average, folder / FILE)

    def load(self, folder: Path) -> None:
        """Read it back."""
        for name, tensor in load_file(folder / FILE).items():
            self.average[name].copy_(tensor)

    def _pairs(self, model: nn.Module) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in model.named_parameters() if name in self.average]

    @torch.no_grad()
    def _copy(self, model: nn.Module, weights: dict[str, Tensor]) -> None:
        for name, parameter in self._pairs(model):
            parameter.copy_(weights[name])
