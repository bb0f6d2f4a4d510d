"""What a claim is, and how claims are tried.

A claim is one function: its docstring's first paragraph is the statement in the paper's letters, the rest says where
the threshold of the verdict comes from. `@claim` enters it; `verify` runs it; nothing else needs to know about it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

import torch

from codingrate.errors import unknown_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")
Verdict = Literal["holds", "holds in range", "fails"]
WORTH: dict[Verdict, int] = {"fails": 0, "holds in range": 1, "holds": 2}


@dataclass(frozen=True)
class Trial:
    """What a claim is tried with."""

    seed: int = 0
    full: bool = False
    """More repetitions, larger sizes, longer sweeps."""

    def generator(self) -> torch.Generator:
        """A fresh generator; a claim draws everything from it, in float64 on the CPU."""
        return torch.Generator().manual_seed(self.seed)

    def choose(self, quick: T, full: T) -> T:
        """A size or a number of repetitions by effort."""
        return full if self.full else quick


@dataclass(frozen=True)
class Finding:
    """What a trial of a claim found."""

    prediction: str
    """What the statement says, with its number: "slope 2 in β"."""
    measured: str
    """What came out: "slope 1.98"."""
    verdict: Verdict
    reason: str = ""
    """The range for "holds in range", the why for "fails"."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The same for machines."""
    draw: Callable[[Figure], None] | None = None
    """Fills a matplotlib figure."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper with the function that tries it."""

    name: str
    section: str
    """Of the paper: "2.3", "A.1", "B.3"."""
    equation: str
    """The paper's own number or label: "Theorem 1", "eq:ssa"."""
    statement: str
    """First paragraph of the function's docstring."""
    threshold: str
    """The other paragraphs: what decides the verdict, and where it comes from."""
    expected: Verdict
    """"holds", or what we know better: a claim that holds in a range only, or fails."""
    run: Callable[[Trial], Finding]


@dataclass(frozen=True)
class Outcome:
    """A claim that was tried."""

    claim: Claim
    finding: Finding
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the verdict is at least as good as expected."""
        return WORTH[self.finding.verdict] >= WORTH[self.claim.expected]


CLAIMS: dict[str, Claim] = {}


def claim(
    section: str, equation: str, expected: Verdict = "holds"
) -> Callable[[Callable[[Trial], Finding]], Callable[[Trial], Finding]]:
    """Enter a function as the claim of its name: `neumann_order` becomes "neumann-order"."""

    def enter(run: Callable[[Trial], Finding]) -> Callable[[Trial], Finding]:
        name = run.__name__.replace("_", "-")
        if name in CLAIMS:
            raise ValueError(f"claim {name!r} is entered twice")
        statement, *rest = [" ".join(part.split()) for part in re.split(r"\n\s*\n", (run.__doc__ or "").strip())]
        if not statement or not rest:
            raise ValueError(f"claim {name!r} needs a statement and a threshold in its docstring")
        CLAIMS[name] = Claim(name, section, equation, statement, "\n\n".join(rest), expected, run)
        return run

    return enter


def try_claim(claim: Claim, trial: Trial) -> Outcome:
    """Run one claim; an exception is a claim that fails with the exception as its reason."""
    start = time.perf_counter()
    try:
        finding = claim.run(trial)
    except Exception as error:  # a broken operator must show in its own row, not hide the other rows
        finding = Finding("a value", "an exception", "fails", f"{type(error).__name__}: {error}")
    return Outcome(claim, finding, time.perf_counter() - start)


def select(names: Iterable[str] | None = None) -> list[Claim]:
    """The claims of these names in the order of the paper's sections, all of them when None."""
    wanted = CLAIMS.keys() if names is None else set(names)
    for name in sorted(wanted - CLAIMS.keys()):
        raise unknown_name("claim", name, CLAIMS)
    return sorted((entry for entry in CLAIMS.values() if entry.name in wanted), key=lambda entry: entry.section)


def trials(claims: Iterable[Claim], trial: Trial) -> Iterator[Outcome]:
    """Outcomes one by one, as they come."""
    for entry in claims:
        yield try_claim(entry, trial)


def verify(names: Iterable[str] | None = None, trial: Trial | None = None) -> list[Outcome]:
    """Try the claims of these names, all when None."""
    return list(trials(select(names), trial or Trial()))
