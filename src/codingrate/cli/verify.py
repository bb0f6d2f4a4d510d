"""`crate verify`: test the paper's claims one by one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._files import write_text
from .output import Json, emit, progress

if TYPE_CHECKING:
    from ..theory.claims.frame import Outcome

COLORS = {"holds": "green", "holds in a stated range": "green", "fails as stated, true in another form": "yellow"}


def verify(
    full: Annotated[
        bool, typer.Option("--full/--quick", help="Use more draws and longer sweeps, or finish within a minute.")
    ] = False,
    claim: Annotated[
        list[str] | None,
        typer.Option(help="Claim to test, by its name in the table; can be given more than once. Default: all claims."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of all random draws.")] = 0,
    html: Annotated[Path | None, typer.Option(help="HTML file to write, with figures. Default: none.")] = None,
    as_json: Json = False,
) -> None:
    """Test the claims of the paper's theory, and print predicted value, measured value and verdict of each.

    Some claims are known to hold in a range only, to be true in another form, or to fail; the table states why. The
    exit code is 1 if a verdict is not the expected one or the test of a claim raises an exception.
    """
    from ..theory.claims import Trial, report_html, select, trials

    trial, claims = Trial(seed, full), select(claim or None)
    outcomes = []
    with progress("testing claims", len(claims)) as advance:
        for outcome in trials(claims, trial):
            outcomes.append(outcome)
            advance()
    if html is not None:
        write_text(html, report_html(outcomes, trial))
    if not as_json:
        _print_table(outcomes)
    emit(as_json, [outcome.to_dict() for outcome in outcomes], [] if html is None else [f"Wrote {html}"])
    wrong = [f"{o.claim.name} {o.finding.verdict} (expected: {o.claim.expected})" for o in outcomes if not o.ok]
    if wrong:
        print(f"crate: not as expected: {'; '.join(wrong)}", file=sys.stderr)
        raise typer.Exit(1)


def _print_table(outcomes: list[Outcome]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..theory.claims import summarize

    console = Console()
    if not console.is_terminal:
        console = Console(width=180)  # a file or a pipe has no width, and 80 columns are too narrow for sentences
    table = Table(show_lines=True)
    for name, ratio in (("claim", 2), ("paper", 2), ("prediction", 3), ("measured", 4), ("verdict", 3)):
        table.add_column(name, ratio=ratio)
    table.add_column("seed", justify="right")
    for outcome in outcomes:
        claim, finding = outcome.claim, outcome.finding
        texts = (claim.name, f"{claim.section} {claim.equation}", finding.prediction, finding.measured)
        verdict = Text(finding.verdict, COLORS.get(finding.verdict, "red"))
        reason = f": {finding.reason}" if finding.reason else ""
        table.add_row(*map(Text, texts), Text.assemble(verdict, reason), str(outcome.seed))
    console.print(table)
    print(f"{len(outcomes)} claims in {sum(outcome.seconds for outcome in outcomes):.0f} s: {summarize(outcomes)}")
