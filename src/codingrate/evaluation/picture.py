"""The confusion matrix as a picture, from two classes to thousands."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._files import atomic_write
from ..errors import CrateError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 100
_SIDE = 600  # pixels of the matrix, about; a cell is at least one pixel
_LARGEST = 1000  # more classes than this share pixels
_NUMBERED = 20  # classes up to which cells carry their counts
_LABELLED = 50  # and up to which the axes carry names
_MAP = "cividis"  # made to look the same with and without colour blindness, and in grey


def confusion_picture(confusion: NDArray[np.integer[Any]], classes: Sequence[str], path: str | Path) -> Path:
    """Draw a confusion matrix (rows true, columns predicted) as a PNG, atomically; gives the path.

    Colour is the share of the true class, so that rare classes show as well as common ones, on a square-root scale,
    so that the few errors of a good model do too. Few classes get the counts in the cells, many lose their names.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no pyplot: no window, no global state
    from matplotlib.figure import Figure

    counts = np.asarray(confusion)
    if counts.ndim != 2 or counts.shape != (len(classes), len(classes)) or not len(classes):
        raise CrateError(f"a confusion matrix of {len(classes)} classes is square, not {counts.shape}")
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
    cell = max(round(_SIDE / len(classes)), 1)
    side = cell * min(len(classes), _LARGEST) / _DPI
    figure = Figure(figsize=(side + 2, side + 2), dpi=_DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((1 / (side + 2), 1 / (side + 2), side / (side + 2), side / (side + 2)))
    _draw(figure, axes, _shrunk(shares), len(classes))
    _label(axes, classes, cell)
    if len(classes) <= _NUMBERED:
        _number(axes, counts, shares, cell)
    seen = int(totals.sum())
    right = f"accuracy {np.trace(counts) / seen:.1%}, {seen:,} images" if seen else "no images"
    axes.set_title(right, fontsize=12, pad=10)
    with warnings.catch_warnings(), atomic_write(Path(path)) as draft:
        warnings.filterwarnings("ignore", message="Glyph")  # a script the font has not; boxes stand for it
        figure.savefig(draft, format="png", bbox_inches="tight", pad_inches=0.15)
    return Path(path)


def _shrunk(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Blocks of cells by their largest: an average would fade the diagonal."""
    starts = np.arange(0, len(shares), -(-len(shares) // _LARGEST))
    return np.maximum.reduceat(np.maximum.reduceat(shares, starts, axis=0), starts, axis=1)


def _draw(figure: Figure, axes: Axes, shares: NDArray[np.float64], classes: int) -> None:
    from matplotlib.colors import PowerNorm

    edge = classes - 0.5
    image = axes.imshow(
        shares, cmap=_MAP, norm=PowerNorm(0.5, 0, 1), interpolation="nearest", extent=(-0.5, edge, edge, -0.5)
    )
    bar_axes = axes.inset_axes((1.03, 0, 0.035, 1))
    bar = figure.colorbar(image, cax=bar_axes, ticks=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1], format="{x:.0%}")
    bar.set_label("share of the true class")
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")


def _label(axes: Axes, classes: Sequence[str], cell: int) -> None:
    if len(classes) > _LABELLED:
        return  # matplotlib's own ticks: class numbers
    names = [name if len(name) <= 24 else f"{name[:23]}…" for name in classes]
    size = min(10.0, 0.6 * cell)
    upright = max(map(len, names)) * size * 0.85 > cell  # too wide to lie side by side
    places = range(len(names))
    axes.set_xticks(places, names, fontsize=size, rotation=90 if upright else 0)
    axes.set_yticks(places, names, fontsize=size)
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        text.set_parse_math(False)  # a dollar sign in a class name is a dollar sign


def _number(axes: Axes, counts: NDArray[Any], shares: NDArray[np.float64], cell: int) -> None:
    widest = len(str(int(counts.max())))
    size = min(11.0, 0.9 * cell / widest)
    for row, column in zip(*np.nonzero(counts), strict=True):
        ink = "black" if shares[row, column] > 0.25 else "white"  # the middle of the colour scale
        axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=ink, fontsize=size)
