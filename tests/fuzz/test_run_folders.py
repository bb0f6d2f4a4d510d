"""Damaged run folders: every verb gives the result of the undamaged run, or an error of one line."""

import json
import math
import random
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from codingrate.recipes import build_recipe
from codingrate.runs import Run, train
from codingrate.runs.manifest import write_manifest
from tests.runs.toys import changed, few_digits, train_toy

from .outcomes import cases, mutated, outcome, unchanged

SAVED = ("recipe.yaml", "model/last/", "tokenizer", "tokens")
VERBS = {
    "evaluate": (8, 120, SAVED),
    "predict": (5, 100, SAVED),
    "checkpoint": (5, 80, ("recipe.yaml", "checkpoints/checkpoint-2/", "tokenizer", "tokens")),
    "inspect": (2, 30, (*SAVED, "metrics.jsonl")),
    "history": (8, 100, ("recipe.yaml", "metrics.jsonl")),
    "resume": (3, 60, ("checkpoints", "data.json", "metrics.jsonl", "recipe.yaml", "tokens")),
}
"""Number of quick cases and of slow ones, and what each verb reads of a run."""
COUNTS = [
    pytest.param(verb, count, id=f"{verb}-{name}", marks=[pytest.mark.slow] * slow)
    for verb, counts in VERBS.items()
    for slow, (name, count) in enumerate(zip(("few", "many"), counts[:2], strict=True))
]
GPT = {
    "task": "causal-lm",
    "model": {
        "name": "crate-gpt-base",
        "config": {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "dropout": 0.0},
    },
    "text": {"block": 16, "tokenizer": "bpe", "vocab_size": 280},
    "schedule": {"steps": 4, "batch_size": 4},
    "run": {"evaluate_epochs": 0, "checkpoint_steps": 2, "log_steps": 1},
}
WRONG = [None, True, -1, 0, 10**30, 1e308, math.nan, "", "x", "../..", [], [1], {}, {"a": 1}, [[[]]], "\ud800"]
"""Values that replace one in a JSON file."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A classifier of digits and a language model, finished, with two checkpoints each."""
    root = tmp_path_factory.mktemp("runs")
    few = few_digits(root / "data")
    train_toy(root / "digits", {**few, "schedule.steps": 4, "run.checkpoint_steps": 2, "run.layerwise_epochs": 1})
    (root / "text").mkdir()
    for split, words in (("train", "a cat sat on the mat. " * 40), ("valid", "the cat sat. " * 20)):
        (root / "text" / f"{split}.txt").write_text(words)
    recipe = build_recipe(changed(GPT, {"data": {"name": str(root / "text"), "workers": 0}}))
    train(recipe, root / "gpt", quiet=True)
    return root


@pytest.fixture(scope="module")
def verbs(runs):
    """Functions of a run folder that return what must not change."""
    picture = Image.new("L", (8, 8), 99)

    def numbers(report):
        timed = ("seconds", "images_per_second", "tokens_per_second")
        return {key: value for key, value in report.to_dict().items() if key not in timed}

    def resume(folder):
        run = train(folder, resume=True, quiet=True)
        return {"loss": run.metrics["loss"], "weights": (folder / "model" / "last" / "model.safetensors").read_bytes()}

    return {
        "evaluate": lambda folder: numbers(Run(folder).evaluate()),
        "predict": lambda folder: Run(folder).predict([picture] if "digits" in folder.name else ["the cat"]),
        "checkpoint": lambda folder: numbers(Run(folder).evaluate(checkpoint=2)),
        "inspect": lambda folder: Run(folder).inspect(limit=4).to_dict()["panels"]["compression"]["table"],
        "history": lambda folder: (Run(folder).metrics, Run(folder).headline, Run(folder).finished),
        "resume": resume,
    }


def replace_value(value, draw):
    """Return JSON values with one of them, anywhere, replaced by a wrong one or left out."""
    if not isinstance(value, (dict, list)) or not value or draw.random() < 0.2:
        return draw.choice(WRONG)
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key, copied = draw.choice(list(keys)), value.copy()
    if draw.random() < 0.15:
        del copied[key]
    else:
        copied[key] = replace_value(value[key], draw)
    return copied


def damage(path, seed):
    """Damage a file: other bytes, its end cut, nothing in it, other JSON values, a folder in its place, or no file."""
    draw, content = random.Random(seed), path.read_bytes()
    kind = draw.choice(("bytes", "bytes", "cut", "empty", "missing", "folder", *("json",) * 4))
    if kind == "json" and path.suffix == ".json":
        path.write_text(json.dumps(replace_value(json.loads(content), draw)))
    elif kind == "json" and path.suffix == ".jsonl":
        lines = content.splitlines()
        index = draw.randrange(len(lines))
        lines[index] = json.dumps(replace_value(json.loads(lines[index]), draw)).encode()
        path.write_bytes(b"\n".join(lines) + b"\n")
    elif kind in ("missing", "folder"):
        path.unlink()
        if kind == "folder":
            path.mkdir()
    else:
        half = content[: draw.randrange(len(content) + 1)]
        path.write_bytes({"cut": half, "empty": b""}.get(kind, mutated(content, seed)))


def files(folder, beginnings):
    """Return the files of a run whose paths begin with one of several texts, without the model's card."""
    parts = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [part for part in parts if part.as_posix().startswith(beginnings) and part.name != "README.md"]


@pytest.mark.parametrize(("verb", "count"), COUNTS)
@pytest.mark.parametrize("name", ["digits", "gpt"])
def test_a_damaged_file(runs, verbs, tmp_path, name, verb, count):
    copy, call, seen = tmp_path / name, verbs[verb], set()
    shutil.copytree(runs / name, copy)
    expected = call(copy)

    @cases(count)
    @given(st.sampled_from(files(runs / name, VERBS[verb][2])), st.integers(0, 2**32 - 1))
    def check(part, seed):
        shutil.rmtree(copy)
        shutil.copytree(runs / name, copy)
        damage(copy / part, seed)
        results = []
        with unchanged(runs):
            seen.add(outcome(lambda: results.append(call(copy))))
        if results and part.name not in ("recipe.yaml", "metrics.jsonl"):  # they may be valid and say something else
            assert results == [expected], f"{part} was damaged"

    check()
    assert "refused" in seen or verb == "resume"  # which falls back to the checkpoint before


@pytest.mark.parametrize("count", [pytest.param(10, id="few"), pytest.param(150, id="many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["digits", "gpt"])
def test_a_damaged_model_without_a_manifest(runs, verbs, tmp_path, name, count):
    """As of a converted or published model: numbers may differ, but they are numbers."""
    copy = tmp_path / name

    @cases(count)
    @given(st.sampled_from(files(runs / name, ("model/last/",))), st.integers(0, 2**32 - 1))
    def check(part, seed):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(runs / name, copy)
        (copy / "model" / "last" / "manifest.json").unlink()
        results = []
        if part.name != "manifest.json":
            damage(copy / part, seed)
        with unchanged(runs):
            outcome(lambda: results.append(verbs["evaluate"](copy)))
        numbers = [value for result in results for value in result.values() if isinstance(value, float)]
        assert all(map(math.isfinite, numbers))

    check()


@pytest.mark.parametrize("count", [pytest.param(4, id="few"), pytest.param(80, id="many", marks=pytest.mark.slow)])
def test_a_checkpoint_that_lies(runs, verbs, tmp_path, count):
    """Its manifest fits, so it was damaged before or on purpose; resuming works or is refused in one line."""
    copy = tmp_path / "digits"
    parts = [part for part in files(runs / "digits", "checkpoints/checkpoint-2/") if part.name != "manifest.json"]

    @cases(count)
    @given(st.sampled_from(parts), st.integers(0, 2**32 - 1))
    def check(part, seed):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(runs / "digits", copy)
        shutil.rmtree(copy / "checkpoints" / "checkpoint-4")
        damage(copy / part, seed)
        write_manifest(copy / "checkpoints" / "checkpoint-2")
        with unchanged(runs):
            outcome(lambda: verbs["resume"](copy))

    check()
