"""The command itself: help, version, start-up time, one-line errors and exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from codingrate import CrateError
from codingrate.cli import main

from .conftest import check_refusal, crate

VERBS = (
    "demo", "train", "finetune", "evaluate", "imagenet-real", "detect", "probe", "inspect", "attention", "segment",
    "reconstruct", "generate", "fill", "perplexity", "lambada", "glue", "verify", "recipes", "models", "convert",
    "bench",
)  # fmt: skip


@pytest.mark.parametrize("call", [(), ("--help",), ("-h",)])
def test_help_names_every_verb(capsys, call):
    code, out, _ = crate(capsys, *call)
    assert code == 0
    first = {words[1] for line in out.splitlines() if len(words := line.split()) > 2 and words[0] == "│"}
    assert set(VERBS) <= first


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_json_and_a_summary(capsys, verb):
    code, out, _ = crate(capsys, verb, "--help")
    assert code == 0
    text = " ".join(out.split())
    assert f"Usage: crate {verb} " in text
    assert "--json" in text


def test_help_imports_nothing_heavy():
    program = (
        "import sys\nfrom codingrate.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'pandas', 'matplotlib', 'sklearn', 'datasets'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version(capsys):
    assert crate(capsys, "--version")[:2] == (0, "codingrate 0.1.0\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["modles"], 2, "Did you mean 'models'"),
        (["models", "--nope"], 2, "--nope"),
        (["bench", "--batch", "0"], 2, "--batch"),
        (["bench", "--model", "crate-bsae-patch16-224"], 1, "did you mean 'crate-base-patch16-224'"),
        (["bench", "--model", "vit-tiny-patch16-224"], 1, "--model vit-tiny-patch16-224"),
        (["bench", "imgae"], 2, "'imgae' is not one of 'image'"),
    ],
    ids=str,
)
def test_wrong_calls_get_one_line_and_a_code(capsys, arguments, code, message):
    check_refusal(capsys, arguments, code, message)


def test_debug_shows_the_traceback_before_and_after_the_verb(tmp_path):
    with pytest.raises(CrateError, match="no model matches"):
        main(["models", "vti-*", "--debug"])
    with pytest.raises(CrateError, match="there is no run to resume"):
        main(["--debug", "train", "digits", "--output", str(tmp_path / "none"), "--resume"])


def test_an_interrupted_command_stops_with_130(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("codingrate.models.presets.list_models", interrupt)
    code, out, line = crate(capsys, "models")
    assert (code, out, line) == (130, "", "crate: stopped")
