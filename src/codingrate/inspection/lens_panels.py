"""The logit lens in a report: how well each layer predicts, and its candidates along a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .across import trend
from .lens import Candidates
from .overlay import COLORS
from .panel import Panel
from .token_text import FONT, drawable, shaded, spelt

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

_WIDE, _HIGH = 9.5, 0.27  # a figure at most, a row of it, in inches


def lens_panel(table: pd.DataFrame) -> Panel:
    """How well every layer predicts the true token under the model's own head, from `lens`."""
    last = table.iloc[-1]
    measures = {"cross_entropy": "−log p of the true token", "top1": "the share of first guesses that are right"}
    said = [
        trend(name, table[column].tolist()) if len(table) > 1 else f"{name} is {last[column]:.3g}"
        for column, name in measures.items()
    ]
    return Panel(
        "lens",
        "What each layer already knows: the model's head on every layer's tokens",
        "",
        f"Over {int(last['tokens']):,} tokens, {' and '.join(said)}; the last layer is the model itself.",
        lambda figure: _draw_lens(figure, table),
        table,
    )


def _draw_lens(figure: Figure, table: pd.DataFrame) -> None:
    figure.set_size_inches(8.5, 3.2)
    figure.set_layout_engine("constrained")
    left, right = figure.subplots(1, 2)
    blue, orange = (np.array(COLORS[i]) / 255 for i in (1, 0))
    left.plot(table["layer"], table["cross_entropy"], "o-", color=blue, markersize=3, label="$-\\log p$ of the truth")
    left.plot(table["layer"], table["entropy"], "s--", color=orange, markersize=3, label="entropy")
    left.set(title="nats per token", xlabel="layer")
    left.set_ylim(bottom=0)
    left.legend(fontsize="small")
    right.plot(table["layer"], 100 * table["top1"], "o-", color=blue, markersize=3)
    right.set(title="first guess is right, %", xlabel="layer")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set_xticks(table["layer"] if len(table) <= 12 else table["layer"][1::2])
        axes.grid(alpha=0.3)


def candidates_panel(found: Candidates, tokenizer: PreTrainedTokenizerBase, causal: bool) -> Panel:
    """The likeliest token after every layer at positions of one text, in a grid; all candidates in the table."""
    asked = "follows" if causal else "is hidden"
    known = [place for place, number in enumerate(found.truth) if number is not None]
    said = f"{len(found.ids)} layers at {len(found.positions)} positions; what {asked} is nowhere known."
    if known:
        right = (found.truth_rank[:, known] == 1).sum(-1).tolist()
        first = f"first guess of what {asked} is right at {right[-1]} of {len(known)} positions"
        said = f"The model's {first}; layer by layer: {', '.join(map(str, right))}."
    return Panel(
        "lens-candidates",
        "The likeliest next token after each layer" if causal else "The likeliest token in a hidden place, by layer",
        "",
        f"{said} Darker is surer; guesses that are right stand in bold.",
        lambda figure: _draw_grid(figure, found, tokenizer, causal),
        candidates_table(found, tokenizer),
    )


def candidates_table(found: Candidates, tokenizer: PreTrainedTokenizerBase) -> pd.DataFrame:
    """A row per position and layer: what stands there, the truth and its rank (0: not known), the candidates."""
    import pandas as pd

    rows = []
    for place, position in enumerate(found.positions):
        truth = found.truth[place]
        for layer in range(len(found.ids)):
            row = {
                "position": position,
                "token": spelt(tokenizer, found.read[place]),
                "truth": "" if truth is None else spelt(tokenizer, truth),
                "layer": layer + 1,
                "truth_rank": int(found.truth_rank[layer, place]),
                "truth_probability": float(found.truth_probability[layer, place]),
                "entropy": float(found.entropy[layer, place]),
            }
            pairs = zip(found.ids[layer, place].tolist(), found.probabilities[layer, place].tolist(), strict=True)
            for number, (token, probability) in enumerate(pairs, 1):
                row |= {f"candidate_{number}": spelt(tokenizer, token), f"probability_{number}": probability}
            rows.append(row)
    return pd.DataFrame(rows)


def _draw_grid(figure: Figure, found: Candidates, tokenizer: PreTrainedTokenizerBase, causal: bool) -> None:
    """Layers downwards, positions to the right; above what is read, below what is true."""
    layers, count = found.ids.shape[:2]
    figure.set_size_inches(_WIDE, _HIGH * (layers + 4) + 0.2)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    axes.imshow(shaded(found.probabilities[..., 0].double().numpy()), aspect="auto")
    most = max(2, round(120 / count))
    size = 7 if count <= 20 else 6
    style: Any = {"fontfamily": FONT, "fontsize": size, "parse_math": False}
    for layer in range(layers):
        for place in range(count):
            token = found.ids[layer, place, 0].item()
            right = token == found.truth[place]
            text = drawable(spelt(tokenizer, int(token)), most)
            axes.text(place, layer, text, ha="center", va="center", fontweight="bold" if right else "normal", **style)
    axes.set_yticks(range(layers), [f"layer {layer + 1}" for layer in range(layers)], fontsize=8)
    truth = ["?" if number is None else spelt(tokenizer, number) for number in found.truth]
    axes.set_xticks(range(count), [drawable(text, most) for text in truth], **style)
    axes.set_xlabel("what follows" if causal else "what is hidden", fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if causal:
        top = axes.secondary_xaxis("top")
        top.set_xticks(range(count), [drawable(spelt(tokenizer, number), most) for number in found.read], **style)
        top.set_xlabel("what was read", fontsize=8)
        top.tick_params(length=0)
        top.spines[:].set_visible(False)
