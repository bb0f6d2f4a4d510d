"""Training by a recipe into a run folder, with resume."""

from __future__ import annotations

import errno
import logging
import math
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from transformers import TrainingArguments
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from .._files import atomic_folder
from .._progress import progress
from .._state import preserved_random_state, quiet_transformers
from ..data.image_batches import loader_errors
from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from ..models.config import CrateConfig
from ..models.layers import Layer
from ..recipes import Recipe, fitted_like, load_recipe
from ..recipes.files import Overrides
from ..tasks import Task
from ..tasks.base import balanced_samples
from .callbacks import AverageWeights, Layerwise, Metrics, Milestones, ProgressLine, SavedModels, TaskHooks
from .folder import no_progress, resumed_recipe
from .interruption import TrainingStopped, interruptible
from .manifest import write_manifest
from .trainer import CrateTrainer

if TYPE_CHECKING:
    from .run import Run

_OF_IMAGES = {"image_size": "augment.image_size", "num_channels": "augment.channels"}


def train(
    recipe: str | Path | Recipe,
    output: str | Path | None = None,
    *,
    overrides: Overrides = (),
    variant: str | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> Run:
    """Train by a recipe, given by name, file or object, and return the run.

    `output` is the run folder. Default: `runs/RECIPE`. With `resume`, training continues from the last complete
    checkpoint; then a run folder can be given in place of the recipe, and nothing else is needed. `overrides` are
    `key=value` strings or a mapping of recipe keys to values.

    Ctrl-C and SIGTERM end training after the current step with a checkpoint, and raise `TrainingStopped`.
    """
    from .run import Run

    if not isinstance(recipe, Recipe):
        name = str(recipe)
        stored = resumed_recipe(name, overrides) if resume and output is None else None
        output = output or (name if stored else Path("runs") / "-".join(filter(None, (Path(name).stem, variant))))
        recipe = stored or load_recipe(name, overrides, variant)
    if output is None:
        raise CrateError("`output` is missing; give the folder of the run")
    _check_trainable(recipe)
    if resume and (before := resumed_recipe(output)):
        recipe = fitted_like(recipe, before)
    run, checkpoint = Run.start(output, recipe, resume=resume)
    with run.lock, preserved_random_state(), quiet_transformers():
        if recipe.schedule.made_for is not None:
            run.fit_to_data()
        task = run.task
        model = task.build_model()  # before the images are read, which may take long
        run.find_unreadable(resume=resume, progress=no_progress if quiet else progress)
        trainer = build_trainer(run, task, model, quiet)
        if trainer.is_world_process_zero():
            run.check_data(resume=checkpoint is not None)
            run.write_recipe()
        try:
            with interruptible(trainer) as interruption, loader_errors():
                trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            if interruption.signal is not None:
                raise TrainingStopped(run.source, trainer.state.global_step, interruption.signal)
            if not _evaluated(trainer):
                trainer.evaluate()
            trainer.accelerator.wait_for_everyone()  # the first process has saved the model
            if not quiet and trainer.is_world_process_zero() and (verdict := task.verdict(run.metrics)):
                logging.getLogger("codingrate").warning(verdict)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise CrateError(
                f"cannot write {run.folder}: {error.strerror}; continue with `train({run.source!r}, resume=True)`"
            ) from error
    return run


def _check_trainable(recipe: Recipe) -> None:
    """Refuse a recipe that cannot be trained before anything is opened."""
    _ = recipe.data_name, recipe.source  # refuses a recipe without data or source
    of_data = {*CrateConfig.field_names(), "num_labels"} - set(CrateConfig.__annotations__)
    for key in recipe.model.config:
        if key in of_data:
            raise CrateError(f"model.config.{key} is set by the data and by training; leave it out")
        if key in _OF_IMAGES:
            raise CrateError(f"model.config.{key} is set by the images; set {_OF_IMAGES[key]} instead")
    if recipe.data.test_share == 1:
        raise CrateError("data.test_share=1 leaves nothing to train on; use a smaller share")
    if recipe.run.fsdp and os.environ.get("WORLD_SIZE", "1") == "1":
        raise CrateError("run.fsdp=true shards a model over several processes; use torchrun or leave it out")


def _evaluated(trainer: CrateTrainer) -> bool:
    """Return whether the last step was evaluated."""
    steps = [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return bool(steps) and steps[-1] == trainer.state.global_step


def build_trainer(run: Run, task: Task, model: CratePreTrainedModel, quiet: bool) -> CrateTrainer:
    """Build the trainer of a run with its callbacks."""
    recipe = task.recipe
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    train_data, test_data = task.datasets(rank, world_size)
    length = len(train_data) if hasattr(train_data, "__len__") else None
    if length is None and recipe.schedule.steps is None:
        raise CrateError("data.streaming=true: the length of a stream is unknown; set schedule.steps")
    steps_per_epoch = None if length is None else math.ceil(length / recipe.schedule.batch_size)
    trainer = CrateTrainer(
        task=task,
        model=model,
        args=training_arguments(task, run.checkpoints_folder, world_size, steps_per_epoch, model),
        train_dataset=train_data,
        eval_dataset=test_data,
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    tensorboard = TensorBoardCallback()
    tensorboard.logging_dir = str(run.logs_folder)  # transformers' own way, an environment variable, outlives the run
    trainer.add_callback(tensorboard)
    metrics = Metrics(run.metrics_file)
    trainer.add_callback(TaskHooks(trainer))
    if trainer.ema is not None:
        trainer.add_callback(AverageWeights(trainer, trainer.ema))
    trainer.add_callback(metrics)
    trainer.add_callback(SavedModels(task, lambda name: save_model(trainer, run.model_folder(cast(Any, name)))))
    trainer.add_callback(Milestones(recipe.run.milestones))
    ends_together = length is not None  # the processes may end an epoch of a stream at different steps
    interval = recipe.run.layerwise_steps or steps_of(recipe.run.layerwise_epochs, steps_per_epoch)
    if interval and (ends_together or not recipe.run.fsdp):
        trainer.add_callback(Layerwise(trainer, metrics, tensorboard, layerwise_sources(task, test_data), interval))
    if not quiet:
        trainer.add_callback(ProgressLine(trainer, run.name))
    return trainer


def steps_of(epochs: float, steps_per_epoch: int | None) -> int:
    """Return a number of epochs, which may be a fraction, in steps: at least one unless it is zero.

    An epoch of a stream, whose length is unknown, counts as 1000 steps.
    """
    return max(1, round(epochs * (steps_per_epoch or 1000))) if epochs else 0


PAPER_SAMPLES = 1000
"""Samples of each split over which the paper averages layer-wise measures (4.2)."""


def layerwise_sources(task: Task, test_data: Any) -> dict[str, Callable[[CratePreTrainedModel], Iterable[Any]]]:
    """Return the samples of layer-wise measurements during training, by the kind of their line in metrics.jsonl.

    "short" keeps one batch of the evaluation split. "paper" reads 1000 samples of both splits for every measurement,
    as `crate inspect --limit 1000` does, because their crops would not fit in memory.
    """
    if task.recipe.run.layerwise_protocol == "paper":
        splits = {"layerwise": None, "layerwise-train": "train"}
        return {kind: partial(task.batches, split=split, limit=PAPER_SAMPLES) for kind, split in splits.items()}
    fixed = task.layerwise_batch([*balanced_samples(test_data, task.recipe.run.layerwise_images).values()])
    return {"layerwise": lambda model: [batch.to(model.device) for batch in fixed]}


def training_arguments(
    task: Task, folder: Path, world_size: int, steps_per_epoch: int | None, model: nn.Module | None = None
) -> TrainingArguments:
    """Translate a recipe to transformers' arguments for a number of processes."""
    recipe = task.recipe
    run, schedule = recipe.run, recipe.schedule
    share, rest = divmod(schedule.batch_size, world_size)
    device_batch = min(run.per_device_batch_size or share, share)
    if rest or share % device_batch:
        raise CrateError(
            f"schedule.batch_size {schedule.batch_size} is not a multiple of {world_size} processes × {device_batch} "
            "samples; change run.per_device_batch_size"
        )
    cpu = not torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=device_batch,
        per_device_eval_batch_size=max(device_batch, task.evaluation_batch_size),
        gradient_accumulation_steps=share // device_batch,
        num_train_epochs=schedule.epochs,
        max_steps=schedule.steps or -1,
        max_grad_norm=recipe.optimizer.max_grad_norm,
        bf16=run.precision == "bf16",
        fp16=run.precision == "fp16",
        torch_compile=run.compile,
        gradient_checkpointing=run.gradient_checkpointing,
        fsdp=cast(Any, run.fsdp or None),
        fsdp_config=sharding(model) if run.fsdp else None,
        seed=run.seed,
        data_seed=run.seed,
        use_cpu=cpu,
        ddp_backend="gloo" if cpu and world_size > 1 else None,
        ddp_find_unused_parameters=False if world_size > 1 else None,
        dataloader_num_workers=recipe.data.workers,
        dataloader_persistent_workers=recipe.data.workers > 0,
        dataloader_pin_memory=not cpu,
        accelerator_config={"dispatch_batches": False, "non_blocking": not cpu},
        logging_nan_inf_filter=False,  # it would wait for the device in every step
        remove_unused_columns=False,
        label_names=["labels"],
        eval_strategy="steps" if run.evaluate_epochs else "no",
        eval_steps=steps_of(run.evaluate_epochs, steps_per_epoch) or None,
        save_strategy="steps",
        save_steps=run.checkpoint_steps or steps_of(run.checkpoint_epochs, steps_per_epoch),
        logging_steps=run.log_steps,
        logging_first_step=True,
        report_to=[],
        disable_tqdm=True,
        log_level="error",
    )


def sharding(model: nn.Module | None) -> dict[str, Any]:
    """Return the FSDP settings: shard by layer, and let each process write its own part of a checkpoint.

    Loading whole checkpoints hangs with torch 2.13.
    """
    layers = {type(layer).__name__ for layer in (model.modules() if model else ()) if isinstance(layer, Layer)}
    return {"transformer_layer_cls_to_wrap": sorted(layers), "state_dict_type": "SHARDED_STATE_DICT"}


def save_model(trainer: CrateTrainer, folder: Path) -> None:
    """Save the model that is evaluated; every process takes part in gathering sharded weights."""
    weights = trainer.whole_weights()
    if trainer.args.should_save:
        with atomic_folder(folder) as draft:
            trainer.task.save(trainer.inner, weights, draft)
            write_manifest(draft)
