"""A grid of matrices or images with a caption each, such as one for every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 9.5
"""Inches: the most a figure of a report may be wide."""
COLUMNS = 6
"""Pictures in a row."""
CAPTION, SCALE = 0.25, 0.85
"""Inches that a line of captions and a colour scale take."""


def draw_grid(
    figure: Figure,
    pictures: Sequence[NDArray[np.generic]],
    captions: Sequence[str],
    columns: int = COLUMNS,
    *,
    scale: str = "",
    **shown: Any,
) -> None:
    """Matrices or images side by side, `columns` in a row, with one colour scale of that name for all.

    A row whose captions are empty takes no room for them; `shown` is handed to imshow.
    """
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    room = SCALE if scale else 0.0
    side = (WIDTH - room) / COLUMNS
    aspect = min(pictures[0].shape[0] / pictures[0].shape[1], 2)
    lines = sum(any(captions[row * columns : (row + 1) * columns]) for row in range(rows))
    figure.set_size_inches(max(side * columns + room, 3), rows * side * aspect + lines * CAPTION + 0.1)
    figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03, wspace=0, hspace=0)
    all_axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, picture, caption in zip(all_axes, pictures, captions, strict=False):
        drawn = axes.imshow(picture, **{"interpolation": "nearest", **shown})
        axes.set_title(caption, fontsize=8, pad=3)
        axes.set(xticks=[], yticks=[])
    for axes in all_axes[len(pictures) :]:
        axes.set_axis_off()
    if scale:
        bar = figure.colorbar(drawn, ax=all_axes, label=scale, pad=0.01, aspect=30)
        if bar.solids is not None:
            bar.solids.set_rasterized(True)  # a picture itself rather than hundreds of cells
