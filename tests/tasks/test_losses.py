"""Losses and metrics of tasks against loops: label smoothing, penalties, collapse, and the constants of tasks."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from codingrate.tasks.base import cosine, weighted_means
from codingrate.tasks.distillation import teacher_metrics
from codingrate.tasks.generation import context_window, generate, sampling_settings
from tests.runs.texts import text_task
from tests.runs.toys import dino, toy_task

SMOOTHING = 0.2


def smoothed(logits, labels, smoothing=SMOOTHING):
    """The mean of (1 − s)·(−log p of the label) + s · mean over classes of −log p, by a loop."""
    rows = zip(logits.double().log_softmax(-1), labels.tolist(), strict=True)
    return float(np.mean([float(-(1 - smoothing) * row[label] - smoothing * row.mean()) for row, label in rows]))


def batch_of(task, count, seed=None, prepared=True):
    """Return the untrained model of a task, and a batch of its training samples."""
    model, train = task.build_model().eval(), task.datasets()[0]
    batch = task.collate([train[index] for index in range(count)])
    return model, task.prepare(batch, seed, model) if prepared else batch


@pytest.mark.parametrize("smoothing", [0.0, SMOOTHING])
@torch.no_grad()
def test_the_next_token_has_smoothed_labels(smoothing):
    task = text_task("causal-lm", {"optimizer.label_smoothing": smoothing})
    model, batch = batch_of(task, 3, prepared=False)
    ids, step = batch["input_ids"], task.loss(model, model, batch)
    assert (ids.shape, step.samples) == ((3, 17), 3)  # block + 1 tokens give block predictions
    logits = model(input_ids=ids[:, :-1]).logits
    assert float(step.loss) == pytest.approx(smoothed(logits.flatten(0, 1), ids[:, 1:].flatten(), smoothing), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, SMOOTHING])
@torch.no_grad()
def test_masked_tokens_have_smoothed_labels_and_a_mean_over_themselves(smoothing):
    task = text_task("masked-lm", {"optimizer.label_smoothing": smoothing})
    model, batch = batch_of(task, 7, seed=1)
    masked = batch["labels"] >= 0
    logits = model(input_ids=batch["input_ids"]).logits[masked]
    third = torch.arange(len(logits)) % 3 == 0  # these labels are what the model predicts
    batch["labels"][masked] = labels = torch.where(third, logits.argmax(-1), batch["labels"][masked])
    loss, metrics = float(task.loss(model, model, batch).loss), task.measure(model, model, batch)
    assert loss == pytest.approx(smoothed(logits, labels, smoothing), rel=1e-5)
    summary = task.summarize({name: np.asarray(values, float) for name, values in metrics.items()})
    assert summary["accuracy"] == pytest.approx(float((logits.argmax(-1) == labels).double().mean()))
    assert summary["accuracy"] >= 1 / 3
    assert summary["loss"] == pytest.approx(smoothed(logits, labels, 0.0), rel=1e-5)


@torch.no_grad()
def test_a_language_model_pays_for_bases_that_are_not_orthogonal_in_training():
    task = text_task("causal-lm", {"model.config.orthogonality": "penalty", "model.config.orthogonality_weight": 0.5})
    model, batch = batch_of(task, 1, prepared=False)
    before, after = (float(task.loss(model.train(mode), model, batch).loss) for mode in (False, True))
    assert after - before == pytest.approx(0.5 * float(model.orthogonality_penalty()), rel=1e-3)
    assert after > before


@pytest.mark.parametrize("smoothing", [0.0, SMOOTHING])
@torch.no_grad()
def test_classes_are_smoothed_in_training_and_not_in_evaluation(smoothing):
    task = toy_task({"optimizer.label_smoothing": smoothing})
    model, batch = batch_of(task, 200)
    logits, labels = model(pixel_values=batch["pixel_values"]).logits, batch["labels"]
    step, metrics = task.loss(model, model, batch), task.measure(model, model, batch)
    assert float(step.loss) == pytest.approx(smoothed(logits, labels, smoothing), rel=1e-5)
    assert float(metrics["loss"].mean()) == pytest.approx(smoothed(logits, labels, 0.0), rel=1e-5)
    ranks = (logits > logits.gather(1, labels[:, None])).sum(1)
    assert torch.equal(metrics["top1"], ranks < 1)
    assert torch.equal(metrics["top5"], ranks < 5)
    assert int((ranks == 4).sum()) > 0, "the fifth place must decide for some images"


@pytest.mark.parametrize("classes", [5, 6])
def test_five_classes_have_no_top5(classes):
    model = lambda pixel_values: SimpleNamespace(logits=torch.randn(4, classes))  # noqa: E731
    metrics = toy_task().measure(model, model, {"pixel_values": None, "labels": torch.zeros(4, dtype=torch.long)})
    assert ("top5" in metrics) == (classes > 5)


def test_means_are_weighted():
    values = {"loss": np.array([1.0, 4.0]), "weight": np.array([3.0, 1.0])}
    assert weighted_means(values) == {"loss": 1.75}
    assert weighted_means({"loss": values["loss"]}) == {"loss": 2.5}


def test_a_cosine_starts_ends_and_has_its_middle_in_the_middle():
    assert [cosine(2.0, 6.0, share) for share in (0.0, 0.5, 1.0)] == pytest.approx([2.0, 4.0, 6.0])
    assert cosine(2.0, 6.0, 0.25) == pytest.approx(4 - math.sqrt(2))


# Collapse


def test_the_spread_is_the_information_between_answer_and_image():
    """Four images: each has its own prototype, or all have one, or none has any."""
    center = torch.zeros(4)
    own, same, flat = 100 * torch.eye(4)[None], 100 * torch.eye(4)[[0, 0, 0, 0]][None], torch.zeros(1, 4, 4)
    spreads = [float(teacher_metrics(logits, center, 1.0)["spread"]) for logits in (own, same, flat)]
    assert spreads == pytest.approx([math.log(4), 0.0, 0.0], abs=1e-6)
    shifted = teacher_metrics(own, torch.tensor([100.0, 0, 0, 0]), 1.0)
    assert float(shifted["spread"]) == pytest.approx(math.log(4) - 0.25 * math.log(4), abs=0.4)
    assert float(shifted["teacher_entropy"]) == pytest.approx(math.log(4) / 4, abs=1e-5)  # the first image is flat now


@pytest.mark.parametrize(
    ("step", "spread", "epoch", "reported"),
    [(300, 0.0101, 5.0, False), (300, 0.0099, 5.0, True), (300, 0.0099, 2.9, False), (199, 0.0099, 5.0, False),
     (199, None, 5.0, False)],
)  # fmt: skip
def test_collapse_is_reported_below_a_hundredth_of_a_nat_once_the_teacher_has_moved(step, spread, epoch, reported):
    """The temperature rises for three epochs, and the teacher has moved by 300 · (1 − 0.99) = 3."""
    task = toy_task(dino({"distillation.momentum": 0.99, "distillation.temperature_epochs": 3}))
    task.current_step = step
    assert (task.warning({} if spread is None else {"spread": spread}, epoch) is not None) == reported


def test_the_last_layer_is_frozen_for_the_first_epochs():
    task = toy_task(dino({"distillation.freeze_last_epochs": 2}))
    frozen = []
    for step in range(12):
        task.on_step_begin(step, 12, 4)
        frozen.append(task.last_layer_frozen)
    assert frozen == [True] * 8 + [False] * 4


# Generation


def test_text_is_sampled_at_temperature_point_eight_from_fifty_tokens():
    """The defaults of nanoGPT's sample.py but for its 200 tokens."""
    expected = {"do_sample": True, "temperature": 0.8, "top_k": 50}
    assert sampling_settings() == expected
    task = text_task("causal-lm")
    written = generate(task.build_model(), task.tokenizer, "def f", tokens=2)
    assert written.settings == {**expected, "max_new_tokens": 2}


def test_a_full_context_keeps_its_second_half():
    ids = torch.arange(20)[None]
    assert torch.equal(context_window(ids, 21), ids)
    assert torch.equal(context_window(ids, 20), ids[:, -10:])
    assert torch.equal(context_window(ids, 1), ids[:, -1:])


# Language models


def test_a_hundredth_of_a_nat_counts_as_learned():
    task = text_task("causal-lm")
    unigram = task.references["unigram"]
    assert "not learned more" in task.compare(unigram - 0.009)
    assert "not learned more" not in task.compare(unigram - 0.011)


def test_bits_per_byte_are_those_of_the_text():
    task = text_task("causal-lm")
    validation = task.tokens("validation")
    bits = task.summarize({"loss": np.array([math.log(2)])})["bits_per_byte"]
    assert bits == pytest.approx(len(validation) / validation.bytes)
