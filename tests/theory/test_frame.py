"""Claims are registered, selected, tested and judged."""

import math
import re

import pytest
import torch

from codingrate.theory.claims import CLAIMS, Finding, Trial, claim, frame, judge, select, verify
from codingrate.theory.claims.frame import VERDICTS
from tests.refusals import refused


@pytest.fixture
def registry(monkeypatch):
    """An empty registry."""
    monkeypatch.setattr(frame, "CLAIMS", {})
    return frame.CLAIMS


def enter(name="some", section="2.1", expected="holds", doc="A.\n\nB.\n\nMutations: C.", **finding):
    """Register a claim with this docstring, which returns this finding or raises an exception."""

    def run(trial):
        if "raises" in finding:
            raise finding["raises"]
        return Finding("one", "one", **{"verdict": "holds"} | finding)

    run.__name__, run.__doc__ = name, doc
    return claim(section=section, equation="eq:x", expected=expected)(run)


def test_a_claim_takes_name_statement_and_threshold_from_its_function(registry):
    enter("order_of_things", doc="""One
        equals one.

        Nothing is
        allowed.

        Nothing at all.

        Mutations: one is two; nothing
        is zero.
        """)  # fmt: skip
    entry = registry["order-of-things"]
    assert entry.statement == "One equals one."
    assert entry.threshold == "Nothing is allowed.\n\nNothing at all."
    assert entry.mutations == ("one is two", "nothing is zero")
    assert (entry.section, entry.equation, entry.expected) == ("2.1", "eq:x", "holds")
    with pytest.raises(ValueError, match="order-of-things"):
        enter("order_of_things")


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("doc", [None, "", "A statement.", "A statement.\n\nMutations: none.", "A.\n\nB.\n\nC."])
def test_a_claim_without_statement_threshold_or_mutations_is_no_claim(doc):
    with pytest.raises(ValueError, match="some"):
        enter(doc=doc)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("expected", VERDICTS)
@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_is_ok_when_it_is_the_expected_one(expected, verdict):
    """An unexpected failure does not give the reason of the expected verdict."""
    enter(expected=expected, verdict=verdict, reason="x < 1", numbers={"value": math.nan})
    (outcome,) = verify(trial=Trial(seed=3))
    record = outcome.to_dict()
    surprise = verdict == "fails" != expected
    assert record["reason"] == ("the measurement contradicts the prediction" if surprise else "x < 1")
    assert (record["verdict"], record["ok"], record["seed"]) == (verdict, verdict == expected, 3)
    assert (record["claim"], record["expected"], record["numbers"]) == ("some", expected, {"value": None})
    assert record["seconds"] >= 0


def test_the_best_verdict_that_was_shown_is_given():
    shown = [judge(True, ranged=True), judge(False, ranged=True, form=True), judge(False, form=True), judge(False)]
    assert shown == list(VERDICTS)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("expected", VERDICTS)
def test_an_exception_is_an_error_whatever_was_expected_and_the_others_go_on(expected):
    enter("first", expected=expected, raises=ZeroDivisionError("by zero"))
    enter("second")
    broken, whole = verify()
    assert (broken.finding.verdict, broken.finding.reason) == ("error", "ZeroDivisionError: by zero")
    assert frame.summarize([broken, whole]).endswith("; 0 fails; 1 error")
    assert (broken.ok, whole.ok) == (False, True)


def test_claims_come_in_the_order_of_the_paper_whatever_was_asked_first(registry):
    for name, section in (("d", "B.3"), ("b", "2.3"), ("c", "A.1"), ("a", "2.1"), ("e", "B.3")):
        enter(name, section)
    assert [entry.name for entry in select()] == ["a", "b", "c", "d", "e"]
    assert [entry.name for entry in select(["e", "a"])] == ["a", "e"]
    assert select([]) == []


def test_an_unknown_name_gets_the_nearest_known_one():
    refused("'neumann-order'", select, ["neuman-order"])


def test_a_trial_draws_the_same_every_time_and_chooses_by_effort():
    trial = Trial(seed=7)
    first, second, other = (torch.randn(3, generator=t.generator()) for t in (trial, trial, Trial(seed=8)))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert (trial.choose(1, 2), Trial(full=True).choose(1, 2)) == (1, 2)


def test_the_paper_is_covered():
    entries = select()
    assert {entry.section for entry in entries} >= {"2.1", "2.2", "2.3", "2.4", "3.1", "3.2", "3.3", "A.1", "A.2"}
    for entry in entries:
        assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", entry.name)
        assert re.fullmatch(r"[23AB]\.[1-5]", entry.section)
        assert entry.statement.endswith((".", "?")), entry.name
    assert len(CLAIMS) == 75
