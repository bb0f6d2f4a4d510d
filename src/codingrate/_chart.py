"""Line charts as inline SVG: values appear under the pointer by CSS alone, so that a page needs no script for them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from ._page import render

BLUE, ORANGE, GREEN, PURPLE, RED, SKY = "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"
GRAY = "#8a929c"
COLORS = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY)
"""Colors of series, in order, which most people can tell apart (Okabe and Ito); gray is for references."""

STYLE = """
svg.chart { width: 100%; height: auto; display: block; font: 11px system-ui, sans-serif; overflow: visible; }
svg.chart text { fill: currentColor; }
svg.chart .title { font-size: 13px; font-weight: 600; }
svg.chart .axis, svg.chart .tick { opacity: .72; }
svg.chart .gridline { stroke: currentColor; opacity: .13; }
svg.chart .mark { stroke: currentColor; opacity: .5; stroke-dasharray: 2 3; }
svg.chart .slot .tip { display: none; pointer-events: none; }
svg.chart .slot:hover .tip { display: block; }
svg.chart .slot > rect { fill: transparent; }
svg.chart .tip line { stroke: currentColor; opacity: .4; }
svg.chart .tip .box { fill: #1d2126; opacity: .93; }
svg.chart .tip text { fill: #fff; }
"""
"""The part of a page's style sheet that charts need."""


class Series(NamedTuple):
    """A line of a chart; values that are not finite leave a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = BLUE
    dashed: bool = False
    errors: Sequence[float] | None = None
    """Half-widths of a band around the line."""

    @property
    def points(self) -> list[tuple[float, float, float]]:
        """The points with a finite value: x, y and the half-width of the band, 0 where there is none."""
        rows = zip(self.x, self.y, self.errors or [0.0] * len(self.y), strict=True)
        return [(x, y, error if math.isfinite(error) else 0.0) for x, y, error in rows if math.isfinite(y)]


@dataclass(frozen=True)
class _Frame:
    """The part of the plane that a chart shows, and its place in the SVG, in pixels."""

    first: float = 0.0
    last: float = 1.0
    low: float = 0.0
    high: float = 1.0
    width, height = 430, 250
    left, right, top, bottom = 46, 418, 30, 198

    def x(self, value: float) -> float:
        """Return the horizontal place of a value."""
        share = 0.5 if self.last == self.first else (value - self.first) / (self.last - self.first)
        return self.left + 6 + share * (self.right - self.left - 12)

    def y(self, value: float) -> float:
        """Return the vertical place of a value."""
        return self.bottom - (value - self.low) / (self.high - self.low) * (self.bottom - self.top)


def line_chart(
    series: Sequence[Series],
    title: str,
    *,
    x_label: str = "layer",
    percent: bool = False,
    from_zero: bool = False,
    mark: float | None = None,
) -> str:
    """Return an SVG of lines over a common axis; `mark` draws a vertical line, such as the current layer."""
    points = [point for one in series for point in one.points]
    values: dict[float, list[tuple[Series, float]]] = {x: [] for x in sorted({x for x, _, _ in points})}
    for one in series:
        for x, y, _ in one.points:
            values[x].append((one, y))
    frame, ticks, places = _Frame(), [], list(values)
    if points:
        low, high = min(y - error for _, y, error in points), max(y + error for _, y, error in points)
        ticks = _ticks(min(low, 0.0) if from_zero else low, high)
        frame = _Frame(places[0], places[-1], ticks[0], ticks[-1])
    return render(
        "chart.html",
        label=title,
        title=formula(title),
        x_label=x_label,
        series=[one for one in series if one.points],
        values=values,
        frame=frame,
        ticks={tick: _number(tick, percent) for tick in ticks},
        x_ticks=places if len(places) <= 12 else [x for x in _ticks(places[0], places[-1]) if x <= places[-1]],
        mark=mark,
        number=lambda value: _number(value, percent, exact=True),
    )


def formula(text: str) -> Markup:
    """Return the content of an SVG text in which R^c and Z^{ℓ+½} are raised."""
    raised = '<tspan dy="-4" font-size="70%">\\1\\2</tspan><tspan dy="4">\u200b</tspan>'  # a space of no width resets
    return Markup(re.sub(r"\^(?:\{([^}]*)\}|(\w))", raised, escape(text)))


def _ticks(low: float, high: float) -> list[float]:
    """Return a few round numbers that enclose an interval."""
    if high - low <= 1e-12 * max(abs(low), abs(high)):  # a constant
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if high else (0.0, 1.0)
    return [float(tick) for tick in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]


def _number(value: float, percent: bool, *, exact: bool = False) -> str:
    """Format a value of an axis, or `exact` under the pointer."""
    if percent:
        return f"{value:.1%}" if exact else f"{100 * value:.4g} %"
    return f"{value:.3g}" if abs(value) >= 1e4 else f"{value:.4g}" if exact else f"{value:.6g}"
