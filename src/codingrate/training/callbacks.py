"""What a run writes while it trains: a line of progress, metrics.jsonl, saved models, every layer's measures."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn
from transformers import TrainerCallback

from ..inspection import layerwise, read_metrics
from ..models.base import CratePreTrainedModel
from .distillation_schedules import weight_decay_at

if TYPE_CHECKING:
    from .tasks import Task
    from .trainer import CrateTrainer


class Metrics(TrainerCallback):
    """metrics.jsonl: a JSON line per log, evaluation and measurement, each with its step and epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Drop lines of steps that a resumed run is going to take again."""
        if not state.is_world_process_zero or not self.path.exists():
            return
        taken = state.global_step  # without a checkpoint everything comes again, also what was measured before step 1
        kept = [line for line in read_metrics(self.path) if taken and line["step"] <= taken]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        temporary.replace(self.path)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Write what was logged."""
        if state.is_world_process_zero and logs:
            kinds = {"eval_loss": "evaluation", "train_runtime": "end", "unreadable": "unreadable"}
            self.write(state, next((kind for key, kind in kinds.items() if key in logs), "training"), logs)

    def write(self, state: Any, kind: str, values: dict[str, Any]) -> None:
        """Append one line."""
        line = {"kind": kind, "step": state.global_step, "epoch": state.epoch, **values}
        with self.path.open("a") as file:
            file.write(json.dumps(_without_nan(line)) + "\n")


def _without_nan(value: Any) -> Any:
    """The same with null for what is not a number, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class SavedModels(TrainerCallback):
    """model/last after every evaluation, and model/best when the task's figure was the best so far."""

    def __init__(self, task: Task, save: Callable[[str], None]) -> None:
        self.task, self.save = task, save

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **_: Any
    ) -> None:
        """Save, atomically, what was just evaluated."""
        if metrics and self._is_best(metrics, state.log_history):
            self.save("best")
        self.save("last")

    def _is_best(self, metrics: dict[str, float], history: list[dict[str, float]]) -> bool:
        key = f"eval_{self.task.best}"
        if self.task.best is None:
            return True
        before = [entry[key] for entry in history if key in entry]
        sign = 1 if self.task.higher else -1
        return sign * metrics[key] >= max((sign * value for value in before), default=-math.inf)


class Layerwise(TrainerCallback):
    """Every layer against the objective on a fixed batch, as in the paper's figure across training."""

    def __init__(self, metrics: Metrics, batch: Tensor | list[Tensor], epochs: float) -> None:
        self.metrics, self.epochs = metrics, epochs
        self.batches = batch if isinstance(batch, list) else [batch]
        self.due = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Before the first step, or where a resumed run stands."""
        self.due = 0.0
        if state.epoch and state.is_world_process_zero:
            lines = read_metrics(self.metrics.path) if self.metrics.path.exists() else []
            done = [line["epoch"] for line in lines if line["kind"] == "layerwise"]
            self.due = (int(max(done, default=0.0) / self.epochs + 1e-6) + 1) * self.epochs
            if abs(state.epoch - round(state.epoch)) > 1e-6:
                return  # within a pass: as if never stopped
        self.measure(state, model)

    def on_epoch_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """After every pass, if it is time."""
        self.measure(state, model)

    def measure(self, state: Any, model: CratePreTrainedModel) -> None:
        """Measure and write, if due."""
        if not state.is_world_process_zero or (state.epoch or 0.0) + 1e-6 < self.due:
            return
        self.due = (int((state.epoch or 0.0) / self.epochs + 1e-6) + 1) * self.epochs
        table = layerwise(model, [batch.to(model.device) for batch in self.batches])
        self.metrics.write(state, "layerwise", {"layers": table.to_dict("records")})


class ProgressLine(TrainerCallback):
    """One line on standard error: epoch, loss, accuracy, images per second, time left; a line per evaluation."""

    def __init__(self, trainer: CrateTrainer, name: str) -> None:
        self.trainer, self.name = trainer, name
        self.latest: dict[str, float] = {}
        self.start = time.perf_counter()
        self.bar: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the bar."""
        if not state.is_world_process_zero:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.start = time.perf_counter()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self.bar.start()
        self.task = self.bar.add_task(self.name, total=state.max_steps, completed=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Move the bar."""
        if self.bar is not None:
            speed = self.trainer.seen * args.world_size / (time.perf_counter() - self.start)
            self.bar.update(self.task, completed=state.global_step, description=self._line(state, speed))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Remember what was logged."""
        self.latest.update(logs or {})

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **_: Any
    ) -> None:
        """A line that stays."""
        if self.bar is not None and metrics:
            figures = {key.removeprefix("eval_"): value for key, value in metrics.items()}
            self.bar.console.print(
                f"{self.name}: epoch {state.epoch:.3g}, {self.trainer.task.headline(figures)}, "
                f"{time.perf_counter() - self.start:.0f} s"
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _line(self, state: Any, speed: float) -> str:
        parts = [f"{self.name} epoch {state.epoch or 0:.2f}"]
        if "loss" in self.latest:
            parts.append(f"loss {float(self.latest['loss']):.3f}")
        if "accuracy" in self.latest:
            parts.append(f"acc {float(self.latest['accuracy']):.1%}")
        return ", ".join([*parts, f"{speed:.0f} {self.trainer.task.samples}/s"])


class AverageWeights(TrainerCallback):
    """Steps the average of the weights after the optimizer's."""

    def __init__(self, trainer: CrateTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """One step of the average."""
        if self.trainer.ema is not None:
            self.trainer.ema.update(cast(nn.Module, self.trainer.model))


class TaskSteps(TrainerCallback):
    """What moves with the step: the weight decay where it has a schedule, and what the task asks for."""

    def __init__(self, trainer: CrateTrainer) -> None:
        self.trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        """Everything is a function of the step, so that a resumed run goes on as if never stopped."""
        spec = self.trainer.recipe.optimise
        if spec.final_weight_decay is not None:
            decay = weight_decay_at(state.global_step, state.max_steps, spec.weight_decay, spec.final_weight_decay)
            for group in optimizer.param_groups:
                if group["decays"]:
                    group["weight_decay"] = decay
        self.trainer.task.begin(state.global_step, state.max_steps, self.trainer.steps_per_epoch)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After the gradients were clipped."""
        self.trainer.task.gradients(self.trainer.inner)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After the optimizer moved the weights."""
        self.trainer.task.finish(self.trainer.inner)
