"""docs/theory.md says what `crate verify` says, and its code runs."""

import math
import re
from pathlib import Path

import pytest

from codingrate.theory.claims import CLAIMS, Trial, frame, verify

PAGE = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
ENTRY = re.compile(
    r"^- `crate verify --claim (?P<name>\S+)` \((?P<section>[^,]+), (?P<equation>.+)\): \*\*(?P<verdict>[a-z, ]+)\*\*\n"
    r"  - (?P<statement>.+)\n"
    r"  - predicted: (?P<prediction>.+)\n"
    r"  - measured: (?P<measured>.+)\n"
    r"(?:  - (?:why|form|range|note): (?P<reason>.+)\n)?"
    r"  - not with: (?P<mutations>.+)\n",
    re.MULTILINE,
)
ENTRIES = {match["name"]: match for match in ENTRY.finditer(PAGE)}
QUICK = ["neumann-order", "mssa-gradient", "ista-descends", "half-steps-descend", "signal-shrinkage", "base-assumption"]


def plain(text):
    return (text or "").replace("\\*", "*")


def unrounded(text):
    """Without the sizes of rounding errors, which are the machine's own."""
    return re.sub(r"error \S+ of the rounding limit", "error within the rounding limit", text)


def same(printed, found):
    """The same words, and the same numbers up to the last digit, or to their being rounding errors."""
    number = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
    printed, found = unrounded(printed), unrounded(found)
    assert number.sub("#", printed) == number.sub("#", found)
    for one, other in zip(number.findall(printed), number.findall(found), strict=True):
        one, other = (float(value.replace(",", "")) for value in (one, other))
        assert math.isclose(one, other, rel_tol=0.05, abs_tol=0.0051) or max(abs(one), abs(other)) < 1e-9


def test_every_claim_is_in_the_walk_with_its_place_and_statement():
    assert set(ENTRIES) == set(CLAIMS)
    assert PAGE.count("\n- `crate verify --claim ") == len(ENTRIES), "none stands there twice"
    for name, match in ENTRIES.items():
        entry = CLAIMS[name]
        assert (match["section"], match["equation"]) == (entry.section, entry.equation)
        assert match["verdict"] == entry.expected
        assert plain(match["statement"]) == entry.statement
        assert plain(match["mutations"]) == "; ".join(entry.mutations)


def check(name):
    (outcome,) = verify([name], Trial(seed=0))
    same(plain(ENTRIES[name]["prediction"]), outcome.finding.prediction)
    same(plain(ENTRIES[name]["measured"]), outcome.finding.measured)
    same(plain(ENTRIES[name]["reason"]), outcome.finding.reason)


@pytest.mark.parametrize("name", QUICK)
def test_numbers_are_those_of_the_command(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(ENTRIES) - set(QUICK)))
def test_all_numbers_are_those_of_the_command(name):
    check(name)


def test_the_code_of_the_walk_runs(monkeypatch):
    monkeypatch.setattr(frame, "CLAIMS", dict(CLAIMS))
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) >= 8
    names: dict[str, object] = {"__name__": "walk"}
    for block in blocks:
        exec(compile(block, "theory.md", "exec"), names)
    (outcome,) = verify(["rate-of-one-token"])
    assert outcome.ok
