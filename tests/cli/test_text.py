"""`crate generate`, `fill`, `perplexity`, `lambada`, `glue`, and `evaluate` of labeled sentences."""

from __future__ import annotations

import csv
import json
import math
import shutil

import datasets
import numpy as np
import pytest
import torch

from codingrate.data import GLUE, load_tokenizer
from codingrate.evaluation import NGram, bag_of_words_metrics
from codingrate.models import CrateForCausalLM
from codingrate.runs import Run

from .conftest import BLOCK, check_refusal, crate, crate_json, last_evaluation, words


@pytest.fixture(scope="module")
def saved_gpt(gpt, tmp_path_factory):
    """The causal model with its tokenizer in a folder outside of any run."""
    return shutil.copytree(gpt / "model" / "last", tmp_path_factory.mktemp("saved") / "gpt")


# generate


def test_text_is_generated_and_streamed(capsys, gpt):
    call = ["generate", gpt, "the cat", "--tokens", 9, "--seed", 3]
    code, out, err = crate(capsys, *call)
    report = crate_json(capsys, *call)
    assert code == 0
    assert out == f"the cat{report['text']}\n", "streamed and whole are the same"
    assert "9 tokens" in err
    assert (report["tokens"], report["temperature"], report["top_k"], report["seed"]) == (9, 0.8, 50, 3)
    assert crate_json(capsys, *call[:-1], 4)["text"] != report["text"]


@pytest.mark.parametrize("flags", [["--greedy"], ["--beams", "3"]])
def test_searches_are_those_of_transformers(capsys, gpt, flags):
    report = crate_json(capsys, "generate", gpt, "a mat", "--tokens", 6, *flags)
    model, tokenizer = CrateForCausalLM.from_pretrained(gpt / "model" / "last"), load_tokenizer("bytes")
    ids = tokenizer("a mat", return_tensors="pt")["input_ids"]
    beams = int(flags[1]) if len(flags) > 1 else 1
    expected = model.generate(ids, max_new_tokens=6, do_sample=False, num_beams=beams, pad_token_id=256)[0, 5:]
    assert report["text"] == tokenizer.decode(expected, skip_special_tokens=True)
    code, out, _ = crate(capsys, "generate", gpt, "a mat", "--tokens", 6, *flags)
    assert (code, out) == (0, f"a mat{report['text']}\n")


def test_text_slides_through_the_context(capsys, gpt, saved_gpt):
    """When the context of 32 tokens is full, the last 16 tokens are the prompt of what follows."""
    for model in (gpt / "model" / "last", saved_gpt):
        report = crate_json(capsys, "generate", model, "x" * 40, "--greedy", "--tokens", 50)
        assert report["tokens"] == 50
    trained, tokenizer = CrateForCausalLM.from_pretrained(gpt / "model" / "last"), load_tokenizer("bytes")
    ids = tokenizer("x" * 40, return_tensors="pt")["input_ids"]
    for count in (16, 16, 16, 2):
        ids = torch.cat([ids, trained.generate(ids[:, -16:], max_new_tokens=count, do_sample=False)[:, 16:]], dim=1)
    text = "x" * 40 + tokenizer.decode(ids[0, 40:])
    assert crate_json(capsys, "generate", gpt, "x" * 40, "--greedy", "--tokens", 50)["text"] == text[40:]
    code, out, _ = crate(capsys, "generate", gpt, "x" * 40, "--greedy", "--tokens", 50)
    assert (code, out) == (0, f"{text}\n"), "streamed as one text"


def test_samples_stops_and_penalties(capsys, gpt):
    call = ["generate", gpt, "the cat", "--tokens", 40, "--seed", 3]
    report = crate_json(capsys, *call, "--samples", 3)
    texts = [sample["text"] for sample in report["samples"]]
    assert [sample["seed"] for sample in report["samples"]] == [3, 4, 5]
    assert len(set(texts)) == 3
    assert crate_json(capsys, *call[:-1], 4)["text"] == texts[1]
    code, out, _ = crate(capsys, *call, "--samples", 3)
    assert (code, out.count("the cat" + texts[2])) == (0, 1)
    word = texts[0][10:13]
    cut = crate_json(capsys, *call, "--stop", word)
    assert cut["text"] == texts[0][: texts[0].index(word)]
    assert cut["tokens"] < 40
    assert crate_json(capsys, *call, "--repetition-penalty", 5)["text"] != texts[0]


# fill


def test_masks_are_filled(capsys, bert, tmp_path):
    call = ["fill", bert, "the <mask>at and <mask>", "--top", 3]
    report = crate_json(capsys, *call)
    assert len(report["masks"]) == 2
    for mask in report["masks"]:
        shares = [candidate["probability"] for candidate in mask]
        assert len(shares) == 3
        assert 1 > sum(shares) > 3 / 262, "more than chance"
        assert shares == sorted(shares, reverse=True)
    code, out, _ = crate(capsys, *call)
    assert code == 0
    assert all(f"{mask[0]['probability']:.2%}" in out for mask in report["masks"])
    saved = shutil.copytree(bert / "model" / "last", tmp_path / "bert")
    assert crate_json(capsys, "fill", saved, *call[2:])["masks"] == report["masks"]


# perplexity


def test_perplexity_and_its_baseline(capsys, gpt):
    call = ["perplexity", gpt, "--stride", 16, "--baseline", "--order", 4]
    report = crate_json(capsys, *call)
    text = (gpt.parent / "text" / "valid.txt").read_bytes()
    size = len(text) + 1  # with an end of text
    assert (report["tokens"], report["block"], report["stride"]) == (size - 1, BLOCK, 16)
    assert report["perplexity"] == pytest.approx(math.exp(report["cross_entropy"]))
    assert report["bits_per_byte"] == pytest.approx(report["cross_entropy"] * size / len(text) / math.log(2))
    assert report["cross_entropy"] == pytest.approx(last_evaluation(gpt)["eval_loss"], abs=0.05)
    train = (gpt.parent / "text" / "train.txt").read_bytes()
    counted = NGram(np.array([*train, 256]), order=4, vocab_size=257).cross_entropy(np.array([*text, 256]))
    assert report["baseline"]["cross_entropy"] == pytest.approx(counted)
    assert counted < report["cross_entropy"], "two training steps do not beat counting"
    code, out, _ = crate(capsys, *call)
    assert code == 0
    assert all(f"{value:.4f}" in out for value in (report["cross_entropy"], counted))
    assert "4-gram" in out


def test_perplexity_of_other_text(capsys, gpt, saved_gpt, tmp_path):
    own = crate_json(capsys, "perplexity", gpt, "--split", "test")
    (tmp_path / "other.txt").write_bytes((gpt.parent / "text" / "test.txt").read_bytes())
    other = crate_json(capsys, "perplexity", gpt, "--data", tmp_path / "other.txt")
    assert (own["split"], other["split"]) == ("test", "all")
    assert own["cross_entropy"] == other["cross_entropy"], "the whole file is measured"
    code, out, _ = crate(capsys, "perplexity", gpt, "--data", tmp_path / "other.txt")
    assert code == 0
    assert f"checkpoint last, all of {tmp_path / 'other.txt'}" in out
    by_line = crate_json(capsys, "perplexity", gpt, "--data", tmp_path / "other.txt", "--separate", "line")
    assert by_line["tokens"] == other["tokens"], "every line end becomes an end of text"
    assert by_line["cross_entropy"] != other["cross_entropy"]
    some = [crate_json(capsys, "perplexity", model, "--data", tmp_path / "other.txt", "--limit", 40)
            for model in (gpt / "model" / "last", saved_gpt)]  # fmt: skip
    assert some[0]["tokens"] == 39
    assert some[0]["cross_entropy"] == some[1]["cross_entropy"]


def test_ends_of_documents_are_named_and_can_be_left_out(capsys, gpt, tmp_path):
    """One sentence: its bytes but the first, and the end of the document, which a small model finds hard."""
    sentence = "the cat sat on a mat"
    (tmp_path / "one.txt").write_text(sentence)
    call = ["perplexity", gpt, "--data", tmp_path / "one.txt", "--baseline"]
    every, words = (crate_json(capsys, *call, *flags) for flags in ([], ["--no-end-of-document"]))
    assert (every["tokens"], every["ends"]) == (len(sentence), 1)
    assert (words["tokens"], words["ends"]) == (len(sentence) - 1, 0)
    for name, report in (("model", words), ("3-gram", words["baseline"])):
        assert report["bits_per_byte"] == pytest.approx(report["cross_entropy"] / math.log(2)), name
    ids = np.array([*sentence.encode(), 256])
    train = np.array([*(gpt.parent / "text" / "train.txt").read_bytes(), 256])
    counted = NGram(train, order=3, vocab_size=257).log_probabilities(ids)
    assert every["baseline"]["cross_entropy"] == pytest.approx(-counted[1:].mean())
    assert words["baseline"]["cross_entropy"] == pytest.approx(-counted[1:-1].mean())
    assert Run(gpt).perplexity(str(call[3]), end_of_document=False).cross_entropy == words["cross_entropy"]
    _, out, _ = crate(capsys, *call)
    assert "1 of them ends of documents" in out
    assert "--no-end-of-document" in out
    _, out, _ = crate(capsys, "evaluate", gpt, "--data", tmp_path / "one.txt", "--output", tmp_path / "report")
    assert "1 of them ends of documents" in out


def test_the_papers_sampling(capsys, gpt, monkeypatch):
    monkeypatch.setattr("codingrate.runs.verbs.ITERATIONS", 3)
    call = ["perplexity", gpt, "--sampled", "--block", 16]
    report = crate_json(capsys, *call)
    assert (report["tokens"], report["stride"]) == (3 * 4 * 16, None)
    code, out, _ = crate(capsys, *call)
    assert code == 0
    assert f"± {report['error']:.4f}" in out


# lambada


def test_last_words_are_predicted(capsys, gpt, tmp_path):
    passages = [{"text": "the cat sat on a mat"}, {"text": "and “slept”"}]
    (tmp_path / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages))
    for flags, protocol in (([], "argmax"), (["--generated"], "generate")):
        report = crate_json(capsys, "lambada", gpt, tmp_path / "passages.jsonl", *flags)
        assert (report["texts"], report["protocol"], report["accuracy"]) == (2, protocol, 0)


# glue

QUICK = [
    "schedule.steps=2", "schedule.batch_size=8", "text.max_length=24", "data.workers=0", "run.evaluate_epochs=0",
    "run.precision=fp32",
]  # fmt: skip
SPLITS = ("train", "validation")


def write_task(folder, columns, labels, splits=SPLITS):
    folder.mkdir(parents=True)
    for seed, split in enumerate(splits):
        table = {name: [words(10 * seed + row, 4) for row in range(12)] for name in columns}
        table["label"] = [labels[row % len(labels)] for row in range(12)]
        datasets.Dataset.from_dict(table).to_parquet(folder / f"{split}.parquet")


@pytest.fixture
def tasks(tmp_path):
    """Folders of four GLUE tasks."""
    pair = ("sentence1", "sentence2")
    write_task(tmp_path / "data" / "sst2", ("sentence",), [0, 1])
    write_task(tmp_path / "data" / "stsb", pair, [0.5, 4.5, 2.0])
    both = ("train", "validation_matched", "validation_mismatched")
    write_task(tmp_path / "data" / "mnli", ("premise", "hypothesis"), [0, 1, 2], both)
    write_task(tmp_path / "data" / "rte", pair, [1, 0])
    return tmp_path / "data"


def test_glue_tunes_and_measures(capsys, bert, tasks, tmp_path):
    call = ["glue", bert, "--data", tasks, "--output", tmp_path / "glue", "--tasks", "sst2, stsb", *QUICK]
    first = crate_json(capsys, *call)
    accuracy = first["tasks"]["sst2"]["splits"]["validation"]["accuracy"]
    spearman = first["tasks"]["stsb"]["splits"]["validation"]["spearman"]
    assert list(first["tasks"]) == ["sst2", "stsb"]
    assert (first["mean_of_tasks_run"], first["numbers"]) == (pytest.approx((accuracy + spearman) / 2), 2)
    assert accuracy == pytest.approx(last_evaluation(tmp_path / "glue" / "sst2")["eval_accuracy"])
    code, out, _ = crate(capsys, *call)
    assert code == 0
    assert f"mean of the tasks run: {50 * (accuracy + spearman):.1f}" in out
    assert out.count("before") == 2, "nothing is done twice"
    check_refusal(capsys, [*call, "optimizer.lr=3"], 1, "was started with optimizer.lr")


def test_evaluate_measures_sentences_and_their_bag_of_words(capsys, bert, tasks, tmp_path):
    call = ["glue", bert, "--data", tasks, "--output", tmp_path / "glue", "--tasks", "sst2", *QUICK]
    tuned, run = crate_json(capsys, *call)["tasks"]["sst2"], tmp_path / "glue" / "sst2"
    report = crate_json(capsys, "evaluate", run, "--baseline")
    assert report["splits"] == tuned["splits"]
    rows = {split: datasets.Dataset.from_parquet(str(tasks / "sst2" / f"{split}.parquet")) for split in SPLITS}
    counted = bag_of_words_metrics(rows["train"], rows["validation"], ["sentence"], ["accuracy"])
    assert report["baseline"] == {"validation": counted}
    code, out, _ = crate(capsys, "evaluate", run, "--baseline")
    assert code == 0
    assert f"baseline validation: accuracy {counted['accuracy']:.4f}" in out
    assert "12 of 24 sentences" in out
    assert crate_json(capsys, "evaluate", run, "--data", tasks / "rte")["splits"], (
        "bare numbers are the model's classes"
    )
    check_refusal(capsys, ["evaluate", run, "--split", "tset"], 1, "unknown split 'tset'")
    check_refusal(capsys, ["evaluate", run, "--baseline", "--data", tasks / "rte"], 1, "--baseline")


@pytest.mark.usefixtures("undrawn")
def test_sentences_are_measured_class_by_class(capsys, bert, tasks, tmp_path):
    crate_json(capsys, "glue", bert, "--data", tasks, "--output", tmp_path / "glue", "--tasks", "sst2", *QUICK)
    run, data = tmp_path / "glue" / "sst2", tmp_path / "other.jsonl"
    table = {
        "sentence": [words(row, 3) for row in range(11)],
        "label": ["good", "bad", "bad", "good", "bad"] * 2 + ["bad"],
    }
    datasets.Dataset.from_dict(table).to_json(data)
    call = ["evaluate", run, "--data", data]
    check_refusal(capsys, call, 1, "the model's are negative, positive; map them with --labels bad=")
    call += ["--labels", "good=positive,bad=negative", "--output", tmp_path / "report"]
    report = crate_json(capsys, *call)
    names = {"good": "positive", "bad": "negative"}
    guesses = [answer[0]["label"] for answer in Run(run).predict(table["sentence"])]
    correct = [guess == names[label] for guess, label in zip(guesses, table["label"], strict=True)]
    assert report["splits"]["validation"]["accuracy"] == pytest.approx(np.mean(correct))
    with (tmp_path / "report" / "per_class.csv").open(newline="") as file:
        rows = {row["class"]: (int(row["sentences"]), float(row["accuracy"])) for row in csv.DictReader(file)}
    for label, name in names.items():
        own = [right for right, other in zip(correct, table["label"], strict=True) if other == label]
        assert rows[name] == (len(own), pytest.approx(np.mean(own)))
    assert (tmp_path / "report" / "confusion.png").stat().st_size > 1000
    code, out, _ = crate(capsys, *call)
    assert code == 0
    assert f"all of {data}" in out
    assert "11 of 11 sentences" in out
    assert all(name in out for name in rows)
    summary = crate_json(capsys, "inspect", run, "--output", tmp_path / "inspect")["summary"]
    own = crate_json(capsys, "evaluate", run)["splits"]["validation"]
    assert summary["scores"][0]["value"] == pytest.approx(own["accuracy"])
    assert len(summary["samples"]) == 3


def test_glue_continues_where_it_was_stopped(capsys, bert, tasks, tmp_path):
    call = ["glue", bert, "--data", tasks, "--output", tmp_path / "glue", "--tasks", "stsb", *QUICK]
    first = crate_json(capsys, *call)["tasks"]["stsb"]
    (tmp_path / "glue" / "stsb" / "scores.json").unlink()
    second = crate_json(capsys, *call)["tasks"]["stsb"]
    assert (first["new"], second["new"]) == (True, True)
    assert second["splits"] == first["splits"]


def test_glue_after_mnli(capsys, bert, tasks, tmp_path):
    call = ["glue", bert, "--data", tasks, "--output", tmp_path / "glue", "--after-mnli", *QUICK]
    report = crate_json(capsys, *call, "--tasks", "rte,mnli")
    assert list(report["tasks"]) == ["mnli", "rte"], "MNLI comes first"
    assert list(report["tasks"]["mnli"]["splits"]) == ["validation_matched", "validation_mismatched"]
    assert report["numbers"] == 3
    recipes = {name: Run(tmp_path / "glue" / name).recipe for name in ("mnli", "rte-after-mnli")}
    assert recipes["mnli"].model.from_ == str(bert / "model" / "last")
    assert recipes["rte-after-mnli"].model.from_ == str(tmp_path / "glue" / "mnli" / "model" / "last")
    code, out, _ = crate(capsys, *call, "--tasks", "rte")
    assert code == 0, "the MNLI model is there"
    assert "(after MNLI)" in " ".join(out.split())


def test_glue_prints_the_papers_average_if_every_task_is_there(capsys, bert, tmp_path):
    """Scores that were measured before are read from the folders of the runs."""
    from codingrate.recipes import load_recipe, save_recipe

    data, output = tmp_path / "data", tmp_path / "glue"
    for n, (name, task) in enumerate(GLUE.items()):
        (data / name).mkdir(parents=True)
        where = {"model.from": str(bert / "model" / "last"), "data.name": name, "data.path": str(data / name)}
        save_recipe(load_recipe("glue", where, name), output / name / "recipe.yaml")
        splits = {split: {**dict.fromkeys(task.metrics, 0.0), task.metrics[0]: 0.1 * n, "rows": 7}
                  for split in task.validation}  # fmt: skip
        scores = {"metrics": list(task.metrics), "splits": splits, "seconds": 1.0}
        (output / name / "scores.json").write_text(json.dumps(scores))
    report = crate_json(capsys, "glue", bert, "--data", data, "--output", output)
    numbers = [0.1 * n for n, task in enumerate(GLUE.values()) if task.in_average for _ in task.validation]
    assert (report["numbers"], len(numbers)) == (9, 9)
    assert report["average"] == pytest.approx(sum(numbers) / 9)
    code, out, _ = crate(capsys, "glue", bert, "--data", data, "--output", output)
    assert code == 0
    assert f"average of nine numbers, as in the paper: {100 * report['average']:.1f}" in out
    shutil.rmtree(data / "rte")
    report = crate_json(capsys, "glue", bert, "--data", data, "--output", output)
    assert "average" not in report
    assert len(report["tasks"]) == len(GLUE) - 1
    rest = [0.1 * n for n, (name, task) in enumerate(GLUE.items()) if name != "rte" for _ in task.validation]
    assert (report["mean_of_tasks_run"], report["numbers"]) == (pytest.approx(sum(rest) / len(rest)), len(rest))


# refusals


@pytest.fixture
def paths(gpt, bert, digits_run, saved_gpt, tmp_path):
    """Runs, and files in the test's folder, by the names that the table of refusals gives them."""
    (tmp_path / "binary.txt").write_bytes(b"\x00\x01\x02" * 50)
    (tmp_path / "latin.txt").write_bytes("Grüße ".encode("latin1") * 50)
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "rows.jsonl").write_text('{"text": "one two", "other": 3}\n' * 3)
    (tmp_path / "short.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "nothing").mkdir()
    shutil.copytree(gpt / "model" / "last", tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json", "manifest.json"):
        (tmp_path / "bare" / name).unlink()
    shutil.copytree(gpt / "model" / "last", tmp_path / "damaged")
    (tmp_path / "damaged" / "config.json").write_text("{")
    runs = {"GPT": gpt, "BERT": bert, "DIGITS": digits_run, "SAVED": saved_gpt}
    return runs | {path.name: path for path in tmp_path.iterdir() if path.name != "cache"}


WRONG_CALLS = [
    (["generate", "GPT", ""], 1, "the prompt is empty"),
    (["generate", "GPT", " \n"], 1, "the prompt is empty"),
    (["generate", "GPT", "x", "--stop", ""], 1, "--stop is an empty text"),
    (["generate", "GPT", "x", "--greedy", "--samples", "2"], 1, "--samples needs sampling"),
    (["generate", "GPT", "x", "--repetition-penalty", "0"], 1, "--repetition-penalty is 0.0; it must be positive"),
    (["generate", "GPT", "x", "--tokens", "0"], 2, "--tokens"),
    (["generate", "GPT", "x", "--temperature", "0"], 1, "--temperature is 0.0; it must be positive"),
    (["generate", "GPT", "x", "--temperature", "1e-45"], 1, "temperature is 1e-45; it must be at least 0.001"),
    (["generate", "GPT", "x", "--temperature", "inf"], 1, "temperature is inf; it must be at least 0.001"),
    (["generate", "GPT", "x", "--repetition-penalty", "1e300"], 1, "--repetition-penalty is 1e+300; it must be"),
    (["generate", "GPT", "x", "--seed", str(2**32)], 2, "less than or equal to 4294967295"),
    (["generate", "GPT", "x", "--beams", str(10**30)], 2, "less than or equal to 1000"),
    (["generate", "GPT", "x\udcff"], 1, "has a lone surrogate"),
    (["generate", "GPT", "x", "--top-p", "1.5"], 1, "--top-p is 1.5"),
    (["generate", "GPT", "x", "--greedy", "--top-k", "3"], 1, "--top-k has no effect with --greedy"),
    (["generate", "GPT", "x", "--beams", "2", "--temperature", "1"], 1, "has no effect with --beams 2"),
    (["generate", "GPT", "x", "--beams", "2", "--greedy"], 1, "--beams has no effect with --greedy"),
    (["generate", "GPT", "x", "--checkpoint", "lats"], 2, "'lats' must be last, best or a training step"),
    (["generate", "BERT", "x"], 1, "its task is masked-lm; generate needs a run of task causal-lm"),
    (["generate", "DIGITS", "x"], 1, "its task is classification; generate needs a run of task causal-lm"),
    (["generate", "bare", "x"], 1, "no tokenizer"),
    (["generate", "damaged", "x"], 1, "config.json"),
    (["generate", "GPT"], 2, "'prompt'"),
    (["fill", "BERT", ""], 1, "there is no mask in the text"),
    (["fill", "BERT", "no mask"], 1, "there is no mask in the text; write <mask>"),
    (["fill", "BERT", "x" * 32 + "<mask>"], 1, "has 35 tokens, but the model's context length is 32"),
    (["fill", "GPT", "<mask>"], 1, "its task is causal-lm; fill needs a run of task masked-lm"),
    (["fill", "BERT", "<mask>", "--top", "0"], 2, "--top"),
    (["perplexity", "BERT"], 1, "its task is masked-lm"),
    (["perplexity", "SAVED"], 1, "--data"),
    (["perplexity", "SAVED", "--data", "rows.jsonl", "--baseline"], 1, "--baseline counts the training text"),
    (["perplexity", "GPT", "--data", "binary.txt"], 1, "binary.txt is not plain text"),
    (["perplexity", "GPT", "--data", "latin.txt"], 1, "latin.txt is not UTF-8"),
    (["perplexity", "GPT", "--data", "empty.txt"], 1, "has no text"),
    (["perplexity", "GPT", "--data", "no-such-file.txt"], 1, "no-such-file.txt"),
    (["perplexity", "GPT", "--data", "rows.jsonl", "--text-column", "txt"], 1, "set text.text_column to one of"),
    (["perplexity", "GPT", "--data", "rows.jsonl", "--text-column", "other"], 1, "does not hold text"),
    (["perplexity", "GPT", "--data", "rows.jsonl", "--split", "test"], 1, "has no test split"),
    (["perplexity", "GPT", "--data", "rows.jsonl", "--separate", "page"], 1, "'page'"),
    (["perplexity", "GPT", "--separate", "line"], 1, "say how --data is read"),
    (["perplexity", "GPT", "--split", "tset"], 1, "did you mean 'test'"),
    (["perplexity", "GPT", "--stride", "33"], 1, "stride is 33; it must lie between 1 and the block, 32"),
    (["perplexity", "GPT", "--block", "33"], 1, "block is 33"),
    (["perplexity", "GPT", "--sampled", "--stride", "3"], 1, "--stride has no effect with --sampled"),
    (["perplexity", "GPT", "--sampled", "--limit", "30"], 1, "--limit has no effect with --sampled"),
    (["perplexity", "GPT", "--sampled", "--no-end-of-document"], 1, "--no-end-of-document has no effect with"),
    (["lambada", "GPT", "short.jsonl"], 1, "text 1 has fewer than two words"),
    (["lambada", "GPT", "binary.txt"], 1, "binary.txt is not plain text"),
    (["lambada", "GPT", "gone.jsonl"], 1, "gone.jsonl"),
    (["lambada", "BERT", "rows.jsonl"], 1, "its task is masked-lm"),
    (["glue", "BERT", "--data", "nowhere"], 1, "--data nowhere: no such folder"),
    (["glue", "BERT", "--data", "nothing"], 1, "there is no folder of a GLUE task"),
    (["glue", "BERT", "--data", "nothing", "--tasks", "sst2"], 1, "there is no folder sst2"),
    (["glue", "BERT", "--tasks", "sst3"], 1, "did you mean 'sst2'"),
    (["glue", "BERT", "--tasks", ","], 1, "--tasks is empty"),
    (["glue", "BERT", "--tasks", "rte", "--after-mnli"], 1, "add mnli to --tasks"),
    (["glue", "BERT", "--tasks", "sst2", "--checkpoint", "first"], 2, "'first' must be last, best"),
]  # fmt: skip


def test_wrong_calls_are_refused(capsys, paths):
    for arguments, code, message in WRONG_CALLS:
        check_refusal(capsys, [paths.get(argument, argument) for argument in arguments], code, message)


# zero-shot


def test_zero_shot_measures_the_sets_of_the_paper(capsys, gpt, tmp_path):
    """Files of any size are read in full; the average is over sets, and LAMBADA has an accuracy too."""
    (tmp_path / "passages.jsonl").write_text("".join(json.dumps({"text": words(seed, 9)}) + "\n" for seed in range(7)))
    (tmp_path / "lines.txt").write_text(words(9, 200))
    sets = [
        f"lambada={tmp_path / 'passages.jsonl'}",
        f"ptb={tmp_path / 'lines.txt'}",
        f"wikitext={gpt.parent / 'text'}",
    ]
    report = crate_json(capsys, "zero-shot", gpt, *sets, "--whole", "--batch-size", 2)
    assert list(report["sets"]) == ["lambada", "ptb", "wikitext"]
    losses = {name: one["cross_entropy"] for name, one in report["sets"].items()}
    assert report["average"] == pytest.approx(sum(losses.values()) / 3)
    assert {name: one["split"] for name, one in report["sets"].items()} == {
        "lambada": "all", "ptb": "all", "wikitext": "test",
    }  # fmt: skip
    by_line = ("--separate", "line")
    assert (
        losses["ptb"]
        == crate_json(capsys, "perplexity", gpt, "--data", tmp_path / "lines.txt", *by_line)["cross_entropy"]
    )
    own = crate_json(capsys, "lambada", gpt, tmp_path / "passages.jsonl")
    assert report["accuracy"] == own["accuracy"]
    sampled = crate_json(capsys, "zero-shot", gpt, sets[1], "--iterations", 3)
    assert sampled["sets"]["ptb"]["error"] > 0
    assert sampled["accuracy"] is None
    check_refusal(capsys, ["zero-shot", gpt, "pbt"], 1, "did you mean 'ptb'")
    check_refusal(capsys, ["zero-shot", gpt, "ptb=nowhere.txt"], 1, "no such file or folder: nowhere.txt")
    check_refusal(capsys, ["zero-shot", gpt, sets[1], sets[1]], 1, "at most once")
