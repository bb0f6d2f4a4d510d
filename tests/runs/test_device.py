"""Training does not wait for the device between log entries: no value of a tensor is read in a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerCallback

from codingrate.errors import CrateError
from codingrate.runs.training import training_arguments

from .texts import text_recipe, write_sentences
from .toys import Run, build_trainer, dino, mae, toy, toy_task, train_toy

aten = torch.ops.aten
READS = (aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default, aten.masked_select.default)


class Reads(TorchDispatchMode):
    """Collects the operations that hand the value or the number of true elements of a tensor to Python.

    `.item()`, `float()`, `bool()` and `if tensor` all end in one of them. On a GPU each of them waits for the device.
    The step counters of an optimizer are on the CPU on every device; they may be read.
    """

    def __init__(self, counters: set[int]) -> None:
        super().__init__()
        self.counters, self.found = counters, []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        chosen = function is aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        if (function in READS or chosen) and id(args[0]) not in self.counters:
            self.found.append(str(function))
        return function(*args, **(kwargs or {}))


class Observer(TrainerCallback):
    """Observes every step from its begin to its end, after the first, which creates the optimizer's state."""

    def __init__(self) -> None:
        self.steps: list[list[str]] = []
        self.mode: Reads | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        counters = {id(value["step"]) for value in optimizer.optimizer.state.values() if "step" in value}
        if state.global_step:
            self.mode = Reads(counters)
            self.mode.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.mode is not None:
            self.mode.__exit__(None, None, None)
            self.steps.append(self.mode.found)
            self.mode = None


FEW = {"schedule.steps": 4, "schedule.batch_size": 12, "run.log_steps": 2, "run.evaluate_epochs": 0}
RECIPES = {
    "classifier": lambda: toy(FEW),
    "average of weights": lambda: toy({**FEW, "run.ema": 0.9}),
    "accumulation": lambda: toy({**FEW, "run.per_device_batch_size": 4}),
    "gradient checkpointing": lambda: toy({**FEW, "run.gradient_checkpointing": True}),
    "autoencoder": lambda: toy(mae(FEW)),
    "self-distillation": lambda: toy(dino(FEW)),
    "next tokens": lambda: text_recipe("causal-lm", FEW),
    "masked tokens": lambda: text_recipe("masked-lm", FEW),
}
SELECTS = {"masked tokens": {"aten.index.Tensor"}}
"""Operations that do wait: a masked language model selects the masked tokens, whose number Python must know."""


@pytest.mark.parametrize("name", [*RECIPES, "sentences"])
def test_no_step_reads_a_tensor(tmp_path, name):
    if name == "sentences":
        write_sentences(tmp_path / "labeled.csv")
        recipe = text_recipe("sequence-classification", {**FEW, "data.name": str(tmp_path / "labeled.csv")})
    else:
        recipe = RECIPES[name]()
    run, _ = Run.start(tmp_path / "run", recipe)
    with run.lock:
        trainer = build_trainer(run, run.task, run.task.build_model(), quiet=False)
        observer = Observer()
        trainer.add_callback(observer)  # the last one, so that the other callbacks are observed too
        trainer.train()
    assert len(observer.steps) == 3
    assert all(set(found) == SELECTS.get(name, set()) for found in observer.steps), observer.steps


def test_the_observer_sees_what_waits():
    with Reads(set()) as mode:
        values = torch.arange(3.0)
        _ = float(values[1]), bool(values.isfinite().all()), values[values > 1]
        if values.sum() > 1:
            values.tolist()
    assert mode.found == [str(READS[0]), str(READS[0]), str(aten.index.Tensor), str(READS[0])]


@pytest.mark.parametrize("changes", [{"run.log_steps": 4}, {"run.log_steps": 100, "run.checkpoint_steps": 3}])
def test_a_loss_that_is_not_finite_is_found_at_the_next_log_entry_or_checkpoint(tmp_path, changes):
    """The message names the step at which it happened, and nothing is saved after it."""
    diverges = {**FEW, "schedule.steps": 6, "optimizer.lr": 1e12, "optimizer.max_grad_norm": 0.0}
    with pytest.raises(CrateError, match=r"the loss is (nan|inf) at step 1; lower optimizer.lr"):
        train_toy(tmp_path / "run", {**diverges, **changes})
    assert not (tmp_path / "run" / "model").exists()
    assert not list((tmp_path / "run" / "checkpoints").glob("*"))


def test_copies_to_a_gpu_do_not_wait(tmp_path, monkeypatch):
    """There is no GPU here, so that only the settings of transformers and accelerate can be checked."""
    task, found = toy_task(FEW), []
    monkeypatch.setattr("codingrate.runs.training.TrainingArguments", lambda **settings: found.append(settings))
    for gpu in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)  # noqa: B023
        training_arguments(task, tmp_path, 1, 4)
    assert [settings["dataloader_pin_memory"] for settings in found] == [False, True]
    assert [settings["accelerator_config"]["non_blocking"] for settings in found] == [False, True]
    assert not any(settings["logging_nan_inf_filter"] for settings in found)
