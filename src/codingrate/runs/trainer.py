"""transformers' Trainer, extended by the task of a recipe and by atomic checkpoints."""

from __future__ import annotations

import functools
import json
import logging
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerState
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME

from .._files import write_problem
from .._state import preserved_random_state
from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from ..tasks import Task
from .folder import STAGING, checkpoints
from .interruption import shield_worker
from .manifest import write_manifest
from .optimizers import WeightAverage, build_optimizer, build_schedule
from .resharding import has_shards, load_sharded_optimizer, load_whole_model, load_whole_optimizer

INTERVAL = "interval.json"
"""File of a checkpoint with the sums since the last log entry."""


class CrateTrainer(Trainer):
    """Trains the model of a task."""

    def __init__(self, *, task: Task, **kwargs: Any) -> None:
        super().__init__(data_collator=cast(Any, task.collate), compute_metrics=self._summarize, **kwargs)
        self.recipe, self.task = task.recipe, task
        decay = self.recipe.run.ema
        self.ema = WeightAverage(decay) if decay else None
        self.model_class = type(cast(CratePreTrainedModel, self.model))  # FSDP changes the class of the model itself
        self.loaders: list[Any] = []  # those with workers
        self.samples_seen = 0  # by this process since training began, for the progress line
        self._recent_loss: Tensor | None = None
        self._diverged: Tensor | None = None  # number of the first step whose loss is not finite, or −1, and the loss
        self.totals: dict[str, tuple[Tensor, int]] = {}  # metrics since the last log: sums over samples, samples
        self.warned = False
        self._micro_step = 0
        self.model_accepts_loss_kwargs = False  # our loss is a mean, so accumulated batches are averaged, not summed

    def create_accelerator_and_postprocess(self) -> None:
        """Enable FSDP on CPUs too; accelerate does so only for accelerators, although PyTorch can shard over gloo."""
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if self.args.fsdp and state.distributed_type == DistributedType.MULTI_CPU:
            state.distributed_type = DistributedType.FSDP
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            self.is_fsdp_enabled = True

    def _get_dataloader(self, dataset: Any, description: str, batch_size: int, *args: Any, **kwargs: Any) -> Any:
        loader: Any = super()._get_dataloader(dataset, description, batch_size, *args, **kwargs)
        if self.args.world_size > 1 and isinstance(dataset, IterableDataset):
            loader = self._stream_loader(dataset, batch_size)
        if loader.num_workers:
            inner = getattr(loader, "base_dataloader", loader)  # accelerate wraps the loader
            inner.worker_init_fn = functools.partial(shield_worker, inner.worker_init_fn)
            self.loaders.append(inner)
        return loader

    def _stream_loader(self, dataset: Any, batch_size: int) -> Any:
        """Return a loader of this process's part of a stream, which accelerate would divide a second time."""
        options: dict[str, Any] = {
            "num_workers": self.args.dataloader_num_workers,
            "pin_memory": self.args.dataloader_pin_memory,
            "persistent_workers": self.args.dataloader_persistent_workers,
        }
        loader = DataLoader(dataset, batch_size, collate_fn=cast(Any, self.data_collator), **options)
        alone: dict[str, Any] = {"num_processes": 1, "process_index": 0, "dispatch_batches": False}
        alone["non_blocking"] = self.args.dataloader_pin_memory
        return prepare_data_loader(loader, self.args.device, put_on_device=True, **alone)

    def close_workers(self) -> None:
        """End the loader workers; at the end of Python they would be waited for, because they ignore a signal."""
        for loader in self.loaders:
            if loader._iterator is not None:
                loader._iterator._shutdown_workers()
                loader._iterator = None

    # Inputs and loss

    @property
    def inner(self) -> CratePreTrainedModel:
        """The model without the wrapper for several processes."""
        return cast(CratePreTrainedModel, self.accelerator.unwrap_model(self.model))

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        inputs = super()._prepare_inputs(self.task.on_batch(inputs))
        seed = self._batch_seed() if cast(nn.Module, self.model).training else None
        return self.task.prepare(inputs, seed, self.inner)

    def _batch_seed(self) -> int:
        """Return a seed for this batch of this process, the same in a resumed run."""
        self._micro_step += 1
        if self.state.global_step != getattr(self, "_last_step", None):
            self._last_step, self._micro_step = self.state.global_step, 0
        indices = (self.recipe.run.seed, self.state.global_step, self._micro_step, self.args.process_index)
        primes = (1_000_003, 7919, 104_729, 15_485_863)
        return sum(index * prime for index, prime in zip(indices, primes, strict=True)) % 2**31

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the task's loss, and add its metrics to the totals for the log."""
        step = self.task.loss(model, self.inner, inputs)
        self.samples_seen += step.samples
        for name, value in step.metrics.items():
            total, count = self.totals.get(name, (torch.zeros((), device=value.device), 0))
            self.totals[name] = total + value.detach() * step.samples, count + step.samples
        return (step.loss, step) if return_outputs else step.loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the metrics of each sample in place of logits, so that means are exact on several processes."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            metrics = self.task.measure(model, self.inner, inputs)
        self._metric_names = list(metrics)
        columns = torch.stack([values.float() for values in metrics.values()], dim=1)
        return None, columns, columns[:, 0]

    def _summarize(self, prediction: Any) -> dict[str, float]:
        columns = prediction.predictions.astype("float64").T
        metrics = self.task.summarize(dict(zip(self._metric_names, columns, strict=True)))
        self._check_finite(metrics["loss"], "evaluation loss", self.state.global_step)  # before the model is saved
        return metrics

    def _check_finite(self, loss: float, name: str, step: int) -> None:
        if not math.isfinite(loss):
            raise CrateError(f"the {name} is {loss} at step {step}; lower optimizer.lr")

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Run an epoch, unless the run is complete: Trainer would add a step to a run that ended within an epoch.

        Tell the dataset which epoch it is in, so that shuffling and augmentation are reproducible; accelerate tells
        only the sampler on several processes and in a resumed epoch.
        """
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        if kwargs["resume_from_checkpoint"] is not None and kwargs["epoch"] == kwargs["epochs_trained"]:
            self._resume_interval(kwargs["resume_from_checkpoint"])
        if hasattr(self.train_dataset, "set_epoch"):
            cast(Any, self.train_dataset).set_epoch(kwargs["epoch"])
        super()._run_epoch(*args, **kwargs)

    def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        """Train on one batch. Nothing here waits for the device; `_check_loss` looks at the loss from time to time."""
        loss: Tensor = super().training_step(model, *args, **kwargs)
        now = torch.stack([torch.full_like(loss, self.state.global_step, dtype=torch.float64), loss.double()])
        own = loss * self.current_gradient_accumulation_steps  # Trainer returns the batch's share of the step's mean
        if self._recent_loss is None or self._diverged is None:
            self._recent_loss, self._diverged = own, torch.full_like(now, -1)
        self._recent_loss = 0.9 * self._recent_loss + 0.1 * own
        self._diverged = torch.where((self._diverged[0] < 0) & ~loss.isfinite(), now, self._diverged)
        return loss

    @property
    def recent_loss(self) -> float:
        """Running mean of the loss over some ten batches. Reading it waits for the device."""
        return math.nan if self._recent_loss is None else float(self._recent_loss)

    def _check_loss(self) -> None:
        """Stop if the loss of a step was not finite: before a log entry, a checkpoint and an evaluation."""
        if self._diverged is not None:
            step, loss = self._diverged.tolist()
            self._check_finite(loss, "loss", int(step))

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the task's metrics since the last log."""
        self._check_loss()
        if "loss" in logs and self.totals:
            logs.update({name: float(total) / count for name, (total, count) in self.totals.items()})
            self.totals = {}
            self._warn(self.task.warning(logs, self.state.epoch or 0.0))
        super().log(logs, *args, **kwargs)

    def _warn(self, text: str | None) -> None:
        """Log the first warning of a run."""
        if text is not None and not self.warned and self.is_world_process_zero():
            self.warned = True
            logging.getLogger("codingrate").warning(text)

    # Optimizer and schedule

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the optimizer of the recipe."""
        if self.optimizer is None:
            self.optimizer = build_optimizer(cast(nn.Module, model or self.model), self.recipe.optimizer)
        return self.optimizer

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in an epoch; None for a stream."""
        dataset = cast(Any, self.train_dataset)
        return math.ceil(len(dataset) / self.recipe.schedule.batch_size) if hasattr(dataset, "__len__") else None

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Create the learning-rate schedule of the recipe."""
        if self.lr_scheduler is None:
            chosen = cast(torch.optim.Optimizer, optimizer or self.optimizer)
            peak, section = self.recipe.optimizer.lr, self.recipe.schedule
            self.lr_scheduler = build_schedule(chosen, section, peak, self.steps_per_epoch, num_training_steps)
        return self.lr_scheduler

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """Clip the norm of all gradients, or of each tensor as in DINO; return the norm of all before clipping."""
        if self.recipe.optimizer.clip_by == "all":
            return super()._clip_grad_norm(model)
        self.accelerator.unscale_gradients(self.optimizer)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norms = torch._foreach_norm(gradients)
        factors = [(self.recipe.optimizer.max_grad_norm / (norm + 1e-6)).clamp(max=1.0) for norm in norms]
        torch._foreach_mul_(gradients, factors)
        return torch.linalg.vector_norm(torch.stack(list(norms)))

    # The average of the weights

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate the model, or the average of its weights if there is one."""
        self._check_loss()
        self._log_unreadable()
        if self.ema is None:
            metrics = super().evaluate(*args, **kwargs)
        else:
            with self.ema.applied(cast(nn.Module, self.model)):
                metrics = super().evaluate(*args, **kwargs)
        self._log_unreadable()
        return metrics

    def _log_unreadable(self) -> None:
        """Log the images that could not be read since the last evaluation; too many are an error."""
        names = self.task.check_unreadable()
        if names:
            self.log({"unreadable": len(names), "first_unreadable": cast(Any, names[0])})

    # Checkpoints

    def whole_weights(self) -> dict[str, Tensor] | None:
        """Gather sharded weights from all processes; return None if nothing is sharded."""
        if not self.is_fsdp_enabled:
            return None
        weights = cast(nn.Module, self.model).state_dict()
        return {name: w.full_tensor().clone() if isinstance(w, DTensor) else w for name, w in weights.items()}

    def whole_model(self) -> CratePreTrainedModel | None:
        """Return the model with whole weights: of a sharded model a copy, in the first process only.

        All processes take part in gathering sharded weights.
        """
        weights = self.whole_weights()
        if weights is None:
            return self.inner
        if not self.is_world_process_zero():
            return None
        with preserved_random_state():
            model: Any = self.model_class(self.inner.config)
        model.load_state_dict(weights)
        return cast(CratePreTrainedModel, model.to(self.args.device))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the whole weights, also of a sharded model."""
        weights = self.whole_weights()
        if weights is None:
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            self._save(output_dir, state_dict=weights)

    def _get_output_dir(self, trial: Any) -> str:
        folder = Path(super()._get_output_dir(trial))
        return str(folder / STAGING if getattr(self, "_staging", False) else folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint to a staging folder and move it among the others when it is complete."""
        self._check_loss()
        folder = Path(cast(str, self.args.output_dir))
        name = f"checkpoint-{self.state.global_step}"
        written = folder / STAGING / name
        if self.args.should_save:
            shutil.rmtree(folder / STAGING, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._staging = True
        try:
            super()._save_checkpoint(model, trial)
            interval = self._export_interval()
            average = None if self.ema is None else self.ema.whole()  # all processes take part
            if self.args.should_save:
                (written / INTERVAL).write_text(json.dumps(interval), encoding="utf-8")
                if average is not None:
                    save_file(average, written / WeightAverage.FILE)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                write_manifest(written)
        except (OSError, RuntimeError, SafetensorError) as error:
            why = write_problem(folder, error) or " ".join(str(error).split())
            shutil.rmtree(folder / STAGING, ignore_errors=True)
            raise CrateError(_write_failure(folder, name, why)) from error
        finally:
            self._staging = False
        if self.args.should_save:
            shutil.rmtree(folder / name, ignore_errors=True)
            written.rename(folder / name)
            shutil.rmtree(folder / STAGING, ignore_errors=True)
            milestones = {f"checkpoint-{step}" for step in self.recipe.run.milestones}
            others = [path for path in checkpoints(folder) if path.name not in milestones]
            for old in others[: -self.recipe.run.save_total_limit]:
                shutil.rmtree(old, ignore_errors=True)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        with _readable(resume_from_checkpoint):
            _check_state(TrainerState.load_from_json(str(Path(resume_from_checkpoint) / TRAINER_STATE_NAME)))
            chosen = cast(nn.Module, model or self.model)
            if self.is_fsdp_enabled == has_shards(resume_from_checkpoint):
                super()._load_from_checkpoint(resume_from_checkpoint, model)
            else:
                load_whole_model(chosen, resume_from_checkpoint)
            if self.ema is not None:
                self.ema.load(Path(resume_from_checkpoint), chosen)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        schedule = cast(Any, self.lr_scheduler)
        with _readable(checkpoint):
            if self.is_fsdp_enabled == has_shards(checkpoint):
                super()._load_optimizer_and_scheduler(checkpoint)
            else:
                optimizer = cast(Any, self.optimizer).optimizer  # without accelerate's wrapper
                load = load_sharded_optimizer if has_shards(checkpoint) else load_whole_optimizer
                load(cast(nn.Module, self.model), optimizer, checkpoint)
                schedule.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True))
        for group, rate, factor in zip(
            schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
        ):
            group["lr"] = rate * factor(schedule.last_epoch)  # of the present length, if the run was made longer

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _readable(checkpoint):
            super()._load_rng_state(checkpoint)

    def _export_interval(self) -> dict[str, Any]:
        """Return the sums since the last log entry, so that the first entry after a resume covers its interval."""
        loss = cast(Tensor, self.accelerator.reduce(self._tr_loss, "mean"))
        totals = {name: [float(total), count] for name, (total, count) in self.totals.items()}
        return {"last_logged": self._globalstep_last_logged, "loss": float(loss), "totals": totals}

    def _resume_interval(self, checkpoint: str) -> None:
        """Continue the sums of a checkpoint."""
        with _readable(checkpoint):
            interval = json.loads((Path(checkpoint) / INTERVAL).read_text(encoding="utf-8"))
            self._globalstep_last_logged = int(interval["last_logged"])
            self._tr_loss += interval["loss"]
            self._total_loss_scalar -= interval["loss"]  # the mean loss since the resume counts its own steps
            for name, (total, count) in interval["totals"].items():
                self.totals[name] = torch.tensor(float(total), device=self._tr_loss.device), int(count)


@contextmanager
def _readable(checkpoint: str | None) -> Iterator[None]:
    """Say which checkpoint cannot be read. Its files may hold anything, so any error counts."""
    try:
        yield
    except CrateError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())
        raise CrateError(f"{checkpoint}: cannot be read ({why}); remove it to resume from the one before") from error


def _check_state(state: TrainerState) -> None:
    counts = isinstance(state.global_step, int) and isinstance(state.epoch, (int, float))
    if not (counts and isinstance(state.log_history, list) and all(isinstance(e, dict) for e in state.log_history)):
        raise ValueError(f"{TRAINER_STATE_NAME} has values of the wrong type")


def _write_failure(folder: Path, name: str, why: str) -> str:
    good = checkpoints(folder)
    left = f"the last good checkpoint is {good[-1].name}" if good else "there is no earlier checkpoint"
    return f"cannot write {folder / name}: {why}; {left}; free some space and continue with `resume=True`"
