"""The Python API as a user calls it: train, open a run or a model, evaluate, predict, and look inside."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file

import codingrate as cr
from codingrate.recipes import Recipe, load_recipe, save_recipe
from codingrate.tasks import ClassificationReport
from tests.models import released_files
from tests.pages import Reader
from tests.refusals import refused

from .texts import train_text, write_sentences
from .toys import assert_same, digit_pictures, digits_images, dino, lines, mae, naive_metrics, saved, train_toy

TINY = {
    "model.config.hidden_size": 24,
    "model.config.num_hidden_layers": 2,
    "model.config.num_attention_heads": 3,
    "model.config.class_token": True,
    "model.config.pooling": "class",
    "optimizer.lr": 3e-3,
    "schedule.epochs": 2,
    "schedule.batch_size": 360,
    "schedule.warmup_epochs": 0,
    "run.checkpoint_steps": 4,
    "run.layerwise_epochs": 1,
    "run.log_steps": 2,
}

TUNED = ["schedule.steps=2", "schedule.batch_size=20", "run.per_device_batch_size=20"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run of the shipped recipe `digits` with tiny settings."""
    return cr.train("digits", output=tmp_path_factory.mktemp("run") / "digits", overrides=TINY, quiet=True)


@pytest.fixture(scope="module")
def train_tiny(few, tmp_path_factory):
    """Return a function that trains two steps on a few digits."""
    return lambda name, changes: train_toy(
        tmp_path_factory.mktemp(name) / name, {**changes, **few, "schedule.steps": 2}
    )


@pytest.fixture(scope="module")
def twin(train_tiny):
    """Return a black-box run on the same kind of images."""
    return train_tiny("vit", {"model.name": "vit-tiny-patch16-224"})


@pytest.fixture(scope="module")
def autoencoder(train_tiny):
    return train_tiny("mae", mae())


@pytest.fixture(scope="module")
def teacher(train_tiny):
    return train_tiny("dino", dino())


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    return train_text(tmp_path_factory.mktemp("gpt") / "gpt", "causal-lm", {"schedule.steps": 3})


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return train_text(tmp_path_factory.mktemp("bert") / "bert", "masked-lm", {"schedule.steps": 3})


# Recipe, history, model


def test_training_returns_the_run_that_is_opened_by_its_folder(run):
    for one in (run, cr.Run(run.folder), cr.Run(str(run.folder))):
        assert (one.folder, one.run_folder, one.name) == (run.folder, run.folder, "digits")
        assert isinstance(one.recipe, Recipe)
        assert (one.recipe.optimizer.lr, one.recipe.model.config["hidden_size"]) == (3e-3, 24)
        assert (one.recipe, one.recipe.augment) == (run.recipe, cr.load_recipe("digits").augment)
        assert "lr: 0.003" in one.recipe_text
        assert one.metrics == pytest.approx(naive_metrics(run.model()), rel=1e-5)
        assert one.headline.startswith(f"top-1 {one.metrics['top1']:.2%}")
        assert one.parameters() == run.model().num_parameters()
        assert (one.seconds > 0, repr(one)) == (True, f"Run({str(run.folder)!r})")


def test_the_history_is_a_table(run):
    history = run.history
    assert list(history.columns[:3]) == ["kind", "step", "epoch"]
    assert len(history) == len(lines(run.folder))
    steps = {kind: table.step.tolist() for kind, table in history.groupby("kind")}
    assert (steps["training"], steps["layerwise"]) == ([1, 2, 4, 6, 8], [0, 4, 8])
    losses = [line["loss"] for line in lines(run.folder, "training")]
    assert history[history.kind == "training"].loss.tolist() == losses
    assert history[history.kind == "evaluation"].eval_top1.tolist()[-1] == run.metrics["top1"]


def test_models_are_the_last_the_best_or_that_of_a_step(run):
    for checkpoint, name in (("last", "last"), ("best", "best"), (8, "last")):
        model = run.model(checkpoint)
        assert isinstance(model, cr.CrateForImageClassification)
        assert not model.training
        assert_same(model.state_dict(), saved(run.folder, name))
        with torch.no_grad():
            model.head.weight.zero_()  # of this copy alone
    assert_same(run.model().state_dict(), saved(run.folder, "last"))
    assert run.evaluate().top1 == pytest.approx(run.metrics["top1"])
    assert not torch.equal(run.model(4).head.weight, run.model(8).head.weight)
    for checkpoint in (5, "lats"):
        refused(str(checkpoint), run.model, checkpoint)


def test_a_run_that_is_open_while_it_is_trained_follows_it(few, tmp_path):
    changes, seen = {**few, "optimizer.lr": 0.02}, []
    opened = train_toy(tmp_path / "run", {**changes, "schedule.steps": 2})
    for _ in range(2):
        assert opened.evaluate().loss == pytest.approx(opened.metrics["loss"], rel=1e-5)
        seen.append((opened.metrics["loss"], opened.predict(digit_pictures(1))))
        shutil.rmtree(tmp_path / "run")
        train_toy(tmp_path / "run", {**changes, "schedule.steps": 8})
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]


def test_the_checkpoint_of_an_averaged_run_is_the_average(few, tmp_path):
    averaged = train_toy(tmp_path / "run", {**few, "run.ema": 0.7, "schedule.steps": 4, "run.checkpoint_steps": 4})
    assert_same(averaged.model(4).state_dict(), saved(averaged.folder))
    folder = averaged.folder / "checkpoints" / "checkpoint-4"
    assert not torch.equal(averaged.model(4).head.weight, load_file(folder / "model.safetensors")["head.weight"])
    assert_same(cr.Run(folder).model().state_dict(), saved(averaged.folder))


# Evaluation and prediction


def test_evaluation_of_checkpoints_splits_and_other_data(run, few, tmp_path):
    report = run.evaluate()
    assert isinstance(report, ClassificationReport)
    assert report.metrics == pytest.approx(run.metrics, rel=1e-5)
    assert (report.data, report.split, report.images) == ("digits", "test", 359)
    best = max(line["eval_top1"] for line in lines(run.folder, "evaluation"))
    assert run.evaluate(checkpoint="best", batch_size=7).top1 == pytest.approx(best)
    assert run.evaluate(checkpoint=8).metrics == pytest.approx(report.metrics, rel=1e-6)
    others = (run.evaluate(split="train"), run.evaluate("digits"), run.evaluate(few["data.name"]))
    assert [other.images for other in others] == [1438, 359, 23]
    refused("split", run.evaluate, split="tset")
    folder = report.save(tmp_path / "evaluation")
    assert json.loads((folder / "metrics.json").read_text())["top1"] == report.top1
    assert f"top-1 {report.top1:.2%}" in Reader.of(report._repr_html_()).text


def test_predict_reads_files_and_pictures(run, tmp_path):
    (picture,) = digit_pictures(1)
    picture.save(tmp_path / "digit.png")
    single = run.predict(picture)
    assert run.predict(tmp_path / "digit.png") == run.predict(str(tmp_path / "digit.png")) == single
    assert run.predict(digit_pictures(3))[0][0]["score"] == pytest.approx(single[0][0]["score"], abs=1e-6)
    assert run.predict(picture, checkpoint=4) != single


def test_progress_is_told_how_much_is_done(run):
    seen = []

    @contextlib.contextmanager
    def bar(description, total):
        seen.append([description, total, 0])
        yield lambda amount=1: seen[-1].append(seen[-1].pop() + amount)

    cr.Run(run.folder, progress=bar).evaluate()
    assert seen == [["evaluate", 0, 359]], "the total becomes known when the data are read"


# Inside the model


def test_inspect_compares_models_and_writes_a_report(run, twin, tmp_path):
    report = run.inspect(limit=16, compare=[twin], batch_size=5)
    assert len(report.panels) > 4
    assert all(panel.title and panel.name for panel in report.panels)
    assert sorted(report.tables) == ["digits", "vit"]
    assert sorted(report.to_dict()["panels"]) == sorted(panel.name for panel in report.panels)
    brief = replace(report, panels=report.panels[:2])  # drawing all figures takes seconds
    folder = brief.save(tmp_path / "report")
    assert json.loads((folder / "report.json").read_text()) == brief.to_dict()
    text = Reader.of((folder / "report.html").read_text()).text
    assert all(words in text for words in (report.title, *(score.text for score in report.outcome.scores)))
    assert "<iframe" in brief._repr_html_()
    accuracies = {
        name: one.on_data("digits").evaluate(one.loaded(), limit=16).top1
        for name, one in (("digits", run), ("vit", twin))
    }
    assert {score.model: score.value for score in report.outcome.scores} == accuracies
    alone = run.inspect(limit=16, layers=[1], checkpoint="best")
    assert ([score.model for score in alone.outcome.scores], list(alone.tables)) == ([""], ["digits"])
    same = run.inspect(limit=16, compare=[str(twin.folder)], batch_size=3)
    pd.testing.assert_frame_equal(same.tables["vit"], report.tables["vit"], rtol=1e-4)


def test_a_compared_model_is_measured_with_its_own_preprocessing(autoencoder, tmp_path):
    shutil.copytree(autoencoder.folder, tmp_path / "shifted")
    recipe = tmp_path / "shifted" / "recipe.yaml"
    save_recipe(load_recipe(str(recipe), [{"augment.mean": [2.0]}]), recipe)
    runs = [autoencoder, cr.Run(tmp_path / "shifted")]
    losses = [run.task.evaluate(run.loaded(), limit=16).loss for run in runs]
    assert losses[0] != losses[1]
    scores = autoencoder.inspect(limit=16, layers=[1], compare=runs[1:]).outcome.scores
    assert [score.value for score in scores] == losses


def test_models_that_cannot_be_compared(run, gpt):
    for other in (run, gpt, "crate-tiny-patch16-224"):
        refused(getattr(other, "name", other), run.inspect, compare=[other], limit=4)
    refused("pydoc", run.inspect, data="pydoc", limit=4)


def test_attention_and_segments_of_pictures(run, tmp_path):
    pictures = digit_pictures(2)
    maps = run.attention(pictures, layers=[0, -1])
    assert [[entry.layer for entry in layers] for layers in maps] == [[0, 1], [0, 1]]
    entry = maps[1][0]
    assert list(entry.maps) == ["head 1", "head 2", "head 3", "mean"]
    assert all(own.sum() == pytest.approx(1, abs=1e-4) for own in entry.maps.values())
    assert entry.grid().width > entry.image.width
    pictures[0].save(tmp_path / "digit.png")
    (segments,) = run.segment([tmp_path / "digit.png"], masks=2, refine=False)
    assert len(segments) <= 2
    assert all(segment.mask.shape == (8, 8) and 0 <= segment.cut_quality <= 1 for segment in segments)


def test_probe_measures_trained_untrained_and_pixel_features(run, teacher, tmp_path):
    for features, width in (("trained", 24), ("untrained", 24), ("pixels", 64)):
        report = run.probe("knn", features, limit=200, ks=[1, 5])
        assert 0 < report.metrics["top1"] <= 1
        assert (report.about["features"], report.width) == (features, width)
        assert report.images == {"train": 200, "test": 200}
    logistic = run.probe(limit=100)
    assert logistic.method == "logistic"
    assert logistic.save(tmp_path / "probe").joinpath("metrics.json").is_file()
    assert teacher.probe("knn", data="digits", limit=100, ks=[5]).width == 24
    refused("svm", run.probe, "svm", limit=20)


def test_finetune_makes_a_run_of_its_own(run, few, tmp_path):
    tuned = run.finetune(tmp_path / "tuned", TUNED, data=few["data.name"], quiet=True)
    assert tuned.recipe.source == str(run.model_folder())
    assert tuned.recipe.optimizer.lr == cr.load_recipe("finetune-cifar10").optimizer.lr
    assert tuned.recipe.augment.image_size == 8
    assert lines(tuned.folder, "evaluation")[-1]["step"] == 2


def test_reconstruct_shows_masked_images(autoencoder, tmp_path):
    pictures = digit_pictures(3)
    result = autoencoder.reconstruct(pictures, seed=3)
    torch.testing.assert_close(result.columns[0], digits_images(3)[0])
    names, labels = autoencoder.reconstruct(count=5).names, autoencoder.task.data.test["label"]
    assert len({labels[int(name.removeprefix("test image "))] for name in names}) == 5, "five classes"
    pictures[0].save(tmp_path / "digit.png")
    assert autoencoder.reconstruct([tmp_path / "digit.png"], seed=3).losses == pytest.approx(result.losses[:1])


def test_text_is_generated_measured_and_filled(gpt, bert, tmp_path):
    result = gpt.generate("The ", tokens=5, seed=3)
    assert (result.prompt, result.tokens) == ("The ", 5)
    assert result.text == gpt.generate("The ", tokens=5, seed=3).text
    assert len({gpt.generate("The ", tokens=8, seed=seed).text for seed in range(4)}) > 1
    assert gpt.predict("The ")[0] == gpt.generate("The ", do_sample=False).text
    report = gpt.perplexity(limit=200)
    assert report.cross_entropy == pytest.approx(np.log(report.perplexity))
    (tmp_path / "passages.txt").write_text("one two three\nfour five six\n")
    assert gpt.lambada(tmp_path / "passages.txt").texts == 2
    ((*candidates,),) = bert.fill("a <mask> b", top=3)
    assert len(candidates) == 3
    assert candidates == sorted(candidates, key=lambda candidate: -candidate.probability)
    assert [set(one.baseline()) for one in (gpt, bert)] == [{"3-gram"}, {"unigram"}]
    assert gpt.inspect(limit=4).panels


@pytest.mark.parametrize("name", ["generate", "fill", "reconstruct", "perplexity", "lambada", "evaluate_real"])
def test_a_run_of_another_task_is_refused(name, run, autoencoder, tmp_path):
    one = autoencoder if name == "evaluate_real" else run
    arguments = {"generate": ["x"], "fill": ["x"], "lambada": [tmp_path / "x"], "evaluate_real": [tmp_path / "x"]}
    line = refused("needs a run of task", getattr(one, name), *arguments.get(name, []))
    assert line.startswith(f"{one.source}: its task is {one.recipe.task}")


def test_text_models_do_not_read_images(gpt):
    for call, *arguments in ((gpt.attention, digit_pictures(1)), (gpt.segment, digit_pictures(1)), (gpt.probe,)):
        refused("", call, *arguments)


# Models that are not runs


def test_a_model_inside_a_run_belongs_to_it(run):
    for part, checkpoint in (("model/best", "best"), ("checkpoints/checkpoint-4", 4)):
        inner = cr.Run(run.folder / part)
        assert (inner.run_folder, inner.name, inner.recipe) == (run.folder, part.split("/")[1], run.recipe)
        assert_same(inner.model().state_dict(), run.model(checkpoint).state_dict())
        assert inner.evaluate().metrics == pytest.approx(run.evaluate(checkpoint=checkpoint).metrics)
        assert len(inner.history) == len(run.history)


def test_a_saved_model_without_its_run_answers_the_same(run, gpt, bert, tmp_path):
    """The saved image processor and tokenizer say how its inputs are read."""
    films = str(write_sentences(tmp_path / "films.csv"))
    critic = train_text(tmp_path / "run", "sequence-classification", {"data.name": films, "schedule.steps": 3})
    for one, inputs, data in (
        (run, digit_pictures(3), "digits"),
        (gpt, ["The ", "A "], "pydoc"),
        (bert, ["a <mask> b"], "pydoc"),
        (critic, ["good", "ugly bad"], films),
    ):
        folder = tmp_path / "alone" / one.name
        shutil.copytree(one.model_folder(), folder)
        alone = cr.Run(folder)
        assert (alone.folder, alone.run_folder, alone.recipe, alone.recipe_text) == (folder, None, None, None)
        assert alone.predict(inputs) == one.predict(inputs)
        assert alone.parameters() == one.parameters()
        if one is not critic:  # whose validation sentences are part of this file
            assert alone.evaluate(data).metrics == pytest.approx(one.evaluate().metrics, rel=1e-5)
        refused("recipe.yaml", lambda alone=alone: alone.history)
        refused("dataset", alone.evaluate)


def test_a_model_name_has_random_weights_from_a_fixed_seed():
    one, two = cr.Run("crate-tiny-patch16-224"), cr.Run("crate-tiny-patch16-224")
    assert (one.untrained, one.folder, one.run_folder, one.recipe) == (True, None, None, None)
    assert (one.name, one.task.recipe.task) == ("crate-tiny-patch16-224", "classification")
    torch.manual_seed(3)
    assert_same(one.model().state_dict(), two.model().state_dict())
    assert one.task.recipe.augment.image_size == 224
    assert len(one.attention(digit_pictures(1), layers=[-1])[0]) == 1
    refused("does not name a dataset", one.evaluate)


def test_a_released_file_is_opened(tmp_path):
    shapes = released_files.classifier(d=384, depth=2, side=4, patches=16, classes=7)
    file = released_files.write(tmp_path, released_files.random_values(shapes))
    one = cr.Run(file)
    assert one.folder is None
    assert one.model().config.num_labels == 7
    assert_same(one.model().state_dict(), cr.load_released(file).state_dict())


def test_a_run_folder_given_to_the_models_names_the_call_that_opens_it(run):
    refused("codingrate.load(", cr.CrateForImageClassification.from_pretrained, run.folder)
    refused("codingrate.load(", cr.create_model, str(run.folder))
    assert type(cr.load(run.folder)) is cr.CrateForImageClassification


@pytest.mark.parametrize("source", ["runs/nowhere/at/all", "crate-tiny-patch61-224", "/nowhere", "file.pth"])
def test_sources_that_are_nothing(source):
    refused(f"unknown run folder, checkpoint file or model {source!r}", cr.Run, source)


def test_folders_without_a_model(tmp_path):
    cr.Run.start(tmp_path / "new", cr.load_recipe("digits"))[0].write_recipe()
    started = cr.Run(tmp_path / "new")
    assert len(started.history) == 0
    for one in (started, cr.Run(tmp_path)):
        refused(str(one.folder), one.model)


# Global state


def global_state():
    from datasets.utils.logging import is_progress_bar_enabled
    from transformers.utils import logging as transformers_logging

    loggers = {name: logging.getLogger(name) for name in ("", "codingrate", "transformers")}
    return {
        "python": random.getstate(),
        "numpy": [str(part) for part in np.random.get_state()],
        "torch": torch.get_rng_state().tolist(),
        "environment": dict(os.environ),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "verbosity": transformers_logging.get_verbosity(),
        "bars": (transformers_logging.is_progress_bar_enabled(), is_progress_bar_enabled()),
        "loggers": {name: (logger.level, *logger.handlers) for name, logger in loggers.items()},
        "folder": os.getcwd(),
        "filters": list(warnings.filters),
    }


@pytest.fixture
def changed_state():
    """Return a function that calls another one and returns the names of the global state that it changed."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)  # a level that the package does not set

    def call(function):
        random.seed(11)
        np.random.seed(11)
        torch.manual_seed(11)
        before = global_state()
        function()
        after = global_state()
        return [key for key in before if before[key] != after[key]]

    yield call
    transformers.logging.set_verbosity(verbosity)


def test_no_call_changes_global_state(run, twin, autoencoder, teacher, gpt, bert, few, tmp_path, changed_state):
    pictures, numbers, report = digit_pictures(2), iter(range(100)), run.inspect(limit=4)
    calls = {
        "train": lambda: train_toy(tmp_path / str(next(numbers)), {**few, "model.config.dropout": 0.1}),
        "train text": lambda: train_text(tmp_path / str(next(numbers)), "masked-lm", {"schedule.steps": 1}),
        "train dino": lambda: train_toy(tmp_path / str(next(numbers)), dino({**few, "schedule.steps": 1})),
        "create": lambda: cr.Run("crate-tiny-patch16-224").model(),
        "open": lambda: (cr.Run(run.folder).model(), cr.Run(run.folder).history, cr.Run(run.folder).processor),
        "evaluate": lambda: (run.evaluate(), autoencoder.evaluate(), bert.evaluate(), gpt.evaluate()),
        "predict": lambda: (run.predict(pictures), gpt.predict("The "), bert.predict("a <mask>")),
        "generate": lambda: gpt.generate("The ", tokens=3),
        "reconstruct": lambda: autoencoder.reconstruct(pictures),
        "inspect": lambda: (run.inspect(limit=4, compare=[twin]), gpt.inspect(limit=4)),
        "save": lambda: replace(report, panels=report.panels[:2]).save(tmp_path / "report"),
        "attention": lambda: (run.attention(pictures), run.segment(pictures)),
        "probe": lambda: [teacher.probe("knn", features, limit=40, ks=[3]) for features in ("trained", "untrained")],
        "logistic": lambda: run.probe(limit=40),
        "finetune": lambda: run.finetune(
            tmp_path / str(next(numbers)), TUNED, data=few["data.name"], quiet=True,
        ),
    }  # fmt: skip
    assert {name: changes for name, call in calls.items() if (changes := changed_state(call))} == {}


# Damaged runs


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    return train_toy(tmp_path_factory.mktemp("short") / "run", {"schedule.steps": 1}).folder


@pytest.fixture
def damaged(tmp_path, short_run):
    """A copy of a run of one step, to be damaged."""
    return shutil.copytree(short_run, tmp_path / "damaged")


@pytest.mark.parametrize("checkpoint", ["last", 1])
def test_a_model_that_is_not_as_it_was_written_is_refused(damaged, checkpoint):
    folder = cr.Run(damaged).model_folder(checkpoint)
    (folder / "README.md").write_text("my model")  # the card may change
    assert cr.Run(damaged).model(checkpoint).num_parameters() > 0
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-9] ^= 4
    (folder / "model.safetensors").write_bytes(weights)
    refused("model.safetensors", cr.Run(damaged).model, checkpoint)
    refused("model.safetensors", cr.Run(folder).model)
    (folder / "manifest.json").unlink()
    assert cr.Run(damaged).model(checkpoint).num_parameters() > 0


def test_a_source_that_is_damaged_is_refused(damaged, tmp_path):
    (damaged / "model" / "last" / "config.json").write_text("{}")
    changes = {"model.from": str(damaged), "model.config": {}, "schedule.steps": 1}
    refused("config.json has ", train_toy, tmp_path / "new", changes)


@pytest.mark.parametrize(
    "line",
    [
        "half a line", "[1]", "{}", '{"kind": "evaluation"}', '{"kind": "evaluation", "step": "x", "epoch": 1}',
        '{"kind": "evaluation", "step": 1, "epoch": 1, "eval_loss": "low"}', '{"kind": "end", "step": 1, "epoch": 1}',
        '{"kind": "layerwise", "step": 1, "epoch": 1, "layers": [{"layer": 1}]}', "[" * 5000, "\0", "",
    ],
)  # fmt: skip
def test_a_damaged_line_of_metrics_is_an_error(damaged, line):
    """Without it, the metrics of an earlier evaluation would be given."""
    with (damaged / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    number = len((damaged / "metrics.jsonl").read_text().splitlines())
    for value in ("metrics", "history", "finished", "seconds"):
        refused(f"metrics.jsonl: line {number} is damaged", getattr, cr.Run(damaged), value)
    (damaged / "metrics.jsonl").unlink()
    refused("metrics.jsonl: cannot be read", getattr, cr.Run(damaged), "metrics")


@pytest.mark.parametrize("text", ["a\ud800", ("a", "b\ud800"), "x\udcff.png"])
def test_texts_that_are_not_unicode(damaged, gpt, bert, text):
    refused("is not UTF-8", cr.Run(damaged).predict, [text])
    if isinstance(text, str):
        refused("a lone surrogate", gpt.generate, text)
        refused("a lone surrogate", bert.fill, f"{text} <mask>")


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "8", 10**30])
def test_batch_sizes_that_are_not(run, gpt, bert, size):
    for call in (run.evaluate, gpt.evaluate, gpt.perplexity, bert.evaluate, run.probe, run.inspect):
        refused("batch_size", call, batch_size=size)
    refused("batch_size", run.predict, [Image.new("L", (8, 8))], batch_size=size)


# Recipes that cannot be trained


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run.per_device_batch_size": 7}, "schedule.batch_size 360"),
        ({"data.streaming": True}, "schedule.steps"),
        ({"data.streaming": True, "schedule.steps": 2, "schedule.warmup_epochs": 1}, "schedule.warmup_steps"),
        ({"data.name": "digit"}, "'digits'"),
        ({"data.name": "???"}, "data.name"),
        ({"model.from": "???"}, "model.from"),
        ({"augment.image_size": 9}, "patch_size 4"),
        ({"augment.channels": 3, "augment.mean": [0.5]}, "augment.mean"),
        ({"model.config.id2label": {0: "a"}}, "model.config.id2label is set by the data and by training; leave it out"),
        ({"model.config.num_labels": 1}, "model.config.num_labels is set by the data"),
        ({"model.config.return_dict": False}, "model.config.return_dict is set by the data"),
        ({"model.config.num_channels": 3}, "model.config.num_channels is set by the images; set augment.channels"),
        ({"model.config.head_dim": -1}, "head_dim is -1"),
        ({"run.fsdp": True}, "run.fsdp=true shards a model over several processes; use torchrun"),
        ({"data.test_share": 1}, "data.test_share=1 leaves nothing to train on"),
        ({"schedule.steps": 2, "optimizer.weight_decay": 1e12}, "the evaluation loss is nan at step 2"),
    ],
    ids=str,
)
def test_recipes_that_cannot_be_trained(tmp_path, changes, message):
    refused(message, train_toy, tmp_path / "run", {"schedule.epochs": 1, **changes})
    assert not (tmp_path / "run" / "model").exists()
    assert "???" not in changes.values() or not (tmp_path / "run").exists(), "refused before anything is written"
