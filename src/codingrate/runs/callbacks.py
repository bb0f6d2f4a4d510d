"""Callbacks of a training run: metrics.jsonl, saved models, layer-wise measures, the progress line."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import nn
from transformers import TrainerCallback
from transformers.integrations.integration_utils import TensorBoardCallback

from .. import __version__
from .._files import to_plain, write_text
from .._state import preserved_random_state
from ..inspection import layerwise, read_metrics
from ..models.base import CratePreTrainedModel
from ..tasks import Task
from .optimizers import WeightAverage, weight_decay_at

if TYPE_CHECKING:
    from .trainer import CrateTrainer


class Metrics(TrainerCallback):
    """Write metrics.jsonl: one JSON line per log entry, evaluation and measurement, with its step and epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Drop the lines of steps that a resumed run repeats, and the end of the part before."""
        if not state.is_world_process_zero or not self.path.exists():
            return
        done = state.global_step  # without a checkpoint everything is repeated, also measurements before step 1
        kept = [line for line in read_metrics(self.path) if done and line["step"] <= done and line["kind"] != "end"]
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Write a log entry."""
        if state.is_world_process_zero and logs:
            kinds = {"eval_loss": "evaluation", "train_runtime": "end", "unreadable": "unreadable"}
            kind = next((kind for key, kind in kinds.items() if key in logs), "training")
            self.write(state, kind, {**logs, "version": __version__} if kind == "end" else logs)

    def write(self, state: Any, kind: str, values: dict[str, Any]) -> None:
        """Append one line."""
        line = {"kind": kind, "step": state.global_step, "epoch": state.epoch, **values}
        with self.path.open("a") as file:
            file.write(json.dumps(to_plain(line)) + "\n")


class SavedModels(TrainerCallback):
    """Save the last model after every evaluation, and the best model when the task's metric is the best so far."""

    def __init__(self, task: Task, save: Callable[[str], None]) -> None:
        self.task, self.save = task, save

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **_: Any
    ) -> None:
        """Save the model that was just evaluated."""
        if metrics and self._is_best(metrics, state.log_history):
            self.save("best")
        self.save("last")

    def _is_best(self, metrics: dict[str, float], history: list[dict[str, float]]) -> bool:
        key = f"eval_{self.task.best_metric}"
        if self.task.best_metric is None:
            return True
        before = [entry[key] for entry in history if key in entry]
        sign = 1 if self.task.higher_is_better else -1
        return sign * metrics[key] >= max((sign * value for value in before), default=-math.inf)


class Milestones(TrainerCallback):
    """Write a checkpoint at each of some steps, whatever the interval between checkpoints is."""

    def __init__(self, steps: Iterable[int]) -> None:
        self.steps = frozenset(steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask the trainer to save."""
        if state.global_step in self.steps:
            control.should_save = True


class Layerwise(TrainerCallback):
    """Measure every layer against the objective on fixed samples, as in the paper's figure across training.

    `sources` maps the kind of a line in metrics.jsonl to a function that returns the batches for a model; `interval` is
    the number of steps between two measurements.
    """

    def __init__(
        self,
        trainer: CrateTrainer,
        metrics: Metrics,
        tensorboard: TensorBoardCallback,
        sources: Mapping[str, Callable[[CratePreTrainedModel], Iterable[Any]]],
        interval: int,
    ) -> None:
        self.trainer, self.metrics, self.tensorboard = trainer, metrics, tensorboard
        self.sources, self.interval = sources, interval

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure before the first step. The step of a checkpoint was measured before it was written."""
        if state.global_step == 0:
            self.measure(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure after every `interval` steps."""
        if state.global_step % self.interval == 0:
            self.measure(state)

    def measure(self, state: Any) -> None:
        """Measure, and write the result in the first process."""
        model = self.trainer.whole_model()
        if model is None or not state.is_world_process_zero:
            return
        for kind, batches in self.sources.items():
            with preserved_random_state():  # a data loader draws a seed
                table = layerwise(model, iter(batches(model)))  # not shared among processes: only this one measures
            self.metrics.write(state, kind, {"layers": table.to_dict("records")})
            if self.tensorboard.tb_writer is not None:
                for name in ("compression_normalized", "reduction_normalized", "alignment", "nonzero"):
                    for layer, value in zip(table["layer"], table[name], strict=True):
                        tag = f"{kind}/{name}/layer {int(layer):02d}"
                        self.tensorboard.tb_writer.add_scalar(tag, float(value), state.global_step)


class ProgressLine(TrainerCallback):
    """Show a progress bar with loss and speed on standard error, and a line per evaluation.

    Where standard error is not a terminal, such as a log file, a line is printed every half minute instead.
    """

    INTERVAL, REFRESH = 30.0, 0.5
    """Seconds between two lines, and between two updates of the bar, which wait for the device to read the loss."""

    def __init__(self, trainer: CrateTrainer, name: str) -> None:
        self.trainer, self.name = trainer, name
        self.start = self.printed = time.perf_counter()
        self.unreadable: str | None = None
        self.bar: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the bar."""
        if not state.is_world_process_zero:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.start = self.printed = time.perf_counter()
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(),
            console=Console(stderr=True, soft_wrap=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self.bar.start()
        self.task = self.bar.add_task(self.name, total=state.max_steps, completed=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Advance the bar, or print a line from time to time."""
        if self.bar is None:
            return
        now = time.perf_counter()
        if now - self.printed < (self.INTERVAL if self.bar.disable else self.REFRESH):
            return
        self.printed = now
        speed = self.trainer.samples_seen * args.world_size / (now - self.start)
        description = (
            f"{self.name} epoch {state.epoch or 0:.2f}, loss {self.trainer.recent_loss:.3f}, "
            f"{speed:.0f} {self.trainer.task.sample_unit}/s"
        )
        self.bar.update(self.task, completed=state.global_step, description=description)
        if self.bar.disable:
            self.print(f"{description}, step {state.global_step} of {state.max_steps}, {now - self.start:.0f} s")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Say how many images could not be read, once for every first one."""
        if logs and logs.get("first_unreadable", self.unreadable) != self.unreadable:
            self.unreadable = logs["first_unreadable"]
            self.print(f"{logs['unreadable']} images could not be read; the first is {self.unreadable}")

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **_: Any
    ) -> None:
        """Print the metrics of an evaluation."""
        if metrics:
            metrics = {key.removeprefix("eval_"): value for key, value in metrics.items()}
            self.print(
                f"{self.name}: epoch {state.epoch:.3g}, {self.trainer.task.headline(metrics)}, "
                f"{time.perf_counter() - self.start:.0f} s"
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the bar, which gives the cursor back."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False)


class AverageWeights(TrainerCallback):
    """Update the average of the weights after every optimizer step."""

    def __init__(self, trainer: CrateTrainer, average: WeightAverage) -> None:
        self.trainer, self.average = trainer, average

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start from the initial weights."""
        self.average.start(cast(nn.Module, self.trainer.model))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Update the average."""
        self.average.update(cast(nn.Module, self.trainer.model))


class TaskHooks(TrainerCallback):
    """Apply the weight-decay schedule and the step hooks of the task."""

    def __init__(self, trainer: CrateTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Log, evaluate and save as often as the recipe says; a checkpoint brings the intervals of its time."""
        state.compute_steps(args, state.max_steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        """Set what depends on the step; everything is a function of it, so that resuming changes nothing."""
        section = self.trainer.recipe.optimizer
        if section.final_weight_decay is not None:
            end = section.final_weight_decay
            decay = weight_decay_at(state.global_step, state.max_steps, section.weight_decay, end)
            for group in optimizer.param_groups:
                if group["decays"]:
                    group["weight_decay"] = decay
        self.trainer.task.on_step_begin(state.global_step, state.max_steps, self.trainer.steps_per_epoch)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Let the task change gradients after clipping."""
        self.trainer.task.on_gradients(self.trainer.inner)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Let the task update its state after the optimizer step."""
        self.trainer.task.on_step_end(self.trainer.inner)
