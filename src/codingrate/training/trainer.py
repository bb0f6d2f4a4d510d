"""transformers' Trainer with what vision needs: augmentation on the device, checkpoints whole or not at all."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import Trainer

from ..data import BatchAugment, CorruptImages, collate
from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from .ema import WeightAverage
from .optimizers import build_optimizer, build_schedule
from .recipe import Recipe

STAGING = ".writing"


class CrateTrainer(Trainer):
    """Trains a classifier by a recipe."""

    def __init__(self, *, recipe: Recipe, **kwargs: Any) -> None:
        super().__init__(data_collator=cast(Any, collate), compute_metrics=_accuracies, **kwargs)
        self.recipe = recipe
        self.preprocess_logits_for_metrics = cast(Any, _loss_and_best)
        self.batch_augment = BatchAugment(recipe.augment)
        self.corrupt = CorruptImages(max_share=recipe.data.max_corrupt)
        self.ema = WeightAverage(cast(nn.Module, self.model), recipe.run.ema) if recipe.run.ema else None
        self.seen = 0  # images of this process since training began, for the progress line
        self.right = self.counted = 0  # of those since the last log
        self._micro_step = 0
        self.model_accepts_loss_kwargs = False  # our loss is a mean, so accumulated batches are averaged, not summed

    def create_accelerator_and_postprocess(self) -> None:
        """Accelerate turns FSDP on for accelerators only; PyTorch shards on CPUs too, over gloo, so we do as asked."""
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if self.args.fsdp and state.distributed_type == DistributedType.MULTI_CPU:
            state.distributed_type = DistributedType.FSDP
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            self.is_fsdp_enabled = True

    # Inputs and loss

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.corrupt.add(cast(Any, inputs))
        inputs = super()._prepare_inputs({key: inputs[key] for key in ("pixel_values", "labels")})
        training = cast(nn.Module, self.model).training
        self.batch_augment.train(training)
        seed = self._augment_seed() if training else None
        inputs["pixel_values"] = self.batch_augment(inputs["pixel_values"], seed=seed)
        return inputs

    def _augment_seed(self) -> int:
        """A seed for this batch of this process that a resumed run meets again."""
        self._micro_step += 1
        if self.state.global_step != getattr(self, "_last_step", None):
            self._last_step, self._micro_step = self.state.global_step, 0
        place = (self.recipe.run.seed, self.state.global_step, self._micro_step, self.args.process_index)
        return int(torch.tensor(place).mul(torch.tensor([1_000_003, 7919, 104_729, 15_485_863])).sum()) % 2**31

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Cross-entropy with the recipe's label smoothing; an empty batch, all unreadable, gives zero."""
        labels: Tensor = inputs["labels"]
        outputs = model(pixel_values=inputs["pixel_values"])
        logits: Tensor = outputs.logits
        smoothing = self.recipe.optimise.label_smoothing if model.training else 0.0
        none_readable = len(labels) == 0
        loss = logits.sum() * 0 if none_readable else F.cross_entropy(logits, labels, label_smoothing=smoothing)
        if model.training:
            loss = cast(CratePreTrainedModel, self.accelerator.unwrap_model(model)).regularized(loss)
            self.seen += len(labels)
            self.counted += len(labels)
            self.right += int((logits.detach().argmax(-1) == labels).sum())
        return (loss, outputs) if return_outputs else loss

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Trainer resumes a run that ended within a pass by one step more; killed before its end, it would differ."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)

    def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        """One batch; stops when the loss is no longer a number."""
        loss: Tensor = super().training_step(model, *args, **kwargs)
        if not math.isfinite(float(loss)):
            raise CrateError(f"the loss is {float(loss)} at step {self.state.global_step}; lower optimise.lr")
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the training accuracy since the last log."""
        if "loss" in logs and self.counted:
            logs["accuracy"] = self.right / self.counted
            self.right = self.counted = 0
        super().log(logs, *args, **kwargs)

    # Optimizer and schedule

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The recipe's optimizer."""
        if self.optimizer is None:
            self.optimizer = build_optimizer(cast(nn.Module, model or self.model), self.recipe.optimise)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """The recipe's learning-rate schedule."""
        if self.lr_scheduler is None:
            chosen = cast(torch.optim.Optimizer, optimizer or self.optimizer)
            spec, rows = self.recipe.schedule, cast(Any, self.train_dataset)
            per_epoch = math.ceil(len(rows) / spec.batch) if hasattr(rows, "__len__") else None
            self.lr_scheduler = build_schedule(chosen, spec, self.recipe.optimise.lr, per_epoch, num_training_steps)
        return self.lr_scheduler

    # The average of the weights

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate the average of the weights where there is one."""
        self._end_count()
        if self.ema is None:
            metrics = super().evaluate(*args, **kwargs)
        else:
            with self.ema.applied(cast(nn.Module, self.model)):
                metrics = super().evaluate(*args, **kwargs)
        self._end_count()
        return metrics

    def _end_count(self) -> None:
        """Judge the share of unreadable images since the last evaluation, and say which were skipped."""
        names = self.corrupt.finish()
        if names:
            self.log({"unreadable": len(names), "first_unreadable": cast(Any, names[0])})

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """The mean loss over images: the loop's own counts a last, smaller batch of several processes too much."""
        output = super().evaluation_loop(*args, **kwargs)
        metrics = output.metrics or {}
        if "eval_exact_loss" in metrics:
            metrics["eval_loss"] = metrics.pop("eval_exact_loss")
        return output

    # Checkpoints

    def whole_weights(self) -> dict[str, Tensor] | None:
        """All weights, gathered from the processes they are sharded over; None where nothing is sharded."""
        if not self.is_fsdp_enabled:
            return None
        weights = cast(nn.Module, self.model).state_dict()
        return {name: w.full_tensor().clone() if isinstance(w, DTensor) else w for name, w in weights.items()}

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save whole weights, also of a model that is sharded."""
        weights = self.whole_weights()
        if weights is None:
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            self._save(output_dir, state_dict=weights)

    def _get_output_dir(self, trial: Any) -> str:
        folder = Path(super()._get_output_dir(trial))
        return str(folder / STAGING if getattr(self, "_staging", False) else folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint beside the others and move it among them when it is complete."""
        folder = Path(cast(str, self.args.output_dir))
        name = f"checkpoint-{self.state.global_step}"
        written = folder / STAGING / name
        if self.args.should_save:
            shutil.rmtree(folder / STAGING, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._staging = True
        try:
            super()._save_checkpoint(model, trial)
            if self.ema is not None and self.args.should_save:
                self.ema.save(written)
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(folder / STAGING, ignore_errors=True)
            raise CrateError(_write_failure(folder, name, error)) from error
        finally:
            self._staging = False
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            shutil.rmtree(folder / name, ignore_errors=True)
            written.rename(folder / name)
            shutil.rmtree(folder / STAGING, ignore_errors=True)
            for old in checkpoints(folder)[: -self.recipe.run.keep]:
                shutil.rmtree(old, ignore_errors=True)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.ema is not None:
            self.ema.load(Path(resume_from_checkpoint))


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    complete = [path for path in found if (path / "trainer_state.json").is_file()]
    return sorted(complete, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def _write_failure(folder: Path, name: str, error: Exception) -> str:
    good = checkpoints(folder)
    left = f"the last good one is {good[-1].name}" if good else "there is none yet"
    why = getattr(error, "strerror", None) or " ".join(str(error).split())
    return f"{folder / name}: cannot be written ({why}); {left}; free some space and go on with --resume"


def _loss_and_best(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and the five best classes of each image, so that evaluation need not hold every logit."""
    loss = F.cross_entropy(logits.float(), labels, reduction="none")
    return loss, logits.topk(min(5, logits.shape[-1]), dim=-1).indices


def _accuracies(prediction: Any) -> dict[str, float]:
    loss, best = prediction.predictions
    right = best == prediction.label_ids[:, None]
    return {
        "exact_loss": float(loss.mean()),
        "top1": float(right[:, 0].mean()),
        "top5": float(right.any(axis=1).mean()),
    }
