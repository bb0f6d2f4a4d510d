"""The typed recipe: every setting of an experiment, section by section.

pydantic checks types and bounds. Annotations are not postponed here, because pydantic reads them.
"""

import dataclasses
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from .._files import is_utf8
from ..data.augment import NUMBER, Augment, Views, view_augments
from ..errors import CrateError

MUST_GIVE = "???"
"""Value of `model.from` or `data.name` in a recipe that needs the user to choose one."""

TaskName = Literal[
    "classification", "autoencoding", "distillation", "causal-lm", "masked-lm", "sequence-classification"
]

Separator = Literal["document", "line", "paragraph"]
Following = Literal[
    "schedule.batch_size", "schedule.epochs", "schedule.warmup_epochs", "schedule.warmup_steps", "optimizer.lr",
    "augment.rand_augment", "augment.crop_scale", "run.evaluate_epochs", "run.checkpoint_epochs",
]  # fmt: skip
"""Recipe keys that can follow the amount of data."""


def _printable(text: str) -> str:
    """Refuse text that no path and no file can hold."""
    if "\0" in text or not is_utf8(text):
        raise PydanticCustomError("text", "Input should be text without NUL characters and lone surrogates")
    return text


def _plain_value(value: Any, depth: int = 4) -> Any:
    """Refuse values that a model config cannot have, such as dates, giant numbers and deep lists."""
    if isinstance(value, str):
        return _printable(value)
    if isinstance(value, (dict, list, tuple)) and depth:
        for inner in (*value.keys(), *value.values()) if isinstance(value, dict) else value:
            _plain_value(inner, depth - 1)
    elif not (value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) <= LARGEST)):
        raise PydanticCustomError("plain", "Input should be a mapping of fields to plain values")
    return value


LARGEST = 10**12
"""Largest number in a recipe. Keys with smaller limits have their own."""
PositiveInt = Annotated[int, Field(gt=0, le=LARGEST), NUMBER]
PositiveFloat = Annotated[float, Field(gt=0, le=LARGEST), NUMBER]
NonNegativeInt = Annotated[int, Field(ge=0, le=LARGEST), NUMBER]
NonNegativeFloat = Annotated[float, Field(ge=0, le=LARGEST), NUMBER]
Share = Annotated[float, Field(ge=0, lt=1), NUMBER]
Milestones = Annotated[tuple[PositiveInt, ...], Field(max_length=1000)]
Seed = Annotated[int, Field(ge=0, lt=2**32), NUMBER]
Temperature = Annotated[float, Field(gt=1e-4, le=1e4), NUMBER]
Text = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_printable)]


def _split_names(value: Any) -> Any:
    """Return one name, or several with commas, as a list."""
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


Names = Annotated[tuple[Text, ...], BeforeValidator(_split_names)]

SECTION = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
"""Settings of every section: unknown keys and numbers that are not finite are refused, and docstrings of fields become
their descriptions."""


@dataclass(frozen=True, config=SECTION)
class ModelSection:
    """The model to train, and the weights it starts from."""

    name: Annotated[Text, Field(max_length=200)] = "crate-tiny-patch16-224"
    """Name of a model; `crate models` lists them. With `from`, the config of the source is used instead."""
    config: Annotated[dict[str, Any], AfterValidator(_plain_value)] = field(default_factory=dict)
    """Config fields to override. Image size, channels and classes come from `augment` and the data."""
    from_: Text | None = None
    """Start from the weights of a run, a released checkpoint file, a saved model or a hub id (`from` in a file)."""
    freeze: bool = False
    """Train only the head."""


@dataclass(frozen=True, config=SECTION)
class DataSection:
    """The images or text, and how they are read."""

    name: Text = "digits"
    """A built-in name, a local path or a hub id."""
    path: Text | None = None
    """Local folder of a dataset that is known by name; by default it is loaded from the hub."""
    streaming: bool = False
    """Read samples while training instead of preparing the dataset first, for datasets larger than the disk."""
    split_seed: Seed = 0
    """Seed of the train/test split, for datasets without splits."""
    test_share: Annotated[float, Field(gt=0, le=1), NUMBER] | None = None
    """Share of the test split, for datasets without splits. Default: 0.1; for running text 0.05 or its usual split."""
    image_column: Text | None = None
    """Column of the images, if it cannot be inferred."""
    label_column: Text | None = None
    """Column of the labels, if it cannot be inferred."""
    workers: Annotated[int, Field(ge=0, le=1024), NUMBER] = 2
    """Number of loader processes per training process; they decode and crop images."""
    max_corrupt: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.01
    """Largest share of images that may be unreadable; they are left out. It is judged over all images before the first
    epoch, and over those read so far of a stream."""


@dataclass(frozen=True, config=SECTION)
class TextSection:
    """How text becomes tokens."""

    tokenizer: Text | None = None
    """`bytes`, `bpe` (learned from the training text), a folder or a hub id. Default: the tokenizer saved with
    `model.from`, and `bytes` for a new model."""
    vocab_size: Annotated[int, Field(gt=0, le=2**24), NUMBER] = 8192
    """Vocabulary size that `bpe` learns, special tokens included."""
    uncased: bool = False
    """Whether to make `bpe` ignore case and treat the first word of a text like any other word."""
    block: Annotated[int, Field(ge=2, le=2**22), NUMBER] = 256
    """Context length: tokens per sample of a language model, and rows of its position table."""
    separate: Separator = "document"
    """Unit that counts as one document in a text file; paragraphs are separated by blank lines."""
    text_column: Text | None = None
    """Column of a table that holds the text, if it cannot be inferred."""
    cache: Text | None = None
    """Folder of token files that several runs share. Default: a folder inside the run."""
    mask_probability: Annotated[float, Field(gt=0, lt=1), NUMBER] = 0.15
    """Share of tokens that a masked language model predicts."""
    columns: Names | None = None
    """Column of the sentences, or both columns of sentence pairs, if they cannot be inferred."""
    max_length: Annotated[int, Field(gt=0, le=2**22), NUMBER] = 128
    """Number of tokens a labeled sentence or pair is truncated to."""
    regression: bool | None = None
    """Whether labels are numbers to predict. Default: yes if they are fractions."""


_ANY_TEXT = ("tokenizer", "vocab_size")
_BLOCKS = (*_ANY_TEXT, "block", "separate", "text_column", "cache")
TEXT_TASKS: dict[str, tuple[str, ...]] = {
    "causal-lm": _BLOCKS,
    "masked-lm": (*_BLOCKS, "mask_probability"),
    "sequence-classification": (*_ANY_TEXT, "uncased", "columns", "max_length", "regression"),
}
"""The tasks on text, with the keys of the `text` section that each of them reads."""


@dataclass(frozen=True, config=SECTION)
class OptimizerSection:
    """The optimizer and the loss."""

    name: Literal["lion", "adamw", "adam", "muon"] = "adamw"
    """Optimizer. `muon` is Muon for the matrices of the layers and AdamW for all other parameters."""
    lr: PositiveFloat = 1e-3
    """Peak learning rate."""
    weight_decay: NonNegativeFloat = 0.05
    """Decoupled weight decay (for `adam`: the ℓ2 penalty of the paper's language recipes)."""
    betas: tuple[Share, Share] | None = None
    """Decay rates of the running averages. Default: the optimizer's own."""
    eps: NonNegativeFloat = 1e-8
    """Term added to Adam's denominator."""
    decay: Literal["matrices", "all"] = "matrices"
    """Parameters that decay: those with two or more axes, or all of them as in the released code."""
    final_weight_decay: NonNegativeFloat | None = None
    """Weight decay at the end of a cosine schedule. Default: constant weight decay."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Norm to which gradients are clipped; 0 disables clipping."""
    clip_by: Literal["all", "tensor"] = "all"
    """Clip the norm of all gradients together, or of each tensor separately (DINO)."""
    label_smoothing: Share = 0.0
    """Share of the target that is spread evenly over all classes."""


@dataclass(frozen=True, config=SECTION)
class ScheduleSection:
    """Length of training, batch size and learning-rate schedule."""

    epochs: PositiveFloat = 10.0
    """Number of epochs."""
    steps: PositiveInt | None = None
    """Number of optimizer steps, instead of epochs; required for streams of unknown length."""
    batch_size: PositiveInt = 128
    """Samples per optimizer step, over all processes and accumulated batches."""
    warmup_epochs: NonNegativeFloat = 0.0
    """Epochs of linear warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up, instead of epochs."""
    warmup_from_zero: bool = False
    """Whether the first step of the warm-up has learning rate zero, as in MAE's and DINO's scripts."""
    scheduler: Literal["cosine", "linear", "constant"] = "cosine"
    """Decay of the learning rate after the warm-up."""
    final_lr: NonNegativeFloat = 0.0
    """Learning rate at the end."""
    made_for: PositiveInt | None = None
    """Number of training samples that the recipe is made for. With less than half of it, batch size, epochs, warm-up,
    the rate of fine-tuning and augmentation follow the amount of data, unless you set them. Default: they never do."""
    fixed: tuple[Following, ...] = ()
    """Keys that do not follow the amount of data; those that you set are added."""


@dataclass(frozen=True, config=SECTION)
class DistillationSection:
    """How the student learns from the teacher (DINO)."""

    student_temperature: Temperature = 0.1
    """Temperature of the student's softmax."""
    teacher_temperature: Temperature = 0.04
    """Temperature of the teacher's softmax at the start."""
    final_teacher_temperature: Temperature = 0.04
    """Temperature of the teacher's softmax after its warm-up; 0.07 sharpens less and often learns more."""
    temperature_epochs: NonNegativeInt = 0
    """Epochs of the warm-up of the teacher's temperature."""
    center_momentum: Share = 0.9
    """Momentum of the center."""
    momentum: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.996
    """Momentum of the teacher's weights at the start; it rises to one along a cosine."""
    freeze_last_epochs: NonNegativeFloat = 1.0
    """Epochs during which the last layer of the projection head is frozen."""


@dataclass(frozen=True, config=SECTION)
class RunSection:
    """How the run is executed: seed, precision, evaluation, checkpoints and logs."""

    seed: Seed = 0
    """Seed of weights, sample order, crops and augmentation."""
    per_device_batch_size: PositiveInt | None = None
    """Largest number of samples per device and forward pass. Default: the device's share of the batch. The rest is
    accumulated."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the forward pass."""
    compile: bool = False
    """Whether to compile the model."""
    gradient_checkpointing: bool = False
    """Whether to recompute layers in the backward pass to save memory."""
    fsdp: bool = False
    """Shard weights, gradients and optimizer state over the processes (FSDP) instead of replicating them (DDP)."""
    ema: Share = 0.0
    """Decay of an exponential moving average of the weights, which is then evaluated and saved; 0 disables it."""
    evaluate_epochs: NonNegativeFloat = 1.0
    """Epochs between evaluations; 0 evaluates only at the end."""
    checkpoint_epochs: PositiveFloat = 1.0
    """Epochs between checkpoints."""
    checkpoint_steps: PositiveInt | None = None
    """Steps between checkpoints, instead of epochs."""
    save_total_limit: PositiveInt = 2
    """Number of checkpoints to keep."""
    milestones: Milestones = ()
    """Steps whose checkpoints are written and kept in addition, for curves over training."""
    log_steps: PositiveInt = 10
    """Steps between log entries."""
    layerwise_epochs: NonNegativeFloat = 0.0
    """Epochs between layer-wise measurements on a fixed batch, or a fraction of an epoch; 0 disables them, and so does
    FSDP with a stream."""
    layerwise_steps: PositiveInt | None = None
    """Steps between layer-wise measurements, instead of epochs."""
    layerwise_images: PositiveInt = 32
    """Number of images or text samples in that batch."""
    layerwise_protocol: Literal["short", "paper"] = "short"
    """Samples of layer-wise measurements: "short" takes `layerwise_images` of the evaluation split, "paper" 1000 of the
    training split and 1000 of the evaluation split (section 4.2)."""


@dataclass(frozen=True, config=SECTION)
class Recipe:
    """One experiment."""

    task: TaskName = "classification"
    """Kind of learning: image classification, masked autoencoding (MAE), self-distillation (DINO), causal language
    modeling (GPT), masked language modeling (BERT), or classification and regression of sentences (GLUE)."""
    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    augment: Augment = field(default_factory=Augment)
    views: Views = field(default_factory=Views)
    distillation: DistillationSection = field(default_factory=DistillationSection)
    text: TextSection = field(default_factory=TextSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    run: RunSection = field(default_factory=RunSection)

    def __post_init__(self) -> None:
        if self.optimizer.name == "muon" and self.run.fsdp:
            raise CrateError("`optimizer.name=muon` and `run.fsdp` cannot be combined; leave one of them out")
        self._check_distillation()
        self._check_text()

    def _check_distillation(self) -> None:
        if self.task != "distillation":
            if self.views != Views() or self.distillation != DistillationSection():
                name = "views" if self.views != Views() else "distillation"
                raise CrateError(f"section `{name}` is only for task distillation, not {self.task}; leave it out")
            return
        if self.run.ema or self.run.fsdp:
            raise CrateError("`run.ema` and `run.fsdp` do not work with task distillation, whose teacher is an average")
        view_augments(self.augment, self.views)  # refuses sizes that do not fit

    def _check_text(self) -> None:
        reads = TEXT_TASKS.get(self.task, ())
        for entry in dataclasses.fields(self.text):
            if getattr(self.text, entry.name) != entry.default and entry.name not in reads:
                raise CrateError(f"`text.{entry.name}` is not used by task {self.task}; leave it out")
        for key in ("vocab_size", "uncased"):
            if getattr(self.text, key) != getattr(TextSection, key) and self.text.tokenizer != "bpe":
                raise CrateError(f"`text.{key}` is only for the bpe tokenizer; set text.tokenizer=bpe or leave it out")
        if self.task not in TEXT_TASKS:
            return
        if self.augment != Augment() or self.data.image_column is not None:
            key = "data.image_column" if self.data.image_column else "augment"
            raise CrateError(f"`{key}` is only for images, not for task {self.task}; leave it out")
        if self.data.streaming:
            raise CrateError(
                f"`data.streaming` is only for images; task {self.task} tokenizes text of any size once; leave it out"
            )
        if self.model.freeze and self.task != "sequence-classification":
            raise CrateError(f"`model.freeze` trains only a new head, and task {self.task} has none; leave it out")

    @property
    def data_name(self) -> str:
        """The dataset; an error if the recipe leaves the choice to the user."""
        if self.data.name == MUST_GIVE:
            raise CrateError("this recipe does not name a dataset; give `data` (or data.name), a path or a hub id")
        return self.data.name

    @property
    def source(self) -> str | None:
        """The trained model that `model.from` names, or None for a new model."""
        if self.model.from_ == MUST_GIVE:
            raise CrateError(
                "this recipe starts from trained weights; give model.from=RUN, a checkpoint file or a hub id"
            )
        return self.model.from_

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain values, in the form of a recipe file."""
        values: dict[str, Any] = _plain(self)
        return values


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name.removesuffix("_"): _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
