"""Classes and numbers of sentences by the recipe engine, from a pre-trained body or from nothing."""

import shutil

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from codingrate.data import SentenceDataset, load_sentences
from codingrate.evaluation.glue import score_sentences
from codingrate.inspection import layerwise
from codingrate.training import load_weights, saved_model
from codingrate.training.tasks import task_of
from tests.refusals import refused

from .texts import CONFIG, run_text, text_recipe, write_csv, write_pairs, write_sentences
from .toys import assert_same, lines, measured, saved

TASK = "sequence-classification"
PAIR = ["sentence1", "sentence2"]


def same(one, two):
    return int(one == two)


def near(one, two):
    return 4.5 if one == two else 0.5


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    """A short run of a masked language model."""
    return run_text(tmp_path_factory.mktemp("body") / "run", "masked-lm", {"schedule.steps": 30}).folder


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    return str(write_sentences(tmp_path_factory.mktemp("films") / "films.csv"))


def tuned(folder, data, changes=None, **options):
    """Six passes over the sentences."""
    fixed = {"data.name": data, "schedule.steps": None, "schedule.epochs": 6, "schedule.warmup_steps": 0}
    return run_text(folder, TASK, {**fixed, "optimise.lr": 1e-2, **(changes or {})}, **options)


@pytest.mark.parametrize("model", ["crate-bert-base", "crate-gpt-base", "bert-base"])
def test_from_nothing(tmp_path, films, model):
    result = tuned(tmp_path / "run", films, {"model.name": model})
    assert result.metrics["accuracy"] > 0.9
    assert result.model.config.id2label == {0: "bad", 1: "good"}
    assert result.model.config.causal == (model == "crate-gpt-base")
    assert result.headline == f"accuracy {result.metrics['accuracy']:.2%}, validation loss {result.metrics['loss']:.4f}"


def test_from_a_run_with_its_tokenizer_and_a_fresh_head(tmp_path, films, body):
    changes = {"model.from": str(body), "model.config": {}}
    start = task_of(text_recipe(TASK, {**changes, "data.name": films}))
    model = start.build_model(start.load_data())
    weights, before = dict(model.crate.state_dict()), dict(load_weights(str(body)).crate.state_dict())
    assert_same(weights, before)
    result = tuned(tmp_path / "run", films, changes)
    assert result.metrics["accuracy"] > 0.9
    folder = tmp_path / "run" / "model" / "last"
    assert (
        AutoTokenizer.from_pretrained(folder).get_vocab()
        == AutoTokenizer.from_pretrained(body / "tokenizer").get_vocab()
    )
    assert_same(dict(AutoModelForSequenceClassification.from_pretrained(folder).state_dict()), saved(tmp_path / "run"))
    again = tuned(tmp_path / "again", films, {"model.from": str(tmp_path / "run"), "model.config": {}, "run.seed": 1})
    assert not torch.equal(again.model.head.weight, result.model.head.weight)


def test_the_figures_are_those_of_evaluation(tmp_path, films, body):
    result = tuned(tmp_path / "run", films, {"model.from": str(body), "model.config": {}, "schedule.epochs": 1})
    data = load_sentences(films)
    tokenizer = AutoTokenizer.from_pretrained(saved_model(tmp_path / "run", "last"))
    rows = SentenceDataset(data.validation["validation"], data.columns, tokenizer, 16, data.label_column)
    found = score_sentences(load_weights(str(saved_model(tmp_path / "run", "last"))), rows, ["accuracy"], batch_size=7)
    assert result.metrics["accuracy"] == pytest.approx(found["accuracy"], abs=1e-9)
    assert result.metrics["loss"] == pytest.approx(found["loss"], rel=1e-5)


def test_a_glue_task_is_measured_its_own_way(tmp_path):
    folder = write_pairs(tmp_path / "mrpc", PAIR, same)
    changes = {"data.path": str(folder), "schedule.epochs": 2, "run.evaluate_epochs": 1, "text.max_length": 48}
    result = tuned(tmp_path / "run", "mrpc", changes)
    assert {"f1", "accuracy", "loss"} <= set(result.figures)
    assert result.headline.startswith("accuracy ")
    assert "F1 " in result.headline
    assert result.model.config.id2label == {0: "not_equivalent", 1: "equivalent"}
    best = max(line["eval_f1"] for line in lines(tmp_path / "run", "evaluation"))
    data = load_sentences("mrpc", path=folder)
    rows = SentenceDataset(
        data.validation["validation"], data.columns, AutoTokenizer.from_pretrained(tmp_path / "run" / "tokenizer"), 48
    )
    found = score_sentences(load_weights(str(saved_model(tmp_path / "run", "best"))), rows, ["f1"])
    assert found["f1"] == pytest.approx(best, abs=1e-9), "model/best is the one with the best F1"


def test_numbers(tmp_path):
    folder = write_pairs(tmp_path / "stsb", PAIR, near)
    changes = {"data.path": str(folder), "schedule.epochs": 3, "text.max_length": 48}
    result = tuned(tmp_path / "run", "stsb", changes)
    assert result.model.config.num_labels == 1
    assert {"spearman", "pearson"} <= set(result.figures)
    losses = [line["loss"] for line in lines(tmp_path / "run", "training")]
    assert losses[-1] < losses[0]
    words = write_csv(tmp_path / "words.csv", ["sentence", "label"], [(f"sentence {i}", "much") for i in range(40)])
    refused("is not a number", tuned, tmp_path / "a", str(words), {"text.regression": True})


def test_two_development_sets_are_told_apart(tmp_path):
    folder = write_pairs(tmp_path / "mnli", ["premise", "hypothesis"], lambda one, two: 0 if one == two else 2)
    shutil.move(folder / "validation.csv", folder / "validation_matched.csv")
    rows = [("good", "good", 0), ("bad", "good", 2), ("nice", "ugly", 2)]
    write_csv(folder / "validation_mismatched.csv", ["premise", "hypothesis", "label"], rows)
    recipe = text_recipe(TASK, {"data.name": "mnli", "data.path": str(folder), "text.max_length": 48})
    task = task_of(recipe)
    data = task.load_data()
    assert list(data.sentences.validation) == ["validation_matched", "validation_mismatched"]
    assert len(task.datasets(data, 0, 1)[1]) == 31


def test_resumed_is_uninterrupted(tmp_path, films, body):
    changes = {
        "model.from": str(body), "model.config": {"dropout": 0.1}, "schedule.epochs": 4, "run.checkpoint_epochs": 1,
        "run.keep": 9, "run.evaluate_epochs": 1,
    }  # fmt: skip
    tuned(tmp_path / "whole", films, changes)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    for late in (12, 18, 24):
        shutil.rmtree(tmp_path / "killed" / "checkpoints" / f"checkpoint-{late}")
    tuned(tmp_path / "killed", films, changes, resume=True)
    assert_same(saved(tmp_path / "whole"), saved(tmp_path / "killed"))
    assert measured(tmp_path / "whole") == measured(tmp_path / "killed")


def test_a_frozen_body_stays_as_it_was(tmp_path, films, body):
    result = tuned(tmp_path / "run", films, {"model.from": str(body), "model.config": {}, "model.freeze": True})
    assert_same(dict(result.model.crate.state_dict()), dict(load_weights(str(body)).crate.state_dict()))
    assert float(result.model.head.weight.detach().abs().max()) > 0.05


def test_layers_are_measured_without_padding(tmp_path, films):
    changes = {"run.layerwise_epochs": 1, "run.layerwise_images": 5, "schedule.epochs": 1}
    result = tuned(tmp_path / "run", films, changes)
    task = task_of(text_recipe(TASK, {"data.name": films}))
    _, rows = task.datasets(task.load_data(result.folder), 0, 1)
    batches = [torch.tensor([rows[index]["input_ids"]]) for index in range(5)]
    assert len({batch.shape[1] for batch in batches}) > 1
    table = layerwise(result.model, batches)
    assert lines(tmp_path / "run", "layerwise")[-1]["layers"] == table.to_dict("records")


def test_a_tokenizer_learnt_from_the_sentences(tmp_path, films):
    result = tuned(tmp_path / "run", films, {"text.tokenizer": "bpe", "text.vocab_size": 270, "schedule.epochs": 1})
    ids = AutoTokenizer.from_pretrained(result.folder / "model" / "last")("good", add_special_tokens=False)["input_ids"]
    assert len(ids) < 4


def test_bad_data_and_models_are_refused(tmp_path, films, body):
    start = {"model.from": str(body), "model.config": {}}
    for number, (message, data, changes) in enumerate(
        [
            ("no column 'headline'", films, {"text.columns": ["headline"]}),
            ("no label column 'stars'", films, {"data.label_column": "stars"}),
            ("has another vocabulary", films, {**start, "text.tokenizer": "bpe", "text.vocab_size": 300}),
            ("positions for 16 tokens; lower text.max_length", films, {**start, "text.max_length": 64}),
            (
                "needs a text model such as crate-bert-base",
                films,
                {"model.name": "crate-tiny-patch16-224", "model.config": {}},
            ),
            ("`max_length` is 2", films, {"text.max_length": 2}),
            ("width cannot change", films, {**start, "model.config": {"hidden_size": 64}}),
            ("give data.name or --data", "???", {}),
            ("give model.from=RUN", films, {"model.from": "???"}),
        ]
    ):
        refused(message, tuned, tmp_path / f"run{number}", data, changes)


def test_the_toy_is_what_it_seems():
    assert text_recipe(TASK).model.config == CONFIG
