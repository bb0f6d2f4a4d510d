"""`crate generate`, `fill`, `perplexity`, `glue`, and `evaluate` of text runs, as a user meets them."""

from __future__ import annotations

import json
import math
import shutil

import datasets
import numpy as np
import pytest

from codingrate.data import load_tokenizer
from codingrate.evaluation import NGram, bag_of_words_metrics, glue_average
from codingrate.models import CrateForCausalLM
from codingrate.training import build_recipe, train
from tests.cli.test_training_verbs import crate
from tests.data.conftest import _private_cache  # noqa: F401  (an autouse fixture)
from tests.training.toys import lines

BLOCK = 32
MODEL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "dropout": 0.0}
QUICK = [
    "schedule.steps=2", "schedule.batch=8", "text.max_length=24", "data.workers=0", "run.evaluate_epochs=0",
    "run.precision=fp32",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_token_files(tmp_path, monkeypatch):
    """Token files of saved models go to the user's cache: to one of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def words(seed, count):
    draw = np.random.default_rng(seed)
    return " ".join(draw.choice(["the", "cat", "sat", "on", "a", "mat,", "and", "slept.\n"], count))


def language_run(folder, task, name):
    (folder / "text").mkdir()
    for seed, (split, count) in enumerate({"train": 900, "valid": 300, "test": 200}.items()):
        (folder / "text" / f"{split}.txt").write_text(words(seed, count))
    recipe = {
        "task": task,
        "model": {"name": name, "config": MODEL},
        "data": {"name": str(folder / "text"), "workers": 0},
        "text": {"block": BLOCK},
        "schedule": {"steps": 2, "batch": 4},
        "run": {"evaluate_epochs": 0},
    }
    train(build_recipe(recipe), folder / "run", quiet=True)
    return folder / "run"


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    return language_run(tmp_path_factory.mktemp("gpt"), "causal-lm", "crate-gpt-base")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return language_run(tmp_path_factory.mktemp("bert"), "masked-lm", "crate-bert-base")


def said(capsys, *arguments):
    """What a good call prints as JSON."""
    code, out, err = crate(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


# generate


def test_text_is_generated_and_shown(capsys, gpt):
    code, out, err = crate(capsys, "generate", gpt, "the cat", "--tokens", "9", "--seed", "3")
    report = said(capsys, "generate", gpt, "the cat", "--tokens", "9", "--seed", "3")
    assert code == 0
    assert out == f"the cat{report['text']}\n", "streamed and whole are the same"
    assert "9 tokens" in err
    assert (report["tokens"], report["temperature"], report["top_k"], report["seed"]) == (9, 0.8, 50, 3)
    assert said(capsys, "generate", gpt, "the cat", "--tokens", "9", "--seed", "4")["text"] != report["text"]


@pytest.mark.parametrize("flags", [["--greedy"], ["--beams", "3"]])
def test_searches_are_those_of_transformers(capsys, gpt, flags):
    report = said(capsys, "generate", gpt, "a mat", "--tokens", "6", *flags)
    model, tokenizer = CrateForCausalLM.from_pretrained(gpt / "model" / "last"), load_tokenizer("bytes")
    ids = tokenizer("a mat", return_tensors="pt")["input_ids"]
    beams = int(flags[1]) if len(flags) > 1 else 1
    expected = model.generate(ids, max_new_tokens=6, do_sample=False, num_beams=beams, pad_token_id=256)[0, 5:]
    assert report["text"] == tokenizer.decode(expected, skip_special_tokens=True)
    code, out, _ = crate(capsys, "generate", gpt, "a mat", "--tokens", "6", *flags)
    assert (code, out) == (0, f"a mat{report['text']}\n")


def test_a_saved_model_and_all_the_room_there_is(capsys, gpt):
    report = said(capsys, "generate", gpt / "model" / "last", "x" * 30, "--top-p", "0.9", "--top-k", "0")
    assert report["max_new_tokens"] == BLOCK - 30, "what fits of the usual 200"


# fill


def test_masks_are_filled(capsys, bert):
    report = said(capsys, "fill", bert, "the <mask>at and <mask>", "--top", "3")
    assert len(report["masks"]) == 2
    for mask in report["masks"]:
        shares = [candidate["probability"] for candidate in mask]
        assert len(shares) == 3
        assert 1 > sum(shares) > 3 / 262, "more than chance would give the best"
        assert shares == sorted(shares, reverse=True)
    code, out, _ = crate(capsys, "fill", bert, "the <mask>at and <mask>", "--top", "3")
    assert code == 0
    assert all(f"{mask[0]['probability']:.2%}" in out for mask in report["masks"])


# perplexity


def test_perplexity_beside_counting(capsys, gpt):
    report = said(capsys, "perplexity", gpt, "--stride", "16", "--baseline", "--order", "4")
    held = (gpt.parent / "text" / "valid.txt").read_bytes()
    size = len(held) + 1  # with an end of text
    assert (report["tokens"], report["block"], report["stride"]) == (size - 1, BLOCK, 16)
    assert report["perplexity"] == pytest.approx(math.exp(report["cross_entropy"]))
    assert report["bits_per_byte"] == pytest.approx(report["cross_entropy"] * size / len(held) / math.log(2))
    assert report["cross_entropy"] == pytest.approx(lines(gpt, "evaluation")[-1]["eval_loss"], abs=0.05)
    seen = (gpt.parent / "text" / "train.txt").read_bytes()
    counted = NGram(np.array([*seen, 256]), order=4, vocab_size=257).cross_entropy(np.array([*held, 256]))
    assert report["baseline"]["cross_entropy"] == pytest.approx(counted)
    assert counted < report["cross_entropy"], "two steps do not beat counting"
    code, out, _ = crate(capsys, "perplexity", gpt, "--stride", "16", "--baseline", "--order", "4")
    assert code == 0
    assert all(f"{value:.4f}" in out for value in (report["cross_entropy"], counted))
    assert "4-gram" in out


def test_perplexity_of_other_text(capsys, gpt, tmp_path):
    held = said(capsys, "perplexity", gpt, "--split", "test")
    (tmp_path / "other.txt").write_bytes((gpt.parent / "text" / "test.txt").read_bytes())
    other = said(capsys, "perplexity", gpt, "--data", tmp_path / "other.txt")
    assert (held["split"], held["cross_entropy"]) == ("test", other["cross_entropy"]), "all of a file is measured"
    by_line = said(capsys, "perplexity", gpt, "--data", tmp_path / "other.txt", "--separate", "line")
    assert by_line["tokens"] == other["tokens"], "every line end becomes an end of text"
    assert by_line["cross_entropy"] != other["cross_entropy"]
    saved = said(capsys, "perplexity", gpt / "model" / "last", "--data", tmp_path / "other.txt", "--limit", "40")
    assert saved["tokens"] == 39


def test_the_papers_sampling(capsys, gpt, monkeypatch):
    monkeypatch.setattr("codingrate.cli.perplexity.ITERATIONS", 3)
    report = said(capsys, "perplexity", gpt, "--sampled", "--block", "16")
    assert (report["tokens"], report["stride"]) == (3 * 4 * 16, None)
    code, out, _ = crate(capsys, "perplexity", gpt, "--sampled", "--block", "16")
    assert code == 0
    assert f"± {report['error']:.4f}" in out


def test_last_words(capsys, gpt, tmp_path):
    passages = [{"text": "the cat sat on a mat"}, {"text": "and “slept”"}]
    (tmp_path / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages))
    for flags, protocol in (([], "argmax"), (["--generated"], "generate")):
        report = said(capsys, "perplexity", gpt, "--lambada", tmp_path / "passages.jsonl", *flags)
        assert (report["texts"], report["protocol"], report["accuracy"]) == (2, protocol, 0)
    code, out, _ = crate(capsys, "perplexity", gpt, "--lambada", tmp_path / "passages.jsonl")
    assert (code, out) == (0, "last word found in 0.00% of 2 passages\n")


# evaluate


def test_evaluate_of_a_causal_model_is_its_perplexity(capsys, gpt, tmp_path):
    report = said(capsys, "evaluate", gpt, "--output", tmp_path / "report")
    assert report["cross_entropy"] == said(capsys, "perplexity", gpt)["cross_entropy"]
    assert json.loads((tmp_path / "report" / "metrics.json").read_text())["tokens"] == report["tokens"]
    code, out, _ = crate(capsys, "evaluate", gpt, "--output", tmp_path / "report")
    assert code == 0
    assert f"{report['cross_entropy']:.4f} nats per token" in out


def test_evaluate_of_a_masked_model_agrees_with_training(capsys, bert, tmp_path):
    report, last = said(capsys, "evaluate", bert, "--output", tmp_path / "report"), lines(bert, "evaluation")[-1]
    assert report["cross_entropy"] == pytest.approx(last["eval_loss"], rel=1e-5)
    assert report["accuracy"] == pytest.approx(last["eval_accuracy"], rel=1e-5)
    assert 2 < report["unigram_cross_entropy"] < 3, "of a few letters"
    code, out, _ = crate(capsys, "evaluate", bert, "--output", tmp_path / "report")
    assert code == 0
    assert f"{report['unigram_cross_entropy']:.4f}" in out


# glue


SPLITS = ("train", "validation")


def write_task(folder, columns, labels, splits=SPLITS):
    folder.mkdir(parents=True)
    for seed, split in enumerate(splits):
        table = {name: [words(10 * seed + row, 4) for row in range(12)] for name in columns}
        table["label"] = [labels[row % len(labels)] for row in range(12)]
        datasets.Dataset.from_dict(table).to_parquet(folder / f"{split}.parquet")


@pytest.fixture
def tasks(tmp_path):
    pair = ("sentence1", "sentence2")
    write_task(tmp_path / "data" / "sst2", ("sentence",), [0, 1])
    write_task(tmp_path / "data" / "stsb", pair, [0.5, 4.5, 2.0])
    both = ("train", "validation_matched", "validation_mismatched")
    write_task(tmp_path / "data" / "mnli", ("premise", "hypothesis"), [0, 1, 2], both)
    write_task(tmp_path / "data" / "rte", pair, [1, 0])
    return tmp_path / "data"


def test_glue_tunes_and_measures(capsys, bert, tasks, tmp_path):
    call = ["glue", bert, "--data", tasks, "--output", tmp_path / "glue", "--tasks", "sst2, stsb", *QUICK]
    first = said(capsys, *call)
    accuracy = first["tasks"]["sst2"]["splits"]["validation"]["accuracy"]
    spearman = first["tasks"]["stsb"]["splits"]["validation"]["spearman"]
    assert list(first["tasks"]) == ["sst2", "stsb"]
    assert (first["mean_of_tasks_run"], first["numbers"]) == (pytest.approx((accuracy + spearman) / 2), 2)
    assert accuracy == pytest.approx(lines(tmp_path / "glue" / "sst2", "evaluation")[-1]["eval_accuracy"])
    evaluated = said(capsys, "evaluate", tmp_path / "glue" / "sst2")
    assert evaluated["splits"] == first["tasks"]["sst2"]["splits"]
    counted = said(capsys, "evaluate", tmp_path / "glue" / "sst2", "--baseline")["bag_of_words"]["validation"]
    rows = {split: datasets.Dataset.from_parquet(str(tasks / "sst2" / f"{split}.parquet")) for split in SPLITS}
    assert counted == bag_of_words_metrics(rows["train"], rows["validation"], ["sentence"], ["accuracy"])
    code, out, _ = crate(capsys, "evaluate", tmp_path / "glue" / "sst2", "--baseline")
    assert (code, "validation, bag of words" in out) == (0, True)
    code, _, error = crate(capsys, "evaluate", tmp_path / "glue" / "sst2", "--baseline", "--data", tasks / "rte")
    assert (code, "does not go with --data" in error) == (1, True)
    code, out, _ = crate(capsys, *call)
    assert code == 0
    assert f"mean of the tasks run: {50 * (accuracy + spearman):.1f}" in out
    assert out.count("before") == 2, "nothing is done twice"
    code, _, error = crate(capsys, *call, "optimise.lr=3")
    assert (code, "was started with optimise.lr" in error) == (1, True)


def test_glue_goes_on_where_it_was_stopped(capsys, bert, tasks, tmp_path):
    call = ["glue", bert, "--data", tasks, "--output", tmp_path / "glue", "--tasks", "stsb", *QUICK]
    first = said(capsys, *call)["tasks"]["stsb"]
    (tmp_path / "glue" / "stsb" / "scores.json").unlink()
    second = said(capsys, *call)["tasks"]["stsb"]
    assert (first["new"], second["new"]) == (True, True)
    assert second["splits"] == first["splits"]


def test_glue_after_mnli(capsys, bert, tasks, tmp_path):
    call = ["glue", bert, "--data", tasks, "--output", tmp_path / "glue", "--after-mnli", *QUICK]
    found = said(capsys, *call, "--tasks", "rte,mnli")
    assert list(found["tasks"]) == ["mnli", "rte"], "MNLI comes first"
    assert list(found["tasks"]["mnli"]["splits"]) == ["validation_matched", "validation_mismatched"]
    assert found["numbers"] == 3
    recipes = {name: (tmp_path / "glue" / name / "recipe.yaml").read_text() for name in ("mnli", "rte-after-mnli")}
    assert f"from: {bert / 'model' / 'last'}" in recipes["mnli"]
    assert f"from: {tmp_path / 'glue' / 'mnli' / 'model' / 'last'}" in recipes["rte-after-mnli"]
    code, out, _ = crate(capsys, *call, "--tasks", "rte")
    assert code == 0, "the MNLI model is there"
    assert "(after MNLI)" in " ".join(out.split())


def test_classes_must_be_those_of_the_model(capsys, bert, tasks, tmp_path):
    call = ["glue", bert, "--data", tasks, "--output", tmp_path / "glue", "--tasks", "sst2", *QUICK]
    said(capsys, *call)
    run = tmp_path / "glue" / "sst2"
    assert said(capsys, "evaluate", run, "--data", tasks / "rte")["splits"], "bare numbers are the model's own"
    table = {"sentence": ["a", "b"] * 6, "label": ["good", "bad"] * 6}
    datasets.Dataset.from_dict(table).to_json(tmp_path / "other.jsonl")
    code, _, error = crate(capsys, "evaluate", run, "--data", tmp_path / "other.jsonl")
    assert (code, "the model's are negative, positive" in error) == (1, True)
    code, _, error = crate(capsys, "evaluate", run, "--split", "tset")
    assert (code, "unknown --split 'tset'" in error) == (1, True)


def test_glue_gives_the_papers_average_when_all_is_there():
    from codingrate.cli.glue import _average
    from codingrate.data import GLUE

    results = {
        name: {
            "metrics": list(task.metrics),
            "splits": {split: {task.metrics[0]: 0.1 * n} for split in task.validation},
        }
        for n, (name, task) in enumerate(GLUE.items())
    }
    found = _average(results)
    assert found["numbers"] == 9
    assert found["average"] == pytest.approx((0.1 * (0 + 1 + 2 + 3 + 4 + 4 + 5 + 6 + 7)) / 9)
    assert (
        glue_average(
            {name: 1.0 for name in GLUE if name != "mnli"} | {"mnli": dict.fromkeys(GLUE["mnli"].validation, 1.0)}
        )
        == 1
    )
    del results["wnli"]
    assert "average" not in _average(results)


# what cannot be done


@pytest.fixture
def places(gpt, bert, tmp_path):
    (tmp_path / "binary.txt").write_bytes(b"\x00\x01\x02" * 50)
    (tmp_path / "latin.txt").write_bytes("Grüße ".encode("latin1") * 50)
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "rows.jsonl").write_text('{"text": "one two", "other": 3}\n' * 3)
    (tmp_path / "short.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "nothing").mkdir()
    shutil.copytree(gpt / "model" / "last", tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "bare" / name).unlink()
    shutil.copytree(gpt / "model" / "last", tmp_path / "damaged")
    (tmp_path / "damaged" / "config.json").write_text("{")
    return {"GPT": gpt, "BERT": bert, "SAVED": gpt / "model" / "last"} | {
        path.name: path for path in tmp_path.iterdir() if path.name != "cache"
    }


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["generate", "GPT", ""], 1, "the prompt is empty"),
        (["generate", "GPT", " \n"], 1, "the prompt is empty"),
        (["generate", "GPT", "x" * 32], 1, "prompt is 32 tokens long, the model reads 32; shorten it"),
        (["generate", "GPT", "xy", "--tokens", "31"], 1, "take --tokens 30 or fewer"),
        (["generate", "GPT", "x", "--tokens", "0"], 2, "--tokens"),
        (["generate", "GPT", "x", "--temperature", "0"], 1, "--temperature is 0.0; it must be positive"),
        (["generate", "GPT", "x", "--top-p", "1.5"], 1, "--top-p is 1.5"),
        (["generate", "GPT", "x", "--greedy", "--top-k", "3"], 1, "--top-k does not go with --greedy"),
        (["generate", "GPT", "x", "--beams", "2", "--temperature", "1"], 1, "does not go with --beams 2"),
        (["generate", "GPT", "x", "--beams", "2", "--greedy"], 1, "--beams does not go with --greedy"),
        (["generate", "GPT", "x", "--which", "lats"], 1, "did you mean 'last'"),
        (["generate", "BERT", "x"], 1, "holds a CrateForMaskedLM; crate generate takes a causal language model"),
        (["generate", "nowhere", "x"], 1, "nowhere: holds no saved model"),
        (["generate", "bare", "x"], 1, "bare: holds no tokenizer"),
        (["generate", "damaged", "x"], 1, "config.json: cannot be read"),
        (["generate", "GPT"], 2, "'prompt'"),
        (["fill", "BERT", ""], 1, "the text is empty"),
        (["fill", "BERT", "no mask"], 1, "there is no mask in the text; write <mask>"),
        (["fill", "BERT", "x" * 32 + "<mask>"], 1, "has 35 tokens, but the model's context length is 32"),
        (["fill", "GPT", "<mask>"], 1, "holds a CrateForCausalLM; crate fill takes a masked language model"),
        (["fill", "BERT", "<mask>", "--top", "0"], 2, "--top"),
        (["perplexity", "BERT"], 1, "crate perplexity takes a causal language model"),
        (["perplexity", "SAVED"], 1, "is a saved model, not a run; say with --data"),
        (["perplexity", "SAVED", "--data", "rows.jsonl", "--baseline"], 1, "--baseline counts the training text"),
        (["perplexity", "GPT", "--data", "binary.txt"], 1, "binary.txt is not plain text"),
        (["perplexity", "GPT", "--data", "latin.txt"], 1, "latin.txt is not UTF-8"),
        (["perplexity", "GPT", "--data", "empty.txt"], 1, "has no text"),
        (["perplexity", "GPT", "--data", "no-such-file.txt"], 1, "no-such-file.txt"),
        (["perplexity", "GPT", "--data", "rows.jsonl", "--text-column", "txt"], 1, "has no column 'txt' (text_column)"),
        (["perplexity", "GPT", "--data", "rows.jsonl", "--text-column", "other"], 1, "does not hold text"),
        (["perplexity", "GPT", "--data", "rows.jsonl", "--split", "test"], 1, "has no test split"),
        (["perplexity", "GPT", "--data", "rows.jsonl", "--separate", "page"], 1, "unknown way to separate"),
        (["perplexity", "GPT", "--separate", "line"], 1, "say how --data is read"),
        (["perplexity", "GPT", "--split", "tset"], 1, "did you mean 'test'"),
        (["perplexity", "GPT", "--stride", "33"], 1, "stride is 33; it must lie between 1 and the block, 32"),
        (["perplexity", "GPT", "--block", "33"], 1, "block is 33"),
        (["perplexity", "GPT", "--sampled", "--stride", "3"], 1, "--stride does not go with --sampled"),
        (["perplexity", "GPT", "--generated"], 1, "--generated goes with --lambada"),
        (["perplexity", "GPT", "--lambada", "rows.jsonl", "--baseline"], 1, "--baseline does not go with --lambada"),
        (["perplexity", "GPT", "--lambada", "short.jsonl"], 1, "text 1 has fewer than two words"),
        (["perplexity", "GPT", "--lambada", "binary.txt"], 1, "binary.txt is not plain text"),
        (["perplexity", "GPT", "--lambada", "gone.jsonl"], 1, "gone.jsonl"),
        (["evaluate", "GPT", "--split", "tset"], 1, "did you mean 'test'"),
        (["evaluate", "BERT", "--data", "binary.txt"], 1, "is not plain text"),
        (["evaluate", "GPT", "--real", "real.json"], 1, "--real is for ImageNet"),
        (["evaluate", "BERT", "--baseline"], 1, "--baseline is for runs on labelled sentences"),
        (["glue", "BERT", "--data", "nowhere"], 1, "--data nowhere: no such folder"),
        (["glue", "BERT", "--data", "nothing"], 1, "has no folder of a GLUE task"),
        (["glue", "BERT", "--data", "nothing", "--tasks", "sst2"], 1, "has no folder sst2"),
        (["glue", "BERT", "--tasks", "sst3"], 1, "did you mean 'sst2'"),
        (["glue", "BERT", "--tasks", ","], 1, "--tasks names no task"),
        (["glue", "BERT", "--tasks", "rte", "--after-mnli"], 1, "add mnli to --tasks"),
        (["glue", "BERT", "--tasks", "sst2", "--which", "first"], 1, "--which"),
    ],
    ids=str,
)
def test_bad_calls_get_one_line_and_a_code(capsys, places, arguments, code, expected):
    got, out, error = crate(capsys, *(places.get(argument, argument) for argument in arguments))
    assert got == code
    assert expected.lower() in error.lower()
    assert out == ""
