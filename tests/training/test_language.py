"""Language models by the recipe engine: what they learn, what is measured, what is kept, what is refused."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from codingrate.data import Blocks, load_text, mask_own_tokens, read_tokens
from codingrate.inspection import layerwise
from codingrate.models import CrateForCausalLM
from codingrate.training import load_weights, save_recipe, saved_model
from codingrate.training.tasks import task_of
from tests.refusals import refused

from .test_distributed import torchrun
from .texts import CONFIG, run_text, text_recipe
from .toys import assert_same, lines, measured, saved

TASKS = ["causal-lm", "masked-lm"]
LONG = {"schedule.steps": 150}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("text")
    return {task: run_text(root / task, task, LONG) for task in TASKS}


def packed(folder, split):
    """The token file of a run."""
    (path,) = (folder / "tokens").glob(f"*-{split}-*.bin")
    return read_tokens(path)


# What is learned and measured


@pytest.mark.parametrize("task", TASKS)
def test_more_is_learned_than_how_often_tokens_come(finished, task):
    folder = finished[task].folder
    counts = np.bincount(packed(folder, "train").array(), minlength=300) + 1
    ids = packed(folder, "validation").array()
    unigram = -np.log(counts / counts.sum())[ids].mean()
    assert 3.1 < unigram < 3.3
    assert finished[task].metrics["loss"] < unigram - 0.1


def test_the_loss_of_the_next_token_is_a_naive_sum(finished):
    result = finished["causal-lm"]
    model, tokens = load_weights(str(result.folder)).eval(), packed(result.folder, "validation")
    ids, losses = tokens.array().astype(np.int64), []
    windows = torch.tensor(np.stack([ids[start : start + 17] for start in range(0, len(ids) - 16, 17)]))
    with torch.no_grad():
        answers = model(input_ids=windows[:, :-1]).logits.double().log_softmax(-1)
    for window, answer in zip(windows.tolist(), answers, strict=True):
        losses += [-answer[place][window[place + 1]].item() for place in range(16)]
    assert len(losses) == len(ids) // 17 * 16
    mean = float(np.mean(losses))
    assert result.metrics["loss"] == pytest.approx(mean, rel=1e-5)
    assert result.metrics["perplexity"] == pytest.approx(math.exp(mean), rel=1e-4)
    text = "".join(load_text("pydoc").validation)
    bits = mean * len(ids) / math.log(2) / len(text.encode())
    assert result.metrics["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    said = [result.metrics[name] for name in ("loss", "perplexity", "bits_per_byte")]
    wanted = "validation loss {:.4f} nats per token, perplexity {:.2f}, {:.4f} bits per byte".format(*said)
    assert result.headline == wanted


def test_the_loss_of_hidden_tokens_is_a_naive_sum(finished):
    result = finished["masked-lm"]
    model = load_weights(str(result.folder)).eval()
    tokenizer = AutoTokenizer.from_pretrained(result.folder / "tokenizer")
    blocks = torch.stack([row["input_ids"] for row in Blocks(packed(result.folder, "validation"), 16)])
    hidden, labels = mask_own_tokens(blocks, tokenizer, 0.15)
    with torch.no_grad():
        answers = model(input_ids=hidden).logits.double().log_softmax(-1)
    losses, right = [], []
    for answer, wanted in zip(answers, labels.tolist(), strict=True):
        for place, label in enumerate(wanted):
            if label >= 0:
                losses.append(-answer[place][label].item())
                right.append(int(answer[place].argmax()) == label)
    assert len(losses) / blocks.numel() == pytest.approx(0.15, abs=0.01)
    assert result.metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert result.metrics["accuracy"] == pytest.approx(np.mean(right), abs=1e-7)
    assert result.headline.endswith(f"nats per hidden token, accuracy {np.mean(right):.2%}")


def test_the_training_loss_is_the_models_own():
    """What the task asks of a window of block + 1 tokens is what the model answers to its ids as labels."""
    recipe = text_recipe("causal-lm")
    data = task_of(recipe).load_data()
    task, model = task_of(recipe), task_of(recipe).build_model(data).eval()
    train, _ = task.datasets(data, 0, 1)
    assert len(train) == len(data.train) // 16
    ids = torch.stack([train[index]["input_ids"] for index in range(5)])
    assert ids.shape == (5, 17)
    found = task.step(model, model, task.collate([train[index] for index in range(5)])).loss
    wider = CrateForCausalLM(type(model.config)(**{**model.config.to_dict(), "max_position_embeddings": 17}))
    weights = model.state_dict()
    weights["crate.embedding.positions.weight"] = F.pad(weights["crate.embedding.positions.weight"], (0, 0, 0, 1))
    wider.load_state_dict(weights)
    assert float(found.detach()) == pytest.approx(
        float(wider.eval()(input_ids=ids, labels=ids).loss.detach()), rel=1e-5
    )


def test_a_pass_draws_windows_anew_and_a_seed_draws_them_again():
    def windows(seed, epoch):
        recipe = text_recipe("causal-lm", {"run.seed": seed})
        train, _ = task_of(recipe).datasets(task_of(recipe).load_data(), 0, 1)
        train.set_epoch(epoch)
        return torch.stack([train[index]["input_ids"] for index in range(7)])

    assert torch.equal(windows(0, 0), windows(0, 0))
    assert not torch.equal(windows(0, 0), windows(0, 1))
    assert not torch.equal(windows(0, 0), windows(1, 0))


def test_masks_change_with_the_batch_in_training_and_not_in_evaluation():
    recipe = text_recipe("masked-lm")
    task = task_of(recipe)
    train, _ = task.datasets(task.load_data(), 0, 1)
    batch = task.collate([train[index] for index in range(31)])
    first, again, other = (task.prepare(batch, seed)["labels"] for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    still = task.prepare(batch, None)
    assert torch.equal(still["labels"][3:4], task.prepare(task.collate([train[3]]), None)["labels"])


def test_layers_are_measured_on_the_first_blocks(tmp_path):
    changes = {"run.layerwise_epochs": 1, "run.layerwise_images": 3}
    result = run_text(tmp_path / "run", "causal-lm", changes)
    ids = torch.tensor(packed(tmp_path / "run", "validation").array()[: 3 * 17].astype(np.int64)).view(3, 17)[:, :-1]
    recipe = text_recipe("causal-lm", changes)
    model = task_of(recipe).build_model(task_of(recipe).load_data(result.folder))
    assert lines(tmp_path / "run", "layerwise")[0]["layers"] == layerwise(model, [ids]).to_dict("records")


# What is kept


def test_the_saved_model_and_tokenizer_load_by_transformers_alone(finished):
    for task, auto in (("causal-lm", AutoModelForCausalLM), ("masked-lm", AutoModelForMaskedLM)):
        folder = finished[task].folder / "model" / "last"
        tokenizer = AutoTokenizer.from_pretrained(folder)
        text = "def naïve(x): return x + 1\n"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
        assert len(ids) == len(text.encode())
        model = auto.from_pretrained(folder).eval()
        assert model.config.vocab_size == {"causal-lm": 257, "masked-lm": 261}[task]
        assert (model.config.pad_token_id, model.config.eos_token_id) == (
            tokenizer.pad_token_id,
            tokenizer.eos_token_id,
        )
        assert_same(dict(model.state_dict()), dict(finished[task].model.state_dict()))
    prompt = AutoTokenizer.from_pretrained(finished["causal-lm"].folder / "model" / "best")("The ", return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(finished["causal-lm"].folder / "model" / "best")
    assert model.generate(prompt["input_ids"], max_new_tokens=5, do_sample=False).shape[1] <= 9


@pytest.mark.parametrize("task", TASKS)
def test_resumed_is_uninterrupted_and_learns_no_tokenizer_anew(tmp_path, task, monkeypatch):
    text = "".join(load_text("pydoc").train)
    (tmp_path / "text.txt").write_text(text[:30_000])
    changes = {  # four steps in a pass
        "schedule.steps": 14, "run.checkpoint_steps": 6, "run.keep": 9, "model.config.dropout": 0.1,
        "text.tokenizer": "bpe", "text.vocab_size": 300, "schedule.batch": 360, "run.evaluate_epochs": 1,
        "data.name": str(tmp_path / "text.txt"),
    }  # fmt: skip
    run_text(tmp_path / "whole", task, changes)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    for late in (12, 14):
        shutil.rmtree(tmp_path / "killed" / "checkpoints" / f"checkpoint-{late}")
    tokens = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed" / "tokens").iterdir()}

    def again(*_):
        raise AssertionError("learnt again")

    monkeypatch.setattr("codingrate.data.tokenizers._train", again)
    run_text(tmp_path / "killed", task, changes, resume=True)
    assert_same(saved(tmp_path / "whole"), saved(tmp_path / "killed"))
    assert measured(tmp_path / "whole") == measured(tmp_path / "killed")
    assert [line["step"] for line in lines(tmp_path / "whole", "evaluation")] == [4, 8, 12, 14]
    assert tokens == {path: path.stat().st_mtime_ns for path in (tmp_path / "killed" / "tokens").iterdir()}


def test_runs_share_token_files_where_told_to(tmp_path):
    run_text(tmp_path / "one", "causal-lm", {"text.cache": str(tmp_path / "cache"), "schedule.steps": 1})
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    run_text(tmp_path / "two", "causal-lm", {"text.cache": str(tmp_path / "cache"), "schedule.steps": 1})
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    assert len(files) == 4
    assert not (tmp_path / "one" / "tokens").exists()


# What it starts from


@pytest.mark.parametrize("task", TASKS)
def test_trained_further(finished, tmp_path, task):
    start = finished[task]
    changes = {"model.config": {}, "model.from": str(start.folder), "optimise.lr": 1e-9, "schedule.steps": 1}
    result = run_text(tmp_path / "further", task, changes)
    # the best model of the run is the last, as it was evaluated once
    assert result.metrics["loss"] == pytest.approx(start.metrics["loss"], rel=1e-4)
    refused("leave model.config out", run_text, tmp_path / "a", task, {**changes, "model.config": CONFIG})
    refused("text.block is 17", run_text, tmp_path / "b", task, {**changes, "text.block": 17})
    refused("positions for 16 tokens; lower text.block", run_text, tmp_path / "c", task, {**changes, "text.block": 17})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_twins_train_too(tmp_path, precision):
    black_box = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    for task, name in (("causal-lm", "gpt2-base"), ("masked-lm", "bert-base")):
        changes = {"model.name": name, "model.config": black_box, "schedule.steps": 1, "run.precision": precision}
        assert run_text(tmp_path / name, task, changes).model.config.attention == "mhsa"


def test_another_text_by_its_path(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(f"line {number} of a text\n" for number in range(400)))
    changes = {"data.name": str(tmp_path / "text.txt"), "data.test_share": 0.25, "text.separate": "paragraph"}
    result = run_text(tmp_path / "run", "causal-lm", {**changes, "schedule.steps": 1})
    train, validation = (packed(result.folder, split) for split in ("train", "validation"))
    assert (train.documents, validation.documents) == (300, 100)


# Refusals


@pytest.mark.parametrize("task", TASKS)
def test_bad_text_and_models_are_refused(tmp_path, task):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "short.txt").write_text("a few words " * 40)
    other = {"causal-lm": "crate-bert-base", "masked-lm": "crate-gpt-base"}[task]
    for number, (message, changes) in enumerate(
        [
            ("has no text", {"data.name": str(tmp_path / "empty.txt")}),
            ("too few for a block", {"data.name": str(tmp_path / "short.txt"), "text.block": 64}),
            ("no such file or folder", {"data.name": str(tmp_path / "nowhere" / "text.txt")}),
            (
                "`text_column` is for tables (got 'text')",
                {"data.name": str(tmp_path / "short.txt"), "text.text_column": "text"},
            ),
            (f"task: {task} needs a model such as", {"model.name": other}),
            (f"task: {task} needs a model such as", {"model.name": "crate-tiny-patch16-224", "model.config": {}}),
            ("cannot load the tokenizer", {"text.tokenizer": "nobody/nothing"}),
            ("no such tokenizer folder", {"text.tokenizer": "/nowhere"}),
            ("`vocab_size` must be at least", {"text.tokenizer": "bpe", "text.vocab_size": 20}),
            ("set vocab_size to", {"model.config.vocab_size": 100}),
            ("positions for 8 tokens; lower text.block", {"model.config.max_position_embeddings": 8}),
            ("give data.name or --data", {"data.name": "???"}),
            ("give model.from=RUN", {"model.from": "???"}),
            ("no tokenizer is saved there", {"model.from": str(tmp_path / "nowhere"), "model.config": {}}),
        ]
    ):
        refused(message, run_text, tmp_path / f"run{number}", task, changes)
        missing = "???" in changes.values()
        assert (tmp_path / f"run{number}").exists() is not missing, "what is missing is said before anything is written"


def test_a_model_and_a_tokenizer_that_do_not_belong_together(finished, tmp_path):
    start = {"model.from": str(finished["causal-lm"].folder), "model.config": {}}
    changes = {**start, "text.tokenizer": "bpe", "text.vocab_size": 300}
    refused("has another vocabulary than that of model.from", run_text, tmp_path / "a", "causal-lm", changes)
    bare = tmp_path / "bare"
    shutil.copytree(saved_model(finished["causal-lm"].folder), bare)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (bare / file).unlink()
    start["model.from"] = str(bare)
    refused("no tokenizer is saved there", run_text, tmp_path / "b", "causal-lm", start)
    result = run_text(tmp_path / "c", "causal-lm", {**start, "text.tokenizer": "bytes", "schedule.steps": 1})
    assert (result.folder / "model" / "last" / "tokenizer.json").is_file()
    bert = {"model.from": str(finished["masked-lm"].folder), "model.config": {}, "schedule.steps": 1}
    refused("task: causal-lm needs a model such as crate-gpt-base", run_text, tmp_path / "d", "causal-lm", bert)


def test_a_tokenizer_without_a_mask(finished, tmp_path):
    changes = {"text.tokenizer": str(finished["causal-lm"].folder / "tokenizer")}
    refused("has no mask_token, which task: masked-lm needs", run_text, tmp_path / "a", "masked-lm", changes)


# Several processes


@pytest.mark.slow
def test_two_processes_are_one_with_their_batch(tmp_path):
    """Windows belong to their number and the pass, and one process makes tokenizer and token files for both."""
    text = "".join(load_text("pydoc").train).encode("ascii", "ignore")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_bytes(text[: 512 * 16 - 1])  # 512 windows, as one token ends it
    (tmp_path / "text" / "valid.txt").write_bytes(text[-3000:])
    changes = {
        "schedule.steps": 14, "schedule.batch": 128, "data.name": str(tmp_path / "text"), "optimise.lr": 3e-4,
    }  # fmt: skip
    one = run_text(tmp_path / "one", "causal-lm", changes)
    assert [line["epoch"] for line in lines(tmp_path / "one", "training")] == [step / 4 for step in range(1, 15)]
    save_recipe(text_recipe("causal-lm", changes), tmp_path / "two.yaml")
    found = json.loads(
        torchrun("-m", "codingrate", "train", tmp_path / "two.yaml", "--output", tmp_path / "two", "--json")
    )
    alone, together = (lines(tmp_path / name, "training") for name in ("one", "two"))
    assert [line["loss"] for line in together] == pytest.approx([line["loss"] for line in alone], abs=1e-4)
    assert found["loss"] == pytest.approx(one.metrics["loss"], abs=1e-4)
    mine, theirs = saved(tmp_path / "one"), saved(tmp_path / "two")
    assert max(float((mine[key] - theirs[key]).abs().max()) for key in mine) < 1e-3
    names = [sorted(path.name for path in (tmp_path / name / "tokens").iterdir()) for name in ("one", "two")]
    assert names[0] == names[1]


@pytest.mark.slow
def test_what_one_process_cannot_read_ends_both(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    save_recipe(text_recipe("causal-lm", {"data.name": str(tmp_path / "empty.txt")}), tmp_path / "two.yaml")
    with pytest.raises(AssertionError, match="has no text"):
        torchrun("-m", "codingrate", "train", tmp_path / "two.yaml", "--output", tmp_path / "two", "--json")
