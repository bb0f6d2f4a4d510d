"""Building blocks of a report: the panel, plots over layers, and grids of images."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ..._chart import BLUE, COLORS, GRAY, Series, line_chart
from ..._fonts import plain_label
from ..measure.predictions import Finding, Verdict, standard_errors

WIDTH = 9.5  # largest width of a figure, in inches
COLUMNS = 6  # number of images in a row of a grid
TICKS = 8  # number of layers up to which each has a tick
CAPTION, SCALE = 0.25, 0.48  # inches that a line of captions and a color scale need
UNTRAINED = "the paper predicts this of trained models, and this one has random weights"
NO_CONTROLS = "the measurement has no control here, or no change exceeds its error"
FEW = "there are too few layers, or no change exceeds its error"
"""Reasons why there is no verdict."""


def curve(table: pd.DataFrame, column: str, label: str, color: str = "", reference: bool = False) -> Series:
    """Return a column of a table over its layers, with standard errors if it has deviations; a reference is dashed."""
    errors = standard_errors(table, column).tolist()
    reference = reference or column.startswith("random")
    return Series(label, table["layer"].tolist(), table[column].tolist(), color, reference, errors)


@dataclass(frozen=True)
class Plots:
    """Plots over the layers, side by side, by title: a figure when it is called, and charts for a page."""

    curves: Mapping[str, Sequence[Series]]
    from_zero: bool = False  # whether the axes start at zero

    @property
    def series(self) -> dict[str, list[Series]]:
        """The lines of each plot in color; a reference is gray if there are at most two."""

        def colored(curves: Sequence[Series]) -> list[Series]:
            few, colors = len(curves) <= 2, zip(curves, cycle(COLORS), strict=False)
            return [one._replace(color=GRAY if few and one.dashed else one.color or color) for one, color in colors]

        return {title: colored(curves) for title, curves in self.curves.items()}

    def charts(self) -> list[str]:
        """Return the plots as inline SVG; their axes have the same place in all, so that layers align."""
        return [line_chart(series, title, from_zero=self.from_zero) for title, series in self.series.items()]

    def __call__(self, figure: Figure) -> None:
        """Draw the plots on an empty figure."""
        width = min(WIDTH, 1.4 + 2.7 * max(2, len(self.curves)))
        all_axes = subplots(figure, width, 3.2, columns=len(self.curves))
        for axes, (title, series) in zip(all_axes, self.series.items(), strict=True):
            for one in series:
                style: Any = {"color": one.color, "linestyle": "--" if one.dashed else "-", "marker": "o"}
                errors = one.errors if any(one.errors or ()) else None
                axes.errorbar(one.x, one.y, errors, label=plain_label(one.name), markersize=3, capsize=2, **style)
            axes.set_xlabel("layer")
            axes.set_title(math_text(title), fontsize="medium")
            layers = sorted({layer for one in series for layer in one.x})
            if len(layers) <= TICKS:
                axes.set_xticks(layers, [f"{layer:.0f}" for layer in layers])
            else:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(alpha=0.3)
            if self.from_zero:
                axes.set_ylim(0, 1.1 * axes.dataLim.y1 or 1)
            if len(series) > 1:
                axes.legend(fontsize="small", frameon=False)


@dataclass(frozen=True)
class Panel:
    """A section of a report: a figure with its sentences and its table."""

    name: str  # stem of its files and its anchor on the page, in lower case with hyphens
    title: str  # heading, a few words
    expected: str  # sentence with the paper's prediction and its section; empty if the paper has none
    measured: str  # sentence with the measured numbers
    draw: Callable[[Figure], None] | None = None
    """Function that draws on an empty figure and sets its size. For `Plots` the page has charts that answer to the
    pointer."""
    table: pd.DataFrame | None = None  # the numbers behind the figure
    findings: Sequence[Finding] = ()  # the measurements that the prediction is about, with their verdicts
    unjudged: str = "the prediction is about what a picture shows, so look at it"
    """Reason why there is no verdict, if the paper predicts something."""

    @property
    def charts(self) -> list[str]:
        """The plots over layers as inline SVG."""
        return self.draw.charts() if isinstance(self.draw, Plots) else []

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the first model of the report."""
        return next(iter(self.verdicts.values()), None)

    @property
    def verdicts(self) -> dict[str, Verdict | None]:
        """The verdicts by the name of the model."""
        return {
            model: Verdict.combine(finding.verdict for finding in own) for model, own in by_model(self.findings).items()
        }

    def judgements(self, *, measured: bool = True) -> list[str]:
        """Return for each model with a verdict what was measured, what the paper predicts of it, and the verdict."""
        texts = {}
        for model, own in by_model(self.findings).items():
            predicted = [finding for finding in own if finding.expected]
            words = [f"{finding.quantity} {finding.expected}".removeprefix("it ") for finding in predicted]
            words = words if len(words) > 1 else [finding.expected for finding in predicted]
            parts = [finding.measured for finding in own] if measured else []
            parts += [f"expected: {', '.join(words)}"] if words else []
            verdict = self.verdicts[model]
            texts[model] = "" if verdict is None else "; ".join([*parts, f"verdict: {verdict.value}"])
        return as_sentences(texts)

    @property
    def verdict_text(self) -> str:
        """The predictions and the verdicts in sentences; empty if the paper predicts nothing."""
        if not self.expected:
            return ""
        return " ".join(self.judgements(measured=False)) or f"No verdict: {self.unjudged}."


def by_model(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Return the findings on each model, by its name."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.model, []).append(finding)
    return groups


def as_sentences(texts: Mapping[str, str]) -> list[str]:
    """Make a sentence of each text that is not empty, with the name of its model if there are several."""
    return [
        f"{model}: {text}." if len(texts) > 1 else f"{text[0].upper()}{text[1:]}."
        for model, text in texts.items()
        if text
    ]


def sentences(findings: Iterable[Finding]) -> str:
    """Join the findings into sentences, with the name of the model if there are several."""
    groups = by_model(findings).items()
    return " ".join(as_sentences({model: "; ".join(finding.measured for finding in own) for model, own in groups}))


def math_text(text: str) -> str:
    """Return a title for matplotlib in which R^c and Z^{ℓ+½} are raised, and ‖·‖_F is lowered."""
    return re.sub(r"([\^_])(?:\{([^}]*)\}|(\w))", r"$\1{\\mathrm{\2\3}}$", text)


def shade(strength: float) -> str:
    """Return blue mixed with white, for curves in an order; a strength of 1 is the color itself."""
    return to_hex(LinearSegmentedColormap.from_list("shades", ["white", BLUE])(strength))


def subplots(figure: Figure, width: float, height: float, rows: int = 1, columns: int = 1) -> Any:
    """Give a figure its size in inches and a constrained layout, and return its axes (rows · columns,)."""
    figure.set_size_inches(width, height)
    figure.set_layout_engine("constrained")
    return figure.subplots(rows, columns, squeeze=False).ravel()


def draw_grid(
    figure: Figure,
    pictures: Sequence[NDArray[np.generic]],
    captions: Sequence[str],
    columns: int = COLUMNS,
    *,
    scale: str = "",
    **options: Any,
) -> None:
    """Draw matrices or images side by side, `columns` in a row, with one color scale named `scale` for all.

    A row with empty captions takes no space for them. `options` are passed to imshow.
    """
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    side = WIDTH / max(columns, COLUMNS)
    aspect = min(pictures[0].shape[0] / pictures[0].shape[1], 2)
    lines = sum(any(captions[row * columns : (row + 1) * columns]) for row in range(rows))
    height = rows * side * aspect + lines * CAPTION + (SCALE if scale else 0.0) + 0.1
    all_axes = subplots(figure, max(side * columns, 3), height, rows, columns)
    figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03, wspace=0, hspace=0)
    for axes in all_axes:
        axes.set_axis_off()
    for axes, picture, caption in zip(all_axes, pictures, captions, strict=False):
        image = axes.imshow(picture, **{"interpolation": "nearest", **options})
        axes.set_title(caption, fontsize=8, pad=3)
        axes.set(xticks=[], yticks=[])
        axes.set_axis_on()
    if scale:
        # Below the pictures, because a figure is often lower than a vertical label is long.
        bar = figure.colorbar(
            image, ax=list(all_axes), location="bottom", pad=0.08 / height, shrink=0.5, fraction=0.1 / height
        )
        bar.set_label(scale, fontsize=8)
        bar.ax.tick_params(labelsize=8)
        if bar.solids is not None:
            bar.solids.set_rasterized(True)  # one image instead of hundreds of cells
