"""One HTML file of all claims that were tried: the table, and under each figure its statement and threshold.

The page is the project's own kind (`codingrate._page`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from .._page import page, svg
from .claims import Claim, Outcome, Trial

STYLE = """
:root { --holds: #1d7a4c; --holds-in-range: #a05a00; --fails: #b3261e; }
@media screen and (prefers-color-scheme: dark) {
  :root { --holds: #5fc48f; --holds-in-range: #e0a04a; --fails: #f2857c; } }
.holds { color: var(--holds); } .holds-in-range { color: var(--holds-in-range); } .fails { color: var(--fails); }
section { break-inside: avoid; }
"""
"""The colours of verdicts."""


def report_html(outcomes: Sequence[Outcome], trial: Trial) -> str:
    """The whole page as text."""
    counts = Counter(outcome.finding.verdict for outcome in outcomes)
    summary = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("holds", "holds in range", "fails"))
    surprises = [outcome.claim.name for outcome in outcomes if not outcome.ok]
    note = f"Not as expected: {', '.join(surprises)}." if surprises else "Every verdict is as expected or better."
    effort = "--full" if trial.full else "--quick"
    body = (
        f"<h1>The theory, tried</h1><p>{len(outcomes)} claims: {summary}. {escape(note)}</p>"
        f'<p class="quiet"><code>crate verify {effort} --seed {trial.seed}</code></p>'
        f"{_table(outcomes, trial)}{''.join(_section(outcome, trial) for outcome in outcomes)}"
    )
    return page("crate verify", body, STYLE)


def _verdict(outcome: Outcome) -> str:
    verdict = outcome.finding.verdict
    extra = "" if outcome.ok else " (expected: " + outcome.claim.expected + ")"
    return f'<span class="{verdict.replace(" ", "-")}">{verdict}{extra}</span>'


def _table(outcomes: Sequence[Outcome], trial: Trial) -> str:
    rows = [
        f'<tr><td><a href="#{entry.name}">{entry.name}</a></td><td>{_place(entry)}</td>'
        f"<td>{escape(outcome.finding.prediction)}</td><td>{escape(outcome.finding.measured)}</td>"
        f"<td>{_verdict(outcome)}</td><td>{trial.seed}</td></tr>"
        for outcome in outcomes
        for entry in (outcome.claim,)
    ]
    heads = "".join(f"<th>{name}</th>" for name in ("claim", "paper", "prediction", "measured", "verdict", "seed"))
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _place(entry: Claim) -> str:
    return f"{entry.section}, {escape(entry.equation)}"


def _section(outcome: Outcome, trial: Trial) -> str:
    entry, finding = outcome.claim, outcome.finding
    reason = f" {escape(finding.reason)}." if finding.reason else ""
    figure = f"<figure>{svg(finding.draw, entry.name)}</figure>" if finding.draw else ""
    threshold = "".join(f'<p class="quiet">{escape(part)}</p>' for part in entry.threshold.split("\n\n"))
    return (
        f'<section id="{entry.name}"><h2>{entry.name} <span class="quiet">{_place(entry)}</span></h2>{figure}'
        f"<p>{escape(entry.statement)}</p>{threshold}"
        f"<p>Predicted: {escape(finding.prediction)}. Measured: {escape(finding.measured)}. "
        f"{_verdict(outcome)}.{reason}"
        f' <span class="quiet">{outcome.seconds:.1f} s, <code>crate verify --claim {entry.name} --seed {trial.seed}'
        "</code></span></p></section>"
    )
