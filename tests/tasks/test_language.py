"""Language models: what they learn, losses as naive sums, windows and masks, tokens and tokenizers, refusals."""

import math
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from codingrate.data import load_text
from codingrate.data.tokens import read_tokens
from tests.refusals import refused
from tests.runs.texts import CONFIG, text_task, train_text
from tests.runs.toys import assert_same, lines, measured, saved

TASKS = ["causal-lm", "masked-lm"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("text")
    return {task: train_text(root / task, task, {"schedule.steps": 150}) for task in TASKS}


def packed(folder, split):
    """Return the token file of a run."""
    (path,) = (folder / "tokens").glob(f"*-{split}-*.bin")
    return read_tokens(path)


# Losses


@pytest.mark.parametrize("task", TASKS)
def test_more_is_learned_than_token_frequencies(finished, task):
    folder = finished[task].folder
    counts = np.bincount(packed(folder, "train").array(), minlength=300) + 1
    ids = packed(folder, "validation").array()
    unigram = -np.log(counts / counts.sum())[ids].mean()
    assert 3.1 < unigram < 3.3
    assert finished[task].metrics["loss"] < unigram - 0.1


def test_the_loss_of_the_next_token_is_a_naive_sum(finished):
    run = finished["causal-lm"]
    ids, losses = packed(run.folder, "validation").array().astype(np.int64), []
    windows = torch.tensor(np.stack([ids[start : start + 17] for start in range(0, len(ids) - 16, 17)]))
    with torch.no_grad():
        answers = run.model()(input_ids=windows[:, :-1]).logits.double().log_softmax(-1)
    for window, answer in zip(windows.tolist(), answers, strict=True):
        losses += [-answer[position][window[position + 1]].item() for position in range(16)]
    mean, size = float(np.mean(losses)), len("".join(load_text("pydoc").validation).encode())
    assert len(losses) == len(ids) // 17 * 16
    expected = {"loss": mean, "perplexity": math.exp(mean), "bits_per_byte": mean * len(ids) / math.log(2) / size}
    assert {name: run.metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    grams = [run.task.baseline(order=n)[f"{n}-gram"]["cross_entropy"] for n in (1, 2)]
    assert all(f"{value:.4f}" in run.headline for value in (run.metrics["loss"], *grams))
    untrained = run.task.headline({**run.metrics, "loss": grams[0]})
    assert ["not learned more" in line for line in (run.headline, untrained)] == [False, True]


def test_a_batch_without_masked_tokens_has_no_loss():
    task = text_task("masked-lm")
    model, batch = task.build_model(), {"input_ids": torch.full((2, 16), 65), "labels": torch.full((2, 16), -100)}
    step, measured = task.loss(model, model, batch), task.measure(model, model, batch)
    assert float(step.loss.detach()) == float(step.metrics["accuracy"]) == 0.0
    assert measured["weight"].tolist() == measured["loss"].tolist() == [0, 0]


def test_an_epoch_draws_new_windows_and_a_seed_draws_them_again():
    def windows(seed, epoch):
        train, _ = text_task("causal-lm", {"run.seed": seed}).datasets()
        train.set_epoch(epoch)
        return torch.stack([train[index]["input_ids"] for index in range(7)])

    assert torch.equal(windows(0, 0), windows(0, 0))
    assert not torch.equal(windows(0, 0), windows(0, 1))
    assert not torch.equal(windows(0, 0), windows(1, 0))


def test_masks_follow_the_seed_in_training_and_the_block_in_evaluation():
    task = text_task("masked-lm")
    model, train = task.build_model(), task.datasets()[0]
    batch = task.collate([train[index] for index in range(31)])
    first, again, other = (task.prepare(batch, seed, model)["labels"] for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    still, single = task.prepare(batch, None, model), task.prepare(task.collate([train[3]]), None, model)
    assert torch.equal(still["labels"][3:4], single["labels"])


# Files of a run


@pytest.mark.parametrize(
    ("task", "auto", "size"), [("causal-lm", AutoModelForCausalLM, 257), ("masked-lm", AutoModelForMaskedLM, 261)]
)
def test_the_saved_model_and_tokenizer_load_with_transformers_alone(finished, task, auto, size):
    run, text = finished[task], "def naïve(x): return x + 1\n"
    tokenizer = AutoTokenizer.from_pretrained(run.model_folder())
    model = auto.from_pretrained(run.model_folder()).eval()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert (tokenizer.decode(ids), len(ids)) == (text, len(text.encode()))
    assert (model.config.vocab_size, tokenizer.model_max_length) == (size, model.config.max_tokens)
    special = (model.config.pad_token_id, model.config.eos_token_id)
    assert special == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert None not in special
    assert_same(model.state_dict(), run.model().state_dict())
    assert run.processor.get_vocab() == tokenizer.get_vocab()
    if task == "causal-lm":
        prompt = tokenizer("The ", return_tensors="pt")["input_ids"]
        assert 4 < model.generate(prompt, max_new_tokens=5, do_sample=False).shape[1] <= 9


@pytest.mark.parametrize("task", TASKS)
def test_a_resumed_run_equals_an_uninterrupted_one_and_keeps_its_tokenizer(tmp_path, task, monkeypatch):
    (tmp_path / "text.txt").write_text("".join(load_text("pydoc").train)[:30_000])
    changes = {  # four steps per epoch
        "schedule.steps": 14, "run.checkpoint_steps": 6, "run.save_total_limit": 9, "model.config.dropout": 0.1,
        "text.tokenizer": "bpe", "text.vocab_size": 300, "schedule.batch_size": 360, "run.evaluate_epochs": 1,
        "data.name": str(tmp_path / "text.txt"),
    }  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train_text(whole, task, changes)
    shutil.copytree(whole, cut)
    for late in (12, 14):
        shutil.rmtree(cut / "checkpoints" / f"checkpoint-{late}")
    files = {path: path.stat().st_mtime_ns for name in ("tokens", "tokenizer") for path in (cut / name).iterdir()}
    monkeypatch.setattr("tokenizers.Tokenizer.train_from_iterator", None, raising=False)
    train_text(cut, task, changes, resume=True)
    assert_same(saved(whole), saved(cut))
    assert measured(whole) == measured(cut)
    assert [line["step"] for line in lines(whole, "evaluation")] == [4, 8, 12, 14]
    assert files == {path: path.stat().st_mtime_ns for path in files}


def test_runs_share_token_files_in_a_cache(tmp_path):
    stamps = []
    for name in ("one", "two"):
        train_text(tmp_path / name, "causal-lm", {"text.cache": str(tmp_path / "cache"), "schedule.steps": 1})
        stamps.append({path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()})
        assert not (tmp_path / name / "tokens").exists()
    assert stamps[0] == stamps[1]
    assert len(stamps[0]) == 4


# Starting from other models


@pytest.mark.parametrize("task", TASKS)
def test_training_continues_from_a_run(finished, tmp_path, task):
    start = finished[task]
    changes = {"model.config": {}, "model.from": str(start.folder), "optimizer.lr": 1e-9, "schedule.steps": 1}
    run = train_text(tmp_path / "continued", task, changes)
    assert run.metrics["loss"] == pytest.approx(start.metrics["loss"], rel=1e-4)
    refused("leave out model.config", train_text, tmp_path / "a", task, {**changes, "model.config": CONFIG})
    message = "text.block is 17, but the model has positions for 16 tokens; lower text.block"
    refused(message, train_text, tmp_path / "b", task, {**changes, "text.block": 17})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_black_box_twins_train_too(tmp_path, precision):
    config = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    for task, name in (("causal-lm", "gpt2-base"), ("masked-lm", "bert-base")):
        changes = {"model.name": name, "model.config": config, "schedule.steps": 1, "run.precision": precision}
        run = train_text(tmp_path / name, task, changes)
        assert run.model().config.attention == "mhsa"
        assert math.isfinite(run.metrics["loss"])


# Refusals


@pytest.mark.parametrize("task", TASKS)
def test_bad_text_and_models_are_refused(tmp_path, task):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "short.txt").write_text("a few words " * 40)
    empty, short, nowhere = (str(tmp_path / name) for name in ("empty.txt", "short.txt", "nowhere"))
    other = {"causal-lm": "crate-bert-base", "masked-lm": "crate-gpt-base"}[task]
    for number, (words, changes) in enumerate(
        [
            (empty, {"data.name": empty}),
            ("block", {"data.name": short, "text.block": 64}),
            (nowhere, {"data.name": nowhere}),
            ("text.text_column", {"data.name": short, "text.text_column": "text"}),
            (f"task {task}", {"model.name": other}),
            (f"task {task}", {"model.name": "crate-tiny-patch16-224", "model.config": {}}),
            ("nobody/nothing", {"text.tokenizer": "nobody/nothing"}),
            ("/nowhere", {"text.tokenizer": "/nowhere"}),
            ("text.vocab_size", {"text.tokenizer": "bpe", "text.vocab_size": 20}),
            ("vocab_size", {"model.config.vocab_size": 100}),
            ("text.block", {"model.config.max_position_embeddings": 8}),
            ("data.name", {"data.name": "???"}),
            ("model.from", {"model.from": "???"}),
            ("tokenizer", {"model.from": nowhere, "model.config": {}}),
        ]
    ):
        refused(words, train_text, tmp_path / f"run{number}", task, changes)
        assert not (tmp_path / f"run{number}" / "recipe.yaml").exists(), "there is no run"


def test_a_model_and_a_tokenizer_that_do_not_fit(finished, tmp_path):
    bare = shutil.copytree(finished["causal-lm"].model_folder(), tmp_path / "bare")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (bare / file).unlink()
    plain, start = {"model.config": {}, "schedule.steps": 1}, str(finished["causal-lm"].folder)
    for number, (words, changes) in enumerate(
        [
            ("vocabulary", {"model.from": start, "text.tokenizer": "bpe", "text.vocab_size": 300}),
            ("tokenizer", {"model.from": str(bare)}),
            ("task causal-lm", {"model.from": str(finished["masked-lm"].folder)}),
        ]
    ):
        refused(words, train_text, tmp_path / str(number), "causal-lm", {**plain, **changes})
    run = train_text(tmp_path / "c", "causal-lm", {**plain, "model.from": str(bare), "text.tokenizer": "bytes"})
    assert (run.folder / "model" / "last" / "tokenizer.json").is_file()


# Predictions


def test_predictions_continue_prompts_and_fill_masks(finished):
    run, masked = finished["causal-lm"], finished["masked-lm"]
    assert run.predict(["The ", "A "]) == [run.predict("The ")[0], run.predict("A ")[0]]
    mask = masked.processor.mask_token
    assert [len(masks) for masks in masked.predict([f"a{mask}c", f"{mask}{mask}"])] == [1, 2]
