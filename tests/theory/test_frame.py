"""Claims are registered, selected, tested and judged."""

import math
import re

import pytest
import torch

from codingrate.theory.claims import CLAIMS, Finding, Trial, claim, frame, judge, select, verify
from tests.refusals import refused


def finding(verdict="holds", **rest):
    return Finding("one", "one", verdict, **rest)


@pytest.fixture
def registry(monkeypatch):
    """An empty registry."""
    monkeypatch.setattr(frame, "CLAIMS", {})
    return frame.CLAIMS


def enter(run, section="2.1", **options):
    return claim(section=section, equation="eq:x", **options)(run)


def test_a_claim_takes_name_statement_and_threshold_from_its_function(registry):
    def order_of_things(trial):
        """One
        equals one.

        Nothing is
        allowed.

        Nothing at all.
        """
        return finding()

    enter(order_of_things)
    entry = registry["order-of-things"]
    assert entry.statement == "One equals one."
    assert entry.threshold == "Nothing is allowed.\n\nNothing at all."
    assert (entry.section, entry.equation, entry.expected) == ("2.1", "eq:x", "holds")
    with pytest.raises(ValueError, match="registered twice"):
        enter(order_of_things)


@pytest.mark.parametrize("doc", [None, "", "A statement and no threshold."])
def test_a_claim_without_statement_or_threshold_is_no_claim(registry, doc):
    def bare(trial):
        return finding()

    bare.__doc__ = doc
    with pytest.raises(ValueError, match="needs a statement and a threshold"):
        enter(bare)


@pytest.mark.parametrize(
    ("expected", "verdict", "ok"),
    [
        ("holds", "holds", True),
        ("holds", "holds in range", False),
        ("holds", "fails", False),
        ("holds in range", "holds", True),
        ("holds in range", "holds in range", True),
        ("holds in range", "fails", False),
        ("fails", "fails", True),
        ("fails", "holds", True),
    ],
)
def test_a_verdict_is_ok_when_it_is_at_least_what_was_expected(registry, expected, verdict, ok):
    def some(trial):
        """A.

        B.
        """
        return finding(verdict)

    enter(some, expected=expected)
    (outcome,) = verify()
    assert outcome.ok is ok
    assert outcome.seconds >= 0


@pytest.mark.parametrize(
    ("expected", "verdict", "reason"),
    [
        ("holds in range", "holds in range", "x < 1"),
        ("holds", "holds in range", "x < 1"),
        ("fails", "fails", "x < 1"),
        ("holds in range", "fails", "the measurement contradicts the prediction"),
    ],
)
def test_an_unexpected_failure_does_not_give_the_reason_of_the_expected_verdict(registry, expected, verdict, reason):
    def some(trial):
        """A.

        B.
        """
        return finding(verdict, reason="x < 1", numbers={"value": math.nan})

    enter(some, expected=expected)
    (outcome,) = verify(trial=Trial(seed=3))
    record = outcome.to_dict()
    assert (record["verdict"], record["reason"], record["seed"]) == (verdict, reason, 3)
    assert (record["claim"], record["expected"], record["ok"]) == ("some", expected, outcome.ok)
    assert record["numbers"] == {"value": None}


def test_a_verdict_depends_on_the_range_and_on_all_cases():
    assert (judge(True), judge(True, False)) == ("holds", "holds in range")
    assert (judge(False), judge(False, False)) == ("fails", "fails")


def test_an_exception_is_a_claim_that_fails_and_the_others_go_on(registry):
    def first(trial):
        """A.

        B.
        """
        raise ZeroDivisionError("by zero")

    def second(trial):
        """A.

        B.
        """
        return finding()

    enter(first)
    enter(second)
    broken, whole = verify()
    assert (broken.finding.verdict, broken.finding.reason) == ("fails", "ZeroDivisionError: by zero")
    assert not broken.ok
    assert whole.ok


def test_claims_come_in_the_order_of_the_paper_whatever_was_asked_first(registry):
    def make(name, section):
        def run(trial):
            """A.

            B.
            """
            return finding()

        run.__name__ = name
        enter(run, section)

    for name, section in (("d", "B.3"), ("b", "2.3"), ("c", "A.1"), ("a", "2.1"), ("e", "B.3")):
        make(name, section)
    assert [entry.name for entry in select()] == ["a", "b", "c", "d", "e"]
    assert [entry.name for entry in select(["e", "a"])] == ["a", "e"]
    assert select([]) == []


def test_an_unknown_name_gets_the_nearest_known_one():
    assert "unknown claim 'neuman-order'; did you mean 'neumann-order'?" in refused("", select, ["neuman-order"])


def test_a_trial_draws_the_same_every_time_and_chooses_by_effort():
    trial = Trial(seed=7)
    first, second = (torch.randn(3, generator=trial.generator()) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, torch.randn(3, generator=Trial(seed=8).generator()))
    assert (trial.choose(1, 2), Trial(full=True).choose(1, 2)) == (1, 2)


def test_the_paper_is_covered():
    entries = select()
    assert len(entries) >= 20
    assert {entry.section for entry in entries} >= {"2.1", "2.2", "2.3", "2.4", "3.1", "3.2", "3.3", "A.1", "A.2"}
    for entry in entries:
        assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", entry.name)
        assert re.fullmatch(r"[23AB]\.[1-5]", entry.section)
        assert entry.statement.endswith((".", "?")), entry.name
    assert list(CLAIMS) == [entry.run.__name__.replace("_", "-") for entry in CLAIMS.values()]
