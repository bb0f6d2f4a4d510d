"""The task: everything that depends on the kind of learning, in one object per run."""

from __future__ import annotations

import itertools
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import Unpack

from .._distributed import SharedBatches, map_batches
from .._files import write_text
from .._report import Report
from .._state import seeded
from ..data import balanced_indices, dataset_names, text_names
from ..data.classes import ClassMap
from ..errors import CrateError
from ..models.base import CratePreTrainedModel, eval_mode
from ..models.loading import load_model
from ..recipes.schema import Recipe
from .card import model_card
from .reports import majority_note

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..inspection import Outcome

SHOWN = 6
"""Number of samples that the summary of an inspection shows."""

Progress = Callable[[int], None]
"""A function that is told how many samples were just processed."""


OpenProgress = Callable[[str, int], AbstractContextManager[Callable[..., None]]]
"""Opens a progress bar with a description and a total, and yields a function that advances it."""


def no_progress(count: int) -> None:
    """Ignore the progress."""


Values = dict[str, NDArray[np.float64]]
"""Metrics of every sample by name, each (samples,)."""


@dataclass(frozen=True)
class TaskPaths:
    """Locations that a run gives to its task."""

    source: str | None = None
    """Model that training starts from: a file, a folder written by `save_pretrained`, or a hub id."""
    tokenizer: Path | None = None
    """Folder in which the tokenizer is kept, so that a resumed run does not learn another one."""
    tokens: Path | None = None
    """Folder for tokenized text."""
    unreadable: tuple[str, ...] = ()
    """Names of the images that could not be read when the run was started, and are left out since."""
    published: bool = False
    """Whether the run is a published one: the data that it was trained on are elsewhere."""


@dataclass(frozen=True)
class Step:
    """The result of one training batch."""

    loss: Tensor
    """Mean loss over the samples, which is differentiated."""
    samples: int
    """Number of samples in the batch."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Means over the batch for the log, such as the accuracy."""


class Samples(NamedTuple):
    """The samples that an inspection measures; `total` is 0 if unknown, `notes` are sentences for the reader."""

    data: str
    split: str
    total: int
    notes: tuple[str, ...] = ()


class Reading(TypedDict, total=False):
    """How samples are read, by an evaluation or an inspection."""

    split: str | None
    limit: int
    """Largest number of samples. Default: all."""
    batch_size: int
    progress: Progress
    unreadable: list[str]
    """List to which the names of images that could not be read are added."""
    class_map: ClassMap
    """Model classes by data class, for data whose classes have other names."""


class Task(ABC):
    """One kind of learning: its data, model, loss, metrics, evaluation and predictions.

    A task is built from a recipe and has no other settings. Its data are opened on first use.
    """

    best_metric: str | None = "loss"
    """Metric that decides which model is the best; None: the last model is."""
    higher_is_better: bool = False
    sample_unit: ClassVar[str] = "img"
    """Unit in the progress line."""
    modality: ClassVar[str] = "vision"
    evaluation_batch_size: ClassVar[int] = 64
    """Batch size of evaluations during training, if the training batch of a device is smaller."""
    default_split: ClassVar[str] = "test"

    def __init__(self, recipe: Recipe, paths: TaskPaths | None = None) -> None:
        self.recipe, self.paths = recipe, paths or TaskPaths()

    def with_data(self, name: str, path: str | None = None, *, held_out: bool = True) -> Task:
        """Return the same task on other data.

        With `held_out`, data without splits are used in full for evaluation; otherwise a share is split off.
        """
        whole = held_out and (path is not None or name not in (*dataset_names(), *text_names()))
        share = 1.0 if whole else None
        data = replace(self.recipe.data, name=name, path=path, streaming=False, test_share=share)
        return type(self)(replace(self.recipe, data=data), replace(self.paths, unreadable=()))

    # Data

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Names of the samples of the dataset that are left out because they cannot be read."""
        return ()

    def find_unreadable(self, open_progress: OpenProgress) -> None:
        """Look for samples that cannot be read, before training; they are left out, and too many are an error."""
        del open_progress

    @cached_property
    @abstractmethod
    def data(self) -> Any:
        """The opened dataset."""

    @property
    @abstractmethod
    def processor(self) -> Any:
        """The image processor or the tokenizer, as pipelines use it."""

    @abstractmethod
    def datasets(self, rank: int = 0, world_size: int = 1) -> tuple[Any, Any]:
        """Return the training and the evaluation dataset of this process."""

    @abstractmethod
    def collate(self, samples: Any) -> dict[str, Any]:
        """Combine samples into a batch."""

    def on_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Take note of a batch and return the part of it that goes to the device."""
        return batch

    def check_unreadable(self) -> tuple[str, ...]:
        """Return the names of samples that could not be read in training since the last call; too many are an error."""
        return ()

    def prepare(self, batch: dict[str, Any], seed: int | None, model: CratePreTrainedModel) -> dict[str, Any]:
        """Augment and mask a batch on the device: at random from `seed` in training, deterministically without one."""
        return batch

    # Model and loss

    def build_model(self) -> CratePreTrainedModel:
        """Build the model of the recipe, with random weights from the run's seed or from the source model."""
        _ = self.data  # opened first, so that it cannot draw from the seed
        with seeded(self.recipe.run.seed):
            return self.create_model()

    def load_source(self) -> CratePreTrainedModel:
        """Load the model that training starts from, in single precision if it was saved in half."""
        try:
            model = load_model(cast(str, self.paths.source))
            if model.config.quantized:
                raise CrateError("its 8-bit weights cannot be trained; give the model before quantization")
            return cast(Any, model).float() if model.dtype in (torch.float16, torch.bfloat16) else model
        except CrateError as error:
            raise CrateError(f"model.from={self.recipe.source}: {error}") from error

    def log_source(self, source: CratePreTrainedModel, model: CratePreTrainedModel) -> None:
        """Log which weights of the new model are those of the source model, resized to the new one, or new."""
        before = {name.removeprefix("crate."): value for name, value in source.state_dict().items()}
        named = {name.removeprefix("crate."): value for name, value in model.state_dict().items()}
        new = [name for name, value in named.items() if not _equal(before.get(name), value)]
        resized = [name for name in new if "embedding.positions." in name and name in before]
        parts = dict.fromkeys(_part(name) for name in new if name not in resized)
        config = model.config
        shape = f"{config.num_hidden_layers} layers, width {config.hidden_size}, {config.num_attention_heads} heads"
        names = ", ".join(f"{part} ({config.num_labels} outputs)" if part == "head" else part for part in parts)
        logging.getLogger("codingrate").info(
            f"model.from={self.recipe.source}: took its architecture and weights ({shape}); "
            f"{'resized: positions; ' if resized else ''}new: {names or 'nothing'}"
        )

    @abstractmethod
    def create_model(self) -> CratePreTrainedModel:
        """Create the model for `build_model`."""

    @abstractmethod
    def loss(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        """Compute the training loss of a batch.

        `model` may be wrapped for several processes; `inner` is the model itself.
        """

    @abstractmethod
    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Compute the metrics of every sample of a batch, each (batch,), including `loss`.

        Evaluations during training have these metrics. A metric `weight` weights the means.
        """

    def summarize(self, values: Values) -> dict[str, float]:
        """Compute the metrics of a split from those of its samples."""
        return weighted_means(values)

    def on_step_begin(self, step: int, steps: int, steps_per_epoch: int | None) -> None:
        """Set what depends on the optimizer step, counted from 0, other than learning rate and weight decay."""
        del step, steps, steps_per_epoch

    def on_gradients(self, inner: CratePreTrainedModel) -> None:
        """Change gradients between the backward pass and the optimizer step."""
        del inner

    def on_step_end(self, inner: CratePreTrainedModel) -> None:
        """Update state after an optimizer step."""
        del inner

    def warning(self, metrics: dict[str, float], epoch: float) -> str | None:
        """Return a warning about the logged metrics, if there is one."""
        return None

    def verdict(self, metrics: dict[str, float]) -> str | None:
        """Return a sentence if a classifier is no better than the most frequent class of the evaluation data."""
        accuracy, data = metrics.get("top1", metrics.get("accuracy")), self.datasets()[1]
        if accuracy is None or not hasattr(data, "labels"):
            return None
        return majority_note(accuracy, np.bincount(data.labels))

    @abstractmethod
    def headline(self, metrics: dict[str, float]) -> str:
        """Return the metrics of an evaluation in a few words."""

    def save(self, model: CratePreTrainedModel, weights: dict[str, Tensor] | None, folder: Path) -> None:
        """Write the model for evaluation with its processor, and a model card.

        `weights` are the gathered weights of a sharded model.
        """
        model.save_pretrained(folder, state_dict=weights)
        write_text(folder / "README.md", model_card(model, self.recipe))

    # Evaluation, prediction, inspection

    @abstractmethod
    def evaluate(self, model: CratePreTrainedModel, **reading: Unpack[Reading]) -> Report:
        """Measure a model on a split of the task's data."""

    def measure_batches(self, model: CratePreTrainedModel, batches: Iterable[dict[str, Any]]) -> Values:
        """Measure batches that lie on the model's device, in eval mode; several processes share the work."""

        def measured(batch: dict[str, Any]) -> Values:
            return {name: values.double().cpu().numpy() for name, values in self.measure(model, model, batch).items()}

        parts: dict[str, list[NDArray[np.float64]]] = {}
        with eval_mode(model), torch.inference_mode():
            for metrics in map_batches(measured, batches):
                for name, values in metrics.items():
                    parts.setdefault(name, []).append(values)
        if not all(np.isfinite(array).all() for array in parts.get("loss", [])):
            raise CrateError("the model's loss is not finite: training diverged or the model's file is damaged")
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}

    def baseline(self, split: str | None = None, progress: Progress | None = None) -> dict[str, dict[str, float]]:
        """Measure a simple rival on the task's data; the result has an entry per split or rival."""
        raise CrateError(f"task {self.recipe.task} has no baseline; for images use `probe(features='untrained')`")

    def outcome(
        self, model: CratePreTrainedModel, images: Sequence[Image], own_data: bool, **reading: Unpack[Reading]
    ) -> Outcome:
        """Measure a model beside a simple baseline for the summary of an inspection, and show a few samples.

        `images` are the first samples of an image task. Token frequencies are a baseline only on a model's `own_data`,
        whose training text can be counted.
        """
        from ..inspection import Outcome

        return Outcome()

    @abstractmethod
    def predict(self, model: CratePreTrainedModel, inputs: Sequence[Any]) -> list[Any]:
        """Return the model's answer to every input: labels with scores, features or text."""

    def write_sample(self, folder: Path, count: int) -> Path | None:
        """Write samples of the evaluation data to a file that can be given as `data`; None if a task has no form."""
        return None

    @abstractmethod
    def samples(self, split: str | None, limit: int) -> Samples:
        """Describe the samples that `batches` reads."""

    @abstractmethod
    def batches(
        self, model: CratePreTrainedModel, reader: Task | None = None, **reading: Unpack[Reading]
    ) -> SharedBatches[Any]:
        """Return samples as a model reads them: pixels (batch, channels, height, width) or a mapping with `input_ids`.

        With `reader`, the task of another model, images are cropped and normalized as that task does.
        """

    @abstractmethod
    def layerwise_batch(self, samples: list[Any]) -> list[Tensor]:
        """Turn samples of the evaluation dataset into inputs for the layer-wise measures during training."""


def _equal(one: Tensor | None, other: Tensor) -> bool:
    return one is not None and torch.equal(one, other)


def _part(name: str) -> str:
    """Return the part of a model that a parameter belongs to."""
    return name.split(".")[0].removesuffix("_norm")


def weighted_means(values: Values) -> dict[str, float]:
    """Return the mean of each metric over samples, weighted by `weight` if it is there."""
    weight = values.get("weight")
    columns = {name: column for name, column in values.items() if name != "weight"}
    if weight is None:
        return {name: float(column.mean()) for name, column in columns.items()}
    return {name: float((column * weight).sum() / weight.sum()) for name, column in columns.items()}


def cosine(start: float, end: float, share: float) -> float:
    """Interpolate from `start` to `end` along half a cosine, after `share` of the way."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * share))


def generator(seed: int) -> torch.Generator:
    """Return a random generator for one batch, on the CPU so that every device draws the same numbers."""
    return torch.Generator().manual_seed(seed)


STREAM_NOTE = "the data are a stream, so the samples are its first ones, whatever their class"


def balanced_samples(dataset: Any, count: int) -> dict[int, Any]:
    """Return samples of a dataset by index, balanced over its classes, or at random if it has no `labels`.

    Of a stream, they are the first ones.
    """
    if not hasattr(dataset, "__len__"):
        logging.getLogger("codingrate").info(STREAM_NOTE)
        return dict(enumerate(itertools.islice(dataset, count)))
    labels = getattr(dataset, "labels", np.zeros(len(dataset)))
    return {index: dataset[index] for index in balanced_indices(labels, count)}


def freeze_body(model: nn.Module, head: tuple[str, ...]) -> None:
    """Freeze all parameters except those whose name starts with one of the prefixes in `head`."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(head))


def expect_model(model: nn.Module, kind: type[CratePreTrainedModel], task: str) -> Any:
    """Return the model if it is of the class that a task needs; refuse any other."""
    if not isinstance(model, kind):
        raise CrateError(f"task {task} needs a {kind.__name__}, not a {type(model).__name__}")
    return cast(Any, model)
