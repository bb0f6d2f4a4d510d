"""How figures of claims look: on a light page and a dark one alike, so without background and in middle tones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#4a86c8", "#d9772b", "#2f9e77", "#8a8a8a"
COLOURS = (BLUE, ORANGE, GREEN)


def panels(figure: Figure, titles: Sequence[str]) -> list[Axes]:
    """One row of axes with these titles."""
    figure.patch.set_alpha(0)
    figure.set_size_inches(4.2 * len(titles), 3.6)
    figure.set_layout_engine("constrained")
    rows = figure.subplots(1, len(titles), squeeze=False)[0]
    for axes, title in zip(rows, titles, strict=True):
        axes.patch.set_alpha(0)
        axes.set_title(title, color=GREY, fontsize=10)
        axes.tick_params(colors=GREY, which="both", labelsize=8)
        for name, spine in axes.spines.items():
            spine.set_color(GREY)
            spine.set_visible(name in ("left", "bottom"))
    return list(rows)


def name(axes: Axes, x: str, y: str) -> None:
    """Label both axes, and show the legend."""
    axes.set_xlabel(x, color=GREY, fontsize=9)
    axes.set_ylabel(y, color=GREY, fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, labelcolor=GREY, fontsize=8)


def law(axes: Axes, x: Sequence[float], y: Sequence[float], predicted: Sequence[float], label: str, at: int) -> None:
    """Measured points and the predicted curve in log-log, in the at-th colour."""
    colour = COLOURS[at % len(COLOURS)]
    axes.loglog(x, y, "o", color=colour, markersize=4, label=label)
    axes.loglog(x, predicted, "-", color=colour, linewidth=1, alpha=0.8)
    if len(x) <= 6:  # a short range has no decades to mark
        axes.set_xticks(list(x), labels=[f"{value:.2g}" for value in x])
        axes.minorticks_off()


def plane(axes: Axes, bases: Tensor, reach: float) -> None:
    """A square piece of the plane with the lines U_k, bases (K, 2, 1)."""
    for direction in (reach * 1.4 * bases[..., 0]).tolist():
        axes.plot([-direction[0], direction[0]], [-direction[1], direction[1]], color=GREY, linewidth=0.8)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")


def arrows(axes: Axes, start: Tensor, end: Tensor, colour: str) -> None:
    """Points (n, 2) with an arrow from each to where it goes."""
    x, y = start.T.numpy()
    u, v = (end - start).T.numpy()
    axes.scatter(x, y, s=5, color=colour, alpha=0.6, linewidths=0)
    axes.quiver(x, y, u, v, angles="xy", scale_units="xy", scale=1, width=0.003, headwidth=5, color=colour, alpha=0.8)


def lines(*degrees: float) -> Tensor:
    """Lines through 0 in the plane at these angles, as bases (K, 2, 1)."""
    angle = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([angle.cos(), angle.sin()], dim=-1).unsqueeze(-1)
