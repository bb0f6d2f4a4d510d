"""Building blocks of a report: the panel, plots over layers, and grids of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ..._chart import GRAY, Series, line_chart
from ..measure.predictions import Finding, Verdict, standard_errors
from ..segment.pictures import COLORS

WIDTH = 9.5  # largest width of a figure, in inches
COLUMNS = 6  # number of images in a row of a grid
TICKS = 8  # number of layers up to which each has a tick
CAPTION, SCALE = 0.25, 0.48  # inches that a line of captions and a color scale need
UNTRAINED = "the paper predicts this of trained models, and this one has random weights"
FEW = "there are too few layers, or no change exceeds its error"
"""Reasons why there is no verdict."""
_ORANGE, BLUE, *_OTHERS = (tuple(part / 255 for part in color) for color in COLORS)
PALETTE = (BLUE, _ORANGE, *_OTHERS)


@dataclass(frozen=True)
class Panel:
    """A section of a report: a figure with its sentences and its table."""

    name: str  # stem of its files and its anchor on the page, in lower case with hyphens
    title: str  # heading, a few words
    expected: str  # sentence with the paper's prediction and its section; empty if the paper has none
    measured: str  # sentence with the measured numbers
    draw: Callable[[Figure], None] | None = None  # function that draws on an empty figure and sets its size
    table: pd.DataFrame | None = None  # the numbers behind the figure
    findings: Sequence[Finding] = ()  # the measurements that the prediction is about, with their verdicts
    unjudged: str = "the prediction is about what a picture shows, so look at it"
    """Reason why there is no verdict, if the paper predicts something."""
    plots: Mapping[str, Sequence[Curve]] | None = None
    """The plots over layers of the figure, by title, from which the page draws charts that answer to the pointer."""
    from_zero: bool = False  # whether the axes of the charts start at zero

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the first model of the report."""
        return next(iter(self.verdicts.values()), None)

    @property
    def verdicts(self) -> dict[str, Verdict | None]:
        """The verdicts by the name of the model."""
        models = dict.fromkeys(finding.model for finding in self.findings)
        return {
            model: Verdict.combine(finding.verdict for finding in self.findings if finding.model == model)
            for model in models
        }

    def judgements(self, *, measured: bool = True) -> list[str]:
        """Return for each model with a verdict what was measured, what the paper predicts of it, and the verdict."""
        lines = []
        for model, verdict in self.verdicts.items():
            own = [finding for finding in self.findings if finding.model == model]
            predicted = list(dict.fromkeys(finding.expected for finding in own if finding.expected))
            if len(predicted) > 1:
                predicted = [f"{finding.quantity} {finding.expected}" for finding in own if finding.expected]
            parts = [finding.measured for finding in own] if measured else []
            parts += [f"expected: {', and '.join(predicted)}"] if predicted else []
            if verdict is not None:
                text = "; ".join([*parts, f"verdict: {verdict.value}"])
                lines.append(f"{model}: {text}." if len(self.verdicts) > 1 else f"{text[0].upper()}{text[1:]}.")
        return lines

    @property
    def verdict_text(self) -> str:
        """The predictions and the verdicts in sentences; empty if the paper predicts nothing."""
        if not self.expected:
            return ""
        return " ".join(self.judgements(measured=False)) or f"No verdict: {self.unjudged}."


def page_charts(panel: Panel) -> list[str]:
    """Return the plots of a panel as inline SVG; their axes have the same place in all, so that layers align."""
    charts = []
    for title, curves in (panel.plots or {}).items():
        series = []
        for index, (table, column, label, color) in enumerate(curves):
            errors = standard_errors(table, column)
            reference = column.startswith("random")
            series.append(
                Series(
                    plain_formula(label).strip(),
                    table["layer"].tolist(),
                    table[column].tolist(),
                    GRAY if reference else hex_color(color or PALETTE[index % len(PALETTE)]),
                    dashed=reference,
                    errors=None if errors is None else list(errors),
                )
            )
        charts.append(line_chart(series, plain_formula(title), from_zero=panel.from_zero))
    return charts


def hex_color(color: tuple[float, ...]) -> str:
    """Return a color of matplotlib for SVG; transparency becomes a mixture with white."""
    alpha = color[3] if len(color) > 3 else 1.0
    return "#" + "".join(f"{round(255 * (alpha * part + 1 - alpha)):02x}" for part in color[:3])


def plain_formula(text: str) -> str:
    """Return a title of matplotlib without its markup: $R^c(Z^{\\ell+1/2}\\,|\\,U^\\ell)$ as R^c(Z^{ℓ+½} | U^{ℓ})."""
    plain = text.replace("\\$", "\0").replace("$", "").replace("\0", "$")
    for code, sign in (
        ("^\\ell", "^{ℓ}"), ("\\ell", "ℓ"), ("1/2", "½"), ("\\Delta ", "Δ"), ("\\|", "‖"), ("_0", "₀"),
        ("\\,|\\,", " | "), ("\\sqrt{m}", "√m"), ("\\log", "log "), ("\\,/\\,", " / "),
        ("\\cdot\\,", "·"), ("\\,", " "),
    ):  # fmt: skip
        plain = plain.replace(code, sign)
    return plain


def sentences(findings: Sequence[Finding]) -> str:
    """Join the findings into sentences, with the name of the model if there are several."""
    models = dict.fromkeys(finding.model for finding in findings)
    parts = []
    for model in models:
        text = "; ".join(finding.measured for finding in findings if finding.model == model)
        parts.append(f"{model}: {text}." if len(models) > 1 else f"{text[0].upper()}{text[1:]}.")
    return " ".join(parts)


class Curve(NamedTuple):
    """A column of a table over its layers, with standard errors if it has deviations; `random…` is a reference."""

    table: pd.DataFrame
    column: str
    label: str
    color: tuple[float, ...] | None = None


def subplots(figure: Figure, width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> Any:
    """Give a figure its size in inches and a constrained layout, and return its axes (rows · columns,)."""
    figure.set_size_inches(width, height)
    figure.set_layout_engine("constrained")
    return figure.subplots(rows, columns, squeeze=False, **options).ravel()


def draw_plots(
    figure: Figure, plots: Mapping[str, Sequence[Curve]], *, from_zero: bool = False, share_y: bool = False
) -> None:
    """Draw plots by title side by side over the layers; references are dashed and black."""
    width = min(WIDTH, 1.4 + 2.7 * max(2, len(plots)))
    all_axes = subplots(figure, width, 3.2, columns=len(plots), sharey=share_y)
    for axes, (title, curves) in zip(all_axes, plots.items(), strict=True):
        for index, (table, column, label, color) in enumerate(curves):
            style: Any = {"color": color or PALETTE[index % len(PALETTE)], "marker": "o"}
            if column.startswith("random"):
                style = {"color": "black", "linestyle": "--"}
            errors = standard_errors(table, column)
            axes.errorbar(table["layer"], table[column], errors, label=label, markersize=3, capsize=2, **style)
        axes.set(xlabel="layer", title=title)
        mark_layers(axes, sorted({layer for curve in curves for layer in curve.table["layer"]}))
        axes.grid(alpha=0.3)
        if from_zero:
            axes.set_ylim(0, 1.1 * axes.dataLim.y1 or 1)
        if len(curves) > 1:
            axes.legend(fontsize="small", frameon=False)


def mark_layers(axes: Axes, layers: Sequence[int]) -> None:
    """Put ticks at layers: at each of them if there are few, at whole numbers otherwise."""
    if len(layers) <= TICKS:
        axes.set_xticks(layers, [f"{layer:.0f}" for layer in layers])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


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
    figure.set_size_inches(max(side * columns, 3), height)
    figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03, wspace=0, hspace=0)
    all_axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, picture, caption in zip(all_axes, pictures, captions, strict=False):
        image = axes.imshow(picture, **{"interpolation": "nearest", **options})
        axes.set_title(caption, fontsize=8, pad=3)
        axes.set(xticks=[], yticks=[])
    for axes in all_axes[len(pictures) :]:
        axes.set_axis_off()
    if scale:
        # Below the pictures, because a figure is often lower than a vertical label is long.
        bar = figure.colorbar(
            image, ax=all_axes, location="bottom", pad=0.08 / height, shrink=0.5, fraction=0.1 / height
        )
        bar.set_label(scale, fontsize=8)
        bar.ax.tick_params(labelsize=8)
        if bar.solids is not None:
            bar.solids.set_rasterized(True)  # one image instead of hundreds of cells
