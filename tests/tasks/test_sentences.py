"""Sentences: classes and numbers, from a pre-trained or a new body, by the metrics of GLUE; data and refusals."""

import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from codingrate.data import balanced_indices
from codingrate.evaluation import bag_of_words_metrics
from codingrate.inspection import layerwise
from codingrate.runs import Run
from tests.refusals import refused
from tests.runs.texts import text_task, train_text, write_csv, write_pairs, write_sentences
from tests.runs.toys import assert_same, lines, measured, saved

TASK = "sequence-classification"
PAIR = ["sentence1", "sentence2"]


def same(one, two):
    return int(one == two)


def near(one, two):
    return 4.5 if one == two else 0.5


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    """Return the folder of a short run of a masked language model."""
    return train_text(tmp_path_factory.mktemp("body") / "run", "masked-lm", {"schedule.steps": 30}).folder


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    return str(write_sentences(tmp_path_factory.mktemp("films") / "films.csv"))


def tuned(folder, data, changes=None, **options):
    """Train for six epochs on labeled sentences."""
    fixed = {"data.name": data, "schedule.steps": None, "schedule.epochs": 6, "schedule.warmup_steps": 0}
    return train_text(folder, TASK, {**fixed, "optimizer.lr": 1e-2, **(changes or {})}, **options)


@pytest.mark.parametrize("model", ["crate-bert-base", "crate-gpt-base", "bert-base"])
def test_from_a_new_body(tmp_path, films, model):
    run = tuned(tmp_path / "run", films, {"model.name": model})
    assert run.metrics["accuracy"] > 0.9
    assert run.model().config.id2label == {0: "bad", 1: "good"}
    assert run.model().config.causal == (model == "crate-gpt-base")
    assert run.headline == f"accuracy {run.metrics['accuracy']:.2%}, validation loss {run.metrics['loss']:.4f}"


def test_from_a_run_with_its_tokenizer_and_a_new_head(tmp_path, films, body):
    changes = {"model.from": str(body), "model.config": {}}
    model = text_task(TASK, {**changes, "data.name": films}).build_model()
    assert_same(model.crate.state_dict(), Run(body).model().crate.state_dict())
    run = tuned(tmp_path / "run", films, changes)
    assert run.metrics["accuracy"] > 0.9
    folder = run.model_folder()
    vocabularies = [AutoTokenizer.from_pretrained(path).get_vocab() for path in (folder, body / "tokenizer")]
    assert vocabularies[0] == vocabularies[1]
    assert_same(AutoModelForSequenceClassification.from_pretrained(folder).state_dict(), saved(tmp_path / "run"))
    changes = {**changes, "model.from": str(tmp_path / "run"), "run.seed": 1, "schedule.epochs": 1}
    again = tuned(tmp_path / "again", films, changes)
    assert not torch.equal(again.model().head.weight, run.model().head.weight)


def test_the_loss_of_training_is_a_mean_over_sentences_whatever_their_padding(films):
    """tests/evaluation/test_text_tasks.py compares the metrics of evaluation with single sentences."""
    task = text_task(TASK, {"data.name": films})
    model, rows = task.build_model().eval(), [task.datasets()[1][index] for index in range(13)]
    with torch.no_grad():
        logits = torch.stack([model(torch.tensor([row["input_ids"]])).logits[0] for row in rows])
        step = task.loss(model, model, task.collate(rows))
    labels = torch.tensor([row["label"] for row in rows])
    assert float(step.loss) == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-4)
    assert float(step.metrics["accuracy"]) == pytest.approx(float((logits.argmax(-1) == labels).double().mean()))


def test_a_glue_task_has_its_own_metrics(tmp_path):
    folder = write_pairs(tmp_path / "mrpc", PAIR, same)
    changes = {"data.path": str(folder), "schedule.epochs": 2, "run.evaluate_epochs": 1, "text.max_length": 48}
    run = tuned(tmp_path / "run", "mrpc", changes)
    assert set(run.metrics) == {"f1", "accuracy", "loss"}
    assert "F1 " in run.headline
    assert run.model().config.id2label == {0: "not_equivalent", 1: "equivalent"}
    best = max(line["eval_f1"] for line in lines(tmp_path / "run", "evaluation"))
    assert run.evaluate(checkpoint="best").metrics["f1"] == pytest.approx(best, abs=1e-9), "best means the best F1"


def test_numbers_are_predicted_by_squared_error(tmp_path):
    folder = write_pairs(tmp_path / "stsb", PAIR, near)
    run = tuned(tmp_path / "run", "stsb", {"data.path": str(folder), "schedule.epochs": 3, "text.max_length": 48})
    assert (run.model().config.num_labels, set(run.metrics)) == (1, {"spearman", "pearson", "loss"})
    losses = [line["loss"] for line in lines(tmp_path / "run", "training")]
    assert losses[-1] < losses[0]
    rows = run.task.data.sentences.validation
    answers = run.predict([(row["sentence1"], row["sentence2"]) for row in rows])
    mean = np.square(np.array(answers) - np.array(rows["label"])).mean()
    assert run.metrics["loss"] == pytest.approx(mean, rel=1e-4)


def test_two_validation_splits_are_measured_apart(tmp_path):
    folder = write_pairs(tmp_path / "mnli", ["premise", "hypothesis"], lambda one, two: 0 if one == two else 2)
    shutil.move(folder / "validation.csv", folder / "validation_matched.csv")
    rows = [("good", "good", 0), ("bad", "good", 2), ("nice", "ugly", 2)]
    write_csv(folder / "validation_mismatched.csv", ["premise", "hypothesis", "label"], rows)
    task = text_task(TASK, {"data.name": "mnli", "data.path": str(folder), "text.max_length": 48})
    assert task.data.sentences.held_out == ["validation_matched", "validation_mismatched"]
    assert len(task.datasets()[1]) == 31
    report = task.evaluate(task.build_model())
    assert {name: scores["rows"] for name, scores in report.splits.items()} == {
        "validation_matched": 31, "validation_mismatched": 3,
    }  # fmt: skip
    own = task.data.sentences
    assert task.baseline() == {
        name: bag_of_words_metrics(own.train, own.split(name), own.columns, ["accuracy"]) for name in report.splits
    }


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, films, body):
    changes = {
        "model.from": str(body), "model.config": {"dropout": 0.1}, "schedule.epochs": 4, "run.checkpoint_epochs": 1,
        "run.save_total_limit": 9, "run.evaluate_epochs": 1,
    }  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    tuned(whole, films, changes)
    shutil.copytree(whole, cut)
    for late in (12, 18, 24):
        shutil.rmtree(cut / "checkpoints" / f"checkpoint-{late}")
    tuned(cut, films, changes, resume=True)
    assert_same(saved(whole), saved(cut))
    assert measured(whole) == measured(cut)


def test_layers_are_measured_without_padding(tmp_path, films):
    changes = {"run.layerwise_epochs": 1, "run.layerwise_images": 5, "schedule.epochs": 1}
    run = tuned(tmp_path / "run", films, changes)
    dataset = run.task.datasets()[1]
    batches = [torch.tensor([dataset[index]["input_ids"]]) for index in balanced_indices(dataset.labels, 5)]
    assert len({batch.shape[1] for batch in batches}) > 1
    table = layerwise(run.model(), batches)
    assert lines(tmp_path / "run", "layerwise")[-1]["layers"] == table.to_dict("records")


def test_a_tokenizer_is_learned_from_the_sentences(tmp_path, films):
    run = tuned(tmp_path / "run", films, {"text.tokenizer": "bpe", "text.vocab_size": 270, "schedule.epochs": 1})
    tokenizer = AutoTokenizer.from_pretrained(run.model_folder())
    assert len(tokenizer("good", add_special_tokens=False)["input_ids"]) < 4


@pytest.mark.parametrize("model", ["crate-bert-base", "crate-gpt-base"])
def test_predictions_are_classes_with_probabilities(tmp_path, films, model):
    """The tokenizer of a causal model has no padding token."""
    run = tuned(tmp_path / "run", films, {"model.name": model})
    answers = run.predict(["good nice", "awful", "ugly bad poor"])
    assert [answer[0]["label"] for answer in answers] == ["good", "bad", "bad"]
    assert [sum(entry["score"] for entry in answer) for answer in answers] == pytest.approx([1] * 3)
    assert run.predict("awful")[0][0]["score"] == pytest.approx(answers[1][0]["score"], abs=1e-6), "padding is ignored"
    assert run.evaluate(batch_size=7).metrics == pytest.approx(run.metrics, rel=1e-5)
    summary = run.inspect(limit=5).to_dict()["summary"]
    assert summary["scores"][0]["value"] == pytest.approx(run.metrics["accuracy"])
    assert 0.5 <= summary["scores"][0]["baseline"] < 1
    assert "→" in summary["samples"][0]["answer"]


def test_bad_data_and_models_are_refused(tmp_path, films, body):
    start = {"model.from": str(body), "model.config": {}}
    vision = {"model.name": "crate-tiny-patch16-224", "model.config": {}}
    words = str(write_csv(tmp_path / "words.csv", ["sentence", "label"], [(f"word {i}", "much") for i in range(40)]))
    for number, (name, data, changes) in enumerate(
        [
            ("'headline'", films, {"text.columns": ["headline"]}),
            ("'stars'", films, {"data.label_column": "stars"}),
            ("number", words, {"text.regression": True}),
            ("vocabulary", films, {**start, "text.tokenizer": "bpe", "text.vocab_size": 300}),
            ("text.max_length", films, {**start, "text.max_length": 64}),
            ("crate-bert-base", films, vision),
            ("text.max_length", films, {"text.max_length": 2}),
            ("width", films, {**start, "model.config": {"hidden_size": 64}}),
            ("data.name", "???", {}),
            ("model.from", films, {"model.from": "???"}),
        ]
    ):
        refused(name, tuned, tmp_path / f"run{number}", data, changes)
