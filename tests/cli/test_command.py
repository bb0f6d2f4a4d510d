"""The command itself: help, version, start-up time, one-line errors and exit codes."""

from __future__ import annotations

import os
import random
import re
import signal
import string
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from codingrate import CrateError
from codingrate._files import atomic_folder
from codingrate._report import Table
from codingrate.cli import main
from codingrate.cli.app import command
from codingrate.cli.output import emit
from codingrate.models.presets import list_models

from .conftest import check_refusal, crate


@pytest.mark.parametrize("call", [(), ("--help",), ("-h",)])
def test_help_names_every_verb(capsys, call):
    code, out, _ = crate(capsys, *call)
    assert code == 0
    first = {words[1] for line in out.splitlines() if len(words := line.split()) > 2 and words[0] == "│"}
    assert set(command().commands) <= first


def test_readme_names_the_verbs_without_json(capsys):
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"Every verb has `--help`[^.]*\.", text)
    exceptions, verbs = (re.findall(r"`([a-z][a-z-]*)`", part) for part in sentence.split(":"))
    assert set(verbs) == set(command().commands)
    without = [verb for verb in verbs if "--json" not in crate(capsys, verb, "--help")[1]]
    assert without == exceptions


BRACKETS = re.compile(r"\[[^\]\s]+\]")


def test_no_help_text_loses_its_brackets(capsys):
    """Brackets in docstrings and options are text; rich would take those with a word in them for markup."""
    named = {(): command(), **{(name,): verb for name, verb in command().commands.items()}}
    texts = {call: [part.help or "" for part in (one, *one.params)] for call, one in named.items()}
    brackets = {call: BRACKETS.findall(" ".join(parts).replace("\\[", "[")) for call, parts in texts.items()}
    assert "[explore]" in brackets[("explore",)]
    for call, expected in brackets.items():
        _, out, _ = crate(capsys, *call, "--help")
        assert all(bracket in "".join(out.split()) for bracket in expected), call


def test_names_with_brackets_are_printed_as_they_are(capsys):
    name = "[bold]a[/] :smile: [explore]"
    emit(False, None, [Table(name, ("name", name), [(name, "1")])])
    out = capsys.readouterr().out
    assert out.count("[bold]a[/]") == out.count("[explore]") == out.count(":smile:") == 3
    assert name in crate(capsys, "evaluate", name)[2]
    assert name in crate(capsys, "models", name)[2]


def test_a_narrow_terminal_cuts_no_cell_of_a_table(capsys, monkeypatch):
    """Short cells stay whole; long ones and headers are folded, but lose nothing."""
    draw = random.Random(0)
    letters = string.ascii_letters + string.digits + "/.,"
    for columns in (20, 40, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        for _ in range(20):
            lengths = [draw.choice((1, 5, 12, 30, 31, 90)) for _ in range(draw.randint(1, 7))]
            row = ["".join(draw.choices(letters, k=length)) for length in lengths]
            header = [f"{length} characters of a cell" for length in lengths]
            emit(False, None, [Table("title", header, [row])])
            out = capsys.readouterr().out
            assert all(cell in out for cell in row if len(cell) <= 30)
            cells = [[part.strip() for part in line.split("│")[1:-1]] for line in out.splitlines() if line[:1] == "│"]
            assert ["".join(column) for column in zip(*cells, strict=True)] == row
    assert "…" not in out


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


# The last resort


@pytest.fixture
def bug(monkeypatch, tmp_path):
    """Let `crate models` fail as no verb expects; logs go to a folder of the test."""

    def fail(*_):
        raise KeyError("two\nlines")

    monkeypatch.setattr("codingrate.models.presets.list_models", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_an_unexpected_error_is_one_line_with_a_log(capsys, bug, tmp_path):
    code, out, line = crate(capsys, "models", "vit-*")
    assert (code, out) == (70, "")
    (log,) = tmp_path.glob("crate-*.log")
    assert line == f"crate: this is a bug (KeyError); please report it with the log {log}"
    text = log.read_text()
    assert "crate models 'vit-*'" in text
    assert "Traceback (most recent call last):" in text
    assert "in fail" in text


def test_debug_shows_the_traceback_of_a_bug(bug, tmp_path):
    with pytest.raises(KeyError):
        main(["models", "--debug"])
    assert not list(tmp_path.glob("*.log"))


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_too_little_memory_is_not_a_bug(capsys, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("codingrate.models.presets.list_models", fail)
    check_refusal(capsys, ["models"], 1, "not enough memory; use a smaller batch size")


def test_a_reader_that_has_gone(tmp_path):
    """`crate recipes | head -1` ends without a word."""
    program = "import sys; from codingrate.cli import main; main(['recipe', 'digits'])"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1


def test_a_failing_thread_is_a_note(capsys, monkeypatch):
    def models(pattern):
        thread = threading.Thread(target=os.stat, args=("/nowhere",))
        thread.start()
        thread.join()
        return list_models(pattern)

    monkeypatch.setattr("codingrate.models.presets.list_models", models)
    code, out, note = crate(capsys, "models", "vit-tiny*")
    assert code == 0
    assert "vit-tiny-patch16-224" in out
    assert note.startswith("note: a background thread has failed (FileNotFoundError: ")
    assert len(note.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["evaluate", "digits", "--batch-size", 10**30], 2, "less than or equal to 1048576"),
        (["evaluate", "digits", "--checkpoint", "9" * 5000], 2, "must be last, best or a training step"),
        (["evaluate", "digits", "--checkpoint", "²"], 2, "must be last, best or a training step"),
        (["evaluate", "x" * 5000], 1, "unknown run folder, checkpoint file or model 'xxx"),
        (["evaluate", "a\0b"], 1, "unknown run folder, checkpoint file or model 'a\\x00b'"),
        (["evaluate", "a\udcff"], 1, "is not UTF-8"),
        (["train", "digits", "--output", "x" * 300], 1, "File name too long"),
        (["demo", "--epochs", "nan"], 1, "schedule.epochs is 'nan'; it must be a finite number"),
        (["verify", "--seed", 2**32], 2, "less than or equal to 4294967295"),
        (["bench", "--threads", 10**30], 2, "less than or equal to 1024"),
        (["bench", "--batch", 10**30], 2, "less than or equal to 65536"),
        (["recipes", "x" * 5000], 1, "unknown recipe 'xxx"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_absurd_values_get_one_line(capsys, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    check_refusal(capsys, arguments, code, message)


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is one of glibc")
def test_the_command_keeps_freed_memory():
    """Large arrays that are allocated again and again cause page faults, unless freed memory is kept."""
    program = (
        "import sys, resource, numpy as np\n"
        "from codingrate.cli import app\n"
        "if sys.argv[1] == 'keep': app._keep_freed_memory()\n"
        "def count(rounds):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for _ in range(rounds): arrays = [np.ones(2**20) for _ in range(8)]; del arrays\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "count(2); print(count(10))"
    )
    faults = {
        mode: int(subprocess.run([sys.executable, "-c", program, mode], check=True, capture_output=True).stdout)
        for mode in ("default", "keep")
    }
    assert faults["keep"] < 0.1 * faults["default"]


def test_a_terminated_command_leaves_no_temporary_folder(tmp_path, monkeypatch):
    def work(pattern):
        with atomic_folder(tmp_path / "report") as draft:
            (draft / "report.html").write_text("half")
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)  # a signal is handled between two operations

    def fail(number, frame):
        raise AssertionError("not handled by the command")

    monkeypatch.setattr("codingrate.models.presets.list_models", work)
    before = signal.signal(signal.SIGTERM, fail)
    try:
        with pytest.raises(SystemExit) as stopped:
            main(["models"])
        assert stopped.value.code == 128 + signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is fail
    finally:
        signal.signal(signal.SIGTERM, before)
    assert list(tmp_path.iterdir()) == []
