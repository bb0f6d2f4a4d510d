"""One HTML file of all claims that were tried: the table, and under each figure its statement and threshold.

Nothing is loaded from elsewhere; light and dark follow the reader's system.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from .claims import Claim, Outcome, Trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --quiet: #5b636d; --page: #fcfcfb; --line: #d9dcdf;
  --holds: #1d7a4c; --holds-in-range: #a05a00; --fails: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6e8; --quiet: #9aa3ad; --page: #16181b; --line: #363b41;
  --holds: #5fc48f; --holds-in-range: #e0a04a; --fails: #f2857c; } }
body { color: var(--ink); background: var(--page); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .3rem; }
a { color: inherit; } code { font-size: .9em; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }
.quiet { color: var(--quiet); } .wide { overflow-x: auto; }
.holds { color: var(--holds); } .holds-in-range { color: var(--holds-in-range); } .fails { color: var(--fails); }
figure { margin: 1rem 0; overflow-x: auto; } figure svg { max-width: 100%; height: auto; }
section { break-inside: avoid; }
"""


def report_html(outcomes: Sequence[Outcome], trial: Trial) -> str:
    """The whole page as text."""
    counts = Counter(outcome.finding.verdict for outcome in outcomes)
    summary = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("holds", "holds in range", "fails"))
    surprises = [outcome.claim.name for outcome in outcomes if not outcome.ok]
    note = f"Not as expected: {', '.join(surprises)}." if surprises else "Every verdict is as expected or better."
    effort = "--full" if trial.full else "--quick"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>crate verify</title><style>{STYLE}</style></head><body>"
        f"<h1>The theory, tried</h1><p>{len(outcomes)} claims: {summary}. {escape(note)}</p>"
        f'<p class="quiet"><code>crate verify {effort} --seed {trial.seed}</code></p>'
        f"{_table(outcomes, trial)}{''.join(_section(outcome, trial) for outcome in outcomes)}</body></html>\n"
    )


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
    figure = f"<figure>{_svg(finding.draw, entry.name)}</figure>" if finding.draw else ""
    threshold = "".join(f'<p class="quiet">{escape(part)}</p>' for part in entry.threshold.split("\n\n"))
    return (
        f'<section id="{entry.name}"><h2>{entry.name} <span class="quiet">{_place(entry)}</span></h2>{figure}'
        f"<p>{escape(entry.statement)}</p>{threshold}"
        f"<p>Predicted: {escape(finding.prediction)}. Measured: {escape(finding.measured)}. "
        f"{_verdict(outcome)}.{reason}"
        f' <span class="quiet">{outcome.seconds:.1f} s, <code>crate verify --claim {entry.name} --seed {trial.seed}'
        "</code></span></p></section>"
    )


def _svg(draw: Callable[[Figure], None], name: str) -> str:
    """The figure as an SVG element whose ids are those of no other figure on the page."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # Text stays text, in the reader's font; the salt makes the file the same for the same seed.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure = Figure()
        FigureCanvasSVG(figure)
        draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
