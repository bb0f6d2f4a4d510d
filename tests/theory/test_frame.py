"""Claims are registered, selected, tested and judged."""

import math
import re

import pytest
import torch

from codingrate.theory.claims import CLAIMS, VERDICTS, Finding, Trial, claim, frame, judge, select, verify
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

        Mutations: one is two; nothing
        is zero.
        """
        return finding()

    enter(order_of_things)
    entry = registry["order-of-things"]
    assert entry.statement == "One equals one."
    assert entry.threshold == "Nothing is allowed.\n\nNothing at all."
    assert entry.mutations == ("one is two", "nothing is zero")
    assert (entry.section, entry.equation, entry.expected) == ("2.1", "eq:x", "holds")
    with pytest.raises(ValueError, match="registered twice"):
        enter(order_of_things)


@pytest.mark.parametrize("doc", [None, "", "A statement.", "A statement.\n\nMutations: none.", "A.\n\nB.\n\nC."])
def test_a_claim_without_statement_threshold_or_mutations_is_no_claim(registry, doc):
    def bare(trial):
        return finding()

    bare.__doc__ = doc
    with pytest.raises(ValueError, match="needs a statement, a threshold and"):
        enter(bare)


@pytest.mark.parametrize(
    ("expected", "verdict", "ok"),
    [
        ("holds", "holds", True),
        ("holds", "holds in a stated range", False),
        ("holds", "fails", False),
        ("holds in a stated range", "holds", False),
        ("holds in a stated range", "holds in a stated range", True),
        ("fails as stated, true in another form", "fails as stated, true in another form", True),
        ("fails as stated, true in another form", "fails", False),
        ("fails", "fails", True),
        ("fails", "holds", False),
    ],
)
def test_a_verdict_is_ok_when_it_is_the_expected_one(registry, expected, verdict, ok):
    def some(trial):
        """A.

        B.

        Mutations: C.
        """
        return finding(verdict)

    enter(some, expected=expected)
    (outcome,) = verify()
    assert outcome.ok is ok
    assert outcome.seconds >= 0


@pytest.mark.parametrize(
    ("expected", "verdict", "reason"),
    [
        ("holds in a stated range", "holds in a stated range", "x < 1"),
        ("holds", "holds in a stated range", "x < 1"),
        ("fails", "fails", "x < 1"),
        ("holds in a stated range", "fails", "the measurement contradicts the prediction"),
    ],
)
def test_an_unexpected_failure_does_not_give_the_reason_of_the_expected_verdict(registry, expected, verdict, reason):
    def some(trial):
        """A.

        B.

        Mutations: C.
        """
        return finding(verdict, reason="x < 1", numbers={"value": math.nan})

    enter(some, expected=expected)
    (outcome,) = verify(trial=Trial(seed=3))
    record = outcome.to_dict()
    assert (record["verdict"], record["reason"], record["seed"]) == (verdict, reason, 3)
    assert (record["claim"], record["expected"], record["ok"]) == ("some", expected, outcome.ok)
    assert record["numbers"] == {"value": None}


def test_the_best_verdict_that_was_shown_is_given():
    shown = [judge(True, ranged=True), judge(False, ranged=True, form=True), judge(False, form=True), judge(False)]
    assert shown == list(VERDICTS)


@pytest.mark.parametrize("expected", VERDICTS)
def test_an_exception_is_an_error_whatever_was_expected_and_the_others_go_on(registry, expected):
    def first(trial):
        """A.

        B.

        Mutations: C.
        """
        raise ZeroDivisionError("by zero")

    def second(trial):
        """A.

        B.

        Mutations: C.
        """
        return finding()

    enter(first, expected=expected)
    enter(second)
    broken, whole = verify()
    assert (broken.finding.verdict, broken.finding.reason) == ("error", "ZeroDivisionError: by zero")
    assert frame.summarize([broken, whole]).endswith("; 0 fails; 1 error")
    assert not broken.ok
    assert whole.ok


def test_claims_come_in_the_order_of_the_paper_whatever_was_asked_first(registry):
    def make(name, section):
        def run(trial):
            """A.

            B.

            Mutations: C.
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
