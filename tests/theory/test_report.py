"""The page: complete, self-contained, light and dark, and valid."""

import re

import pytest

from codingrate.theory import Trial, report_html, verify
from codingrate.theory.claims.frame import Claim, Finding, Outcome
from tests.pages import Reader

NAMES = ["neumann-order", "identity-projection", "base-assumption"]


@pytest.fixture(scope="module")
def page():
    return report_html(verify(NAMES), Trial())


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
    assert set(NAMES) <= set(read.ids)


def test_figures_stand_with_statement_and_threshold(page, read):
    text = " ".join(" ".join(read.texts).split())
    for outcome in verify(NAMES):
        entry, finding = outcome.claim, outcome.finding
        for words in (
            entry.name,
            entry.statement,
            entry.threshold.split("\n\n")[0],
            "; ".join(entry.mutations),
            finding.prediction,
            finding.measured,
        ):
            assert words in text
        section = page[page.index(f'<section id="{entry.name}"') :].split("</section>")[0]
        assert section.count("<img") == (finding.draw is not None)
    summary = "1 holds; 1 holds in a stated range; 0 fails as stated, true in another form; 1 fails"
    assert f"3 claims: {summary}. Every verdict is as expected." in text


def test_the_same_seed_gives_the_same_page(page):
    def timeless(text):
        return re.sub(r"\d+\.\d s,", "", text)

    assert timeless(report_html(verify(NAMES), Trial())) == timeless(page)


def test_text_is_escaped_and_a_surprise_is_named():
    entry = Claim("a-claim", "2.1", "eq:<x>", "x < y & z.", "Nothing.", ("x > 1",), "holds", lambda trial: finding)
    finding = Finding("<1>", "2 & 3", "fails", "because <b>")
    page = report_html([Outcome(entry, finding, 0.1)], Trial(seed=5, full=True))
    assert "x &lt; y &amp; z." in page
    assert "<b>" not in page
    assert "Not as expected: a-claim." in page
    assert "fails (expected: holds)" in page
    assert "crate verify --full --seed 5" in page
