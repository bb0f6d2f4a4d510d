"""One engine for every family: what it computes, what it writes, and that it does so again the same."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import nn
from transformers import AutoModelForImageClassification, TrainerCallback

from codingrate.data import decode_image
from codingrate.evaluation import classify
from codingrate.inspection import layerwise
from codingrate.models import CrateForImageClassification
from codingrate.operators import ATTENTION, SPARSIFIERS
from codingrate.training import build_classifier, load_recipe, saved_model
from codingrate.training.callbacks import SavedModels
from codingrate.training.run import build_trainer, training_arguments
from codingrate.training.tasks import load_data
from tests.refusals import refused
from tests.training.toys import MODEL, assert_same, lines, measured, run, saved, toy

PLAIN = {"augment.flip": 0.0, "augment.affine_degrees": 0.0}


def trainer_of(folder, changes=None, *callbacks):
    """What `train` builds, with callbacks of the test's own."""
    recipe = toy(changes)
    data = load_data(recipe.data)
    trainer = build_trainer(recipe, folder, build_classifier(recipe, data.classes), data, quiet=True)
    for callback in callbacks:
        trainer.add_callback(callback)
    return trainer


def accuracy(folder, which="last", changes=None):
    """Measured by the evaluation room, which shares nothing with the trainer's loop."""
    recipe = toy(changes)
    model = CrateForImageClassification.from_pretrained(saved_model(folder, which))
    return classify(model, load_data(recipe.data), recipe.augment)


def first_images(count):
    """The first test images as scikit-learn has them, in [−1, 1]."""
    data = load_data(toy().data)
    images = [np.asarray(decode_image(row[data.image_column], 1)) for row in data.test.select(range(count))]
    return torch.tensor(np.stack(images))[:, None].float().div(255).sub(0.5).div(0.5)


# One step of every family


@pytest.mark.parametrize("attention", ATTENTION.names())
@pytest.mark.parametrize("sparsifier", ["ista", "odl", "mlp"])
def test_a_step_of_every_attention(tmp_path, attention, sparsifier):
    changes = {"model.config.attention": attention, "model.config.sparsifier": sparsifier}
    result = step(tmp_path, changes)
    assert (result.model.config.attention, result.model.config.sparsifier) == (attention, sparsifier)


@pytest.mark.parametrize("sparsifier", sorted({*SPARSIFIERS.names()} - {"ista", "odl", "mlp"}))
def test_a_step_of_the_other_sparsifiers(tmp_path, sparsifier):
    step(tmp_path, {"model.config.sparsifier": sparsifier})


def test_a_step_of_the_twin(tmp_path):
    result = step(tmp_path, {"model.name": "vit-tiny-patch16-224"})
    assert (result.model.config.attention, result.model.config.sparsifier) == ("mhsa", "mlp")


@pytest.mark.parametrize(
    "changes",
    [
        {"model.config.class_token": True, "model.config.pooling": "class"},
        {"model.config.orthogonality": "penalty"},
        {"run.precision": "bf16"},
        {"run.gradient_checkpointing": True},
        {"optimise.name": "adam"},
        {"optimise.clip": 0.0},
    ],
    ids=str,
)
def test_a_step_of_every_option(tmp_path, changes):
    step(tmp_path, changes)


def step(folder, changes):
    """Train for one step: every weight that trains moves, and the saved model is the one that was evaluated."""
    changes = {"schedule.steps": 1, **changes}
    result = run(folder / "run", changes)
    before = dict(build_classifier(toy(changes), tuple("0123456789")).named_parameters())
    after = dict(result.model.named_parameters())
    still = [name for name in before if torch.equal(before[name], after[name])]
    assert not [name for name in still if before[name].ndim > 1], "every matrix moves"
    assert math.isfinite(lines(folder / "run", "training")[0]["loss"])
    assert result.parameters == sum(p.numel() for p in before.values())
    assert_same(saved(folder / "run"), dict(result.model.state_dict()))
    return result


def test_streams(tmp_path):
    changes = {"data.streaming": True, "schedule.steps": 3, "schedule.batch": 32}
    result = run(tmp_path / "run", changes)
    assert [line["step"] for line in lines(tmp_path / "run", "training")] == [1, 2, 3]
    assert result.metrics["step"] == 3
    report = accuracy(tmp_path / "run", changes=changes)
    assert result.metrics["top1"] == pytest.approx(report.top1, abs=1e-9)


# What a run leaves


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    changes = {"run.layerwise_epochs": 2, "run.evaluate_epochs": 0.5, "run.checkpoint_steps": 5, "optimise.lr": 5e-3}
    return run(folder, changes), changes


def test_the_run_folder(finished):
    result, changes = finished
    folder = result.folder
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints", "logs", "metrics.jsonl", "model", "recipe.yaml",
    ]  # fmt: skip
    assert load_recipe(str(folder / "recipe.yaml")) == toy(changes)
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["run"]["precision"] == "fp32", "resolved, with defaults"
    assert list((folder / "logs").glob("events.out.tfevents.*"))
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["checkpoint-10", "checkpoint-12"]
    assert sorted(path.name for path in (folder / "model").iterdir()) == ["best", "last"]


def test_logs_of_two_runs_in_one_process_lie_apart(tmp_path):
    for name in ("one", "two"):
        run(tmp_path / name, {"schedule.steps": 1})
        assert len(list((tmp_path / name / "logs").glob("events.out.tfevents.*"))) == 1


def test_the_last_model_is_what_was_evaluated_last(finished):
    result, changes = finished
    report = accuracy(result.folder, "last", changes)
    evaluations = lines(result.folder, "evaluation")
    assert [line["step"] for line in evaluations] == [2, 4, 6, 8, 10, 12]
    assert evaluations[-1]["eval_top1"] == pytest.approx(report.top1, abs=1e-9)
    assert evaluations[-1]["eval_top5"] == pytest.approx(report.top5, abs=1e-9)
    assert evaluations[-1]["eval_loss"] == pytest.approx(report.loss, rel=1e-5)
    assert result.metrics["top1"] == evaluations[-1]["eval_top1"]


def test_the_best_model_has_the_highest_accuracy(finished):
    result, changes = finished
    best = max(line["eval_top1"] for line in lines(result.folder, "evaluation"))
    assert accuracy(result.folder, "best", changes).top1 == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(
    ("best", "higher", "saved"),
    [("top1", True, [True, True, False, True, False]), ("loss", False, [True, False, False, False, True]),
     (None, False, [True] * 5)],
)  # fmt: skip
def test_best_is_saved_when_none_was_better(best, higher, saved):
    task, state, written = SimpleNamespace(best=best, higher=higher), SimpleNamespace(log_history=[]), []
    callback = SavedModels(task, written.append)
    for value in (0.3, 0.5, 0.4, 0.5, 0.1):
        metrics = {f"eval_{best}": value}
        state.log_history.append(metrics)  # as the trainer does, before it calls
        callback.on_evaluate(None, state, None, metrics=metrics)
    assert written == [name for best in saved for name in (["best", "last"] if best else ["last"])]


def test_the_saved_model_loads_by_transformers_alone(finished):
    result, _ = finished
    model = AutoModelForImageClassification.from_pretrained(result.folder / "model" / "last")
    assert model.config.id2label == {index: str(index) for index in range(10)}
    assert_same(dict(model.state_dict()), dict(result.model.state_dict()))


def test_layers_are_measured_at_the_right_epochs(finished):
    result, changes = finished
    recipe = toy(changes)
    found = lines(result.folder, "layerwise")
    assert [(line["epoch"], line["step"]) for line in found] == [(0, 0), (2, 8)]
    table = layerwise(build_classifier(recipe, tuple("0123456789")), [first_images(32)])
    assert found[0]["layers"] == table.to_dict("records")


def test_the_layers_measured_last_are_of_the_trained_model(tmp_path):
    result = run(tmp_path / "run", {"run.layerwise_epochs": 1, "run.layerwise_images": 7, "schedule.epochs": 1})
    table = layerwise(result.model, [first_images(7)])
    assert lines(tmp_path / "run", "layerwise")[-1]["layers"] == table.to_dict("records")
    assert [row["layer"] for row in table.to_dict("records")] == [1, 2]


# Seeds


def test_a_seed_decides_everything(tmp_path):
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    changes = {"schedule.steps": 3, "model.config.dropout": 0.1}
    run(first, changes)
    torch.manual_seed(31)
    run(second, changes)
    run(other, {**changes, "run.seed": 1})
    assert_same(saved(first), saved(second))
    assert measured(first) == measured(second)
    assert not torch.equal(saved(first)["head.weight"], saved(other)["head.weight"])


def test_the_seed_decides_order_and_augmentation_too(tmp_path):
    """With the same initial weights, another seed gives another first loss."""
    start = {"schedule.steps": 1, "model.from": str(tmp_path / "start")}
    run(tmp_path / "start", {"schedule.steps": 1})
    heads = {}
    for seed in (0, 1):
        trainer = trainer_of(tmp_path / f"seed{seed}", {**start, "run.seed": seed})
        batch = next(iter(trainer.get_train_dataloader()))
        heads[seed] = batch["labels"][:50].tolist()
    assert heads[0] != heads[1]


# Accumulation, clipping, loss


def test_accumulated_batches_make_the_same_step(tmp_path):
    changes = {"schedule.steps": 3, **PLAIN}
    run(tmp_path / "whole", changes)
    run(tmp_path / "parts", {**changes, "run.device_batch": 90})
    for whole, part in zip(lines(tmp_path / "whole", "training"), lines(tmp_path / "parts", "training"), strict=True):
        assert whole["loss"] == pytest.approx(part["loss"], abs=1e-5)
        assert whole["grad_norm"] == pytest.approx(part["grad_norm"], rel=1e-4)
        assert whole["accuracy"] == part["accuracy"]


class Norms(TrainerCallback):
    """The gradient's norm as the optimizer gets it."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.seen.append(float(torch.stack([p.grad.norm() for p in model.parameters()]).norm()))


@pytest.mark.parametrize("clip", [0.05, 0.0])
def test_gradient_clipping(tmp_path, clip):
    norms = Norms()
    trainer_of(tmp_path, {"schedule.steps": 3, "optimise.clip": clip}, norms).train()
    assert len(norms.seen) == 3
    if clip:
        assert norms.seen == pytest.approx([clip] * 3, rel=1e-3)
    else:
        assert min(norms.seen) > 0.1


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_label_smoothing(tmp_path, smoothing):
    trainer = trainer_of(tmp_path, {"optimise.label_smoothing": smoothing})
    pixels, labels = torch.randn(7, 1, 8, 8), torch.tensor([3, 1, 9, 0, 2, 2, 5])
    model = trainer.model.train()
    loss = trainer.compute_loss(model, {"pixel_values": pixels, "labels": labels})
    loss, logits = loss.detach(), model(pixels).logits.detach().double()
    target = torch.full((7, 10), smoothing / 10).double()
    target[range(7), labels] += 1 - smoothing
    naive = -(target * logits.log_softmax(-1)).sum(-1).mean()
    assert float(loss) == pytest.approx(float(naive), rel=1e-6)
    assert float(loss) == pytest.approx(float(F.cross_entropy(logits, labels, label_smoothing=smoothing)), rel=1e-6)
    loss = trainer.task.measure(model.eval(), model, {"pixel_values": pixels, "labels": labels})["loss"].mean().detach()
    assert float(loss) == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-6), "not in evaluation"


def test_a_loss_that_is_no_number(tmp_path):
    said = refused("lower optimise.lr", run, tmp_path / "run", {"optimise.lr": 1e30, "optimise.name": "lion"})
    assert said.startswith("the loss is ")


# The average of the weights


class Weights(TrainerCallback):
    """The weights after every step."""

    def __init__(self):
        self.seen = []

    def on_train_begin(self, args, state, control, model=None, **_):
        self.remember(model)

    def on_step_end(self, args, state, control, model=None, **_):
        self.remember(model)

    def remember(self, model):
        self.seen.append({name: p.detach().double().clone() for name, p in model.named_parameters()})


def test_the_average_is_evaluated_and_saved(tmp_path):
    weights = Weights()
    changes = {"run.ema": 0.7, "optimise.lr": 5e-3, "schedule.steps": 6, "run.evaluate_epochs": 0.5}
    trainer = trainer_of(tmp_path, changes, weights)
    trainer.train()
    naive = weights.seen[0]
    for step in weights.seen[1:]:
        naive = {name: 0.7 * naive[name] + 0.3 * step[name] for name in naive}
    for name, tensor in saved(tmp_path).items():
        torch.testing.assert_close(tensor.double(), naive[name], rtol=0, atol=1e-6)
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter.double(), weights.seen[-1][name]), "training goes on with the weights themselves"
    assert not torch.allclose(saved(tmp_path)["head.weight"].double(), weights.seen[-1]["head.weight"], atol=1e-4)
    assert lines(tmp_path, "evaluation")[-1]["eval_loss"] == pytest.approx(accuracy(tmp_path).loss, rel=1e-5)


# Defaults


def test_compilation_is_off_by_default(tmp_path):
    assert not training_arguments(toy(), tmp_path, 1, 4).torch_compile
    assert training_arguments(toy({"run.compile": True}), tmp_path, 1, 4).torch_compile


def test_intervals_in_epochs_become_steps(tmp_path):
    arguments = training_arguments(toy({"run.evaluate_epochs": 0.5, "run.checkpoint_epochs": 3}), tmp_path, 1, 4)
    assert (arguments.eval_steps, arguments.save_steps) == (2, 12)
    arguments = training_arguments(toy({"schedule.batch": 96, "run.device_batch": 8}), tmp_path, 1, 4)
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == (8, 12)


@pytest.mark.parametrize(("batch", "device", "world"), [(360, 7, 1), (90, None, 4), (96, 16, 4)])
def test_a_batch_that_cannot_be_shared_out(tmp_path, batch, device, world):
    recipe = toy({"schedule.batch": batch, "run.device_batch": device})
    refused(
        f"schedule.batch {batch} is not a multiple of {world} processes", training_arguments, recipe, tmp_path, world, 4
    )


def test_dropped_parameters_do_not_hide(tmp_path):
    """A frozen body stays as it was, bit for bit; the head learns."""
    changes = {"model.freeze": True, "schedule.steps": 2}
    result = run(tmp_path / "run", changes)
    before = build_classifier(toy(changes), tuple("0123456789")).state_dict()
    moved = {name for name, value in result.model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"head.weight", "head.bias", "head_norm.weight", "head_norm.bias"}


def test_only_what_trains_is_averaged(tmp_path):
    trainer = trainer_of(tmp_path, {"model.freeze": True, "run.ema": 0.5, "schedule.steps": 1})
    assert all(name.startswith("head") for name in trainer.ema.average)
    trainer.train()
    assert isinstance(trainer.model, nn.Module)
    assert_same(
        {name: value for name, value in saved(tmp_path).items() if name.startswith("crate")},
        {name: value for name, value in trainer.model.state_dict().items() if name.startswith("crate")},
    )


def test_the_toy_is_what_it_seems():
    recipe = toy()
    assert recipe.model.config == MODEL
    assert replace(recipe).schedule.batch * 4 > 1438 > recipe.schedule.batch * 3
