"""Damaged run folders: every verb gives the result of the undamaged run, or an error of one line."""

import json
import math
import random
import shutil

import pytest
from hypothesis import strategies as st
from PIL import Image

from codingrate.runs import Run, train
from codingrate.runs.manifest import write_manifest
from tests.runs.texts import train_text
from tests.runs.toys import few_digits, train_toy

from .outcomes import SEEDS, fuzz, mutated, outcome, unchanged

SAVED = ("recipe.yaml", "model/last/", "tokenizer", "tokens")
VERBS = {
    "evaluate": (8, 120, SAVED),
    "predict": (5, 100, SAVED),
    "checkpoint": (5, 80, ("recipe.yaml", "checkpoints/checkpoint-2/", "tokenizer", "tokens")),
    "inspect": (2, 30, (*SAVED, "metrics.jsonl")),
    "history": (8, 100, ("recipe.yaml", "metrics.jsonl")),
    "resume": (3, 60, ("checkpoints", "data.json", "metrics.jsonl", "recipe.yaml", "tokens")),
    "evaluate without a manifest": (10, 150, ("model/last/",)),
    "resume with a manifest that fits": (4, 80, ("checkpoints/checkpoint-2/",)),
}
"""Number of quick cases and of slow ones, and what each verb reads of a run."""
COUNTS = [
    pytest.param(verb, count, id=f"{verb}-{name}", marks=[pytest.mark.slow] * slow)
    for verb, counts in VERBS.items()
    for slow, (name, count) in enumerate(zip(("few", "many"), counts[:2], strict=True))
]
WRONG = [None, True, -1, 0, 10**30, 1e308, math.nan, "", "x", "../..", [], [1], {}, {"a": 1}, [[[]]], "\ud800"]
"""Values that replace one in a JSON file."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A classifier of digits and a language model, finished, with two checkpoints each."""
    root = tmp_path_factory.mktemp("runs")
    changes = {"schedule.steps": 4, "run.checkpoint_steps": 2, "run.layerwise_epochs": 1}
    train_toy(root / "digits", {**few_digits(root / "data"), **changes})
    (root / "text").mkdir()
    for split, words in (("train", "a cat sat on the mat. " * 40), ("valid", "the cat sat. " * 20)):
        (root / "text" / f"{split}.txt").write_text(words)
    changes |= {
        "data.name": str(root / "text"),
        "text.tokenizer": "bpe",
        "text.vocab_size": 280,
        "run.layerwise_epochs": 0,
    }
    train_text(root / "gpt", "causal-lm", {**changes, "schedule.batch_size": 4})
    return root


@pytest.fixture(scope="module")
def verbs(runs):
    """Functions of a run folder that return what must not change, and two that return nothing."""
    picture = Image.new("L", (8, 8), 99)

    def numbers(report):
        timed = ("seconds", "images_per_second", "tokens_per_second")
        return {key: value for key, value in report.to_dict().items() if key not in timed}

    def resume(folder):
        run = train(folder, resume=True, quiet=True)
        return {"loss": run.metrics["loss"], "weights": (folder / "model" / "last" / "model.safetensors").read_bytes()}

    def evaluate_bare(folder):
        """As of a converted or published model: numbers may differ, but they are numbers."""
        (folder / "model" / "last" / "manifest.json").unlink()
        report = numbers(Run(folder).evaluate())
        assert all(math.isfinite(value) for value in report.values() if isinstance(value, float))

    def resume_deceived(folder):
        """The checkpoint was damaged before its manifest was written, or on purpose."""
        shutil.rmtree(folder / "checkpoints" / "checkpoint-4")
        write_manifest(folder / "checkpoints" / "checkpoint-2")
        resume(folder)

    return {
        "evaluate": lambda folder: numbers(Run(folder).evaluate()),
        "predict": lambda folder: Run(folder).predict([picture] if "digits" in folder.name else ["the cat"]),
        "checkpoint": lambda folder: numbers(Run(folder).evaluate(checkpoint=2)),
        "inspect": lambda folder: Run(folder).inspect(limit=4).to_dict()["panels"]["compression"]["table"],
        "history": lambda folder: (Run(folder).metrics, Run(folder).headline, Run(folder).finished),
        "resume": resume,
        "evaluate without a manifest": evaluate_bare,
        "resume with a manifest that fits": resume_deceived,
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
    if kind == "json" and path.suffix in (".json", ".jsonl"):
        lines = content.splitlines() if path.suffix == ".jsonl" else [content]
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


@pytest.mark.parametrize(("verb", "count"), COUNTS)
@pytest.mark.parametrize("name", ["digits", "gpt"])
def test_a_damaged_file(runs, verbs, tmp_path, name, verb, count):
    copy, call, seen, bare = tmp_path / name, verbs[verb], set(), " " in verb
    shutil.copytree(runs / name, copy)
    expected = call(copy)
    parts = [path.relative_to(runs / name) for path in sorted((runs / name).rglob("*")) if path.is_file()]
    left_out = ("README.md", "manifest.json") if bare else ("README.md",)
    read = [part for part in parts if part.as_posix().startswith(VERBS[verb][2]) and part.name not in left_out]

    @fuzz(count, st.sampled_from(read), SEEDS)
    def check(part, seed):
        shutil.rmtree(copy)
        shutil.copytree(runs / name, copy)
        damage(copy / part, seed)
        results = []
        with unchanged(runs):
            seen.add(outcome(lambda: results.append(call(copy))))
        if part.name not in ("recipe.yaml", "metrics.jsonl"):  # they may be valid and say something else
            assert results in ([], [expected]), f"{part} was damaged"

    assert "refused" in seen or "resume" in verb  # which falls back to the checkpoint before
