"""Drawing helpers for the figures of claims: no background and mid-tone colors, for light and dark pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .measure import law_through

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes  # claims annotate their drawing functions with fig.Axes and fig.Figure
    from matplotlib.figure import Figure as Figure

BLUE, ORANGE, GREEN, GRAY = "#4a86c8", "#d9772b", "#2f9e77", "#8a8a8a"
COLORS = (BLUE, ORANGE, GREEN)

Draw = Callable[["Figure"], None]
"""A function that fills a figure."""
Curve = tuple[Sequence[float], Sequence[float], "Sequence[float] | float", str]
"""x, measured y, prediction (values, or the slope of a line through the points in log-log), label."""


def panels(figure: Figure, titles: Sequence[str]) -> list[Axes]:
    """Create one row of axes with these titles."""
    figure.patch.set_alpha(0)
    figure.set_size_inches(4.2 * len(titles), 3.6)
    figure.set_layout_engine("constrained")
    row = figure.subplots(1, len(titles), squeeze=False)[0]
    for axes, title in zip(row, titles, strict=True):
        axes.patch.set_alpha(0)
        axes.set_title(title, color=GRAY, fontsize=10)
        axes.tick_params(colors=GRAY, which="both", labelsize=8)
        for name, spine in axes.spines.items():
            spine.set_color(GRAY)
            spine.set_visible(name in ("left", "bottom"))
    return list(row)


def label_axes(axes: Axes, x: str, y: str) -> None:
    """Label both axes, and show the legend if there is one."""
    axes.set_xlabel(x, color=GRAY, fontsize=9)
    axes.set_ylabel(y, color=GRAY, fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, labelcolor=GRAY, fontsize=8)


def panel(title: str, x: str, y: str) -> Callable[[Callable[[Axes], None]], Draw]:
    """Turn a function that fills axes into one that draws a figure with one panel, its title and its axis labels."""

    def decorate(fill: Callable[[Axes], None]) -> Draw:
        def draw(figure: Figure) -> None:
            (axes,) = panels(figure, [title])
            fill(axes)
            label_axes(axes, x, y)

        return draw

    return decorate


def guides(axes: Axes, x: Sequence[float] = (), y: Sequence[float] = ()) -> None:
    """Draw dashed reference lines at these values of x and y."""
    for position in x:
        axes.axvline(position, color=GRAY, linewidth=0.8, linestyle="--")
    for position in y:
        axes.axhline(position, color=GRAY, linewidth=0.8, linestyle="--")


def plot_laws(axes: Axes, *curves: Curve) -> None:
    """Plot measured points and predicted curves in log-log, one color per curve."""
    for index, (x, y, predicted, label) in enumerate(curves):
        line = law_through(x, y, predicted) if isinstance(predicted, (int, float)) else predicted
        color = COLORS[index % len(COLORS)]
        axes.loglog(x, y, "o", color=color, markersize=4, label=label)
        axes.loglog(x, line, "-", color=color, linewidth=1, alpha=0.8)
        if len(x) <= 6:  # a short range has no decades to mark
            axes.set_xticks(list(x), labels=[f"{value:.2g}" for value in x])
            axes.minorticks_off()


def law_figure(title: str, x: str, y: str, *curves: Curve, level: float | None = None) -> Draw:
    """Return a drawing function for one panel of `plot_laws`, with axis labels and a guide at `level`."""

    @panel(title, x, y)
    def draw(axes: Axes) -> None:
        plot_laws(axes, *curves)
        guides(axes, y=() if level is None else (level,))

    return draw


def plot_plane(axes: Axes, bases: Tensor, reach: float) -> None:
    """Show a square part of the plane with the lines U_k, bases (K, 2, 1)."""
    for direction in (reach * 1.4 * bases[..., 0]).tolist():
        axes.plot([-direction[0], direction[0]], [-direction[1], direction[1]], color=GRAY, linewidth=0.8)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")


def plot_arrows(axes: Axes, start: Tensor, end: Tensor, color: str) -> None:
    """Plot points (n, 2) with an arrow from each to its end point."""
    x, y = start.T.numpy()
    u, v = (end - start).T.numpy()
    axes.scatter(x, y, s=5, color=color, alpha=0.6, linewidths=0)
    axes.quiver(x, y, u, v, angles="xy", scale_units="xy", scale=1, width=0.003, headwidth=5, color=color, alpha=0.8)


def plane_lines(*degrees: float) -> Tensor:
    """Return lines through 0 in the plane at these angles, as bases (K, 2, 1)."""
    angle = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([angle.cos(), angle.sin()], dim=-1).unsqueeze(-1)
