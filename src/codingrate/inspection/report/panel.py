"""Building blocks of a report: the panel, plots over layers, grids of images, and labels of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...data.tokenizers import byte_characters
from ..segment.objects import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

WIDTH = 9.5  # largest width of a figure, in inches
COLUMNS = 6  # number of images in a row of a grid
CAPTION, SCALE = 0.25, 0.85  # inches that a line of captions and a color scale need
FONT = "DejaVu Sans Mono"  # monospaced font that comes with matplotlib
CHARACTER = 1233 / 2048  # width of a character of this font, in units of its size
_ORANGE, BLUE, *_OTHERS = (tuple(part / 255 for part in color) for color in COLORS)
PALETTE = (BLUE, _ORANGE, *_OTHERS)
_VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "→", "\r": "←"})


@dataclass(frozen=True)
class Panel:
    """A section of a report: a figure with its sentences and its table."""

    name: str  # stem of its files and its anchor on the page, in lower case with hyphens
    title: str  # heading, a few words
    expected: str  # sentence with the paper's prediction and its section; empty if the paper has none
    measured: str  # sentence with the measured numbers
    draw: Callable[[Figure], None] | None = None
    """Function that draws on an empty figure and sets its size; text has the color of matplotlib's settings."""
    table: pd.DataFrame | None = None  # the numbers behind the figure


class Curve(NamedTuple):
    """A column of a table over its layers, with error bars if there is a column `…_std`; `random…` is a reference."""

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
    """Draw plots by title side by side over the layers; references are dashed and in the color of the text."""
    from matplotlib import rcParams
    from matplotlib.ticker import MaxNLocator

    width = min(WIDTH, 1.4 + 2.7 * max(2, len(plots)))
    all_axes = subplots(figure, width, 3.2, columns=len(plots), sharey=share_y)
    for axes, (title, curves) in zip(all_axes, plots.items(), strict=True):
        for index, (table, column, label, color) in enumerate(curves):
            style: Any = {"color": color or PALETTE[index % len(PALETTE)], "marker": "o"}
            if column.startswith("random"):
                style = {"color": rcParams["text.color"], "linestyle": "--"}
            std = table.get(f"{column}_std")
            axes.errorbar(table["layer"], table[column], std, label=label, markersize=3, capsize=2, **style)
        axes.set(xlabel="layer", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        if from_zero:
            axes.set_ylim(0, 1.1 * axes.dataLim.y1 or 1)
        if len(curves) > 1:
            axes.legend(fontsize="small", frameon=False)


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
    margin = SCALE if scale else 0.0
    side = (WIDTH - margin) / max(columns, COLUMNS)
    aspect = min(pictures[0].shape[0] / pictures[0].shape[1], 2)
    lines = sum(any(captions[row * columns : (row + 1) * columns]) for row in range(rows))
    figure.set_size_inches(max(side * columns + margin, 3), rows * side * aspect + lines * CAPTION + 0.1)
    figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03, wspace=0, hspace=0)
    all_axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, picture, caption in zip(all_axes, pictures, captions, strict=False):
        image = axes.imshow(picture, **{"interpolation": "nearest", **options})
        axes.set_title(caption, fontsize=8, pad=3)
        axes.set(xticks=[], yticks=[])
    for axes in all_axes[len(pictures) :]:
        axes.set_axis_off()
    if scale:
        bar = figure.colorbar(image, ax=all_axes, label=scale, pad=0.01, aspect=30)
        if bar.solids is not None:
            bar.solids.set_rasterized(True)  # one image instead of hundreds of cells


def token_label(tokenizer: PreTrainedTokenizerBase, token_id: int) -> str:
    """Return a token in readable form: space ␣, newline ⏎, tab →, and a byte that is not a character as ‹c3›."""
    text = str(tokenizer.decode([token_id]))
    if "\ufffd" in text:
        values = {sign: f"‹{byte:02x}›" for byte, sign in enumerate(byte_characters())}
        text = "".join(values.get(sign, sign) for sign in str(tokenizer.convert_ids_to_tokens(token_id)))
    return "".join(sign if sign.isprintable() else f"‹{ord(sign):02x}›" for sign in text.translate(_VISIBLE))


def printable(text: str, limit: int | None = None) -> str:
    """Shorten a text to `limit` characters, and replace every character that the font has no glyph for by ▯."""
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(sign if _has_glyph(sign) else "▯" for sign in text)


def ink_rgba(shares: NDArray[np.float64], color: int = 1, strongest: float = 0.75) -> NDArray[np.float64]:
    """Return shares in [0, 1] as one color of varying opacity, (..., 4), which suits light and dark pages."""
    ink = np.empty((*shares.shape, 4))
    ink[..., :3] = np.array(COLORS[color]) / 255
    ink[..., 3] = strongest * np.clip(np.nan_to_num(shares), 0, 1)
    return ink


@cache
def _has_glyph(sign: str) -> bool:
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    return bool(FT2Font(findfont(FONT)).get_char_index(ord(sign)))
