"""Losses under transformers' own Trainer, which sums the losses of accumulated batches and of processes."""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn.functional import one_hot
from transformers import Trainer, TrainingArguments
from transformers.loss.loss_utils import ForSequenceClassificationLoss

from ...refusals import refused
from .cases import ATTENTION, build, cases, inputs
from .trained import SAMPLES, samples, train

TRAINED = ("image-classification", "masked-autoencoding", "masked-lm", "sequence-classification", "causal-lm")
PROBLEMS = {
    "single_label_classification": torch.tensor([2, 0, 1]),
    "multi_label_classification": torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1]]),
    "regression": torch.tensor([[0.3, -1, 2], [0, 0.5, 1], [1.5, 1, -1]]),
}
problems = pytest.mark.parametrize("problem", PROBLEMS)
classifiers = cases("image-classification", "sequence-classification", controls=False)


def assert_same(one, other):
    assert one[0] == pytest.approx(other[0], rel=1e-6)
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], rtol=0, atol=1e-6, msg=name)


def assert_mean(whole, family, attention, data, **fields):
    """The loss of the Trainer is the mean that the model returns for all samples at once."""
    batch = {name: torch.stack([sample[name] for sample in data]) for name in data[0]}
    batch = {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}
    loss = build(family, attention, **fields).double().train()(**batch).loss
    assert whole[0] == pytest.approx(float(loss.detach()), rel=1e-6)


@cases(*TRAINED, costly=True)
def test_four_accumulated_batches_equal_one(family, attention, tmp_path):
    fields = {} if attention == "control" else {"orthogonality": "penalty", "orthogonality_weight": 1e-2}
    whole = train(family, attention, tmp_path, SAMPLES, **fields)
    assert max(float(gradient.abs().max()) for gradient in whole[1].values()) > 1e-3
    if family != "gpt2":  # transformers divides by labels that GPT-2 does not count
        assert_mean(whole, family, attention, samples(family), **fields)
    assert_same(train(family, attention, tmp_path, SAMPLES // 4, accumulation=4, **fields), whole)


@pytest.mark.parametrize("kind", [*PROBLEMS, "distributions"])
@cases("image-classification", attention=("mssa",), controls=False)
def test_accumulation_of_every_kind_of_label(family, attention, kind, tmp_path):
    labels = one_hot(PROBLEMS["single_label_classification"], 3).double().lerp(torch.full((3, 3), 1 / 3).double(), 0.1)
    labels = PROBLEMS.get(kind, labels)
    data = [{**sample, "labels": labels[row % 3]} for row, sample in enumerate(samples(family))]
    fields = {"num_labels": 3, "problem_type": None if kind == "distributions" else kind}
    whole = train(family, attention, tmp_path, SAMPLES, data=data, **fields)
    assert_mean(whole, family, attention, data, **fields)
    assert_same(train(family, attention, tmp_path, SAMPLES // 4, accumulation=4, data=data, **fields), whole)


@pytest.mark.slow
@cases("image-classification", "masked-lm", "causal-lm", attention=("mssa", "mhsa"))
def test_two_processes_equal_one(family, attention, tmp_path):
    module = [__package__ + ".trained", family, attention, str(tmp_path / "two")]
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", *module]
    result = subprocess.run(
        program, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert_same(torch.load(tmp_path / "two" / "result.pt"), train(family, attention, tmp_path / "one", SAMPLES))


@cases("causal-lm", controls=False)  # see above on GPT-2
def test_labels_are_shifted_for_label_smoothing(family, attention, tmp_path):
    loss, _ = train(family, attention, tmp_path, SAMPLES, label_smoothing_factor=0.1)
    data, model = samples(family), build(family, attention).double()
    labels = torch.stack([sample["labels"] for sample in data])[:, 1:]
    with torch.no_grad():
        logs = model(torch.stack([sample["input_ids"] for sample in data])).logits[:, :-1].log_softmax(-1)
    real = labels != -100
    own = logs[real].gather(-1, labels[real][:, None]).mean()
    assert loss == pytest.approx(float(-0.9 * own - 0.1 * logs[real].mean()), rel=1e-6)


@cases("image-classification", "masked-lm", "sequence-classification", "causal-lm", attention=("mssa",), controls=False)
def test_evaluation_reports_the_loss(family, attention, tmp_path):
    arguments = TrainingArguments(
        output_dir=str(tmp_path), per_device_eval_batch_size=SAMPLES, report_to=[], use_cpu=True, disable_tqdm=True
    )
    trainer = Trainer(model=build(family, attention), args=arguments, eval_dataset=samples(family))
    batch = {name: torch.stack([sample[name] for sample in samples(family)]) for name in samples(family)[0]}
    with torch.no_grad():
        expected = float(build(family, attention)(**batch).loss)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


@cases("causal-lm")
def test_labels_that_are_shifted_already(family, attention):
    model, given = build(family, attention), inputs(family)
    shifted = torch.nn.functional.pad(given["labels"][:, 1:], (0, 1), value=-100)
    other = {**given, "labels": given["labels"].roll(1), "shift_labels": shifted}
    torch.testing.assert_close(model(**other).loss, model(**given).loss)


@classifiers
@problems
def test_the_loss_follows_the_problem_type(family, attention, problem):
    model, labels = build(family, attention, num_labels=3, problem_type=problem), PROBLEMS[problem]
    output = model(**{**inputs(family), "labels": labels})
    torch.testing.assert_close(output.loss, ForSequenceClassificationLoss(labels, output.logits, model.config))


@classifiers
def test_a_problem_type_that_is_not_given(family, attention):
    given = inputs(family)
    one = build(family, attention, num_labels=1)
    numbers = torch.tensor([0.5, -2.0, 1.0])
    output = one(**{**given, "labels": numbers})
    torch.testing.assert_close(output.loss, (output.logits[:, 0] - numbers).square().mean())
    several = build(family, attention, num_labels=3)
    labels = PROBLEMS["multi_label_classification"]
    refused("set problem_type to 'multi_label_classification'", several, **{**given, "labels": labels})
    assert several.config.problem_type is None


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_batch_without_labels_adds_nothing(attention):
    model, given = build("causal-lm", attention), inputs("causal-lm")
    given["labels"] = torch.full_like(given["labels"], -100)
    loss = model(**given, num_items_in_batch=5).loss
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
