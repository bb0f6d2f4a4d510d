"""Figures of claims, as rows of panels: no background and mid-tone colors, for light and dark pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .frame import power_law

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes  # claims annotate their drawing functions with fig.Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GRAY = "#4a86c8", "#d9772b", "#2f9e77", "#8a8a8a"
COLORS = (BLUE, ORANGE, GREEN, GRAY)

Draw = Callable[["Figure"], None]  # a function that fills a figure
Curve = tuple[Sequence[float], Sequence[float], "Sequence[float] | float", str]
"""x, measured y, prediction (values, or the slope of a line through the points in log-log), label."""
Labels = tuple[str, str, str]  # the title of a panel and the labels of its axes
Panel = tuple[Labels, Callable[["Axes"], None]]  # labels, and a function that fills the axes


def figure(*panels: Panel) -> Draw:
    """Return a function that draws the panels in one row of a figure."""

    def draw(figure: Figure) -> None:
        figure.patch.set_alpha(0)
        figure.set_size_inches(4.2 * len(panels), 3.6)
        figure.set_layout_engine("constrained")
        row = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, ((title, x, y), fill) in zip(row, panels, strict=True):
            axes.patch.set_alpha(0)
            axes.set_title(title, color=GRAY, fontsize=10)
            axes.tick_params(colors=GRAY, which="both", labelsize=8)
            for name, spine in axes.spines.items():
                spine.set_color(GRAY)
                spine.set_visible(name in ("left", "bottom"))
            fill(axes)
            axes.set_xlabel(x, color=GRAY, fontsize=9)
            axes.set_ylabel(y, color=GRAY, fontsize=9)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(frameon=False, labelcolor=GRAY, fontsize=8)

    return draw


def guides(axes: Axes, x: Sequence[float] = (), y: Sequence[float] = ()) -> None:
    """Draw dashed reference lines at these values of x and y."""
    for position in x:
        axes.axvline(position, color=GRAY, linewidth=0.8, linestyle="--")
    for position in y:
        axes.axhline(position, color=GRAY, linewidth=0.8, linestyle="--")


def laws(title: str, x: str, y: str, *curves: Curve, level: float | None = None) -> Panel:
    """Return a panel of measured points and predicted curves in log-log, one color each, with a guide at `level`."""

    def fill(axes: Axes) -> None:
        for index, (x, y, predicted, label) in enumerate(curves):
            if isinstance(predicted, (int, float)):
                constant = power_law(x, y, predicted).constant
                predicted = [constant * value**predicted for value in x]
            color = COLORS[index % len(COLORS)]
            axes.loglog(x, y, "o", color=color, markersize=4, label=label)
            axes.loglog(x, predicted, "-", color=color, linewidth=1, alpha=0.8)
            if len(x) <= 6:  # a short range has no decades to mark
                axes.set_xticks(list(x), labels=[f"{value:.2g}" for value in x])
                axes.minorticks_off()
        guides(axes, y=() if level is None else (level,))

    return (title, x, y), fill


def lines(
    labels: Labels,
    *curves: tuple[Any, Any, Any],
    scale: str = "semilogx",
    style: str = "o-",
    marks: Sequence[float] = (),
    levels: Sequence[float] = (),
) -> Panel:
    """Return a panel of curves (x, y, label), one color each, with guides at x = `marks` and y = `levels`.

    `scale` is the method of the axes: semilogx, semilogy, loglog or plot.
    """

    def fill(axes: Axes) -> None:
        for color, (x, y, label) in zip(COLORS, curves, strict=False):
            getattr(axes, scale)(x, y, style, color=color, markersize=4, label=label)
        guides(axes, marks, levels)

    return labels, fill


def plot_plane(axes: Axes, bases: Tensor, reach: float) -> None:
    """Show a square part of the plane with the lines U_k, bases (K, 2, 1)."""
    for direction in (reach * 1.4 * bases[..., 0]).tolist():
        axes.plot([-direction[0], direction[0]], [-direction[1], direction[1]], color=GRAY, linewidth=0.8)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")


def arrows(title: str, bases: Tensor, start: Tensor, end: Tensor, color: str = BLUE) -> Panel:
    """Return a panel of the plane with the lines U_k and an arrow from each point (n, 2) to its end point."""

    def fill(axes: Axes) -> None:
        plot_plane(axes, bases, 2.5)
        x, y = start.T.numpy()
        style: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.003, "headwidth": 5}
        axes.scatter(x, y, s=5, color=color, alpha=0.6, linewidths=0)
        axes.quiver(x, y, *(end - start).T.numpy(), color=color, alpha=0.8, **style)

    return (title, "", ""), fill


def plane_lines(*degrees: float) -> Tensor:
    """Return lines through 0 in the plane at these angles, as bases (K, 2, 1)."""
    angle = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([angle.cos(), angle.sin()], dim=-1).unsqueeze(-1)
