"""Units of the sparse code in a report: how often they are on, and the texts that excite them most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .across import trend
from .panel import Panel
from .token_text import CHARACTER, FONT, drawable, shaded, spelt
from .units import Units, selective_units, unit_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

_LEFT, _RIGHT = 64, 44  # characters at most before the exciting token, and from its start on
_HEADING = 48  # characters a heading takes
_SIZE = 8  # of the letters, in points
_DRAWN = 12  # units at most

Texts = list[tuple[list[str], list[float]]]
"""Windows of one unit: tokens as they are spelt, and the activation on each."""


def firing_panel(found: Units) -> Panel:
    """How often the units of each layer are on."""
    table = unit_table(found)
    rows = table.groupby("layer", as_index=False).agg(
        units=("unit", "size"),
        share=("share", "mean"),
        median=("share", "median"),
        never=("share", lambda shares: int((shares == 0).sum())),
        always=("share", lambda shares: int((shares == 1).sum())),
        mean=("mean", "mean"),
    )
    shares = rows["share"].tolist()
    said = trend("the mean share", shares)
    return Panel(
        "units",
        "Units of the sparse code: on how many tokens each is on",
        "Fewer non-zero entries in deeper layers, save the last, on images (4.2); of single units and of text it says "
        "nothing.",
        f"Over {found.tokens:,} tokens {said}; units that are never on: {int(rows['never'].sum())} of {len(table)}.",
        lambda figure: _draw_shares(figure, found),
        rows,
    )


def _draw_shares(figure: Figure, found: Units) -> None:
    figure.set_size_inches(7, 3.4)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    shares = np.sort(found.share.numpy(), axis=-1)[:, ::-1]
    for place, (layer, curve) in enumerate(zip(found.layers, shares, strict=True)):
        shade = 0.25 + 0.75 * (place + 1) / len(shares)
        axes.plot(np.arange(1, len(curve) + 1), 100 * curve, color=(0, 0.45, 0.7, shade), label=f"layer {layer + 1}")
    axes.set(xlabel="units, most active first", title="tokens on which a unit is on, %", ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=1 + (len(shares) - 1) // 6)


def unit_panel(
    found: Units, tokenizer: PreTrainedTokenizerBase, chosen: Sequence[tuple[int, int]] | None = None
) -> Panel:
    """The texts that excite single units most; `chosen` units as `selective_units` gives them, which it is by default.

    The table has them all, the figure up to twelve, spread evenly over the list.
    """
    chosen = selective_units(found) if chosen is None else chosen
    table = context_table(found, tokenizer, chosen)
    said = "No unit is on often enough to be shown."
    if len(table):
        shares = 100 * table["share"]
        alike = [_alike(_texts(found, tokenizer, *unit), found.before) for unit in chosen]
        said = (
            f"The {len(chosen)} units shown are on at {shares.min():.2g} to {shares.max():.2g} % of {found.tokens:,} "
            f"tokens; {sum(alike)} of them have the same token in all their windows."
        )
    return Panel(
        "unit-contexts",
        "The texts that excite single units most",
        "",
        f"{said} In each layer these are the units whose activity is most concentrated on few tokens.",
        (lambda figure: _draw_contexts(figure, found, tokenizer, chosen)) if len(table) else None,
        table,
    )


def context_table(found: Units, tokenizer: PreTrainedTokenizerBase, chosen: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """A row per chosen unit and window, the exciting token in «»."""
    import pandas as pd

    columns = ("layer", "unit", "share", "mean", "selectivity", "activation", "context")
    rows: list[tuple[Any, ...]] = []
    for layer, unit in chosen:
        about = [float(values[layer, unit]) for values in (found.share, found.mean, found.selectivity)]
        for tokens, activations in _texts(found, tokenizer, layer, unit):
            at = found.before
            context = "".join((*tokens[:at], "«", tokens[at], "»", *tokens[at + 1 :]))
            rows.append((found.layers[layer] + 1, unit, *about, activations[at], context))
    return pd.DataFrame(rows, columns=list(columns))


def _texts(found: Units, tokenizer: PreTrainedTokenizerBase, layer: int, unit: int) -> Texts:
    """The windows of one unit, most exciting first; a token outside the text is an empty string."""
    texts = []
    for place, ids, activations in zip(
        found.places[layer, unit].tolist(),
        found.window_ids[layer, unit].tolist(),
        found.window_activations[layer, unit].tolist(),
        strict=True,
    ):
        if place >= 0:
            texts.append(([spelt(tokenizer, number) if number >= 0 else "" for number in ids], activations))
    return texts


def _alike(texts: Texts, at: int) -> bool:
    return len({tokens[at] for tokens, _ in texts}) == 1


def _draw_contexts(
    figure: Figure, found: Units, tokenizer: PreTrainedTokenizerBase, chosen: Sequence[tuple[int, int]]
) -> None:
    """Windows under one another, exciting tokens in one column; the ink behind a token is the unit's activation."""
    if len(chosen) > _DRAWN:
        chosen = [chosen[round(place)] for place in np.linspace(0, len(chosen) - 1, _DRAWN)]
    lines: list[str | tuple[list[str], list[float]]] = []
    for layer, unit in chosen:
        share = 100 * float(found.share[layer, unit])
        lines += [f"layer {found.layers[layer] + 1}, unit {unit}: on at {share:.2g} % of tokens"]
        lines += _texts(found, tokenizer, layer, unit)
    windows = [line for line in lines if not isinstance(line, str)]
    before, after = (max(len("".join(tokens[part])) for tokens, _ in windows) for part in _halves(found))
    left, right = min(before, _LEFT), min(after, _RIGHT)
    wide = max(left + right, _HEADING)
    figure.set_size_inches(wide * CHARACTER * _SIZE / 72, len(lines) * 1.45 * _SIZE / 72)
    axes = figure.add_axes((0, 0, 1, 1))  # exactly so wide that a cell of ink is a character
    axes.set(xlim=(0, wide), ylim=(len(lines), 0))
    axes.axis("off")
    ink = np.zeros((len(lines), wide))
    for row, line in enumerate(lines):
        if isinstance(line, str):
            axes.text(0, row + 0.5, line, fontsize=_SIZE, va="center_baseline", fontweight="bold")
            continue
        ink[row] = _ink(*line, found.before, left, wide)
        texts = ["".join(line[0][part]) for part in _halves(found)]
        for text, side in ((texts[0][-left:], "right"), (texts[1][:right], "left")):
            style: Any = {"fontsize": _SIZE, "fontfamily": FONT, "parse_math": False, "va": "center_baseline"}
            axes.text(left, row + 0.5, drawable(text), ha=side, **style)
    axes.imshow(shaded(ink, 0), extent=(0, wide, len(lines), 0), aspect="auto", interpolation="nearest")


def _halves(found: Units) -> tuple[slice, slice]:
    """A window's tokens before the exciting one, and those from it on."""
    return slice(None, found.before), slice(found.before, None)


def _ink(tokens: list[str], activations: list[float], before: int, left: int, wide: int) -> NDArray[np.float64]:
    """|activation| of the token each character belongs to, as a share of the window's largest, (wide,)."""
    sizes = [len(token) for token in tokens]
    letters = np.repeat(np.abs(activations) / np.abs(activations).max(), sizes)
    start = sum(sizes[:before]) - left  # of the letters drawn; negative where there are fewer
    letters = np.concatenate([np.zeros(max(0, -start)), letters[max(0, start) :], np.zeros(wide)])
    return letters[:wide]
