"""Seeds of batches: every batch of every step, process and run has its own, also accumulated batches."""

from __future__ import annotations

import dataclasses
from itertools import product
from types import SimpleNamespace

import pytest

from codingrate.runs.trainer import CrateTrainer
from codingrate.runs.training import training_arguments

from .toys import toy, toy_task, toy_trainer


def seeds(run_seed=0, process=0, first=0, steps=3, batches=4):
    """Return the seeds that a process draws in steps of several accumulated batches."""
    trainer = SimpleNamespace(
        recipe=SimpleNamespace(run=SimpleNamespace(seed=run_seed)),
        state=SimpleNamespace(global_step=first),
        args=SimpleNamespace(process_index=process),
        _micro_step=0,
    )
    drawn = []
    for step in range(first, steps):
        trainer.state.global_step = step
        drawn += [CrateTrainer._batch_seed(trainer) for _ in range(batches)]
    return drawn


def test_no_two_batches_share_a_seed():
    every = [seed for run, process in product(range(3), range(3)) for seed in seeds(run, process)]
    assert len(set(every)) == len(every) == 3 * 3 * 3 * 4
    assert seeds() == seeds()
    assert all(0 <= seed < 2**31 for seed in every)


def test_a_resumed_step_draws_the_seeds_again():
    """The first batch of a step has the number 0, whatever was drawn before."""
    assert seeds(steps=3)[8:] == seeds(first=2, steps=3)


@pytest.mark.parametrize(("per_device", "accumulated"), [(6, 4), (12, 2), (None, 1)])
def test_a_batch_is_accumulated_from_batches_of_a_device(tmp_path, per_device, accumulated):
    changes = {"schedule.batch_size": 24, **({"run.per_device_batch_size": per_device} if per_device else {})}
    arguments = training_arguments(toy_task(changes), tmp_path, 1, 10)
    assert arguments.gradient_accumulation_steps == accumulated
    assert arguments.per_device_train_batch_size * accumulated == 24
    assert arguments.per_device_eval_batch_size == 64  # the task's, because the training batch is smaller


def test_training_augments_accumulated_batches_differently(tmp_path):
    """The same images twice in one step: two seeds, two augmentations."""
    trainer = toy_trainer(tmp_path / "run", {"schedule.batch_size": 8, "run.per_device_batch_size": 4})
    samples = [trainer.train_dataset[index] for index in range(4)]
    trainer.model.train()
    first, second = (trainer._prepare_inputs(trainer.task.collate(samples))["pixel_values"] for _ in range(2))
    assert not first.equal(second)
    assert dataclasses.asdict(toy().augment)["affine_degrees"] == 10
