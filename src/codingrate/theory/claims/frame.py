"""The definition of a claim, the measurements and verdicts that claims share, and the functions that test claims.

A claim is one function. The first paragraph of its docstring is the statement in the paper's notation; the next ones
derive the threshold of the verdict; the last one, "Mutations: …", names errors in the code under which the verdict must
change. `@claim` registers the function and `verify` runs it. The tests apply every mutation.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from codingrate._files import to_plain
from codingrate._page import render, render_figure
from codingrate._report import Report
from codingrate.errors import unknown_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")
Table = dict[str, list[float]]
COLORS, GRAY = ("#4a86c8", "#d9772b", "#2f9e77", "#a06ab4"), "#8a8a8a"
Verdict = Literal["holds", "holds in a stated range", "fails as stated, true in another form", "fails"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""The four verdicts.

- holds: the statement is true in every case that it covers.
- holds in a stated range: it is true in a range of sizes or steps that the paper leaves open or itself allows.
- fails as stated, true in another form: it is false in cases that it covers, and the other form was shown to be true.
- fails: it is false, or its other form is.
"""
ERROR: Literal["error"] = "error"  # in the place of a verdict if the test of a claim raised an exception


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
    verdict: Verdict | Literal["error"]
    reason: str = ""  # range, other form or cause behind the verdict; `trials` replaces it on an unexpected failure
    numbers: Mapping[str, float] = field(default_factory=dict)  # the measured numbers, for programs
    table: Table = field(default_factory=dict)  # the trials as columns, which the page draws over the first one


Test = Callable[[Trial], Finding]


def tabulate(rows: Iterable[Mapping[T, float]]) -> dict[T, list[float]]:
    """Turn the rows of trials, one for each setting or draw, into columns by name."""
    listed = list(rows)
    return {name: [float(row[name]) for row in listed] for name in listed[0]}


def draw(table: Table) -> Callable[[Figure], None]:
    """Return a function that draws the columns of a table over the first one, without a background.

    Axes are logarithmic where all values are positive and span a decade. Mid-tone colors suit light and dark pages.
    """

    def fill(figure: Figure) -> None:
        figure.patch.set_alpha(0)
        figure.set_layout_engine("constrained")
        axes = figure.subplots()
        axes.patch.set_alpha(0)
        (name, x), *columns = table.items()
        style = "o-" if len(set(x)) == len(x) else "o"  # several draws of one setting are no line
        for (label, y), color in zip(columns, cycle(COLORS), strict=False):
            axes.plot(x, y, style, color=color, markersize=4, linewidth=1, label=label)
        values = [value for _, column in columns for value in column]
        axes.set(xscale=scale(x), yscale=scale(values))
        axes.set_xlabel(name, color=GRAY)
        axes.tick_params(colors=GRAY, which="both")
        axes.legend(frameon=False, labelcolor=GRAY)

    return fill


def scale(values: Sequence[float]) -> str:
    """Return the scale of an axis with these values."""
    return "log" if min(values) > 0 and max(values) >= 10 * min(values) else "linear"


@dataclass(frozen=True)
class Claim:
    """A statement of the paper with the function that tests it."""

    name: str
    section: str  # of the paper: "2.3", "A.1", "B.3"
    equation: str  # the paper's number or label: "Theorem 1", "eq:ssa"
    statement: str  # first paragraph of the function's docstring
    threshold: str  # the next paragraphs: the criterion of the verdict and its derivation
    mutations: tuple[str, ...]  # the last paragraph: errors in the code under which the verdict must change
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
        """Whether the verdict is the expected one; a better one is a surprise too."""
        return self.finding.verdict == self.claim.expected

    def to_dict(self) -> dict[str, Any]:
        """Return the record that `crate verify --json` prints."""
        record = {"claim": self.claim.name} | vars(self.claim) | vars(self.finding)
        record |= {"ok": self.ok, "seed": self.seed, "seconds": round(self.seconds, 3)}
        return to_plain({key: value for key, value in record.items() if key not in ("name", "run", "table")})


CLAIMS: dict[str, Claim] = {}


def claim(section: str, equation: str, expected: Verdict = "holds") -> Callable[[Test], Test]:
    """Register a function as a claim under its own name: `neumann_order` becomes "neumann-order"."""

    def register(run: Test) -> Test:
        name = run.__name__.replace("_", "-")
        if name in CLAIMS:
            raise ValueError(f"claim {name!r} is registered twice; rename one of the functions")
        parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", (run.__doc__ or "").strip())]
        if len(parts) < 3 or not parts[-1].startswith("Mutations: "):
            raise ValueError(
                f'claim {name!r} needs a statement, a threshold and "Mutations: …" as paragraphs of its docstring'
            )
        mutations = tuple(parts[-1].removeprefix("Mutations: ").removesuffix(".").split("; "))
        CLAIMS[name] = Claim(name, section, equation, parts[0], "\n\n".join(parts[1:-1]), mutations, expected, run)
        return run

    return register


EXACT = math.sqrt(torch.finfo(torch.float64).eps)
"""Relative error up to which two float64 results count as equal: half of the digits, 1.5e-8."""

LEVEL = 1e-3  # probability that a true claim is rejected by chance in one trial


class PowerLaw(NamedTuple):
    """y = constant · x^exponent."""

    exponent: float
    constant: float


def power_law(x: Sequence[float] | Tensor, y: Sequence[float] | Tensor) -> PowerLaw:
    """Fit a power law to points by least squares in log-log.

    If a y is zero or negative there is none, and both numbers are NaN, which no threshold accepts.
    """
    if min(float(value) for value in y) <= 0:
        return PowerLaw(math.nan, math.nan)
    log_x, log_y = (np.log(np.asarray(values, dtype=float)) for values in (x, y))
    centered = log_x - log_x.mean()
    exponent = float(centered @ log_y / (centered @ centered))
    return PowerLaw(exponent, float(np.exp(log_y.mean() - exponent * log_x.mean())))


class Estimate(NamedTuple):
    """A mean over repetitions with its standard error."""

    mean: float
    error: float


def estimate(values: Sequence[float] | Tensor) -> Estimate:
    """Return the mean and standard error of at least two independent repetitions."""
    data = np.asarray(values, dtype=float).ravel()
    return Estimate(float(data.mean()), float(data.std(ddof=1) / math.sqrt(data.size)))


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of the angle between two tensors of one shape, seen as vectors."""
    return float((a * b).sum() / (torch.linalg.norm(a) * torch.linalg.norm(b)))


def relative(a: Tensor, b: Tensor) -> float:
    """Return ‖a − b‖/‖b‖."""
    return float(torch.linalg.norm(a - b) / torch.linalg.norm(b))


def worst(values: Iterable[float]) -> float:
    """Return the largest value, or NaN if one is, which no limit accepts."""
    return float(np.max(list(values)))


def gaussian(n: int, d: int, generator: torch.Generator) -> Tensor:
    """Draw tokens (n, d) with independent standard normal entries."""
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def axis_bases(K: int, p: int) -> Tensor:
    """Return the subspaces that are blocks of the axes of R^{Kp}, (K, Kp, p)."""
    return torch.eye(K * p, dtype=torch.float64).view(K * p, K, p).transpose(0, 1)


def rounding(size: int, condition: float = 1.0) -> float:
    """Return the relative difference that rounding in float64 explains: size · condition · 2⁻⁵²."""
    return size * condition * 2.0**-52


def critical(tests: int) -> float:
    """Return the bound that |z| exceeds in any of so many tests with probability at most LEVEL (Bonferroni)."""
    return float(norm.isf(LEVEL / (2 * tests)))


def z_scores(sample: Tensor, expected: Tensor | float = 0.0) -> Tensor:
    """Return (mean − expected) / standard error of each column of independent rows, (n, m) → (m,)."""
    return (sample.mean(0) - expected) * len(sample) ** 0.5 / sample.std(0)


def covariance_scores(sample: Tensor, covariance: Tensor) -> Tensor:
    """Return z-scores of the distinct entries of E zz* for independent rows z, (n, d) → (d(d + 1)/2,)."""
    i, j = torch.triu_indices(*covariance.shape)
    return z_scores(sample[:, i] * sample[:, j], covariance[i, j])


def judge(stated: bool, *, ranged: bool = False, form: bool = False) -> Verdict:
    """Return the best verdict that was shown: as stated, in a range that the paper allows, in another form, or none."""
    return VERDICTS[0 if stated else 1 if ranged else 2 if form else 3]


def select(names: Iterable[str] | None = None) -> list[Claim]:
    """Return the claims of these names, or all if None, in the order of the paper's sections."""
    wanted = CLAIMS.keys() if names is None else set(names)
    for name in sorted(wanted - CLAIMS.keys()):
        raise unknown_name("claim", name, CLAIMS)
    return sorted((entry for entry in CLAIMS.values() if entry.name in wanted), key=lambda entry: entry.section)


def trials(claims: Iterable[Claim], trial: Trial) -> Iterator[Outcome]:
    """Yield the outcome of each claim as soon as it is known; an exception is an error, never a verdict."""
    for entry in claims:
        start = time.perf_counter()
        try:
            finding = entry.run(trial)
            if finding.verdict == "fails" != entry.expected:
                finding = replace(finding, reason="the measurement contradicts the prediction")
        except Exception as error:  # a broken operator must not hide the other claims
            finding = Finding("a value", "an exception", ERROR, f"{type(error).__name__}: {error}")
        yield Outcome(entry, finding, time.perf_counter() - start, trial.seed)


def verify(names: Iterable[str] | None = None, trial: Trial | None = None) -> list[Outcome]:
    """Test the claims of these names, or all if None."""
    return list(trials(select(names), trial or Trial()))


def summarize(outcomes: Sequence[Outcome]) -> str:
    """Return the number of outcomes with each verdict, separated by semicolons, with errors only if there are any."""
    counts = Counter(outcome.finding.verdict for outcome in outcomes)
    return "; ".join(f"{counts[word]} {word}" for word in (*VERDICTS, ERROR) if word != ERROR or counts[word])


def report_html(outcomes: Sequence[Outcome], trial: Trial) -> str:
    """Return the page: a table of all verdicts, and for each claim its figure, statement and threshold."""
    findings = {outcome.claim.name: outcome.finding for outcome in outcomes}
    return render(
        "theory.html",
        title="crate verify",
        outcomes=outcomes,
        trial=trial,
        summary=summarize(outcomes),
        surprises=[outcome.claim.name for outcome in outcomes if not outcome.ok],
        pictures={
            name: render_figure(draw(finding.table), name) for name, finding in findings.items() if finding.table
        },
    )
