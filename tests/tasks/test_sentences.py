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
from tests.runs.texts import CONFIG, text_recipe, text_task, train_text, write_csv, write_pairs, write_sentences
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


def test_the_loss_and_metrics_are_naive_means(films):
    task = text_task(TASK, {"data.name": films})
    model, dataset = task.build_model().eval(), task.datasets()[1]
    batch = task.collate([dataset[index] for index in range(13)])
    with torch.no_grad():
        single = torch.stack([model(torch.tensor([dataset[i]["input_ids"]])).logits[0] for i in range(13)]).double()
        values, step = task.measure(model, model, batch), task.loss(model, model, batch)
    labels = torch.tensor([dataset[index]["label"] for index in range(13)])
    naive = F.cross_entropy(single, labels, reduction="none")
    torch.testing.assert_close(values["loss"].double(), naive, rtol=1e-4, atol=1e-5)
    assert float(step.loss) == pytest.approx(float(naive.mean()), rel=1e-4)
    metrics = task.summarize({name: column.double().numpy() for name, column in values.items()})
    accuracy = float((single.argmax(-1) == labels).double().mean())
    assert metrics == pytest.approx({"loss": float(naive.mean()), "accuracy": accuracy}, rel=1e-4)
    assert float(step.metrics["accuracy"]) == pytest.approx(accuracy)


def test_the_metrics_of_training_are_those_of_evaluation(tmp_path, films, body):
    run = tuned(tmp_path / "run", films, {"model.from": str(body), "model.config": {}, "schedule.epochs": 1})
    report = run.evaluate(batch_size=7)
    assert list(report.splits) == ["validation"]
    assert report.metrics == pytest.approx(run.metrics, rel=1e-5)
    assert report.splits["validation"]["rows"] == len(run.task.datasets()[1])


def test_a_glue_task_has_its_own_metrics(tmp_path):
    folder = write_pairs(tmp_path / "mrpc", PAIR, same)
    changes = {"data.path": str(folder), "schedule.epochs": 2, "run.evaluate_epochs": 1, "text.max_length": 48}
    run = tuned(tmp_path / "run", "mrpc", changes)
    assert set(run.metrics) == {"f1", "accuracy", "loss"}
    assert run.headline.startswith("accuracy ")
    assert "F1 " in run.headline
    assert run.model().config.id2label == {0: "not_equivalent", 1: "equivalent"}
    best = max(line["eval_f1"] for line in lines(tmp_path / "run", "evaluation"))
    assert run.evaluate(checkpoint="best").metrics["f1"] == pytest.approx(best, abs=1e-9), "best means the best F1"


def test_numbers_are_predicted_by_squared_error(tmp_path):
    folder = write_pairs(tmp_path / "stsb", PAIR, near)
    run = tuned(tmp_path / "run", "stsb", {"data.path": str(folder), "schedule.epochs": 3, "text.max_length": 48})
    assert run.model().config.num_labels == 1
    assert set(run.metrics) == {"spearman", "pearson", "loss"}
    losses = [line["loss"] for line in lines(tmp_path / "run", "training")]
    assert losses[-1] < losses[0]
    pairs = [(row["sentence1"], row["sentence2"]) for row in run.task.data.sentences.validation["validation"]]
    labels = np.array(run.task.data.sentences.validation["validation"]["label"])
    answers = np.array(run.predict(pairs))
    assert float(((answers - labels) ** 2).mean()) == pytest.approx(run.metrics["loss"], rel=1e-4)
    words = write_csv(tmp_path / "words.csv", ["sentence", "label"], [(f"sentence {i}", "much") for i in range(40)])
    refused("is not a number", tuned, tmp_path / "a", str(words), {"text.regression": True})


def test_two_validation_splits_are_measured_apart(tmp_path):
    folder = write_pairs(tmp_path / "mnli", ["premise", "hypothesis"], lambda one, two: 0 if one == two else 2)
    shutil.move(folder / "validation.csv", folder / "validation_matched.csv")
    rows = [("good", "good", 0), ("bad", "good", 2), ("nice", "ugly", 2)]
    write_csv(folder / "validation_mismatched.csv", ["premise", "hypothesis", "label"], rows)
    task = text_task(TASK, {"data.name": "mnli", "data.path": str(folder), "text.max_length": 48})
    assert list(task.data.sentences.validation) == ["validation_matched", "validation_mismatched"]
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


def test_a_frozen_body_does_not_change(tmp_path, films, body):
    run = tuned(tmp_path / "run", films, {"model.from": str(body), "model.config": {}, "model.freeze": True})
    assert_same(run.model().crate.state_dict(), Run(body).model().crate.state_dict())
    assert float(run.model().head.weight.detach().abs().max()) > 0.05


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


def test_predictions_are_classes_with_probabilities(tmp_path, films):
    run = tuned(tmp_path / "run", films)
    answers = run.predict(["good nice", "awful", "ugly bad poor"])
    assert [answer[0]["label"] for answer in answers] == ["good", "bad", "bad"]
    assert [sum(entry["score"] for entry in answer) for answer in answers] == pytest.approx([1] * 3)
    assert run.predict("awful")[0][0]["score"] == pytest.approx(answers[1][0]["score"], abs=1e-6), "padding is ignored"
    summary = run.inspect(limit=5).to_dict()["summary"]
    assert summary["scores"][0]["value"] == pytest.approx(run.metrics["accuracy"])
    assert 0.5 <= summary["scores"][0]["baseline"] < 1
    assert "→" in summary["samples"][0]["answer"]


def test_predictions_of_a_causal_model(tmp_path, films):
    """Its tokenizer has no padding token."""
    run = tuned(tmp_path / "run", films, {"model.name": "crate-gpt-base"})
    answers = run.predict(["nice", "ugly bad poor"])
    assert [answer[0]["label"] for answer in answers] == ["good", "bad"]
    assert run.predict("nice")[0][0]["score"] == pytest.approx(answers[0][0]["score"], abs=1e-6)


def test_bad_data_and_models_are_refused(tmp_path, films, body):
    start = {"model.from": str(body), "model.config": {}}
    vision = {"model.name": "crate-tiny-patch16-224", "model.config": {}}
    for number, (message, data, changes) in enumerate(
        [
            ("has no column 'headline'", films, {"text.columns": ["headline"]}),
            ("has no label column 'stars'", films, {"data.label_column": "stars"}),
            ("its vocabulary differs", films, {**start, "text.tokenizer": "bpe", "text.vocab_size": 300}),
            ("positions for 16 tokens; lower text.max_length", films, {**start, "text.max_length": 64}),
            ("needs a text model such as crate-bert-base", films, vision),
            ("text.max_length is 2", films, {"text.max_length": 2}),
            ("width cannot change", films, {**start, "model.config": {"hidden_size": 64}}),
            ("give --data (or data.name)", "???", {}),
            ("give model.from=RUN", films, {"model.from": "???"}),
        ]
    ):
        refused(message, tuned, tmp_path / f"run{number}", data, changes)


def test_the_toy_recipe_has_the_toy_config():
    assert text_recipe(TASK).model.config == CONFIG
