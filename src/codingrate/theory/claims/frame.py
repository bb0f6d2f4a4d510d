"""The definition of a claim, and the functions that test and judge claims.

A claim is one function. The first paragraph of its docstring is the statement in the paper's notation; the other
paragraphs derive the threshold of the verdict. `@claim` registers the function and `verify` runs it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from codingrate._files import to_plain
from codingrate._report import Report
from codingrate.errors import unknown_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")
Verdict = Literal["holds", "holds in range", "fails"]
RANK: dict[Verdict, int] = {"fails": 0, "holds in range": 1, "holds": 2}


@dataclass(frozen=True)
class Trial:
    """The settings that a claim is tested with."""

    seed: int = 0
    full: bool = False  # whether to use more repetitions, larger sizes and longer sweeps

    def generator(self) -> torch.Generator:
        """Return a new generator; a claim draws everything from it, in float64 on the CPU."""
        return torch.Generator().manual_seed(self.seed)

    def choose(self, quick: T, full: T) -> T:
        """Return a size or a number of repetitions: `full` in a full trial, `quick` otherwise."""
        return full if self.full else quick


@dataclass(frozen=True)
class Finding:
    """The result of testing a claim."""

    prediction: str  # the statement as a number: "slope 2 in β"
    measured: str  # its measured counterpart: "slope 1.98"
    verdict: Verdict
    reason: str = ""  # range or cause behind the expected verdict; `trials` replaces it on an unexpected failure
    numbers: Mapping[str, float] = field(default_factory=dict)  # the measured numbers, for programs
    draw: Callable[[Figure], None] | None = None  # fills a matplotlib figure


Test = Callable[[Trial], Finding]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper with the function that tests it."""

    name: str
    section: str  # of the paper: "2.3", "A.1", "B.3"
    equation: str  # the paper's number or label: "Theorem 1", "eq:ssa"
    statement: str  # first paragraph of the function's docstring
    threshold: str  # the other paragraphs: the criterion of the verdict and its derivation
    expected: Verdict  # "holds", or a weaker one if the statement is known to need a range or to be wrong
    run: Test


@dataclass(frozen=True)
class Outcome(Report):
    """A claim with the result of its test."""

    claim: Claim
    finding: Finding
    seconds: float
    seed: int = 0

    @property
    def ok(self) -> bool:
        """Whether the verdict is at least as good as expected."""
        return RANK[self.finding.verdict] >= RANK[self.claim.expected]

    def to_dict(self) -> dict[str, Any]:
        """Return the record that `crate verify --json` prints."""
        record = {"claim": self.claim.name} | vars(self.claim) | vars(self.finding)
        record |= {"ok": self.ok, "seed": self.seed, "seconds": round(self.seconds, 3)}
        return to_plain({key: value for key, value in record.items() if key not in ("name", "run", "draw")})


CLAIMS: dict[str, Claim] = {}


def claim(section: str, equation: str, expected: Verdict = "holds") -> Callable[[Test], Test]:
    """Register a function as a claim under its own name: `neumann_order` becomes "neumann-order"."""

    def register(run: Test) -> Test:
        name = run.__name__.replace("_", "-")
        if name in CLAIMS:
            raise ValueError(f"claim {name!r} is registered twice; rename one of the functions")
        statement, *rest = [" ".join(part.split()) for part in re.split(r"\n\s*\n", (run.__doc__ or "").strip())]
        if not statement or not rest:
            raise ValueError(f"claim {name!r} needs a statement and a threshold as paragraphs of its docstring")
        CLAIMS[name] = Claim(name, section, equation, statement, "\n\n".join(rest), expected, run)
        return run

    return register


def judge(inside: bool, everywhere: bool = True) -> Verdict:
    """Return the verdict on a claim that was true in its range (`inside`) and in all cases tried (`everywhere`)."""
    if not inside:
        return "fails"
    return "holds" if everywhere else "holds in range"


def select(names: Iterable[str] | None = None) -> list[Claim]:
    """Return the claims of these names, or all if None, in the order of the paper's sections."""
    wanted = CLAIMS.keys() if names is None else set(names)
    for name in sorted(wanted - CLAIMS.keys()):
        raise unknown_name("claim", name, CLAIMS)
    return sorted((entry for entry in CLAIMS.values() if entry.name in wanted), key=lambda entry: entry.section)


def trials(claims: Iterable[Claim], trial: Trial) -> Iterator[Outcome]:
    """Yield the outcome of each claim as soon as it is known; an exception is the reason of a failure."""
    for entry in claims:
        start = time.perf_counter()
        try:
            finding = entry.run(trial)
            if finding.verdict == "fails" != entry.expected:
                finding = replace(finding, reason="the measurement contradicts the prediction")
        except Exception as error:  # a broken operator must not hide the other claims
            finding = Finding("a value", "an exception", "fails", f"{type(error).__name__}: {error}")
        yield Outcome(entry, finding, time.perf_counter() - start, trial.seed)


def verify(names: Iterable[str] | None = None, trial: Trial | None = None) -> list[Outcome]:
    """Test the claims of these names, or all if None."""
    return list(trials(select(names), trial or Trial()))
