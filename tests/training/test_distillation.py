"""DINO by the recipe engine: schedules, teacher, centre, collapse, resume, several processes, refusals."""

import logging
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from codingrate.models.classifier import CrateForImageClassification
from codingrate.models.distillation import CrateForSelfDistillation
from codingrate.training import load_data, load_weights
from codingrate.training.distillation_schedules import teacher_momentum, teacher_temperature, weight_decay_at
from codingrate.training.run import build_trainer
from codingrate.training.tasks import task_of
from codingrate.training.tasks.distillation import teacher_figures
from tests.refusals import refused

from .toys import assert_same, lines, measured, run, saved, toy

DINO = {
    "task": "distillation",
    "model.name": "crate-dino-small-patch16",
    "model.config": {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 2,
        "projection_hidden": 32, "projection_bottleneck": 16, "prototypes": 37,
    },
    "augment.flip": 0.0,
    "augment.affine_degrees": 0.0,
    "views": {"local_count": 2, "local_size": 4, "blur": [0.0, 0.0, 0.0], "solarize": [0.0, 0.0, 0.0]},
    "optimise.lr": 1e-3,
    "optimise.weight_decay": 0.04,
    "optimise.final_weight_decay": 0.4,
    "optimise.clip": 3.0,
    "optimise.clip_by": "tensor",
    "distil.teacher_temperature": 0.04,
    "distil.final_teacher_temperature": 0.07,
    "distil.temperature_epochs": 2,
}  # fmt: skip


def dino(changes=None):
    return {**DINO, **(changes or {})}


def trainer_of(folder, changes=None):
    recipe = toy(dino(changes))
    data = load_data(recipe.data)
    return build_trainer(recipe, folder, task_of(recipe).build_model(data), data, quiet=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("dino") / "run", dino({"run.checkpoint_epochs": 1, "run.keep": 9}))


def test_what_is_saved_is_the_teacher(finished):
    model = load_weights(str(finished.folder))
    assert isinstance(model, CrateForImageClassification)
    teacher = finished.model.teacher
    assert_same(dict(model.crate.state_dict()), dict(teacher.crate.state_dict()))
    pixels = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(model.eval().features(pixels), finished.model.eval().features(pixels))
    differs = [not torch.equal(mine, theirs) for mine, theirs in finished.model.pairs()]
    assert sum(differs) > len(differs) / 2, "the teacher lags behind the student"


def test_resumed_is_uninterrupted(finished, tmp_path):
    killed = tmp_path / "killed"
    shutil.copytree(finished.folder, killed)
    for late in (8, 12):
        shutil.rmtree(killed / "checkpoints" / f"checkpoint-{late}")
    again = run(killed, dino({"run.checkpoint_epochs": 1, "run.keep": 9}), resume=True)
    assert_same(saved(finished.folder), saved(killed))
    assert_same(dict(finished.model.state_dict()), dict(again.model.state_dict()))
    assert measured(finished.folder) == measured(killed)


def test_a_checkpoint_holds_student_teacher_and_centre(finished):
    weights = load_file(finished.folder / "checkpoints" / "checkpoint-4" / "model.safetensors")
    assert {name.split(".")[0] for name in weights} == {"student", "teacher", "center"}
    assert float(weights["center"].abs().max()) > 0


def test_the_steps_are_those_of_a_loop_written_out(tmp_path):
    """Loss, clipping of each tensor, frozen last layer, optimizer, centre, teacher: six steps by hand."""
    changes = {
        "schedule.batch": 719,
        "schedule.epochs": 3,
        "distil.freeze_last_epochs": 1,
        "schedule.shape": "constant",
    }
    trainer = trainer_of(tmp_path / "run", changes)
    by_hand = CrateForSelfDistillation(trainer.model.config)
    by_hand.load_state_dict(trainer.model.state_dict())
    batches = []
    whole = trainer.task.step

    def step(model, inner, batch):
        batches.append([view.clone() for view in batch["views"]])
        return whole(model, inner, batch)

    trainer.task.step = step
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


def test_the_last_layer_waits(tmp_path):
    trainer = trainer_of(tmp_path / "run", {"distil.freeze_last_epochs": 3})
    before = trainer.model.student.head.prototypes.direction.detach().clone()
    first = trainer.model.student.head.layers[0].weight.detach().clone()
    trainer.train()
    assert torch.equal(trainer.model.student.head.prototypes.direction, before)
    assert not torch.equal(trainer.model.student.head.layers[0].weight, first)


def test_the_log_watches_the_teacher(finished):
    logged = lines(finished.folder, "training")
    for name in ("teacher_entropy", "center_entropy", "spread"):
        assert all(0 <= line[name] <= math.log(37) + 1e-5 for line in logged), name
    last = lines(finished.folder, "evaluation")[-1]
    assert 0 < last["eval_teacher_entropy"] < math.log(37)


@pytest.mark.parametrize("logits", [torch.zeros(2, 5, 7), torch.tensor([30.0, *[0.0] * 6]).expand(2, 5, 7)])
def test_both_kinds_of_collapse_have_no_spread(logits):
    figures = teacher_figures(logits, torch.zeros(7), 0.04)
    assert float(figures["spread"]) == pytest.approx(0, abs=1e-5)


def test_answers_that_tell_images_apart_have_spread():
    figures = teacher_figures(torch.eye(7)[None] * 9, torch.zeros(7), 0.04)
    assert float(figures["spread"]) == pytest.approx(math.log(7), abs=1e-5)
    assert float(figures["teacher_entropy"]) == pytest.approx(0, abs=1e-5)


def test_a_collapse_is_said_once(tmp_path, caplog):
    trainer = trainer_of(tmp_path / "run", {"distil.temperature_epochs": 0, "distil.momentum": 0.7})
    with torch.no_grad():  # a head that answers every image alike
        for branch in (trainer.model.student, trainer.model.teacher):
            branch.head.layers[-1].weight.zero_()
            branch.head.layers[-1].bias.copy_(torch.arange(16.0))
    trainer.task.finish = lambda inner: None  # a teacher that never learns better
    with caplog.at_level(logging.WARNING, "codingrate"):
        trainer.train()
    said = [record.message for record in caplog.records if "collapsed" in record.message]
    assert len(said) == 1
    assert "lower optimise.lr" in said[0]


def test_nothing_is_said_of_a_teacher_that_is_well(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "codingrate"):
        run(tmp_path / "run", dino())
    assert [record.message for record in caplog.records if "collapsed" in record.message] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"views.local_size": 10}, "views.local_size 10 is larger than augment.image_size 8"),
        ({"views.local_size": 3}, "views.local_size 3 is not divisible by patch_size 2"),
        ({"views.local_count": -1}, "views.local_count: input should be greater than or equal to 0"),
        ({"views.global_scale": [0.5, 0.2]}, "views.global_scale: the lower bound must not exceed"),
        ({"distil.momentum": 1.5}, "distil.momentum is 1.5"),
        ({"distil.student_temperature": 0}, "distil.student_temperature is 0"),
        ({"run.ema": 0.9}, "run.ema and run.fsdp do not go with task: distillation"),
        ({"run.fsdp": True}, "run.ema and run.fsdp do not go with task: distillation"),
        ({"model.name": "crate-mae-base"}, "distillation needs a body such as crate-dino-small-patch16"),
        ({"task": "classification"}, "views: is for task: distillation, not classification"),
    ],
)
def test_refused(changes, message, tmp_path):
    base = dino()
    views = {**base.pop("views"), **{k.split(".")[1]: v for k, v in changes.items() if k.startswith("views.")}}
    others = {k: v for k, v in changes.items() if not k.startswith("views.")}
    refused(message, lambda: run(tmp_path / "run", {**base, "views": views, **others}))


def test_started_from_another_model(finished, tmp_path):
    config = {key: DINO["model.config"][key] for key in ("projection_hidden", "projection_bottleneck", "prototypes")}
    recipe = toy(dino({"model.from": str(finished.folder), "model.config": config}))
    model = task_of(recipe).build_model(None)
    assert_same(dict(model.student.crate.state_dict()), dict(finished.model.teacher.crate.state_dict()))
    assert_same(dict(model.teacher.crate.state_dict()), dict(finished.model.teacher.crate.state_dict()))


@pytest.mark.parametrize("warmup", [0, 1, 2, 30])
@pytest.mark.parametrize(("start", "end"), [(0.04, 0.07), (0.04, 0.04)])
def test_the_teacher_temperature_is_the_release_table(start, end, warmup):
    table = np.concatenate((np.linspace(start, end, warmup), np.ones(100 - warmup) * end))
    found = [teacher_temperature(epoch, start, end, warmup) for epoch in range(100)]
    np.testing.assert_allclose(found, table, rtol=1e-14)
    assert teacher_temperature(1000, start, end, warmup) == end


@pytest.mark.parametrize("steps", [1, 7, 1000])
@pytest.mark.parametrize("start", [0.996, 0.9995])
def test_momentum_and_weight_decay_follow_a_cosine(steps, start):
    for i in range(steps):
        m = 1 - 0.5 * (1 - start) * (1 + np.cos(np.pi * i / steps))
        assert teacher_momentum(i, steps, start) == pytest.approx(m, rel=1e-14)
        decay = 0.4 + 0.5 * (0.04 - 0.4) * (1 + np.cos(np.pi * i / steps))
        assert weight_decay_at(i, steps, 0.04, 0.4) == pytest.approx(decay, rel=1e-13)
        assert weight_decay_at(i, steps, 0.005, 0.005) == pytest.approx(0.005)
    assert teacher_momentum(0, steps) == 0.996
    assert teacher_momentum(steps + 3, steps, start) == 1.0
    assert weight_decay_at(0, 0, 0.1, 0.2) == pytest.approx(0.1)
