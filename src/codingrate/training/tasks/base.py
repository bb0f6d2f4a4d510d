"""What one kind of learning adds to the engine: its data, its model, its loss, its figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...models.base import CratePreTrainedModel
from ...models.config import CrateConfig
from ..recipe import Recipe


@dataclass(frozen=True)
class Step:
    """One batch of training."""

    loss: Tensor
    """What is differentiated, a mean over samples."""
    samples: int
    """Samples of the batch."""
    figures: dict[str, Tensor] = field(default_factory=dict)
    """Means over the batch that the log averages, such as the accuracy."""


class Task(ABC):
    """One kind of learning. The engine asks it for everything that depends on what is learned."""

    best: str | None = "loss"
    """Figure that decides which model is the best so far; None: the last one is."""
    higher: bool = False
    """Whether more of it is better."""
    samples: ClassVar[str] = "img"
    """What a sample is called in the progress line."""
    evaluation_batch: ClassVar[int] = 64
    """Samples of a test batch, if the training batch of a device is smaller."""
    shards: ClassVar[bool] = True
    """Whether weights may be sharded over processes (FSDP)."""

    config: CrateConfig
    """The config of the model that is trained; the engine sets it."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @abstractmethod
    def load_data(self, folder: Path | None = None) -> Any:
        """The data the recipe names; what is made of them to train on is kept in `folder`, the run's."""

    @abstractmethod
    def build_model(self, data: Any) -> CratePreTrainedModel:
        """The model of the recipe for these data, its weights drawn from the run's seed or taken from elsewhere."""

    @abstractmethod
    def datasets(self, data: Any, rank: int, world: int) -> tuple[Any, Any]:
        """Training and test rows of this process."""

    @abstractmethod
    def collate(self, rows: Any) -> dict[str, Any]:
        """Rows to a batch."""

    def receive(self, batch: dict[str, Any]) -> dict[str, Any]:
        """What of a batch goes to the device."""
        return batch

    def judge(self) -> tuple[str, ...]:
        """Names of samples that could not be read since the last call; raises when they are too many."""
        return ()

    @abstractmethod
    def prepare(self, batch: dict[str, Any], seed: int | None) -> dict[str, Any]:
        """What is done to a batch on the device: random by `seed` in training, nothing random without one."""

    @abstractmethod
    def step(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        """The loss of a batch; `model` is what runs, perhaps over several processes, `inner` what it wraps."""

    @abstractmethod
    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Figures of each sample of a test batch, each (batch,), `loss` among them; `weight` weighs the mean."""

    def summarize(self, figures: dict[str, NDArray[np.float64]]) -> dict[str, float]:
        """What an evaluation reports, out of what `measure` said of every sample of the split, each (samples,)."""
        return weighted_means(figures)

    def begin(self, step: int, steps: int, steps_per_epoch: int | None) -> None:
        """Before optimizer step `step`, counted from 0: what moves with it, apart from rate and weight decay."""
        del step, steps, steps_per_epoch  # most tasks have no such thing

    def gradients(self, inner: CratePreTrainedModel) -> None:
        """Between the backward pass and the optimizer's step."""
        del inner

    def finish(self, inner: CratePreTrainedModel) -> None:
        """After an optimizer step."""
        del inner

    @abstractmethod
    def measured_batch(self, rows: list[Any]) -> Any:
        """Test rows as inputs for the measures of every layer: a tensor, or a list of them."""

    def warning(self, figures: dict[str, float], epoch: float) -> str | None:
        """What a user should hear about the figures of the log."""
        del figures, epoch
        return None

    @abstractmethod
    def headline(self, figures: dict[str, float]) -> str:
        """The figures of an evaluation in a few words."""

    def save(self, model: CratePreTrainedModel, weights: dict[str, Tensor] | None, folder: Path) -> None:
        """Write what evaluation loads; `weights` are the whole ones of a sharded model."""
        model.save_pretrained(folder, state_dict=weights)


def weighted_means(figures: dict[str, Any]) -> dict[str, float]:
    """The mean of each figure over samples, weighed by `weight` where there is one."""
    weight = figures.pop("weight", None)
    if weight is None:
        return {name: float(values.mean()) for name, values in figures.items()}
    return {name: float((values * weight).sum() / weight.sum()) for name, values in figures.items()}


def generator(seed: int) -> torch.Generator:
    """Random numbers of one batch, drawn on the CPU so that every device sees the same."""
    return torch.Generator().manual_seed(seed)
