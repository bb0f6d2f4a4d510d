"""Panels on the units of the sparse code: how often they are active, and the texts that activate them most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..measure.sparse_units import Units, selective_units, unit_table
from ..measure.training_history import describe_trend
from .panel import BLUE, CHARACTER, FONT, Panel, ink_rgba, printable, subplots, token_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

_LEFT, _RIGHT = 64, 44  # largest number of characters before the activating token, and from its start on
_HEADING = 48  # characters that a heading needs
_SIZE = 8  # font size, in points
_DRAWN = 12  # largest number of units that are drawn

Window = tuple[list[str], list[float]]
"""Labels of the tokens around a strong activation, and the activation of the unit on each."""


def firing_panel(stats: Units) -> Panel:
    """Build the panel on how often the units of each layer are active."""
    table = unit_table(stats)
    layers = table.groupby("layer", as_index=False).agg(
        units=("unit", "size"),
        share=("share", "mean"),
        median=("share", "median"),
        never=("share", lambda shares: int((shares == 0).sum())),
        always=("share", lambda shares: int((shares == 1).sum())),
        mean=("mean", "mean"),
    )
    return Panel(
        "units",
        "Units of the sparse code: share of tokens on which each is active",
        "On images, deeper layers have fewer non-zero entries, except the last (4.2). The paper does not study single "
        "units or text.",
        f"Over {stats.tokens:,} tokens {describe_trend('the mean share', layers['share'].tolist())}; units that are "
        f"never active: {int(layers['never'].sum())} of {len(table)}.",
        lambda figure: _draw_shares(figure, stats),
        layers,
    )


def unit_panel(
    stats: Units, tokenizer: PreTrainedTokenizerBase, chosen: Sequence[tuple[int, int]] | None = None
) -> Panel:
    """Build the panel of the texts that activate single units most; `chosen` defaults to `selective_units`.

    The table has all chosen units, the figure up to twelve, spread evenly over the list.
    """
    chosen = selective_units(stats) if chosen is None else chosen
    table = context_table(stats, tokenizer, chosen)
    measured = "No unit is active often enough to be shown."
    if len(table):
        shares = 100 * table["share"]
        tokens = [{labels[stats.before] for labels, _ in _windows(stats, tokenizer, *unit)} for unit in chosen]
        measured = (
            f"The {len(chosen)} units shown are active on {shares.min():.3g} to {shares.max():.3g} % of "
            f"{stats.tokens:,} tokens; {sum(len(same) == 1 for same in tokens)} of them have the same token in all "
            "their windows. In each layer these are the units whose activity is most concentrated on few tokens."
        )
    return Panel(
        "unit-contexts",
        "Texts that activate single units most",
        "",
        measured,
        (lambda figure: _draw_contexts(figure, stats, tokenizer, chosen)) if len(table) else None,
        table,
    )


def context_table(stats: Units, tokenizer: PreTrainedTokenizerBase, chosen: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """Return a row per chosen unit and window, with the activating token in «»."""
    columns = ["layer", "unit", "share", "mean", "selectivity", "activation", "context"]
    rows: list[tuple[Any, ...]] = []
    for layer, unit in chosen:
        about = [float(values[layer, unit]) for values in (stats.share, stats.mean, stats.selectivity)]
        for labels, activations in _windows(stats, tokenizer, layer, unit):
            at = stats.before
            context = "".join((*labels[:at], "«", labels[at], "»", *labels[at + 1 :]))
            rows.append((stats.layers[layer] + 1, unit, *about, activations[at], context))
    return pd.DataFrame(rows, columns=columns)


def character_ink(window: Window, before: int, left: int, width: int) -> NDArray[np.float64]:
    """Return |activation| of the token behind each character of a line, relative to the window's largest, (width,).

    The token at index `before` starts at column `left`.
    """
    labels, activations = window
    sizes = [len(label) for label in labels]
    letters = np.repeat(np.abs(activations) / np.abs(activations).max(), sizes)
    start = sum(sizes[:before]) - left  # first drawn character; negative if there are fewer
    letters = np.concatenate([np.zeros(max(0, -start)), letters[max(0, start) :], np.zeros(width)])
    return letters[:width]


def _windows(stats: Units, tokenizer: PreTrainedTokenizerBase, layer: int, unit: int) -> list[Window]:
    """Return the windows of one unit, the strongest first; a token outside the text is an empty string."""
    exists = stats.places[layer, unit] >= 0
    ids, activations = (part[layer, unit][exists].tolist() for part in (stats.window_ids, stats.window_activations))
    labels = [[token_label(tokenizer, number) if number >= 0 else "" for number in window] for window in ids]
    return list(zip(labels, activations, strict=True))


def _draw_shares(figure: Figure, stats: Units) -> None:
    (axes,) = subplots(figure, 7, 3.4)
    shares = np.sort(stats.share.numpy(), axis=-1)[:, ::-1]
    for index, (layer, curve) in enumerate(zip(stats.layers, shares, strict=True), 1):
        color = (*BLUE, 0.25 + 0.75 * index / len(shares))
        axes.plot(np.arange(1, len(curve) + 1), 100 * curve, color=color, label=f"layer {layer + 1}")
    axes.set(xlabel="units, most active first", title="tokens on which a unit is active, %", ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=1 + (len(shares) - 1) // 6)


def _draw_contexts(
    figure: Figure, stats: Units, tokenizer: PreTrainedTokenizerBase, chosen: Sequence[tuple[int, int]]
) -> None:
    """Draw windows with the activating tokens in one column; the ink behind a token is the unit's activation."""
    if len(chosen) > _DRAWN:
        chosen = [chosen[round(index)] for index in np.linspace(0, len(chosen) - 1, _DRAWN)]
    lines: list[str | Window] = []
    for layer, unit in chosen:
        share = 100 * float(stats.share[layer, unit])
        lines += [f"layer {stats.layers[layer] + 1}, unit {unit}: active on {share:.3g} % of tokens"]
        lines += _windows(stats, tokenizer, layer, unit)
    halves = slice(None, stats.before), slice(stats.before, None)  # before the activating token, and from it on
    windows = [line for line in lines if not isinstance(line, str)]
    before, after = (max(len("".join(labels[half])) for labels, _ in windows) for half in halves)
    left, right = min(before, _LEFT), min(after, _RIGHT)
    width = max(left + right, _HEADING)
    figure.set_size_inches(width * CHARACTER * _SIZE / 72, len(lines) * 1.45 * _SIZE / 72)
    axes = figure.add_axes((0, 0, 1, 1))  # so that a cell of ink is exactly as wide as a character
    axes.set(xlim=(0, width), ylim=(len(lines), 0))
    axes.axis("off")
    ink = np.zeros((len(lines), width))
    style: Any = {"fontsize": _SIZE, "va": "center_baseline"}
    for row, line in enumerate(lines):
        if isinstance(line, str):
            axes.text(0, row + 0.5, line, fontweight="bold", **style)
            continue
        ink[row] = character_ink(line, stats.before, left, width)
        texts = ["".join(line[0][half]) for half in halves]
        for text, side in ((texts[0][-left:], "right"), (texts[1][:right], "left")):
            axes.text(left, row + 0.5, printable(text), ha=side, fontfamily=FONT, parse_math=False, **style)
    axes.imshow(ink_rgba(ink, 0), extent=(0, width, len(lines), 0), aspect="auto", interpolation="nearest")
