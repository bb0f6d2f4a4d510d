"""Report of the claims that were tested, as one HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .._page import render, render_figure
from .claims import Outcome, Trial


def report_html(outcomes: Sequence[Outcome], trial: Trial) -> str:
    """Return the page: a table of all verdicts, and for each claim its figure, statement and threshold."""
    counts = Counter(outcome.finding.verdict for outcome in outcomes)
    findings = {outcome.claim.name: outcome.finding for outcome in outcomes}
    return render(
        "theory.html",
        title="crate verify",
        outcomes=outcomes,
        trial=trial,
        summary=", ".join(f"{counts[verdict]} {verdict}" for verdict in ("holds", "holds in range", "fails")),
        surprises=[outcome.claim.name for outcome in outcomes if not outcome.ok],
        pictures={name: render_figure(finding.draw, name) for name, finding in findings.items() if finding.draw},
    )
