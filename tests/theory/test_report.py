"""The page: complete, self-contained, light and dark, and valid."""

import re

import pytest

from codingrate.theory.claims import Trial, report_html, verify
from codingrate.theory.claims.frame import Claim, Finding, Outcome
from tests.pages import Reader

NAMES = ["neumann-order", "identity-projection", "base-assumption"]


@pytest.fixture(scope="module")
def outcomes():
    return verify(NAMES)


@pytest.fixture(scope="module")
def page(outcomes):
    return report_html(outcomes, Trial())


@pytest.fixture(scope="module")
def read(page):
    return Reader.of(page)


def test_the_page_needs_nothing_from_elsewhere(page, read):
    assert all(reference.startswith(("#", "data:image/svg+xml;base64,")) for reference in read.references)
    assert "<script" not in page
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page


def test_ids_are_unique_and_every_reference_has_its_target(read):
    assert len(read.ids) == len(set(read.ids))
    assert {reference[1:] for reference in read.references if reference.startswith("#")} <= set(read.ids)


def test_tables_are_drawn_beside_statement_and_threshold(outcomes, page, read):
    text = " ".join(" ".join(read.texts).split())
    for outcome in outcomes:
        entry, finding = outcome.claim, outcome.finding
        words = (entry.name, entry.statement, *entry.threshold.split("\n\n"), *entry.mutations, finding.measured)
        assert all(word in text for word in (*words, finding.prediction))
        section = page[page.index(f'<section id="{entry.name}"') :].split("</section>")[0]
        assert section.count("<img") == bool(finding.table)
    summary = "1 holds; 1 holds in a stated range; 0 fails as stated, true in another form; 1 fails"
    assert f"3 claims: {summary}. Every verdict is as expected." in text


def test_the_same_seed_gives_the_same_page(page):
    again = report_html(verify(NAMES), Trial())
    assert re.sub(r"\d+\.\d s,", "", again) == re.sub(r"\d+\.\d s,", "", page)


def test_text_is_escaped_and_a_surprise_is_named():
    entry = Claim("a-claim", "2.1", "eq:<x>", "x < y & z.", "Nothing.", ("x > 1",), "holds", lambda trial: finding)
    finding = Finding("<1>", "2 & 3", "fails", "because <b>", table={"x": [1.0, 10.0], "y": [0.0, -2.0]})
    page = report_html([Outcome(entry, finding, 0.1)], Trial(seed=5, full=True))
    assert "x &lt; y &amp; z." in page
    assert "<b>" not in page
    assert "Not as expected: a-claim." in page
    assert "fails (expected: holds)" in page
    assert "crate verify --full --seed 5" in page
