"""A run: a recipe, a folder, and training that goes on where it was killed."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from torch import nn
from transformers import TrainingArguments
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import logging as transformers_logging

from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from ..models.checkpoint_file import write_folder
from ..models.layers import Layer
from .callbacks import AverageWeights, Layerwise, Metrics, ProgressLine, SavedModels, TaskSteps
from .recipe import Recipe
from .recipe_files import build_recipe, save_recipe
from .start import given_data, given_source
from .tasks import TASKS, task_of
from .trainer import CrateTrainer, checkpoints

MAY_CHANGE = (
    "data.path", "data.workers", "text.cache", "run.device_batch", "run.log_steps", "run.keep", "run.checkpoint_steps",
)  # fmt: skip
"""What a resumed run may have otherwise than before: where and how it runs, not what it computes."""


@dataclass(frozen=True)
class RunResult:
    """What a finished run has to say."""

    folder: Path
    model: CratePreTrainedModel
    metrics: dict[str, float]
    seconds: float
    parameters: int
    headline: str

    @property
    def figures(self) -> dict[str, float]:
        """The measures of the last evaluation, without how long it took."""
        speed = ("epoch", "step", "runtime", "samples_per_second", "steps_per_second")
        return {name: value for name, value in self.metrics.items() if name not in speed}


def train(recipe: Recipe, output: str | Path, *, resume: bool = False, quiet: bool = False) -> RunResult:
    """Train by a recipe into a run folder; with `resume`, go on from its last complete checkpoint.

    The folder holds recipe.yaml (resolved), metrics.jsonl, model/best and model/last (from_pretrained reads them),
    checkpoints/ and logs/ (TensorBoard); of runs on text also tokenizer/ and tokens/, the ids they train on.
    """
    given_data(recipe), given_source(recipe)  # before anything is written
    folder = Path(output)
    checkpoint = open_folder(folder, recipe, resume)
    task = task_of(recipe)
    data = task.load_data(folder)
    model = task.build_model(data)
    trainer = build_trainer(recipe, folder, model, data, quiet)
    try:
        output_metrics = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        metrics = last_evaluation(trainer) or trainer.evaluate()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise CrateError(f"{folder}: cannot be written ({error.strerror}); go on with --resume") from error
    figures = {key.removeprefix("eval_"): value for key, value in metrics.items()}
    return RunResult(
        folder=folder,
        model=model,
        metrics=figures,
        seconds=float(output_metrics.metrics["train_runtime"]),
        parameters=model.num_parameters(),
        headline=task.headline(figures),
    )


def last_evaluation(trainer: CrateTrainer) -> dict[str, float] | None:
    """What the last step's evaluation found, if the last step was evaluated."""
    for entry in reversed(trainer.state.log_history):
        if "eval_loss" in entry:
            return entry if entry["step"] == trainer.state.global_step else None
    return None


def open_folder(folder: Path, recipe: Recipe, resume: bool) -> Path | None:
    """Make a run folder, or find where to go on in one; refuses to mix two runs.

    The first process decides; the others would see what it has just made.
    """
    written = folder / "recipe.yaml"
    if int(os.environ.get("RANK", "0")):
        found = checkpoints(folder / "checkpoints") if resume else []
        return found[-1] if found else None
    if written.is_file():
        if not resume:
            raise CrateError(f"{folder}: holds a run already; go on with --resume or take another --output")
        _same_recipe(folder, build_recipe(yaml.safe_load(written.read_text())), recipe)
        found = checkpoints(folder / "checkpoints")
        return found[-1] if found else None
    if resume:
        raise CrateError(f"{folder}: holds no run to resume; leave --resume out")
    if folder.exists() and any(folder.iterdir()):
        raise CrateError(f"{folder}: is not empty; take another --output")
    folder.mkdir(parents=True, exist_ok=True)
    save_recipe(recipe, written)
    return None


def _same_recipe(folder: Path, before: Recipe, now: Recipe) -> None:
    old, new = _flat(before.to_dict()), _flat(now.to_dict())
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key) and key not in MAY_CHANGE]
    if changed:
        key = changed[0]
        raise CrateError(
            f"{folder}: was started with {key}={old.get(key)}, not {new.get(key)}; "
            "resume with the same recipe or take another --output"
        )


def _flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(_flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value})
    return flat


def build_trainer(recipe: Recipe, folder: Path, model: CratePreTrainedModel, data: Any, quiet: bool) -> CrateTrainer:
    """The trainer of a recipe, with everything a run writes."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    task = task_of(recipe)
    task.config = model.config
    train_rows, test_rows = task.datasets(data, rank, world)
    steps = None if data.streaming else math.ceil(len(cast(Any, train_rows)) / recipe.schedule.batch)
    if steps is None and recipe.schedule.steps is None:
        raise CrateError("data.streaming=true: a stream has no known length; set schedule.steps")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    trainer = CrateTrainer(
        recipe=recipe,
        task=task,
        model=model,
        args=training_arguments(recipe, folder, world, steps, model),
        train_dataset=train_rows,
        eval_dataset=test_rows,
    )
    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)
    board = TensorBoardCallback()
    board.logging_dir = str(folder / "logs")  # its own way, an environment variable, would outlive the run
    trainer.add_callback(board)
    metrics = Metrics(folder / "metrics.jsonl")
    trainer.add_callback(TaskSteps(trainer))
    if trainer.ema is not None:
        trainer.add_callback(AverageWeights(trainer))
    trainer.add_callback(metrics)
    trainer.add_callback(SavedModels(task, lambda name: save_model(trainer, folder / "model" / name)))
    if recipe.run.layerwise_epochs and not trainer.is_fsdp_enabled:  # measuring needs whole weights
        trainer.add_callback(Layerwise(metrics, fixed_batch(trainer, recipe), recipe.run.layerwise_epochs))
    if not quiet:
        trainer.add_callback(ProgressLine(trainer, folder.name))
    return trainer


def sharding(model: nn.Module | None) -> dict[str, Any]:
    """FSDP by layer; each process writes its own part of a checkpoint, as loading whole ones hangs (torch 2.13)."""
    layers = {type(layer).__name__ for layer in (model.modules() if model else ()) if isinstance(layer, Layer)}
    return {"transformer_layer_cls_to_wrap": sorted(layers), "state_dict_type": "SHARDED_STATE_DICT"}


def training_arguments(
    recipe: Recipe, folder: Path, world: int, steps_per_epoch: int | None, model: nn.Module | None = None
) -> TrainingArguments:
    """transformers' own arguments for a recipe on so many processes."""
    run, schedule = recipe.run, recipe.schedule
    share, rest = divmod(schedule.batch, world)
    device_batch = run.device_batch or share
    if rest or share % device_batch:
        raise CrateError(
            f"schedule.batch {schedule.batch} is not a multiple of {world} processes × {device_batch} samples; "
            "change run.device_batch"
        )
    per_epoch = steps_per_epoch or 1000
    cpu = not torch.cuda.is_available()
    evaluate = max(1, round(run.evaluate_epochs * per_epoch))
    checkpoint = run.checkpoint_steps or max(1, round(run.checkpoint_epochs * per_epoch))
    return TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        per_device_train_batch_size=device_batch,
        per_device_eval_batch_size=max(device_batch, TASKS[recipe.task].evaluation_batch),
        gradient_accumulation_steps=share // device_batch,
        num_train_epochs=schedule.epochs,
        max_steps=schedule.steps or -1,
        max_grad_norm=recipe.optimise.clip,
        bf16=run.precision == "bf16",
        fp16=run.precision == "fp16",
        torch_compile=run.compile,
        gradient_checkpointing=run.gradient_checkpointing,
        fsdp=cast(Any, run.fsdp or None),
        fsdp_config=sharding(model) if run.fsdp else None,
        seed=run.seed,
        data_seed=run.seed,
        use_cpu=cpu,
        ddp_backend="gloo" if cpu and world > 1 else None,
        ddp_find_unused_parameters=False if world > 1 else None,
        dataloader_num_workers=recipe.data.workers,
        dataloader_persistent_workers=recipe.data.workers > 0,
        dataloader_pin_memory=not cpu,
        accelerator_config={"dispatch_batches": False},
        remove_unused_columns=False,
        label_names=["labels"],
        eval_strategy="steps" if run.evaluate_epochs else "no",
        eval_steps=evaluate,
        save_strategy="steps",
        save_steps=checkpoint,
        logging_steps=run.log_steps,
        logging_first_step=True,
        report_to=[],
        disable_tqdm=True,
        log_level="error",
    )


def fixed_batch(trainer: CrateTrainer, recipe: Recipe) -> Any:
    """The first test samples: what layers are measured on all through training."""
    rows, wanted = cast(Any, trainer.eval_dataset), recipe.run.layerwise_images
    if hasattr(rows, "__len__"):
        return trainer.task.measured_batch([rows[index] for index in range(min(wanted, len(rows)))])
    return trainer.task.measured_batch([row for row, _ in zip(rows, range(wanted), strict=False)])


def save_model(trainer: CrateTrainer, folder: Path) -> None:
    """Save what is evaluated, whole or not at all."""
    weights = trainer.whole_weights()  # every process takes part
    if trainer.args.should_save:
        write_folder(folder, lambda temporary: trainer.task.save(trainer.inner, weights, temporary), overwrite=True)
