"""Line charts as inline SVG: values appear under the pointer by CSS alone, so that a page needs no script for them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

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

_WIDTH, _HEIGHT = 430, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 30, 52


class Series(NamedTuple):
    """A line of a chart; values that are not finite leave a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = BLUE
    dashed: bool = False
    errors: Sequence[float] | None = None
    """Half-widths of a band around the line."""


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
    shown = [one for one in series if any(math.isfinite(value) for value in one.y)]
    points = [(x, y) for one in shown for x, y in zip(one.x, one.y, strict=True) if math.isfinite(y)]
    if not points:
        return (
            f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
            f'<text class="title" x="{_LEFT}" y="16">{formula(title)}</text>'
            f'<text class="axis" x="{_WIDTH / 2}" y="{_HEIGHT / 2}" text-anchor="middle">no values yet</text></svg>'
        )
    bands = [
        value
        for one in shown
        for y, error in zip(one.y, one.errors or [0.0] * len(one.y), strict=True)
        if math.isfinite(y) and math.isfinite(error)
        for value in (y - error, y + error)
    ]
    low, high = min(bands), max(bands)
    ticks = _ticks(min(low, 0.0) if from_zero else low, high)
    frame = _Frame(min(x for x, _ in points), max(x for x, _ in points), ticks[0], ticks[-1])
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{_LEFT}" y="16">{formula(title)}</text>',
    ]
    for tick in ticks:
        y = frame.y(tick)
        parts.append(f'<line class="gridline" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(tick, percent)}</text>'
        )
    places = sorted({x for x, _ in points})
    for x in _x_ticks(places):
        parts.append(
            f'<text class="tick" x="{frame.x(x):.1f}" y="{_HEIGHT - _BOTTOM + 15}" text-anchor="middle">{x:g}</text>'
        )
    parts.append(
        f'<text class="axis" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - _BOTTOM + 29}" text-anchor="end">'
        f"{escape(x_label)}</text>"
    )
    if mark is not None:
        x = frame.x(mark)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
    parts += [_line(one, frame) for one in shown]
    parts += _legend(shown)
    told: dict[float, list[_Told]] = {x: [] for x in places}
    for one in shown:
        label = one.name[:28]
        escaped = escape(label)
        for x, y in zip(one.x, one.y, strict=True):
            if math.isfinite(y):
                told[x].append(_Told(label, escaped, one.color, y))
    parts += [_slot(index, places, told[x], frame, escape(x_label), percent) for index, x in enumerate(places)]
    return "".join([*parts, "</svg>"])


def formula(text: str) -> str:
    """Return the content of an SVG text in which R^c and Z^{ℓ+½} are raised."""
    raised = '<tspan dy="-4" font-size="70%">\\1\\2</tspan><tspan dy="4">\u200b</tspan>'  # a space of no width resets
    return re.sub(r"\^(?:\{([^}]*)\}|(\w))", raised, escape(text))


class _Frame(NamedTuple):
    """The part of the plane that a chart shows, and its place in the SVG."""

    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        """Return the horizontal place of a value."""
        share = 0.5 if self.right == self.left else (value - self.left) / (self.right - self.left)
        return _LEFT + 6 + share * (_WIDTH - _LEFT - _RIGHT - 12)

    def y(self, value: float) -> float:
        """Return the vertical place of a value."""
        return _HEIGHT - _BOTTOM - (value - self.low) / (self.high - self.low) * (_HEIGHT - _BOTTOM - _TOP)


def _line(one: Series, frame: _Frame) -> str:
    kept = [(frame.x(x), y, i) for i, (x, y) in enumerate(zip(one.x, one.y, strict=True)) if math.isfinite(y)]
    path = " ".join(f"{x:.1f},{frame.y(y):.1f}" for x, y, _ in kept)
    dash = ' stroke-dasharray="5 4"' if one.dashed else ""
    band = ""
    if one.errors is not None:
        width = [error if math.isfinite(error) else 0.0 for error in one.errors]
        upper = [f"{x:.1f},{frame.y(y + width[i]):.1f}" for x, y, i in kept]
        lower = [f"{x:.1f},{frame.y(y - width[i]):.1f}" for x, y, i in reversed(kept)]
        band = f'<polygon points="{" ".join(upper + lower)}" fill="{one.color}" opacity=".15"/>'
    dots = ""
    if len(kept) <= 40:
        dots = "".join(
            f'<circle cx="{x:.1f}" cy="{frame.y(y):.1f}" r="{2 if one.dashed else 2.8}" fill="{one.color}"/>'
            for x, y, _ in kept
        )
    return f'{band}<polyline points="{path}" fill="none" stroke="{one.color}" stroke-width="2"{dash}/>{dots}'


def _legend(shown: Sequence[Series]) -> list[str]:
    parts, x = [], float(_LEFT)
    if len(shown) < 2:
        return []
    for one in shown:
        dash = ' stroke-dasharray="5 4"' if one.dashed else ""
        y = _HEIGHT - 8
        parts.append(
            f'<line x1="{x}" x2="{x + 16}" y1="{y - 4}" y2="{y - 4}" stroke="{one.color}" stroke-width="3"{dash}/>'
        )
        name = one.name if len(one.name) <= 24 else f"{one.name[:23]}…"
        parts.append(f'<text x="{x + 21}" y="{y}">{escape(name)}</text>')
        x += 32 + 6.0 * len(name)
    return parts


class _Told(NamedTuple):
    """A value that appears under the pointer."""

    label: str
    escaped: str
    color: str
    value: float


def _slot(
    index: int,
    places: Sequence[float],
    values: Sequence[_Told],
    frame: _Frame,
    x_label: str,
    percent: bool,
) -> str:
    """Return the strip around one place of the axis, with what appears when the pointer is over it."""
    at = frame.x(places[index])
    left = _LEFT if index == 0 else (frame.x(places[index - 1]) + at) / 2
    right = _WIDTH - _RIGHT if index == len(places) - 1 else (frame.x(places[index + 1]) + at) / 2
    lines, longest, dots = [f"{x_label} {places[index]:g}"], len(x_label) + 6, ""
    for one in values:
        number = _number(one.value, percent, exact=True)
        lines.append(f"{one.escaped}: {number}")
        longest = max(longest, len(one.label) + 2 + len(number))
        dots += f'<circle cx="{at:.1f}" cy="{frame.y(one.value):.1f}" r="4.5" fill="{one.color}"/>'
    width, height = 14 + 6.2 * longest, 8 + 15 * len(lines)
    box = max(2.0, at - width - 8) if at > _WIDTH / 2 else min(at + 8, _WIDTH - width - 2)
    text = "".join(
        f'<text x="{box + 7:.1f}" y="{_TOP + 15 + 15 * row}">{line}</text>' for row, line in enumerate(lines)
    )
    return (
        f'<g class="slot"><rect x="{left:.1f}" y="{_TOP}" width="{max(right - left, 0):.1f}" '
        f'height="{_HEIGHT - _BOTTOM - _TOP}"/><g class="tip"><line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" '
        f'y2="{_HEIGHT - _BOTTOM}"/>{dots}<rect class="box" x="{box:.1f}" y="{_TOP + 1}" width="{width:.1f}" '
        f'height="{height}" rx="4"/>{text}</g></g>'
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers that enclose an interval."""
    if high - low <= 1e-12 * max(abs(low), abs(high)):  # a constant
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if high else (0.0, 1.0)
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (factor * step) <= 4.5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _x_ticks(places: Sequence[float]) -> list[float]:
    """Return places of the axis that get a number: all if they are few, else round ones."""
    if len(places) <= 12:
        return list(places)
    return [tick for tick in _ticks(places[0], places[-1]) if places[0] <= tick <= places[-1]]


def _number(value: float, percent: bool, *, exact: bool = False) -> str:
    """Format a value of an axis, or `exact` under the pointer."""
    if percent:
        return f"{value:.1%}" if exact else f"{100 * value:.4g} %"
    if abs(value) >= 1e4:
        return f"{value:.3g}"
    return f"{value:.4g}" if exact else f"{value:.6g}"
