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

from codingrate.data import ImageDataset
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
    for key, wanted in changes.items():
        if key.startswith("model.config."):
            assert getattr(model.config, key.removeprefix("model.config.")) == wanted
    if "model.name" in changes:
        assert (model.config.attention, model.config.sparsifier) == ("mhsa", "mlp")
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer.train()
    metrics = trainer.evaluate()
    after = dict(model.named_parameters())
    still = [name for name in before if torch.equal(before[name], after[name])]
    assert [name for name in still if before[name].ndim > 1] == []
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


def test_logs_of_two_runs_in_one_process_are_separate(tmp_path, few):
    for name in ("one", "two"):
        train_toy(tmp_path / name, {**few, "schedule.steps": 1})
        assert len(list((tmp_path / name / "logs").glob("events.out.tfevents.*"))) == 1


def test_the_last_model_is_the_one_evaluated_last(finished):
    evaluations = lines(finished.folder, "evaluation")
    assert [line["step"] for line in evaluations] == [2, 4, 6, 8, 10, 12]
    naive = naive_metrics(finished.model("last"))
    assert finished.metrics == {name: evaluations[-1][f"eval_{name}"] for name in ("loss", "top1", "top5")}
    assert finished.metrics == pytest.approx(naive, rel=1e-5)


def test_the_best_model_has_the_highest_accuracy(finished):
    best = max(line["eval_top1"] for line in lines(finished.folder, "evaluation"))
    assert naive_metrics(finished.model("best"))["top1"] == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(
    ("metric", "higher", "is_best"),
    [("top1", True, [True, True, False, True, False]), ("loss", False, [True, False, False, False, True]),
     (None, False, [True] * 5)],
)  # fmt: skip
def test_the_best_model_is_saved_unless_an_earlier_one_was_better(metric, higher, is_best):
    task, state, written = SimpleNamespace(best_metric=metric, higher_is_better=higher), SimpleNamespace(), []
    state.log_history = []
    callback = SavedModels(task, written.append)
    for value in (0.3, 0.5, 0.4, 0.5, 0.1):
        metrics = {f"eval_{metric}": value}
        state.log_history.append(metrics)  # as the trainer does, before it calls
        callback.on_evaluate(None, state, None, metrics=metrics)
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
    for kind, split, available in (("layerwise", "test", 359), ("layerwise-train", "train", 1438)):
        entries = lines(run.folder, kind)
        assert [line["epoch"] for line in entries] == [0, 1]
        table = layerwise(run.model(), run.task.batches(run.model(), split=split, limit=samples))
        assert set(table["samples"]) == {min(samples, available)}
        assert entries[-1]["layers"] == table.to_dict("records")
    name = {"layerwise": "evaluation", "layerwise-train": "training"}
    for kind, split in name.items():
        expected = [layer["compression"] for line in lines(run.folder, kind) for layer in line["layers"]]
        assert across_training(run.metrics_file, split)["compression"].tolist() == expected


def test_the_protocol_does_not_change_the_training(tmp_path, few):
    changes = {**few, "schedule.steps": 2, "model.config.dropout": 0.1, "run.layerwise_epochs": 1}
    models = []
    for protocol in ("short", "paper"):
        models.append(train_toy(tmp_path / protocol, {**changes, "run.layerwise_protocol": protocol}).model())
    assert_same(models[0].state_dict(), models[1].state_dict())
    with pytest.raises(CrateError, match="protocol=paper"):
        across_training(tmp_path / "short" / "metrics.jsonl", "training")


# Seeds


def test_a_seed_determines_everything(tmp_path, few):
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    changes = {**few, "schedule.steps": 3, "model.config.dropout": 0.1}
    train_toy(first, changes)
    torch.manual_seed(31)
    train_toy(second, changes)
    train_toy(other, {**changes, "run.seed": 1})
    assert_same(saved(first), saved(second))
    assert measured(first) == measured(second)
    assert not torch.equal(saved(first)["head.weight"], saved(other)["head.weight"])


def test_the_seed_determines_the_order_of_samples(tmp_path):
    labels = []
    for seed in (0, 0, 1):
        trainer = toy_trainer(tmp_path / str(len(labels)), {"run.seed": seed})
        labels.append(next(iter(trainer.get_train_dataloader()))["labels"][:50].tolist())
    assert labels[0] == labels[1] != labels[2]


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
    """Records the norms of the gradients that the optimizer gets."""

    def __init__(self):
        self.all, self.each = [], []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        norms = torch.stack([p.grad.norm() for p in model.parameters()])
        self.all.append(float(norms.norm()))
        self.each.append(norms)


@pytest.mark.parametrize("limit", [0.05, 0.0])
def test_the_norm_of_all_gradients_is_clipped(tmp_path, few, limit):
    norms = Norms()
    toy_trainer(tmp_path / "run", {**few, "schedule.steps": 3, "optimizer.max_grad_norm": limit}, norms).train()
    assert len(norms.all) == 3
    if limit:
        assert norms.all == pytest.approx([limit] * 3, rel=1e-3)
    else:
        assert min(norms.all) > 0.1


def test_the_norm_of_each_gradient_is_clipped(tmp_path):
    """The log states the norm of all gradients before clipping, as when all are clipped together."""
    changes, plain, clipped = {"schedule.steps": 1, "optimizer.max_grad_norm": 0.2}, Norms(), Norms()
    toy_trainer(tmp_path / "plain", {**changes, "optimizer.max_grad_norm": 0.0}, plain).train()
    toy_trainer(tmp_path / "each", {**changes, "optimizer.clip_by": "tensor"}, clipped).train()
    (before,), (after,) = plain.each, clipped.each
    assert float(before.min()) < 0.2 < float(before.max())
    torch.testing.assert_close(after, before.clamp(max=0.2), rtol=1e-4, atol=1e-7)
    assert lines(tmp_path / "each", "training")[0]["grad_norm"] == pytest.approx(plain.all[0], rel=1e-4)


def test_a_loss_that_is_not_finite_stops_training(tmp_path):
    line = refused("lower optimizer.lr", train_toy, tmp_path / "run", {"optimizer.lr": 1e12, "optimizer.name": "lion"})
    assert line.startswith("the loss is ")


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


def arguments_of(changes, folder, world_size=1):
    return training_arguments(toy_task(changes), folder, world_size, steps_per_epoch=4)


def test_compilation_is_off_by_default(tmp_path):
    assert not arguments_of({}, tmp_path).torch_compile
    assert arguments_of({"run.compile": True}, tmp_path).torch_compile


def test_intervals_in_epochs_become_steps(tmp_path):
    arguments = arguments_of({"run.evaluate_epochs": 0.5, "run.checkpoint_epochs": 3}, tmp_path)
    assert (arguments.eval_steps, arguments.save_steps) == (2, 12)
    arguments = arguments_of({"schedule.batch_size": 96, "run.per_device_batch_size": 8}, tmp_path)
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == (8, 12)


@pytest.mark.parametrize(("batch", "device", "world"), [(360, 7, 1), (90, None, 4), (96, 16, 4)])
def test_a_batch_that_does_not_divide_over_processes(tmp_path, batch, device, world):
    changes = {"schedule.batch_size": batch, "run.per_device_batch_size": device}
    message = f"schedule.batch_size {batch} is not a multiple of {world} processes"
    refused(message, arguments_of, changes, tmp_path, world)


def test_the_toy_has_four_steps_per_epoch():
    recipe = toy()
    assert recipe.model.config == MODEL
    assert recipe.schedule.batch_size * 4 > len(toy_task().data.train) == 1438 > recipe.schedule.batch_size * 3


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_while_data_is_loaded_is_one_line(tmp_path, few, monkeypatch, workers):
    def refuse(self, indices):
        raise CrateError("label 9 is outside")

    monkeypatch.setattr(ImageDataset, "__getitems__", refuse)
    assert refused("label 9", train_toy, tmp_path / "run", {**few, "data.workers": workers}) == "label 9 is outside"


def test_a_loader_process_that_is_killed_is_one_line(tmp_path, few, monkeypatch):
    monkeypatch.setattr(ImageDataset, "__getitems__", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    refused("a process that loads data has ended", train_toy, tmp_path / "run", {**few, "data.workers": 1})
