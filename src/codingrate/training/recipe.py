"""A recipe: everything an experiment is, section by section.

Annotations are not postponed here, as pydantic reads them.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from ..data import Augment, Views, view_augments
from ..errors import CrateError
from .text_section import READS, TextSection

MUST_GIVE = "???"
"""Value of `model.from` or `data.name` in a recipe that makes no sense without one."""


@dataclass(frozen=True)
class ModelSection:
    """Which model is trained, and what it starts from."""

    name: str = "crate-tiny-patch16-224"
    """A model by name, see `crate models`; with `from`, the config of what it starts from is taken instead."""
    config: dict[str, Any] = field(default_factory=dict)
    """Config fields to override. Image size, channels and classes come from `augment` and the data."""
    from_: str | None = None
    """Start from the weights of a run, a released checkpoint file, a saved model or a hub id (`from` in a file)."""
    freeze: bool = False
    """Train the head only."""


@dataclass(frozen=True)
class DataSection:
    """Which images or text, and how they are read."""

    name: str = "digits"
    """A built-in name, a local path or a hub id."""
    path: str | None = None
    """Where the files of a known name lie, if not at the hub."""
    streaming: bool = False
    """Read while training instead of preparing first: for sets larger than the disk."""
    split_seed: int = 0
    """Seed of the split, for data that come in one piece."""
    test_share: float | None = None
    """Share of the test split, likewise; None is a tenth, of running text a twentieth or what is usual for it."""
    image_column: str | None = None
    """Column of the images, if it cannot be guessed."""
    label_column: str | None = None
    """Column of the labels, likewise."""
    workers: int = 2
    """Processes that decode and crop, for each training process."""
    max_corrupt: float = 0.01
    """Share of unreadable images above which training stops."""


@dataclass(frozen=True)
class OptimiseSection:
    """The optimizer and the loss."""

    name: Literal["lion", "adamw", "adam"] = "adamw"
    """Optimizer."""
    lr: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 0.05
    """Decoupled weight decay (for `adam`: the ℓ2 term of the paper's language recipes)."""
    betas: tuple[float, float] | None = None
    """Decay of the averages; None is the optimizer's own."""
    eps: float = 1e-8
    """Term in Adam's denominator."""
    decay: Literal["matrices", "all"] = "matrices"
    """Which tensors decay: those of two axes or more, or all, as in the released code."""
    final_weight_decay: float | None = None
    """Weight decay at the end, along a cosine; None keeps it as it is."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 is no clipping."""
    clip_by: Literal["all", "tensor"] = "all"
    """Whose norm: that of all gradients together, or of each tensor's by itself (DINO)."""
    label_smoothing: float = 0.0
    """Share of the target given to all classes alike."""


@dataclass(frozen=True)
class ScheduleSection:
    """How long, in what batches, at what rate."""

    epochs: float = 10.0
    """Passes over the training data."""
    steps: int | None = None
    """Optimizer steps in place of epochs; needed for streams of unknown length."""
    batch: int = 128
    """Samples per optimizer step, over all processes and accumulated batches."""
    warmup_epochs: float = 0.0
    """Passes over which the rate rises from zero."""
    warmup_steps: int = 0
    """Steps over which it rises, in place of epochs."""
    rise_from_zero: bool = False
    """Whether the first step of the warm-up has rate zero, as in MAE's and DINO's scripts, or already moves."""
    shape: Literal["cosine", "linear", "constant"] = "cosine"
    """How the rate falls after the warm-up."""
    final_lr: float = 0.0
    """Rate at the end."""


@dataclass(frozen=True)
class DistilSection:
    """How the student learns from the teacher (DINO)."""

    student_temperature: float = 0.1
    """Temperature of the student's softmax."""
    teacher_temperature: float = 0.04
    """Temperature of the teacher's at the start."""
    final_teacher_temperature: float = 0.04
    """And after the warm-up; 0.07 sharpens less and often learns more."""
    temperature_epochs: int = 0
    """Passes over which it goes from one to the other."""
    center_momentum: float = 0.9
    """How much of the centre stays in a step."""
    momentum: float = 0.996
    """How much of the teacher stays in a step, at the start; rises to one along a cosine."""
    freeze_last_epochs: float = 1.0
    """Passes during which the last layer of the projection head does not move."""


@dataclass(frozen=True)
class RunSection:
    """How it runs: seed, precision, what is written and how often."""

    seed: int = 0
    """Seed of weights, order, crops and augmentation."""
    device_batch: int | None = None
    """Samples a device takes at a time; None is the whole share of the batch. The rest is accumulated."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the forward pass."""
    compile: bool = False
    """Whether the model is compiled."""
    gradient_checkpointing: bool = False
    """Recompute layers in the backward pass to save memory."""
    fsdp: bool = False
    """Shard weights, gradients and optimizer over the processes of torchrun (FSDP) instead of copying them (DDP)."""
    ema: float = 0.0
    """Decay of an average of the weights, which is then what is evaluated and saved; 0 is none."""
    evaluate_epochs: float = 1.0
    """Passes between evaluations; 0 is at the end only."""
    checkpoint_epochs: float = 1.0
    """Passes between checkpoints to resume from."""
    checkpoint_steps: int | None = None
    """Steps between checkpoints, in place of epochs."""
    keep: int = 2
    """Checkpoints kept."""
    log_steps: int = 10
    """Steps between lines of the log."""
    layerwise_epochs: float = 0.0
    """Passes between measurements of every layer against the objective, on a fixed batch; 0 is none, as with FSDP."""
    layerwise_images: int = 32
    """Images, or pieces of text, in that batch."""


@dataclass(frozen=True)
class Recipe:
    """One experiment."""

    task: Literal[
        "classification", "autoencoding", "distillation", "causal-lm", "masked-lm", "sequence-classification"
    ] = "classification"
    """What is learned: classes of images, what was masked (MAE), to agree with a teacher about views (DINO); the next
    token (GPT), hidden tokens (BERT), classes or numbers of sentences (GLUE)."""
    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    augment: Augment = field(default_factory=Augment)
    views: Views = field(default_factory=Views)
    distil: DistilSection = field(default_factory=DistilSection)
    text: TextSection = field(default_factory=TextSection)
    optimise: OptimiseSection = field(default_factory=OptimiseSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    run: RunSection = field(default_factory=RunSection)

    def __post_init__(self) -> None:
        positive = {
            "optimise.lr": self.optimise.lr,
            "schedule.batch": self.schedule.batch,
            "schedule.epochs": self.schedule.epochs,
            "run.keep": self.run.keep,
            "run.checkpoint_epochs": self.run.checkpoint_epochs,
            "run.log_steps": self.run.log_steps,
            "run.layerwise_images": self.run.layerwise_images,
            "schedule.steps": self.schedule.steps,
            "run.device_batch": self.run.device_batch,
            "run.checkpoint_steps": self.run.checkpoint_steps,
            "distil.student_temperature": self.distil.student_temperature,
            "distil.teacher_temperature": self.distil.teacher_temperature,
            "distil.final_teacher_temperature": self.distil.final_teacher_temperature,
        }
        for key, value in positive.items():
            if value is not None and not value > 0:  # nor NaN
                raise CrateError(f"{key} is {value}; it must be positive")
        for key, value in {
            "optimise.weight_decay": self.optimise.weight_decay,
            "optimise.clip": self.optimise.clip,
            "schedule.warmup_epochs": self.schedule.warmup_epochs,
            "schedule.warmup_steps": self.schedule.warmup_steps,
            "schedule.final_lr": self.schedule.final_lr,
            "run.seed": self.run.seed,
            "data.workers": self.data.workers,
            "run.evaluate_epochs": self.run.evaluate_epochs,
            "run.layerwise_epochs": self.run.layerwise_epochs,
            "distil.temperature_epochs": self.distil.temperature_epochs,
            "distil.freeze_last_epochs": self.distil.freeze_last_epochs,
        }.items():
            if not value >= 0:
                raise CrateError(f"{key} is {value}; it must not be negative")
        for key, value in {
            "optimise.label_smoothing": self.optimise.label_smoothing,
            "run.ema": self.run.ema,
            "distil.center_momentum": self.distil.center_momentum,
        }.items():
            if not 0 <= value < 1:
                raise CrateError(f"{key} is {value}; it must lie in [0, 1)")
        if self.run.ema and self.run.fsdp:
            raise CrateError("run.ema and run.fsdp do not go together; leave one out")
        self._check_distillation()
        self._check_text()

    def _check_distillation(self) -> None:
        if self.task != "distillation":
            for name, given, default in (("views", self.views, Views()), ("distil", self.distil, DistilSection())):
                if given != default:
                    raise CrateError(f"{name}: is for task: distillation, not {self.task}; leave it out")
            return
        if not 0 <= self.distil.momentum <= 1:
            raise CrateError(f"distil.momentum is {self.distil.momentum}; it must lie in [0, 1]")
        if self.run.ema or self.run.fsdp:
            raise CrateError("run.ema and run.fsdp do not go with task: distillation, whose teacher is an average")
        view_augments(self.augment, self.views)  # refuses sizes that do not fit

    def _check_text(self) -> None:
        self.text.check(self.task)
        if self.task not in READS:
            return
        if self.augment != Augment() or self.data.image_column is not None:
            key = "data.image_column" if self.data.image_column else "augment:"
            raise CrateError(f"{key} is for images, not for task: {self.task}; leave it out")
        if self.data.streaming:
            raise CrateError(
                f"data.streaming=true is for images; task: {self.task} tokenises text of any size once; leave it out"
            )
        if self.model.freeze and self.task != "sequence-classification":
            raise CrateError(f"model.freeze keeps all but a head as it is; task: {self.task} has none of its own")

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain values, in the form of a file."""
        return _plain(dataclasses.asdict(self))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key.removesuffix("_"): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
