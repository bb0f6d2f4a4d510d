"""Self-distillation (DINO): schedules, one step by hand, teacher and center, collapse, what is saved and refused."""

import logging
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from codingrate.models.classifier import CrateForImageClassification
from codingrate.models.distillation import CrateForSelfDistillation
from codingrate.tasks.distillation import teacher_momentum, teacher_temperature
from tests.refusals import refused
from tests.runs.toys import (
    DINO,
    assert_same,
    digit_pictures,
    digits_images,
    dino,
    lines,
    toy_task,
    toy_trainer,
    train_toy,
)

# Schedules


@pytest.mark.parametrize("warmup", [0, 1, 2, 30])
@pytest.mark.parametrize(("start", "end"), [(0.04, 0.07), (0.04, 0.04)])
def test_the_teachers_temperature_is_the_table_of_the_released_code(start, end, warmup):
    table = np.concatenate((np.linspace(start, end, warmup), np.ones(100 - warmup) * end))
    temperatures = [teacher_temperature(epoch, start, end, warmup) for epoch in range(100)]
    np.testing.assert_allclose(temperatures, table, rtol=1e-14)
    assert teacher_temperature(1000, start, end, warmup) == end


@pytest.mark.parametrize("steps", [1, 7, 1000])
@pytest.mark.parametrize("start", [0.996, 0.9995])
def test_the_teachers_momentum_follows_a_cosine(steps, start):
    for step in range(steps):
        momentum = 1 - 0.5 * (1 - start) * (1 + np.cos(np.pi * step / steps))
        assert teacher_momentum(step, steps, start) == pytest.approx(momentum, rel=1e-14)
    assert teacher_momentum(0, steps) == 0.996
    assert teacher_momentum(steps + 3, steps, start) == 1.0


# Training


@pytest.fixture(scope="module")
def finished(few, tmp_path_factory):
    changes = dino({**few, "run.checkpoint_epochs": 1, "run.save_total_limit": 9})
    return train_toy(tmp_path_factory.mktemp("dino") / "run", changes)


def checkpoint(run, step=12):
    """Return the weights of a checkpoint: student, teacher and center."""
    return load_file(run.folder / "checkpoints" / f"checkpoint-{step}" / "model.safetensors")


def test_the_saved_model_is_the_teacher(finished):
    model, weights = finished.model(), checkpoint(finished)
    assert isinstance(model, CrateForImageClassification)
    assert {name.split(".")[0] for name in weights} == {"student", "teacher", "center"}
    assert float(weights["center"].abs().max()) > 0
    teacher = {name.removeprefix("teacher."): w for name, w in weights.items() if name.startswith("teacher.crate.")}
    assert_same({f"crate.{name}": weight for name, weight in model.crate.state_dict().items()}, teacher)
    differs = [not torch.equal(w, weights[f"student.{name}"]) for name, w in teacher.items()]
    assert sum(differs) > len(differs) / 2, "the teacher lags behind the student"
    assert_same(finished.model(12).state_dict(), model.state_dict())
    assert not torch.equal(finished.model(4).crate.layers[0].attention.project.weight,
                           model.crate.layers[0].attention.project.weight)  # fmt: skip


def test_predictions_are_features_and_evaluation_is_by_neighbors(finished):
    features = torch.stack(finished.predict(digit_pictures(5)))
    with torch.no_grad():
        torch.testing.assert_close(features, finished.model().features(digits_images(5)[0]))
    report, probe = finished.evaluate(split="train"), finished.probe("knn", ks=(10, 20))
    by_hand = next(row["train_top1"] for row in probe.table if row["k"] == 20)  # an image does not vote for itself
    assert report.metrics == {"neighbor_top1": pytest.approx(by_hand)}
    assert report.images == probe.images["train"]


def test_the_steps_equal_a_loop_written_out(few, tmp_path):
    """Loss, clipping of each tensor, frozen last layer, optimizer, center, teacher: six steps by hand."""
    changes = {
        **few, "schedule.batch_size": 39, "schedule.epochs": 3, "distillation.freeze_last_epochs": 1,
        "schedule.scheduler": "constant",
    }  # fmt: skip
    trainer = toy_trainer(tmp_path / "run", dino(changes))
    by_hand = CrateForSelfDistillation(trainer.model.config)
    by_hand.load_state_dict(trainer.model.state_dict())
    batches, loss = [], trainer.task.loss

    def recorded(model, inner, batch):
        batches.append([view.clone() for view in batch["views"]])
        return loss(model, inner, batch)

    trainer.task.loss = recorded
    trainer.train()
    assert len(batches) == 6

    by_hand.train()
    trained = [p for p in by_hand.student.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if p.ndim >= 2]}, {"params": [p for p in trained if p.ndim < 2]}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.0)
    for number, views in enumerate(batches):
        optimizer.param_groups[0]["weight_decay"] = 0.4 + 0.5 * (0.04 - 0.4) * (1 + math.cos(math.pi * number / 6))
        temperature = 0.04 if number < 2 else 0.07  # two epochs of warm-up: start, end
        output = by_hand(views=views, teacher_temperature=temperature)
        optimizer.zero_grad()
        output.loss.backward()
        for p in trained:
            scale = 3.0 / (p.grad.norm() + 1e-6)
            if scale < 1:
                p.grad.mul_(scale)
        if number < 2:
            for p in by_hand.student.head.prototypes.parameters():
                p.grad = None
        optimizer.step()
        with torch.no_grad():
            by_hand.center.copy_(0.9 * by_hand.center + 0.1 * output.teacher_logits.flatten(0, 1).mean(0))
            m = 1 - 0.5 * (1 - 0.996) * (1 + math.cos(math.pi * number / 6))
            for mine, theirs in by_hand.pairs():
                mine.copy_(m * mine + (1 - m) * theirs)
    for name, weight in trainer.model.state_dict().items():
        torch.testing.assert_close(weight, by_hand.state_dict()[name], rtol=1e-4, atol=2e-6, msg=name)


def test_views_are_two_global_and_several_local_crops_that_follow_the_seed(few):
    task = toy_task(dino({**few, "views.local_count": 3, "augment.flip": 0.5}))
    model, train = task.build_model(), task.datasets()[0]
    batch = task.on_batch(task.collate([train[index] for index in range(5)]))
    first, again, other = (task.prepare(batch, seed, model)["views"] for seed in (5, 5, 6))
    assert [tuple(view.shape) for view in first] == [(2, 5, 1, 8, 8), (3, 5, 1, 4, 4)]
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not any(torch.equal(one, two) for one, two in zip(first, other, strict=True))


# Metrics of the teacher


def test_the_log_watches_the_teacher(finished):
    for name in ("teacher_entropy", "center_entropy", "spread"):
        assert all(0 <= line[name] <= math.log(37) + 1e-5 for line in lines(finished.folder, "training")), name
    metrics = finished.metrics
    assert 0 < metrics["teacher_entropy"] < math.log(37)
    assert finished.headline == (
        f"test loss {metrics['loss']:.4f}, teacher entropy {metrics['teacher_entropy']:.2f} nats"
    )


@pytest.mark.parametrize("collapsed", [True, False])
def test_a_collapse_is_reported_once(few, tmp_path, caplog, collapsed):
    changes = {"distillation.temperature_epochs": 0, "distillation.momentum": 0.7} if collapsed else {}
    trainer = toy_trainer(tmp_path / "run", dino({**few, **changes}))
    if collapsed:  # a head that answers every image alike, and a teacher that never improves
        with torch.no_grad():
            for branch in (trainer.model.student, trainer.model.teacher):
                branch.head.layers[-1].weight.zero_()
                branch.head.layers[-1].bias.copy_(torch.arange(16.0))
        trainer.task.on_step_end = lambda inner: None
    with caplog.at_level(logging.WARNING, "codingrate"):
        trainer.train()
    warnings = [record.message for record in caplog.records if "collapsed" in record.message]
    assert ["optimizer.lr" in warning for warning in warnings] == [True] * collapsed


# Refusals and sources


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"views.local_size": 10}, "views.local_size"), ({"views.local_size": 3}, "views.local_size"),
        ({"views.local_count": -1}, "views.local_count"), ({"views.global_scale": [0.5, 0.2]}, "views.global_scale"),
        ({"distillation.momentum": 1.5}, "distillation.momentum"), ({"task": "classification"}, "views"),
        ({"distillation.student_temperature": 0}, "distillation.student_temperature"),
        ({"model.name": "crate-mae-base"}, "task distillation"),
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_do_not_fit(changes, words, tmp_path):
    refused(words, lambda: train_toy(tmp_path / "run", dino(changes)))


def test_student_and_teacher_start_from_another_model(finished):
    config = {key: DINO["model.config"][key] for key in ("projection_hidden", "projection_bottleneck", "prototypes")}
    model = toy_task(dino({"model.from": str(finished.folder), "model.config": config})).build_model()
    source = finished.model().crate.state_dict()
    assert_same(model.student.crate.state_dict(), source)
    assert_same(model.teacher.crate.state_dict(), source)
