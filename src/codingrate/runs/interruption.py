"""Ctrl-C and SIGTERM: end training after the current step, with a checkpoint to resume from."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback

if TYPE_CHECKING:
    from .trainer import CrateTrainer

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingStopped(KeyboardInterrupt):
    """Training was ended by a signal; the message says how to continue."""

    def __init__(self, run: str, step: int, number: int) -> None:
        super().__init__(f"stopped after step {step}, checkpoint saved; continue with: `train({run!r}, resume=True)`")
        self.signal = number


class Interruption(TrainerCallback):
    """Ask the trainer to save a checkpoint and stop when a signal has arrived in any process."""

    def __init__(self, trainer: CrateTrainer) -> None:
        self.trainer, self.process = trainer, os.getpid()
        self.received: int | None = None
        self.answer = torch.zeros(())  # how many processes have received a signal
        self.question: Any = None  # the communication that finds out
        self.signal: int | None = None
        """The signal that ended training."""

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Take note of a signal; the second one ends training at once."""
        if os.getpid() != self.process:  # a loader worker that has just been started
            return
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        if self.trainer.is_world_process_zero():
            os.write(2, b"\nstopping after this step; press Ctrl-C again to stop without a checkpoint\n")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save and stop, in all processes after the same step."""
        if self.question is not None:
            self.question.wait()
        elif args.world_size > 1:
            self.group = dist.new_group(backend="gloo")
        if self.answer if args.world_size > 1 else self.received is not None:
            self.signal = self.received or signal.SIGTERM
            control.should_save = control.should_training_stop = True
        elif args.world_size > 1:  # asked in one step and answered in the next, so that nothing waits for the device
            self.answer.fill_(self.received is not None)
            self.question = dist.all_reduce(self.answer, group=self.group, async_op=True)


@contextmanager
def interruptible(trainer: CrateTrainer) -> Iterator[Interruption]:
    """Handle signals inside the block; without this, in another thread than the main one, they act as usual."""
    interruption = Interruption(trainer)
    trainer.add_callback(interruption)
    listens = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, interruption.on_signal) for number in SIGNALS} if listens else {}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for callback in trainer.callback_handler.callbacks:  # close the progress bar also after an error
            callback.on_train_end(trainer.args, trainer.state, trainer.control)
        trainer.close_workers()


def shield_worker(init: Callable[[int], None] | None, number: int) -> None:
    """Start a loader worker that survives the first signal, which terminals and clusters send to it as well.

    It is needed until the step is complete. Half a minute after SIGTERM, or at the second one, it ends.
    """

    def on_terminate(signal_number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.alarm(30)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, on_terminate)
    if init is not None:
        init(number)
