"""Language models: what they learn, losses as naive sums, windows and masks, tokens and tokenizers, refusals."""

import math
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from codingrate.data import Blocks, balanced_indices, load_text, mask_own_tokens, read_tokens
from codingrate.inspection import layerwise
from codingrate.models import CrateForCausalLM
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
    assert len(losses) == len(ids) // 17 * 16
    mean = float(np.mean(losses))
    text = "".join(load_text("pydoc").validation)
    bits = mean * len(ids) / math.log(2) / len(text.encode())
    assert run.metrics["loss"] == pytest.approx(mean, rel=1e-5)
    assert run.metrics["perplexity"] == pytest.approx(math.exp(mean), rel=1e-4)
    assert run.metrics["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    values = [run.metrics[name] for name in ("loss", "perplexity", "bits_per_byte")]
    grams = [run.task.baseline(order=n)[f"{n}-gram"]["cross_entropy"] for n in (1, 2)]
    expected = (
        "validation loss {:.4f} nats per token (unigram {:.4f}, bigram {:.4f}), perplexity {:.2f}, {:.4f} bits per byte"
    )
    assert run.headline == expected.format(values[0], *grams, *values[1:])
    assert "has not learned more" not in run.headline
    untrained = run.task.headline({**run.metrics, "loss": grams[0]})
    assert "it has not learned more than token frequencies yet" in untrained


def test_the_loss_of_masked_tokens_is_a_naive_sum(finished):
    run = finished["masked-lm"]
    blocks = torch.stack([sample["input_ids"] for sample in Blocks(packed(run.folder, "validation"), 16)])
    masked, labels = mask_own_tokens(blocks, run.processor, 0.15)
    with torch.no_grad():
        answers = run.model()(input_ids=masked).logits.double().log_softmax(-1)
    losses, correct = [], []
    for answer, wanted in zip(answers, labels.tolist(), strict=True):
        for position, label in enumerate(wanted):
            if label >= 0:
                losses.append(-answer[position][label].item())
                correct.append(int(answer[position].argmax()) == label)
    assert len(losses) / blocks.numel() == pytest.approx(0.15, abs=0.01)
    assert run.metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert run.metrics["accuracy"] == pytest.approx(np.mean(correct), abs=1e-7)
    unigram = run.task.baseline()["unigram"]["cross_entropy"]
    assert f"nats per masked token (unigram {unigram:.4f}" in run.headline
    assert run.headline.endswith(f"accuracy {np.mean(correct):.2%}")
    report = run.evaluate(batch_size=13)
    assert (report.cross_entropy, report.tokens) == (pytest.approx(np.mean(losses), rel=1e-5), len(losses))
    assert report.accuracy == pytest.approx(np.mean(correct), abs=1e-7)


def test_the_training_loss_is_the_models_own():
    """The loss of a window of block + 1 tokens is the model's loss with its ids as labels."""
    task = text_task("causal-lm")
    model, train = task.build_model().eval(), task.datasets()[0]
    assert len(train) == len(task.tokens("train")) // 16
    ids = torch.stack([train[index]["input_ids"] for index in range(5)])
    assert ids.shape == (5, 17)
    step = task.loss(model, model, task.collate([train[index] for index in range(5)]))
    wider = CrateForCausalLM(type(model.config)(**{**model.config.to_dict(), "max_position_embeddings": 17}))
    weights = model.state_dict()
    weights["crate.embedding.positions.weight"] = F.pad(weights["crate.embedding.positions.weight"], (0, 0, 0, 1))
    wider.load_state_dict(weights)
    expected = wider.eval()(input_ids=ids, labels=ids).loss
    assert float(step.loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert step.samples == 5


def test_a_batch_without_masked_tokens_has_no_loss():
    task = text_task("masked-lm")
    model = task.build_model()
    batch = {"input_ids": torch.full((2, 16), 65), "labels": torch.full((2, 16), -100)}
    step = task.loss(model, model, batch)
    assert float(step.loss.detach()) == float(step.metrics["accuracy"]) == 0.0
    measured = task.measure(model, model, batch)
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


def test_layers_are_measured_on_a_sample_of_blocks(tmp_path):
    changes = {"run.layerwise_epochs": 1, "run.layerwise_images": 3}
    train_text(tmp_path / "run", "causal-lm", changes)
    ids = packed(tmp_path / "run", "validation").array().astype(np.int64)
    blocks = torch.tensor(ids[: len(ids) // 17 * 17]).view(-1, 17)[:, :-1]
    sample = blocks[balanced_indices(np.zeros(len(blocks)), 3)]
    model = text_task("causal-lm", changes).build_model()
    assert lines(tmp_path / "run", "layerwise")[0]["layers"] == layerwise(model, [sample]).to_dict("records")


# Files of a run


def test_the_saved_model_and_tokenizer_load_with_transformers_alone(finished):
    text = "def naïve(x): return x + 1\n"
    for task, auto in (("causal-lm", AutoModelForCausalLM), ("masked-lm", AutoModelForMaskedLM)):
        folder = finished[task].folder / "model" / "last"
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
        assert len(ids) == len(text.encode())
        model = auto.from_pretrained(folder).eval()
        assert model.config.vocab_size == {"causal-lm": 257, "masked-lm": 261}[task]
        ids = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        assert (model.config.pad_token_id, model.config.eos_token_id) == ids
        assert (None not in ids, tokenizer.model_max_length) == (True, model.config.max_tokens)
        assert_same(model.state_dict(), finished[task].model().state_dict())
        assert finished[task].processor.get_vocab() == tokenizer.get_vocab()
    folder = finished["causal-lm"].folder / "model" / "best"
    prompt = AutoTokenizer.from_pretrained(folder)("The ", return_tensors="pt")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder)
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


def test_a_text_by_its_path(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(f"line {number} of a text\n" for number in range(400)))
    changes = {"data.name": str(tmp_path / "text.txt"), "data.test_share": 0.25, "text.separate": "paragraph"}
    run = train_text(tmp_path / "run", "causal-lm", {**changes, "schedule.steps": 1})
    assert [packed(run.folder, split).documents for split in ("train", "validation")] == [300, 100]


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
    other = {"causal-lm": "crate-bert-base", "masked-lm": "crate-gpt-base"}[task]
    short = str(tmp_path / "short.txt")
    for number, (message, changes) in enumerate(
        [
            ("has no text", {"data.name": str(tmp_path / "empty.txt")}),
            ("too few for a block", {"data.name": short, "text.block": 64}),
            ("no such file or folder", {"data.name": str(tmp_path / "nowhere" / "text.txt")}),
            ("text.text_column is for tables", {"data.name": short, "text.text_column": "text"}),
            (f"task {task} needs a model such as", {"model.name": other}),
            (f"task {task} needs a model such as", {"model.name": "crate-tiny-patch16-224", "model.config": {}}),
            ("cannot load the tokenizer 'nobody/nothing'", {"text.tokenizer": "nobody/nothing"}),
            ("no such tokenizer folder", {"text.tokenizer": "/nowhere"}),
            ("text.vocab_size is 20", {"text.tokenizer": "bpe", "text.vocab_size": 20}),
            ("set vocab_size to", {"model.config.vocab_size": 100}),
            ("positions for 8 tokens; lower text.block", {"model.config.max_position_embeddings": 8}),
            ("give --data (or data.name)", {"data.name": "???"}),
            ("give model.from=RUN", {"model.from": "???"}),
            ("the source has no tokenizer", {"model.from": str(tmp_path / "nowhere"), "model.config": {}}),
        ]
    ):
        refused(message, train_text, tmp_path / f"run{number}", task, changes)
        assert not (tmp_path / f"run{number}" / "recipe.yaml").exists(), "there is no run"


def test_a_model_and_a_tokenizer_that_do_not_fit(finished, tmp_path):
    start = {"model.from": str(finished["causal-lm"].folder), "model.config": {}}
    changes = {**start, "text.tokenizer": "bpe", "text.vocab_size": 300}
    refused("its vocabulary differs from that of model.from", train_text, tmp_path / "a", "causal-lm", changes)
    bare = tmp_path / "bare"
    shutil.copytree(finished["causal-lm"].model_folder(), bare)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (bare / file).unlink()
    start["model.from"] = str(bare)
    refused("the source has no tokenizer", train_text, tmp_path / "b", "causal-lm", start)
    run = train_text(tmp_path / "c", "causal-lm", {**start, "text.tokenizer": "bytes", "schedule.steps": 1})
    assert (run.folder / "model" / "last" / "tokenizer.json").is_file()
    bert = {"model.from": str(finished["masked-lm"].folder), "model.config": {}, "schedule.steps": 1}
    refused("task causal-lm needs a model such as crate-gpt-base", train_text, tmp_path / "d", "causal-lm", bert)


def test_a_tokenizer_without_a_mask_token(finished, tmp_path):
    changes = {"text.tokenizer": str(finished["causal-lm"].folder / "tokenizer")}
    message = "task masked-lm needs a tokenizer with mask_token"
    refused(message, train_text, tmp_path / "a", "masked-lm", changes)


# Predictions


def test_predictions_continue_prompts_and_fill_masks(finished):
    run = finished["causal-lm"]
    (text,) = run.predict("The ")
    ids = run.processor("The ", return_tensors="pt")["input_ids"]
    greedy = run.model().generate(ids, max_new_tokens=16 - ids.shape[1], do_sample=False, pad_token_id=0)[0]
    assert text.startswith(run.processor.decode(greedy[ids.shape[1] :], skip_special_tokens=True))
    assert run.predict(["The ", "A "]) == [text, run.predict("A ")[0]]
    run = finished["masked-lm"]
    mask = run.processor.mask_token
    answers = run.predict([f"a{mask}c", f"{mask}{mask}"])
    assert [len(masks) for masks in answers] == [1, 2]
    assert all(0 <= candidate.probability <= 1 for masks in answers for top in masks for candidate in top)
