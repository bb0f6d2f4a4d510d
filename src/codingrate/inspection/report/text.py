"""Panels on text models: the logit lens, its candidates along a text, units, attention between tokens, and labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..._fonts import font_families
from ...data import Masking, byte_characters, mask_own_tokens
from ...errors import CrateError
from ...models import CrateForCausalLM, CrateForMaskedLM
from ...models.base import CratePreTrainedModel
from ..measure.attention import token_attention, token_attention_table
from ..measure.logit_lens import Candidates, candidates, lens
from ..measure.predictions import describe_trend, judge_trend
from ..measure.sparse_units import Units, selective_units, unit_table, units
from ..measure.tracing import TextBatch, UnavailableError
from ..segment.pictures import COLORS
from .panel import WIDTH, Panel, Plots, curve, shade, subplots

FONTS = font_families("DejaVu Sans Mono")  # the monospaced font that comes with matplotlib, and those for other scripts
CHARACTER = 1233 / 2048  # width of a character of this font, in units of its size
_VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "→", "\r": "←"})
POSITIONS = 20  # number of positions at the end of the text at which candidates are shown
ATTENTION_TOKENS = 32  # number of tokens at the start of the text between which attention is shown
ATTENTION_HEADS = 6  # largest number of heads whose attention is drawn
ROW = 0.27  # height of a row of the grid of candidates, in inches
_LEFT, _RIGHT = 64, 44  # largest number of characters before the activating token, and from its start on
_HEADING = 48  # characters that a heading needs
_SIZE = 8  # font size, in points
_DRAWN = 12  # largest number of units that are drawn

Window = tuple[list[str], list[float]]
"""Labels of the tokens around a strong activation, and the activation of the unit on each."""


def text_panels(
    model: CratePreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batches: Iterable[TextBatch],
    text: str,
    *,
    layer: int | None = None,
    top: int = 5,
    trained: bool = True,
) -> list[Panel]:
    """Build the lens and the units over batches of ids, and the candidates and the attention along one text.

    Attention is that of the layer with index `layer`, by default -2. The tables have `top` candidates for each position
    and `top` windows for each unit. For the lens of a masked model, tokens are masked as in training. A part that the
    model does not have becomes a panel without a figure that states the reason. Verdicts are for `trained` models.
    """
    batches = list(batches)  # only ids, and they are read twice
    config = model.config
    ids = torch.tensor(tokenizer(text, verbose=False)["input_ids"][: config.max_tokens])
    if len(ids) < 2:
        raise CrateError(f"the text {text!r} has fewer than two tokens; give a longer one")

    def language() -> list[Panel]:
        if not isinstance(model, (CrateForCausalLM, CrateForMaskedLM)):
            raise UnavailableError(f"a {type(model).__name__} predicts no tokens")
        inputs = batches if config.causal else mask_batches(batches, tokenizer)
        around = (tokenizer.cls_token_id, tokenizer.sep_token_id)  # special tokens around the text
        positions = [index for index, number in enumerate(ids.tolist()) if number not in around] or [len(ids) - 1]
        guesses = candidates(model, ids, positions[-POSITIONS:], top, mask_id=tokenizer.mask_token_id)
        return [lens_panel(lens(model, inputs)), candidates_panel(guesses, tokenizer, config.causal)]

    def activity() -> list[Panel]:
        stats = units(model, batches, top=top)
        return [firing_panel(stats), unit_panel(stats, tokenizer)]

    def attention() -> list[Panel]:
        index = max(config.num_hidden_layers - 2, 0) if layer is None else layer
        weights = token_attention(model, ids[:ATTENTION_TOKENS], index)
        labels = [token_label(tokenizer, number) for number in ids[:ATTENTION_TOKENS].tolist()]
        return [token_attention_panel(weights, labels, index % config.num_hidden_layers, config.causal)]

    panels = []
    for name, title, build in (
        ("lens", "The model's head on every layer", language),
        ("units", "Units of the sparse code", activity),
        ("token-attention", "Attention between tokens", attention),
    ):
        try:
            panels += build()
        except UnavailableError as error:
            panels.append(Panel(name, title, "", f"Not shown: {error}."))
    return panels


def mask_batches(batches: Iterable[TextBatch], tokenizer: PreTrainedTokenizerBase) -> Iterator[TextBatch]:
    """Yield the batches with tokens masked as in training, always the same ones, and with their labels."""
    masking = Masking.of(tokenizer)
    for batch in batches:
        inputs, labels = mask_own_tokens(batch["input_ids"], masking)
        yield {**batch, "input_ids": inputs, "labels": labels}


def lens_panel(table: pd.DataFrame) -> Panel:
    """Build the panel on how well every layer predicts under the model's own head, from the table of `lens`."""
    last = table.iloc[-1]
    measures = {"cross_entropy": "−log p of the true token", "top1": "the share of correct first guesses"}
    parts = [
        describe_trend(name, table[column]) if len(table) > 1 else f"{name} is {last[column]:.3g}"
        for column, name in measures.items()
    ]
    nats = [curve(table, "cross_entropy", "−log p of the truth"), curve(table, "entropy", "entropy")]
    return Panel(
        "lens",
        "Logit lens: predictions of every layer through the model's head",
        "",
        f"Over {int(last['tokens']):,} tokens, {' and '.join(parts)}; the last layer is the model itself.",
        Plots(
            {"nats per token": nats, "share of correct first guesses": [curve(table, "top1", "first guess")]},
            from_zero=True,
        ),
        table,
    )


def candidates_panel(guesses: Candidates, tokenizer: PreTrainedTokenizerBase, causal: bool) -> Panel:
    """Build the grid of the most likely token after every layer at positions of one text, with all in the table."""
    target = "next token" if causal else "masked token"
    known = [index for index, number in enumerate(guesses.truth) if number is not None]
    measured = f"{len(guesses.ids)} layers at {len(guesses.positions)} positions; the {target} is not known."
    if known:
        correct = (guesses.truth_rank[:, known] == 1).sum(-1).tolist()
        measured = (
            f"The model's first guess of the {target} is correct at {correct[-1]} of {len(known)} positions; "
            f"layer by layer: {', '.join(map(str, correct))}."
        )
    return Panel(
        "lens-candidates",
        f"Most likely {target} after each layer",
        "",
        f"{measured} Stronger color means a higher probability; correct guesses are in bold.",
        partial(_draw_candidates, guesses=guesses, tokenizer=tokenizer, causal=causal),
        candidates_table(guesses, tokenizer),
    )


def candidates_table(guesses: Candidates, tokenizer: PreTrainedTokenizerBase) -> pd.DataFrame:
    """Return a row per position and layer: the token there, the truth and its rank (0 if unknown), the candidates."""
    layers, positions, top = guesses.ids.shape
    truth = ["" if number is None else token_label(tokenizer, number) for number in guesses.truth]
    columns: dict[str, Any] = {
        "position": np.repeat(guesses.positions, layers),
        "token": np.repeat([token_label(tokenizer, number) for number in guesses.read], layers),
        "truth": np.repeat(truth, layers),
        "layer": np.tile(np.arange(1, layers + 1), positions),
    }
    for name in ("truth_rank", "truth_probability", "entropy"):
        columns[name] = getattr(guesses, name).mT.flatten().tolist()
    for number in range(top):
        ids, shares = (part[..., number].mT.flatten().tolist() for part in (guesses.ids, guesses.probabilities))
        columns[f"candidate_{number + 1}"] = [token_label(tokenizer, token) for token in ids]
        columns[f"probability_{number + 1}"] = shares
    return pd.DataFrame(columns)


def token_attention_panel(weights: Tensor, labels: Sequence[str], layer: int, causal: bool) -> Panel:
    """Build the panel of the heads of one layer (from 0) on a text with token `labels`; up to six heads are drawn."""
    table = token_attention_table(weights, causal)
    order = table.sort_values("distance", kind="stable").index.to_numpy()
    drawn = order[np.linspace(0, len(order) - 1, min(ATTENTION_HEADS, len(order))).round().astype(int)].tolist()
    visible = torch.ones(1, *weights.shape[1:]).tril(0 if causal else weights.shape[-1])
    uniform = token_attention_table(visible / visible.sum(-1, keepdim=True), causal).iloc[0]
    low, high = table.min(), table.max()
    return Panel(
        "token-attention",
        f"Attention between tokens in layer {layer + 1}",
        "",
        f"The {len(table)} heads look {low['distance']:.1f} to {high['distance']:.1f} tokens "
        f"{'back' if causal else 'away'} on average (uniform attention: {uniform['distance']:.1f}), with an entropy of "
        f"{low['entropy']:.2f} to {high['entropy']:.2f} nats (uniform: {uniform['entropy']:.2f}). "
        f"{table['itself'].mean():.0%} of the attention goes to the token itself and {table['first'].mean():.0%} to "
        "the first token. Each row shows the attention of one token over the columns.",
        partial(_draw_attention, weights=weights, labels=labels, heads=drawn, table=table),
        table,
    )


def _draw_candidates(figure: Figure, guesses: Candidates, tokenizer: PreTrainedTokenizerBase, causal: bool) -> None:
    """Draw a grid of layers and positions, with the truth below and, for a causal model, the text above."""
    layers, count = guesses.ids.shape[:2]
    (axes,) = subplots(figure, WIDTH, ROW * (layers + 4) + 0.2)
    axes.imshow(ink_rgba(guesses.probabilities[..., 0].double().numpy()), aspect="auto")
    limit = max(2, round(120 / count))
    style: Any = {"fontfamily": FONTS, "fontsize": 7 if count <= 20 else 6, "parse_math": False}

    def label(token_id: int) -> str:
        return shorten(token_label(tokenizer, token_id), limit)

    for layer in range(layers):
        for position in range(count):
            token = int(guesses.ids[layer, position, 0])
            weight = "bold" if token == guesses.truth[position] else "normal"
            axes.text(position, layer, label(token), ha="center", va="center", fontweight=weight, **style)
    axes.set_yticks(range(layers), [f"layer {layer + 1}" for layer in range(layers)], fontsize=8)
    axes.set_xticks(range(count), ["?" if number is None else label(number) for number in guesses.truth], **style)
    axes.set_xlabel("next token" if causal else "masked token", fontsize=8)
    rulers: list[Any] = [axes]
    if causal:
        rulers.append(axes.secondary_xaxis("top"))
        rulers[1].set_xticks(range(count), [label(number) for number in guesses.read], **style)
        rulers[1].set_xlabel("text", fontsize=8)
    for ruler in rulers:
        ruler.tick_params(length=0)
        ruler.spines[:].set_visible(False)


def _draw_attention(
    figure: Figure, weights: Tensor, labels: Sequence[str], heads: Sequence[int], table: pd.DataFrame
) -> None:
    columns = min(3, len(heads))
    rows = -(-len(heads) // columns)
    grid = subplots(figure, 9.3 * columns / 3, 3.35 * rows, rows, columns)
    texts = [shorten(label, 8) for label in labels]
    turn = 90 if max(map(len, texts)) > 1 else 0  # single letters stay upright
    style: Any = {"fontfamily": FONTS, "fontsize": min(7.0, 190 / len(texts)), "parse_math": False}  # a side: ~200 pt
    for axes in grid[len(heads) :]:
        axes.axis("off")
    for axes, head in zip(grid, heads, strict=False):
        share = weights[head].double().numpy()
        axes.imshow(ink_rgba(np.sqrt(share), strongest=1.0), interpolation="nearest")  # the root shows small values too
        axes.set_xticks(range(len(texts)), texts, rotation=turn, **style)
        axes.set_yticks(range(len(texts)), texts, **style)
        axes.tick_params(length=0, pad=1)
        axes.set_title(f"head {head + 1}: {table['distance'][head]:.1f} tokens away", fontsize=9)


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
    finding = judge_trend("the mean share", layers, "share")
    return Panel(
        "units",
        "Units of the sparse code: share of tokens on which each is active",
        "Deeper layers of a trained CRATE have fewer non-zero entries, except the last, on images (4.2). The paper "
        "studies neither single units nor the layers of text models.",
        f"Over {stats.tokens:,} tokens {finding.measured}; units that are never active: "
        f"{int(layers['never'].sum())} of {len(table)}.",
        partial(_draw_shares, stats=stats),
        layers,
        [finding],
        "the share has no control here; the panel on sparsity judges it",
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
        partial(_draw_contexts, stats=stats, tokenizer=tokenizer, chosen=chosen) if len(table) else None,
        table,
    )


def context_table(stats: Units, tokenizer: PreTrainedTokenizerBase, chosen: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """Return a row per chosen unit and window, with the activating token in «»."""
    about = unit_table(stats).set_index(["layer", "unit"])[["share", "mean", "selectivity"]]
    rows: list[tuple[Any, ...]] = []
    for layer, unit in chosen:
        key = (stats.layers[layer] + 1, unit)
        for labels, activations in _windows(stats, tokenizer, layer, unit):
            before, at, after = labels[: stats.before], labels[stats.before], labels[stats.before + 1 :]
            context = "".join((*before, "«", at, "»", *after))
            rows.append((*key, *about.loc[key], activations[stats.before], context))
    return pd.DataFrame(rows, columns=["layer", "unit", *about.columns, "activation", "context"])


def character_ink(window: Window, before: int, left: int, width: int) -> NDArray[np.float64]:
    """Return |activation| of the token behind each character of a line, relative to the window's largest, (width,).

    The token at index `before` starts at column `left`.
    """
    labels, activations = window
    sizes = [len(label) for label in labels]
    letters = np.repeat(np.abs(activations) / np.abs(activations).max(), sizes)
    start = sum(sizes[:before]) - left  # first drawn character; negative if there are fewer
    return np.pad(letters, (max(0, -start), width))[max(0, start) :][:width]


def _windows(stats: Units, tokenizer: PreTrainedTokenizerBase, layer: int, unit: int) -> list[Window]:
    """Return the windows of one unit, the strongest first; a token outside the text is an empty string."""
    exists = stats.places[layer, unit] >= 0
    ids, activations = (part[layer, unit][exists].tolist() for part in (stats.window_ids, stats.window_activations))
    labels = [[token_label(tokenizer, number) if number >= 0 else "" for number in window] for window in ids]
    return list(zip(labels, activations, strict=True))


def _draw_shares(figure: Figure, stats: Units) -> None:
    (axes,) = subplots(figure, 7, 3.4)
    shares = np.sort(stats.share.numpy(), axis=-1)[:, ::-1]
    for index, (layer, ordered) in enumerate(zip(stats.layers, shares, strict=True), 1):
        color = shade(0.25 + 0.75 * index / len(shares))
        axes.plot(np.arange(1, len(ordered) + 1), 100 * ordered, color=color, label=f"layer {layer + 1}")
    axes.set(xlabel="units, most active first", title="tokens on which a unit is active, %", ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=1 + (len(shares) - 1) // 6)


def _draw_contexts(
    figure: Figure, stats: Units, tokenizer: PreTrainedTokenizerBase, chosen: Sequence[tuple[int, int]]
) -> None:
    """Draw windows with the activating tokens in one column; the ink behind a token is the unit's activation."""
    if len(chosen) > _DRAWN:
        chosen = [chosen[round(index)] for index in np.linspace(0, len(chosen) - 1, _DRAWN)]
    before, after = (slice(None, stats.before), slice(stats.before, None))  # the activating token is the first after
    lines: list[tuple[str, str, str, Window | None]] = []  # a heading, or the text before and from the token on
    for layer, unit in chosen:
        share = 100 * float(stats.share[layer, unit])
        lines.append((f"layer {stats.layers[layer] + 1}, unit {unit}: active on {share:.3g} % of tokens", "", "", None))
        for window in _windows(stats, tokenizer, layer, unit):
            lines.append(("", "".join(window[0][before])[-_LEFT:], "".join(window[0][after])[:_RIGHT], window))
    left, right = max(len(line[1]) for line in lines), max(len(line[2]) for line in lines)
    width = max(left + right, _HEADING)
    figure.set_size_inches(width * CHARACTER * _SIZE / 72, len(lines) * 1.45 * _SIZE / 72)
    axes = figure.add_axes((0, 0, 1, 1))  # so that a cell of ink is exactly as wide as a character
    axes.set(xlim=(0, width), ylim=(len(lines), 0))
    axes.axis("off")
    ink = np.zeros((len(lines), width))
    style: Any = {"fontsize": _SIZE, "va": "center_baseline", "parse_math": False}
    for row, (heading, text, rest, shown) in enumerate(lines):
        axes.text(0, row + 0.5, heading, fontweight="bold", **style)
        axes.text(left, row + 0.5, text, ha="right", fontfamily=FONTS, **style)
        axes.text(left, row + 0.5, rest, ha="left", fontfamily=FONTS, **style)
        if shown is not None:
            ink[row] = character_ink(shown, stats.before, left, width)
    axes.imshow(ink_rgba(ink, 0), extent=(0, width, len(lines), 0), aspect="auto", interpolation="nearest")


def token_label(tokenizer: PreTrainedTokenizerBase, token_id: int) -> str:
    """Return a token in readable form: space ␣, newline ⏎, tab →, and a byte that is not a character as ‹c3›."""
    text = str(tokenizer.decode([token_id]))
    if "\ufffd" in text:
        values = {sign: f"‹{byte:02x}›" for byte, sign in enumerate(byte_characters())}
        text = "".join(values.get(sign, sign) for sign in str(tokenizer.convert_ids_to_tokens(token_id)))
    return "".join(sign if sign.isprintable() else f"‹{ord(sign):02x}›" for sign in text.translate(_VISIBLE))


def shorten(text: str, limit: int) -> str:
    """Shorten a text to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def ink_rgba(shares: NDArray[np.float64], color: int = 1, strongest: float = 0.75) -> NDArray[np.float64]:
    """Return shares in [0, 1] as one color of varying opacity, (..., 4), which lets text show through."""
    opacity = strongest * np.clip(np.nan_to_num(shares), 0, 1)[..., None]
    return np.concatenate([np.broadcast_to(np.array(COLORS[color]) / 255, (*shares.shape, 3)), opacity], axis=-1)
