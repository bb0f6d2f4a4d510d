"""Training by a recipe: one step of every family, the run folder, seeds, accumulation, clipping and the average."""

from __future__ import annotations

import math
import os
import signal
from types import SimpleNamespace

import pytest
import torch
import yaml
from transformers import AutoModelForImageClassification, TrainerCallback

from codingrate.data.image_batches import ImageDataset
from codingrate.errors import CrateError
from codingrate.inspection import across_training, layerwise
from codingrate.operators import ATTENTION, SPARSIFIERS
from codingrate.recipes import load_recipe
from codingrate.runs import train, training
from codingrate.runs.callbacks import SavedModels
from codingrate.runs.training import training_arguments
from tests.refusals import refused

from .toys import (
    MODEL,
    assert_same,
    digits_sample,
    lines,
    measured,
    naive_metrics,
    saved,
    toy,
    toy_task,
    toy_trainer,
    train_toy,
)

PLAIN = {"augment.flip": 0.0, "augment.affine_degrees": 0.0}


# One step of every family

FAMILIES = [
    *({"model.config.attention": name} for name in ATTENTION.names()),
    *({"model.config.sparsifier": name} for name in SPARSIFIERS.names() if name != "ista"),
    {"model.config.attention": "tssa", "model.config.sparsifier": "odl"},
    {"model.config.class_token": True, "model.config.pooling": "class"},
    {"model.config.orthogonality": "penalty"},
    {"run.precision": "bf16"},
    {"run.gradient_checkpointing": True},
    {"optimizer.name": "adam"},
    {"optimizer.max_grad_norm": 0.0},
    {"model.name": "vit-tiny-patch16-224"},
]  # fmt: skip


@pytest.mark.parametrize("changes", FAMILIES, ids=str)
def test_one_step(tmp_path, few, changes):
    """Every matrix moves, and the saved model is the one that was evaluated."""
    changes = {**few, "schedule.steps": 1, **changes}
    trainer = toy_trainer(tmp_path / "run", changes)
    model = trainer.model
    wanted = {key.removeprefix("model.config."): value for key, value in changes.items() if "model.config." in key}
    wanted |= {"attention": "mhsa", "sparsifier": "mlp"} if "model.name" in changes else {}
    assert {name: getattr(model.config, name) for name in wanted} == wanted
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer.train()
    metrics, after = trainer.evaluate(), dict(model.named_parameters())
    assert [name for name in before if torch.equal(before[name], after[name]) and before[name].ndim > 1] == []
    assert math.isfinite(lines(tmp_path / "run", "training")[0]["loss"])
    assert_same(saved(tmp_path / "run"), model.state_dict())
    precision = 2e-2 if "run.precision" in changes else 1e-5
    assert metrics["eval_loss"] == pytest.approx(naive_metrics(model, few)["loss"], rel=precision)


def test_a_stream_is_evaluated_and_counted_in_steps(tmp_path):
    changes = {"data.streaming": True, "schedule.steps": 3, "schedule.batch_size": 32}
    run = train_toy(tmp_path / "run", changes)
    assert [line["step"] for line in lines(tmp_path / "run", "training")] == [1, 2, 3]
    assert [line["step"] for line in lines(tmp_path / "run", "evaluation")] == [3]
    assert run.metrics["top1"] == pytest.approx(naive_metrics(run.model(), changes)["top1"], abs=1e-9)


# The run folder

CHANGES = {"run.layerwise_epochs": 2, "run.evaluate_epochs": 0.5, "run.checkpoint_steps": 5, "optimizer.lr": 5e-3}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("finished") / "run", CHANGES)


def test_the_run_folder(finished):
    folder = finished.folder
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints", "data.json", "logs", "metrics.jsonl", "model", "recipe.yaml",
    ]  # fmt: skip
    assert load_recipe(str(folder / "recipe.yaml")) == toy(CHANGES)
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["run"]["precision"] == "fp32", "resolved, with defaults"
    assert list((folder / "logs").glob("events.out.tfevents.*"))
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["checkpoint-10", "checkpoint-12"]
    assert sorted(path.name for path in (folder / "model").iterdir()) == ["best", "last"]


def test_a_recipe_by_name_file_or_object_is_the_same_run(tmp_path, monkeypatch):
    changes = {"schedule.steps": 1, "model.config": MODEL, "schedule.batch_size": 360}
    named = train("digits", tmp_path / "named", overrides=changes, quiet=True)
    train(load_recipe("digits", changes), tmp_path / "object", quiet=True)
    train(str(tmp_path / "named" / "recipe.yaml"), tmp_path / "file", quiet=True)
    monkeypatch.chdir(tmp_path)
    default = train("fashion-mnist", overrides={**changes, "data.name": "digits"}, variant="vit", quiet=True)
    assert default.folder.resolve() == tmp_path / "runs" / "fashion-mnist-vit"
    for name in ("object", "file"):
        assert_same(saved(named.folder), saved(tmp_path / name))
    refused("`output` is missing", train, toy())


def test_the_last_model_is_the_one_evaluated_last_and_the_best_has_the_highest_accuracy(finished):
    evaluations = lines(finished.folder, "evaluation")
    assert [line["step"] for line in evaluations] == [2, 4, 6, 8, 10, 12]
    assert finished.metrics == {name: evaluations[-1][f"eval_{name}"] for name in ("loss", "top1", "top5")}
    assert finished.metrics == pytest.approx(naive_metrics(finished.model("last")), rel=1e-5)
    best = max(line["eval_top1"] for line in evaluations)
    assert naive_metrics(finished.model("best"))["top1"] == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(
    ("metric", "higher", "is_best"),
    [("top1", True, [True, True, False, True, False]), ("loss", False, [True, False, False, False, True]),
     (None, False, [True] * 5)],
)  # fmt: skip
def test_the_best_model_is_saved_unless_an_earlier_one_was_better(metric, higher, is_best):
    state, written = SimpleNamespace(log_history=[]), []
    callback = SavedModels(SimpleNamespace(best_metric=metric, higher_is_better=higher), written.append)
    for value in (0.3, 0.5, 0.4, 0.5, 0.1):
        state.log_history.append({f"eval_{metric}": value})  # as the trainer does, before it calls
        callback.on_evaluate(None, state, None, metrics=state.log_history[-1])
    assert written == [name for best in is_best for name in (["best", "last"] if best else ["last"])]


def test_the_saved_model_loads_with_transformers_alone(finished):
    model = AutoModelForImageClassification.from_pretrained(finished.folder / "model" / "last")
    assert model.config.id2label == {index: str(index) for index in range(10)}
    assert_same(model.state_dict(), finished.model().state_dict())
    assert finished.parameters() == model.num_parameters() == sum(p.numel() for p in model.parameters())


def test_layers_are_measured_at_the_right_epochs(finished, tmp_path):
    entries = lines(finished.folder, "layerwise")
    assert [(line["epoch"], line["step"]) for line in entries] == [(0, 0), (2, 8)]
    table = layerwise(toy_task(CHANGES).build_model(), [digits_sample(32)[1]])
    assert entries[0]["layers"] == table.to_dict("records"), "of the untrained model"
    last = train_toy(tmp_path / "run", {"run.layerwise_epochs": 1, "run.layerwise_images": 7, "schedule.epochs": 1})
    table = layerwise(last.model(), [digits_sample(7)[1]])
    assert lines(tmp_path / "run", "layerwise")[-1]["layers"] == table.to_dict("records"), "of the trained model"
    assert [row["layer"] for row in table.to_dict("records")] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "steps"),
    [({"run.layerwise_epochs": 0.5}, [0, 2, 4, 6]), ({"run.layerwise_epochs": 1.25}, [0, 5]),
     ({"run.layerwise_steps": 3}, [0, 3, 6]), ({"run.layerwise_steps": 4, "run.layerwise_epochs": 0.5}, [0, 4])],
    ids=str,
)  # fmt: skip
def test_layers_are_measured_within_an_epoch(tmp_path, few, changes, steps):
    train_toy(tmp_path / "run", {**few, "schedule.steps": 7, "run.layerwise_images": 4, **changes})
    assert [(line["step"], line["epoch"]) for line in lines(tmp_path / "run", "layerwise")] == [
        (step, step / 4) for step in steps
    ]


def test_the_live_loss_is_the_loss_of_the_log(tmp_path, few):
    """A step of four accumulated batches: its loss is their mean, not a share of it."""
    trainer = toy_trainer(tmp_path / "run", {**few, "run.per_device_batch_size": 5, "schedule.steps": 1})
    trainer.train()
    assert trainer.recent_loss == pytest.approx(lines(tmp_path / "run", "training")[0]["loss"], rel=0.1)


@pytest.mark.parametrize("samples", [1000, 60])
def test_the_papers_protocol_measures_both_splits(tmp_path, monkeypatch, samples):
    """At most 1000 samples of each split: the digits have 1,438 training and 359 test images."""
    assert training.PAPER_SAMPLES == 1000
    monkeypatch.setattr(training, "PAPER_SAMPLES", samples)
    changes = {"run.layerwise_epochs": 1, "run.layerwise_protocol": "paper", "schedule.epochs": 1}
    run = train_toy(tmp_path / "run", changes)
    for kind, split, name, available in (
        ("layerwise", "test", "evaluation", 359), ("layerwise-train", "train", "training", 1438)
    ):  # fmt: skip
        entries = lines(run.folder, kind)
        assert [line["epoch"] for line in entries] == [0, 1]
        table = layerwise(run.model(), run.task.batches(run.model(), split=split, limit=samples))
        assert set(table["samples"]) == {min(samples, available)}
        assert entries[-1]["layers"] == table.to_dict("records")
        expected = [layer["compression"] for line in entries for layer in line["layers"]]
        assert across_training(run.metrics_file, name)["compression"].tolist() == expected


def test_the_protocol_does_not_change_the_training(tmp_path, few):
    changes = {**few, "schedule.steps": 2, "model.config.dropout": 0.1, "run.layerwise_epochs": 1}
    for protocol in ("short", "paper"):
        train_toy(tmp_path / protocol, {**changes, "run.layerwise_protocol": protocol})
    assert_same(saved(tmp_path / "short"), saved(tmp_path / "paper"))
    refused("protocol=paper", across_training, tmp_path / "short" / "metrics.jsonl", "training")


# Seeds


def test_a_seed_determines_everything(tmp_path, few):
    changes, orders = {**few, "schedule.steps": 3, "model.config.dropout": 0.1}, []
    for number, seed in enumerate((0, 0, 1)):
        torch.manual_seed(31 * number)
        train_toy(tmp_path / str(number), {**changes, "run.seed": seed})
        trainer = toy_trainer(tmp_path / f"{number} again", {"run.seed": seed})
        orders.append(next(iter(trainer.get_train_dataloader()))["labels"][:50].tolist())
    first, second, other = (tmp_path / str(number) for number in range(3))
    assert_same(saved(first), saved(second))
    assert measured(first) == measured(second)
    assert not torch.equal(saved(first)["head.weight"], saved(other)["head.weight"])
    assert orders[0] == orders[1] != orders[2]


# Accumulation, clipping, divergence


def test_accumulated_batches_make_the_same_step(tmp_path, few):
    changes = {**few, "schedule.steps": 3, **PLAIN}
    train_toy(tmp_path / "whole", changes)
    train_toy(tmp_path / "parts", {**changes, "run.per_device_batch_size": 5})
    for whole, part in zip(lines(tmp_path / "whole", "training"), lines(tmp_path / "parts", "training"), strict=True):
        assert whole["loss"] == pytest.approx(part["loss"], abs=1e-5)
        assert whole["grad_norm"] == pytest.approx(part["grad_norm"], rel=1e-4)
        assert whole["accuracy"] == part["accuracy"]


class Norms(TrainerCallback):
    """Records the norm of each gradient that the optimizer gets, step by step."""

    def __init__(self):
        self.each = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.each.append(torch.stack([p.grad.norm() for p in model.parameters()]))


@pytest.mark.parametrize("together", ["all", "tensor"])
def test_gradients_are_clipped_together_or_one_by_one(tmp_path, together):
    """The log states the norm of all gradients before clipping."""
    limit, found = 0.2, []
    for maximum in (0.0, limit):
        norms, folder = Norms(), tmp_path / str(maximum)
        changes = {"schedule.steps": 1, "optimizer.max_grad_norm": maximum, "optimizer.clip_by": together}
        toy_trainer(folder, changes, norms).train()
        found += norms.each
    before, after = found
    assert float(before.min()) < limit < float(before.max())
    expected = before.clamp(max=limit) if together == "tensor" else before * limit / before.norm()
    torch.testing.assert_close(after, expected, rtol=1e-3, atol=1e-7)
    assert lines(folder, "training")[0]["grad_norm"] == pytest.approx(float(before.norm()), rel=1e-4)


# The average of the weights


class Weights(TrainerCallback):
    """Records the weights after every step."""

    def __init__(self):
        self.seen = []

    def on_train_begin(self, args, state, control, model=None, **_):
        self.seen.append({name: p.detach().double().clone() for name, p in model.named_parameters()})

    on_step_end = on_train_begin


def test_the_average_is_evaluated_and_saved(tmp_path):
    weights, folder = Weights(), tmp_path / "run"
    changes = {"run.ema": 0.7, "optimizer.lr": 5e-3, "schedule.steps": 6, "run.evaluate_epochs": 0.5}
    trainer = toy_trainer(folder, changes, weights)
    trainer.train()
    naive = weights.seen[0]
    for step in weights.seen[1:]:
        naive = {name: 0.7 * naive[name] + 0.3 * step[name] for name in naive}
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(saved(folder)[name].double(), naive[name], rtol=0, atol=1e-6)
        assert torch.equal(parameter.double(), weights.seen[-1][name]), "training continues with the weights themselves"
    assert not torch.allclose(saved(folder)["head.weight"].double(), weights.seen[-1]["head.weight"], atol=1e-4)
    model = AutoModelForImageClassification.from_pretrained(folder / "model" / "last")
    assert lines(folder, "evaluation")[-1]["eval_loss"] == pytest.approx(naive_metrics(model)["loss"], rel=1e-5)


def test_a_frozen_body_stays_equal_bit_for_bit_also_in_the_average(tmp_path):
    changes = {"model.freeze": True, "schedule.steps": 2}
    train_toy(tmp_path / "plain", changes)
    train_toy(tmp_path / "average", {**changes, "run.ema": 0.5})
    before = toy_task(changes).build_model().state_dict()
    for name in ("plain", "average"):
        moved = {key for key, value in saved(tmp_path / name).items() if not torch.equal(value, before[key])}
        assert moved == {"head.weight", "head.bias", "head_norm.weight", "head_norm.bias"}


# Arguments of transformers' Trainer


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"torch_compile": False}),
        ({"run.compile": True}, {"torch_compile": True}),
        ({"run.evaluate_epochs": 0.5, "run.checkpoint_epochs": 3}, {"eval_steps": 2, "save_steps": 12}),
        (
            {"schedule.batch_size": 96, "run.per_device_batch_size": 8},
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 12},
        ),
    ],
)
def test_recipes_become_arguments(tmp_path, changes, expected):
    arguments = training_arguments(toy_task(changes), tmp_path, 1, steps_per_epoch=4)
    assert {name: getattr(arguments, name) for name in expected} == expected


@pytest.mark.parametrize(("batch", "device", "world"), [(360, 7, 1), (90, None, 4), (96, 16, 4)])
def test_a_batch_that_does_not_divide_over_processes(tmp_path, batch, device, world):
    task = toy_task({"schedule.batch_size": batch, "run.per_device_batch_size": device})
    refused(f"schedule.batch_size {batch}", training_arguments, task, tmp_path, world, 4)


def refuse(*_):
    raise CrateError("label 9 is outside")


@pytest.mark.parametrize(
    ("workers", "read", "words"),
    [(0, refuse, "label 9 is outside"), (1, refuse, "label 9 is outside"),
     (1, lambda *_: os.kill(os.getpid(), signal.SIGKILL), "process")],
    ids=["error", "error in a worker", "killed worker"],
)  # fmt: skip
def test_an_error_while_data_is_loaded_is_one_line(tmp_path, few, monkeypatch, workers, read, words):
    monkeypatch.setattr(ImageDataset, "__getitems__", read)
    refused(words, train_toy, tmp_path / "run", {**few, "data.workers": workers})
