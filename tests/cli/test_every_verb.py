"""Properties of all verbs: help with defaults, refusals in one line, and results that show themselves."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

import codingrate
from codingrate._files import to_plain
from codingrate._report import Table
from codingrate.cli.app import command, in_options
from codingrate.runs import Run, zero_shot

from .conftest import check_refusal, crate, crate_json, words

VERBS = sorted(command().commands)
SOURCE = Path(codingrate.__file__).parent


def options(verb):
    """Return the options of a verb, without its arguments and its help."""
    return [param for param in command().commands[verb].params if param.param_type_name == "option"]


# Help


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_a_summary_and_states_every_default(capsys, verb):
    code, out, _ = crate(capsys, verb, "--help")
    assert code == 0
    assert f"Usage: crate {verb} " in " ".join(out.split())
    assert command().commands[verb].help
    for option in options(verb):
        stated = option.is_flag or option.required or option.default is not None or option.multiple
        assert stated or "Default: " in option.help or verb in UNSET.get(option.name, ()), option.name


UNSET = {
    "variant": ("train", "recipe"), "resume": ("train", "finetune"), "labels": ("evaluate",),
    "data": ("train", "study"), "text_column": ("perplexity", "lambada"), "shard": ("study",),
    "checkpoints": ("glue",), "about": ("publish",),
    "heads": ("convert",), "sparsity": ("convert",), "step_size": ("convert",), "top_p": ("generate",),
    "repetition_penalty": ("generate",), "beams": ("generate",), "output": ("predict",), "threshold": ("detect",),
    "path": ("finetune", "inspect", "probe"),
}  # fmt: skip
"""Options by name that change nothing unless they are given, and the verbs that have them."""


# Refusals


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_option_is_one_line_and_a_code(capsys, verb):
    check_refusal(capsys, [verb, "--no-such-option"], 2, "--no-such-option")


@pytest.mark.parametrize(
    "verb", [verb for verb in VERBS if command().commands[verb].params[0].name in ("run", "model") and verb != "bench"]
)
def test_an_unknown_run_is_one_line_and_a_code(capsys, tmp_path, verb):
    arguments = [param for param in command().commands[verb].params[1:] if param.param_type_name == "argument"]
    others = [tmp_path / "x" for param in arguments if param.required]
    data = ["--data", tmp_path] if any(option.name == "data" and option.required for option in options(verb)) else []
    check_refusal(capsys, [verb, "no-such-run", *others, *data], 1, "'no-such-run'")


@pytest.mark.parametrize("verb", VERBS)
def test_names_of_python_become_options(verb):
    for option in options(verb):
        assert in_options(f"`{option.name}` is wrong", verb) == f"{option.opts[-1]} is wrong"
        if option.secondary_opts:
            assert in_options(f"use `{option.name}=False`", verb) == f"use {option.secondary_opts[0]}"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`limit=3` has no effect with `sampled=True`", "--limit 3 has no effect with --sampled"),
        ("continue with `train('a run', resume=True)`", "continue with crate train --resume 'a run'"),
        ("use `probe(features='pixels')`", "use crate probe --baseline pixels"),
        (
            "`data='ape`s'`: `image_size`, `run.seed`, `a b` and `",
            "`data='ape`s'`: `image_size`, `run.seed`, `a b` and `",
        ),
    ],
)
def test_calls_and_values_become_commands_and_other_names_stay(message, shown):
    assert in_options(message, "perplexity") == shown


def test_the_library_knows_no_options():
    """Only the command writes options into messages."""
    for file in SOURCE.rglob("*.py"):
        if file.parent.name != "cli":
            errors = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if is_error(node)]
            texts = [part.value for error in errors for part in ast.walk(error) if isinstance(part, ast.Constant)]
            assert not [text for text in texts if isinstance(text, str) and re.search("--[a-z]", text)], file


def is_error(node):
    names = ("CrateError", "unknown_name", "missing_extra")
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


# Results


@pytest.fixture
def paths(digits_run, mae_run, dino_run, gpt, bert, tmp_path):
    (tmp_path / "passages.jsonl").write_text("".join(json.dumps({"text": words(seed, 9)}) + "\n" for seed in range(3)))
    runs = {"DIGITS": digits_run, "MAE": mae_run, "DINO": dino_run, "GPT": gpt, "BERT": bert}
    return {**runs, "PASSAGES": tmp_path / "passages.jsonl", "SET": f"lambada={tmp_path / 'passages.jsonl'}"}


RESULTS = {
    "classes": ("evaluate DIGITS", lambda at: Run(at["DIGITS"]).evaluate()),
    "reconstruction": ("evaluate MAE", lambda at: Run(at["MAE"]).evaluate()),
    "features": ("evaluate DINO", lambda at: Run(at["DINO"]).evaluate()),
    "next tokens": ("evaluate GPT", lambda at: Run(at["GPT"]).evaluate()),
    "masked tokens": ("evaluate BERT", lambda at: Run(at["BERT"]).evaluate()),
    "windows": ("perplexity GPT --stride 9", lambda at: Run(at["GPT"]).perplexity(stride=9)),
    "last words": ("lambada GPT PASSAGES", lambda at: Run(at["GPT"]).lambada(at["PASSAGES"])),
    "texts": ("zero-shot GPT SET --whole", lambda at: zero_shot(Run(at["GPT"]), [at["SET"]], sampled=False)),
    "pictures": ("reconstruct MAE --count 2", lambda at: Run(at["MAE"]).reconstruct(count=2)),
}
"""Commands by what they measure, and the same call in Python."""


def same(values):
    """Return values without times."""
    if isinstance(values, dict):
        times = ("seconds", "images_per_second")
        return {key: same(value) for key, value in values.items() if key not in times}
    return pytest.approx(values) if isinstance(values, float) else values


@pytest.mark.usefixtures("unpictured")
@pytest.mark.parametrize("name", RESULTS)
def test_the_command_shows_the_result_of_the_library(capsys, paths, tmp_path, monkeypatch, name):
    """JSON has the values of `to_dict`; the terminal and a notebook have the cells and sentences of `describe`."""
    monkeypatch.setenv("COLUMNS", "200")
    line, call = RESULTS[name]
    where = ["--output", tmp_path / "out.png"] if line.startswith(("evaluate", "reconstruct")) else []
    arguments = [*(paths.get(word, word) for word in line.split()), *where]
    result = call(paths)
    printed = crate_json(capsys, *arguments)
    for key, value in same(to_plain(result.to_dict())).items():
        assert same(printed[key]) == value, key
    code, out, _ = crate(capsys, *arguments)
    assert code == 0
    console = Console(width=200)
    with console.capture() as terminal:
        console.print(result)
    for shown in (out, terminal.get(), result._repr_html_()):
        for part in result.describe():
            texts = [*part.columns, *sum(part.rows, ())] if isinstance(part, Table) else [part.rpartition(": ")[2]]
            assert all(text in shown for text in texts if not re.fullmatch(r"[\d.]+ s", text)), shown
