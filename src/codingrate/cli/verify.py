"""`crate verify`: the paper's claims, tried one by one."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._files import atomic_write
from .output import Json, print_json, progress

if TYPE_CHECKING:
    from ..theory import Outcome

COLOURS = {"holds": "green", "holds in range": "yellow", "fails": "red"}


def verify(
    full: Annotated[
        bool, typer.Option("--full/--quick", help="More draws and longer sweeps, or an answer within a minute.")
    ] = False,
    claim: Annotated[
        list[str] | None, typer.Option(help="Only this claim; may be repeated. The table lists the names.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="What every claim draws from.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Also write a page with figures to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Try every claim of the paper's theory: predicted value, measured value, verdict.

    The exit code is 1 if a verdict is worse than expected. That a claim holds in a range only, or fails, is known for
    some and said in the table; it is no error.
    """
    from ..theory import Trial, report_html
    from ..theory.claims import select, trials

    trial, chosen = Trial(seed, full), select(claim or None)
    with progress("trying claims", len(chosen)) as advance:
        outcomes = []
        for outcome in trials(chosen, trial):
            outcomes.append(outcome)
            advance()
    if html is not None:
        with atomic_write(html) as draft:
            draft.write_text(report_html(outcomes, trial), encoding="utf-8")
    if as_json:
        print_json([_record(outcome, seed) for outcome in outcomes])
    else:
        _show(outcomes, seed)
        if html is not None:
            print(f"figures in {html}")
    worse = [o for o in outcomes if not o.ok]
    if worse:
        said = "; ".join(f"{o.claim.name} {o.finding.verdict}, expected: {o.claim.expected}" for o in worse)
        print(f"crate: not as expected: {said}", file=sys.stderr)
        raise typer.Exit(1)


def _record(outcome: Outcome, seed: int) -> dict[str, Any]:
    claim, finding = outcome.claim, outcome.finding
    return {
        "claim": claim.name,
        "section": claim.section,
        "equation": claim.equation,
        "statement": claim.statement,
        "threshold": claim.threshold,
        "expected": claim.expected,
        "prediction": finding.prediction,
        "measured": finding.measured,
        "verdict": finding.verdict,
        "reason": finding.reason,
        "numbers": {name: value if math.isfinite(value) else None for name, value in finding.numbers.items()},
        "ok": outcome.ok,
        "seed": seed,
        "seconds": round(outcome.seconds, 3),
    }


def _show(outcomes: list[Outcome], seed: int) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=180)  # a file or a pipe has no width, and eighty columns hold no sentences
    table = Table(show_lines=True)
    for name, share in (("claim", 2), ("paper", 2), ("prediction", 3), ("measured", 4), ("verdict", 3)):
        table.add_column(name, ratio=share)
    table.add_column("seed", justify="right")
    for outcome in outcomes:
        claim, finding = outcome.claim, outcome.finding
        colour = COLOURS[finding.verdict]
        said = f"[{colour}]{finding.verdict}[/{colour}]" + (f": {escape(finding.reason)}" if finding.reason else "")
        table.add_row(
            claim.name,
            escape(f"{claim.section} {claim.equation}"),
            escape(finding.prediction),
            escape(finding.measured),
            said,
            str(seed),
        )
    console.print(table)
    counts = {verdict: sum(o.finding.verdict == verdict for o in outcomes) for verdict in COLOURS}
    seconds = sum(outcome.seconds for outcome in outcomes)
    print(f"{len(outcomes)} claims in {seconds:.0f} s: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items()))
