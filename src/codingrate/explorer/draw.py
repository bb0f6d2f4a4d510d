"""HTML pieces of the explorer: bars, pictures with patches, maps, tokens. Every name and text is escaped here."""

from __future__ import annotations

import base64
import colorsys
import io
import struct
from collections.abc import Collection, Sequence
from functools import cache
from html import escape

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from .._chart import BLUE, GRAY, ORANGE, Series, line_chart
from ..inspection import Intervention, attention_entropy
from .library import Curves, Prediction

CURVE_TITLES = {
    "compression_normalized": ("Coding rate Rᶜ after attention, unit tokens", False),
    "reduction_normalized": ("Rate reduction ΔR, unit tokens", False),
    "nonzero": ("Share of non-zero entries", True),
}
"""Titles of the curves over the layers, and whether their values are shares."""


def data_url(picture: Image.Image) -> str:
    """Return a picture as a data URL, so that no file is written."""
    file = io.BytesIO()
    picture.save(file, format="PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def thumbnail_url(picture: Image.Image) -> str:
    """Return a small copy of a picture as a data URL."""
    return data_url(picture if picture.width <= 96 else picture.resize((96, 96)))


def note(text: str) -> str:
    """Return a quiet sentence in the place of something that is not there."""
    return f'<p class="cx-note">{escape(text)}</p>'


def heading(title: str, caption: str) -> str:
    """Return a title and a sentence that tells a newcomer what is shown."""
    return f'<div class="cx-head"><h3>{escape(title)}</h3><p>{escape(caption)}</p></div>'


def link_button(query: str, note: str = "") -> str:
    """Return a button that copies a link with this query."""
    told = f"<small>{escape(note)}</small>" if note else ""
    return (
        f'<div class="cx-link"><button data-query="{escape(query)}" title="a link that opens this very state">'
        f'Copy link</button>{told}<input readonly hidden aria-label="link"></div>'
    )


def percent(value: float) -> str:
    """Format a probability."""
    return f"{value:.1%}" if value >= 0.001 or value == 0 else "<0.1%"


def prediction_bars(predictions: Sequence[Prediction], changed: bool) -> str:
    """Return bars of probabilities; after an intervention the one before is a thin line above, with both numbers."""
    rows = []
    for one in predictions:
        label = escape(visible(one.label))
        number = f"{percent(one.before)} → {percent(one.probability)}" if changed else percent(one.probability)
        direction = ""
        if changed and abs(one.probability - one.before) >= 0.0005:
            direction = " cx-up" if one.probability > one.before else " cx-down"
        before = f'<i style="width:{100 * one.before:.2f}%"></i>' if changed else ""
        rows.append(
            f'<div class="cx-bar{direction}" data-label="{label}" data-probability="{one.probability:.6f}">'
            f'<span class="cx-label">{label}</span><span class="cx-number">{number}</span>'
            f'<span class="cx-track">{before}<b style="width:{100 * one.probability:.2f}%"></b></span></div>'
        )
    return f'<div class="cx-bars">{"".join(rows)}</div>'


def visible(token: str) -> str:
    """Return a token with its spaces and line breaks visible."""
    return token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣") if token.strip() != token else token


def layer_curves(tables: dict[str, Curves], layer: int | None) -> str:
    """Return the charts over layers; `tables` are by name: the first in color, `sample` in gray, `original` dashed."""
    colors = {"sample mean": (GRAY, False), "before": (ORANGE, True)}
    charts = []
    for column, (title, share) in CURVE_TITLES.items():
        series = [
            Series(name, table["layer"], table[column], *colors.get(name, (BLUE, False)))
            for name, table in tables.items()
            if column in table
        ]
        if series:
            charts.append(f"<div>{line_chart(series, title, percent=share, mark=layer)}</div>")
    return f'<div class="cx-charts">{"".join(charts)}</div>'


# Pictures and patches


def inferno(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return the colors (..., 3) of values in [0, 1] on matplotlib's inferno scale."""
    return _scale()[(np.clip(values, 0, 1) * 255).astype(int)]


@cache
def _scale() -> NDArray[np.uint8]:
    from matplotlib import colormaps

    return (np.asarray(colormaps["inferno"](np.arange(256)))[:, :3] * 255).astype(np.uint8)


def patch_url(colors: NDArray[np.uint8], grid: tuple[int, int]) -> str:
    """Return colors of patches (N, 3) as a tiny picture, a pixel for each, that the browser scales up.

    It is a bitmap without compression, which takes a tenth of the time that a PNG takes.
    """
    rows, columns = grid
    pixels = np.zeros((rows, -(-3 * columns // 4) * 4), np.uint8)  # rows from the bottom, padded to four bytes
    pixels[:, : 3 * columns] = colors.reshape(rows, columns, 3)[::-1, :, ::-1].reshape(rows, -1)
    header = struct.pack("<2s6I2H6I", b"BM", 54 + pixels.size, 0, 54, 40, columns, rows, 1, 24, 0, 0, 0, 0, 0, 0)
    return f"data:image/bmp;base64,{base64.b64encode(header + pixels.tobytes()).decode()}"


def subspace_colors(count: int) -> NDArray[np.uint8]:
    """Return a color for each of some subspaces, (count, 3)."""
    tones = [colorsys.hls_to_rgb(k / count, 0.55 if k % 2 else 0.42, 0.75) for k in range(count)]
    return (np.array(tones) * 255).astype(np.uint8)


def picture_view(
    picture: str, grid: tuple[int, int], patch: int | None, overlay: str | None = None, label: str = "picture"
) -> str:
    """Return a picture whose patches can be clicked, with the selected one framed."""
    rows, columns = grid
    frame = ""
    if patch is not None:
        row, column = divmod(patch, columns)
        frame = (
            f'<span class="cx-frame" style="left:{100 * column / columns:.3f}%;top:{100 * row / rows:.3f}%;'
            f'width:{100 / columns:.3f}%;height:{100 / rows:.3f}%"></span>'
        )
    cover = f'<img class="cx-cover" src="{overlay}" alt="" draggable="false">' if overlay else ""
    lines = f"background-size:{100 / columns:.4f}% {100 / rows:.4f}%"
    return (
        f'<div class="cx-picture" data-rows="{rows}" data-columns="{columns}" role="img" aria-label="{escape(label)}">'
        f'<img class="cx-base" src="{picture}" alt="" draggable="false">{cover}<span class="cx-grid" style="{lines}">'
        f"</span>{frame}</div>"
    )


def attention_grid(
    picture: str, weights: NDArray[np.float64], grid: tuple[int, int], patch: int, off: Collection[int]
) -> str:
    """Return a map for each head: attention of a patch (K, N) over the picture, each scaled to its largest value.

    Below each map stand its entropy as a share of that of uniform attention, and a color bar up to its largest weight.
    """
    rows, columns = grid
    row, column = divmod(patch, columns)
    frame = (
        f'<span class="cx-frame" style="left:{100 * column / columns:.3f}%;top:{100 * row / rows:.3f}%;'
        f'width:{100 / columns:.3f}%;height:{100 / rows:.3f}%"></span>'
    )
    maps = []
    for head, row_weights in enumerate(weights):
        url = patch_url(inferno(row_weights / max(row_weights.max(), 1e-12)), grid)
        state = " cx-off" if head + 1 in off else ""
        shares = row_weights / max(row_weights.sum(), 1e-12)
        uniform = float(attention_entropy(torch.from_numpy(shares.reshape(grid))))
        maps.append(
            f'<figure class="cx-map{state}" title="entropy of the attention of head {head + 1}, of that of uniform '
            f'attention: {uniform:.1%}; the brightest patch gets {shares.max():.1%}, uniform is {1 / shares.size:.1%}">'
            f'<div class="cx-tile"><img class="cx-cover" src="{url}" alt="">{frame}</div>'
            f"<figcaption>head {head + 1}{' (off)' if state else ''}<br>{uniform:.0%} of uniform"
            f'<span class="cx-scale">0<i></i>{shares.max():.1%}</span></figcaption></figure>'
        )
    return f'<div class="cx-maps" style="--cx-picture:url({picture})">{"".join(maps)}</div>'


Tile = tuple[str, int, tuple[int, int], float | None, str]
"""A sample image with a framed patch: picture, patch, grid, cosine (None for no number), label."""


def code_bars(
    code: NDArray[np.float32], layer: int, removed: Collection[int], excited: Sequence[Sequence[Tile]], top: int = 10
) -> str:
    """Return the strongest atoms of a sparse code (U,) as buttons with bars, and how many are on.

    `excited` are the tiles that excite each of the strongest atoms most, of as many atoms as are to have them.
    """
    on = int((code != 0).sum())
    order = np.argsort(-np.abs(code), kind="stable")[:top]
    largest = max(float(np.abs(code[order[0]])), 1e-12)
    rows = "".join(
        f'<div><button class="cx-atom" data-atom="{atom + 1}" title="remove atom {atom + 1} of layer {layer}">'
        f'<span>atom {atom + 1}</span><span class="cx-track"><b style="width:'
        f'{100 * abs(float(code[atom])) / largest:.1f}%"></b></span><span>{float(code[atom]):.2f}</span></button>'
        f"{neighbor_tiles(excited[place]) if place < len(excited) else ''}</div>"
        for place, atom in enumerate(order)
        if code[atom] != 0
    )
    gone = f" {len(removed)} removed." if removed else ""
    return (
        f'<p class="cx-count"><strong>{on}</strong> of {len(code)} atoms are on ({on / len(code):.0%}).{gone}</p>'
        f'<div class="cx-atoms">{rows}</div>'
    )


def neighbor_tiles(tiles: Sequence[Tile]) -> str:
    """Return sample images with a framed patch: (picture, patch, grid, cosine, label) of each."""
    parts = []
    for picture, patch, (rows, columns), cosine, label in tiles:
        row, column = divmod(patch, columns)
        parts.append(
            f'<figure class="cx-map"><div class="cx-tile"><img class="cx-base" src="{picture}" alt="">'
            f'<span class="cx-frame" style="left:{100 * column / columns:.3f}%;top:{100 * row / rows:.3f}%;'
            f'width:{100 / columns:.3f}%;height:{100 / rows:.3f}%"></span></div>'
            f"<figcaption>{escape(label)} {'' if cosine is None else format(cosine, '.2f')}</figcaption></figure>"
        )
    return f'<div class="cx-maps">{"".join(parts)}</div>'


def picture_row(pictures: Sequence[tuple[str, str]]) -> str:
    """Return pictures side by side, with a title below each: (picture, title)."""
    parts = "".join(
        f'<figure class="cx-map"><div class="cx-tile"><img class="cx-base" src="{url}" alt="{escape(title)}"></div>'
        f"<figcaption>{escape(title)}</figcaption></figure>"
        for url, title in pictures
    )
    return f'<div class="cx-maps">{parts}</div>'


def thumbnails(pictures: Sequence[str], labels: Sequence[str]) -> str:
    """Return sample images as buttons."""
    buttons = "".join(
        f'<button class="cx-thumb" data-index="{index}" title="{escape(label)}"><img src="{picture}" '
        f'alt="sample {index + 1} {escape(label)}"></button>'
        for index, (picture, label) in enumerate(zip(pictures, labels, strict=True))
    )
    return f'<div class="cx-thumbs">{buttons}</div>'


def head_switches(depth: int, heads: int, changes: Intervention, scores: dict[tuple[int, int], float]) -> str:
    """Return a switch for each head of each layer; those that are off are crossed out, important ones are tinted."""
    off, exit_after = set(changes.heads), changes.layers or depth
    largest = max([*(abs(score) for score in scores.values()), 1e-12])
    rows = []
    for layer in range(1, depth + 1):
        cells = []
        for head in range(1, heads + 1):
            score = scores.get((layer, head))
            tint, told = "", ""
            if score is not None:
                tint = f' style="--cx-heat:{max(score, 0) / largest:.3f}"'
                told = f", probability drops by {score:.1%} without it"
            state = " cx-off" if (layer, head) in off else ""
            cells.append(
                f'<button class="cx-switch{state}" data-layer="{layer}" data-head="{head}"{tint} '
                f'aria-pressed="{"false" if state else "true"}" title="layer {layer}, head {head}{told}">'
                f"{head}</button>"
            )
        skipped = " cx-skipped" if layer > exit_after else ""
        rows.append(f'<div class="cx-row{skipped}"><span>layer {layer}</span>{"".join(cells)}</div>')
    return f'<div class="cx-switches">{"".join(rows)}</div>'


# Text


def token_strip(texts: Sequence[str], weights: NDArray[np.float64] | None, selected: int) -> str:
    """Return tokens to click; hovering one shades the tokens that it attends to, by `weights` (n, n)."""
    matrix = ""
    if weights is not None:
        scaled = weights / np.maximum(weights.max(axis=1, keepdims=True), 1e-12)
        matrix = base64.b64encode((scaled * 255).round().astype(np.uint8).tobytes()).decode()
    spans = "".join(
        f'<span class="cx-token{" cx-selected" if index == selected else ""}" data-index="{index}" tabindex="0">'
        f"{_token(text)}</span>"
        for index, text in enumerate(texts)
    )
    return f'<div class="cx-tokens" data-count="{len(texts)}" data-weights="{matrix}">{spans}</div>'


def _token(text: str) -> str:
    signs = {"\n": '<i class="cx-sign">⏎</i><br>', " ": '<i class="cx-sign">·</i>'}
    return "".join(signs.get(sign, escape(sign)) for sign in text) or "∅"


def lens_table(rows: Sequence[tuple[int, Sequence[str], Sequence[float], float]]) -> str:
    """Return the candidates of every layer, shaded by probability."""
    lines = []
    for layer, tokens, probabilities, final in rows:
        cells = "".join(
            f'<td style="--cx-heat:{probability:.3f}"><span>{escape(visible(token))}</span>'
            f"<small>{percent(probability)}</small></td>"
            for token, probability in zip(tokens, probabilities, strict=True)
        )
        lines.append(f"<tr><th>layer {layer}</th>{cells}<td class='cx-final'>{percent(final)}</td></tr>")
    return (
        '<div class="cx-scroll"><table class="cx-lens"><thead><tr><th></th><th>1st</th><th>2nd</th>'
        "<th>3rd</th><th>4th</th>"
        f"<th>final token</th></tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def unit_list(units: Sequence[tuple[int, float, float, Sequence[tuple[str, str, str]]]], layer: int) -> str:
    """Return units with the texts that excite them; a click on a unit removes it."""
    parts = []
    for unit, activation, share, texts in units:
        windows = "".join(
            f"<li>{escape(_flat(before))}<mark>{escape(_flat(at)) or '␣'}</mark>{escape(_flat(after))}</li>"
            for before, at, after in texts
        )
        parts.append(
            f'<div class="cx-unit"><button class="cx-atom" data-atom="{unit}" '
            f'title="remove unit {unit} of layer {layer}"><span>unit {unit}</span>'
            f"<span>{activation:.2f}</span></button>"
            f"<small>active on {share:.0%} of tokens</small><ul>{windows}</ul></div>"
        )
    return f'<div class="cx-units">{"".join(parts)}</div>'


def _flat(text: str) -> str:
    return text.replace("\n", "⏎")
