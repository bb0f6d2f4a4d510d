"""`crate verify` from the command line."""

from __future__ import annotations

import json
import math

import pytest

from codingrate.theory.claims import Finding, claim, frame

from .conftest import check_refusal, crate, crate_json


def test_the_table_names_everything(capsys):
    code, out, _ = crate(capsys, "verify", "--claim", "base-assumption", "--claim", "neumann-order", "--seed", 3)
    assert code == 0
    for words in ("claim", "paper", "prediction", "measured", "verdict", "seed", "neumann-order", "eq:gd_rc_neumann"):
        assert words in out
    assert out.index("neumann-order") < out.index("base-assumption"), "the order of the paper"
    assert "2 claims in" in out
    assert "1 holds; 0 holds in a stated range; 0 fails as stated, true in another form; 1 fails" in out


def test_json_is_for_machines_and_the_seed_matters(capsys):
    reports = []
    for seed in (0, 0, 1):
        (report,) = crate_json(capsys, "verify", "--quick", "--claim", "neumann-order", "--seed", seed)
        assert report.pop("seconds") >= 0
        reports.append(report)
    assert reports[0] == reports[1]
    assert reports[0]["numbers"] != reports[2]["numbers"]
    report = reports[0]
    assert (report["claim"], report["section"], report["verdict"]) == ("neumann-order", "2.3", "holds")
    assert report["ok"] is True
    assert report["numbers"]["slope"] == pytest.approx(2, abs=0.02)
    assert report["statement"]
    assert report["threshold"]


def test_the_page_is_written(capsys, tmp_path):
    code, out, _ = crate(capsys, "verify", "--claim", "neumann-order", "--html", tmp_path / "new" / "theory.html")
    assert code == 0
    assert "theory.html" in out
    assert "<figure" in (tmp_path / "new" / "theory.html").read_text(encoding="utf-8")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["theory.html"]


@pytest.fixture
def doubtful(monkeypatch):
    """A registry with one claim that comes out worse than expected."""
    monkeypatch.setattr(frame, "CLAIMS", {})

    @claim(section="2.1", equation="eq:x")
    def doubtful(trial):
        """One [bold] thing.

        Nothing.

        Mutations: none.
        """
        return Finding("1", "[2]", "holds in a stated range", "a < b", {"value": math.inf})


@pytest.mark.parametrize("expected", frame.VERDICTS)
def test_an_exception_is_an_exit_code_of_one_even_if_a_failure_was_expected(capsys, monkeypatch, expected):
    monkeypatch.setattr(frame, "CLAIMS", {})

    @claim(section="2.1", equation="eq:x", expected=expected)
    def broken(trial):
        """One.

        Nothing.

        Mutations: none.
        """
        raise ZeroDivisionError("by zero")

    code, out, line = crate(capsys, "verify")
    assert code == 1
    assert "ZeroDivisionError: by zero" in out
    assert line == f"crate: not as expected: broken error (expected: {expected})"


@pytest.mark.slow
@pytest.mark.parametrize("effort", ["--quick", "--full"])
def test_the_whole_of_verify_in_one_call(capsys, tmp_path, effort):
    code, out, _ = crate(capsys, "verify", effort, "--json", "--html", tmp_path / "theory.html")
    assert code == 0
    assert {record["claim"] for record in json.loads(out)} == set(frame.CLAIMS)
    assert (tmp_path / "theory.html").read_text(encoding="utf-8").count("<section id=") == len(frame.CLAIMS)


@pytest.mark.usefixtures("doubtful")
def test_a_claim_worse_than_expected_is_an_exit_code_of_one(capsys):
    code, out, line = crate(capsys, "verify")
    assert code == 1
    assert "[2]" in out
    assert line == "crate: not as expected: doubtful holds in a stated range (expected: holds)"
    code, out, line = crate(capsys, "verify", "--json")
    assert code == 1
    assert json.loads(out)[0]["numbers"] == {"value": None}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--claim", "neuman-order"), 1, "unknown claim 'neuman-order'; did you mean 'neumann-order'?"),
        (("--seed", "-1"), 2, "--seed"),
    ],
)
def test_bad_calls(capsys, arguments, code, words):
    check_refusal(capsys, ["verify", *arguments], code, words)


def test_a_page_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    page = tmp_path / "file" / "x.html"
    check_refusal(capsys, ["verify", "--claim", "base-assumption", "--html", page], 1, "cannot write")
