"""Panels on text models: the logit lens, its candidates along a text, units, and attention between tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...data import Masking, mask_own_tokens
from ...errors import CrateError
from ...models import CrateForCausalLM, CrateForMaskedLM
from ...models.base import CratePreTrainedModel
from ..measure.attention import token_attention, token_attention_table
from ..measure.logit_lens import Candidates, candidates, lens
from ..measure.sparse_units import units
from ..measure.tracing import TextBatch, UnavailableError
from ..measure.training_history import describe_trend
from .panel import FONT, WIDTH, Curve, Panel, draw_plots, ink_rgba, printable, subplots, token_label
from .units import firing_panel, unit_panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

POSITIONS = 20  # number of positions at the end of the text at which candidates are shown
ATTENTION_TOKENS = 32  # number of tokens at the start of the text between which attention is shown
ATTENTION_HEADS = 6  # largest number of heads whose attention is drawn
ROW = 0.27  # height of a row of the grid of candidates, in inches


def text_panels(
    model: CratePreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batches: Iterable[TextBatch],
    text: str,
    *,
    layer: int | None = None,
    top: int = 5,
) -> list[Panel]:
    """Build the lens and the units over batches of ids, and the candidates and the attention along one text.

    Attention is that of `layer`, by default -2. The tables have `top` candidates for each position and `top` windows
    for each unit. For the lens of a masked model, tokens are masked as in training. A part that the model does not
    have becomes a panel without a figure that states the reason.
    """
    batches = list(batches)  # only ids, and they are read twice
    ids = encode(model, tokenizer, text)

    def language() -> list[Panel]:
        if not isinstance(model, (CrateForCausalLM, CrateForMaskedLM)):
            raise UnavailableError(f"a {type(model).__name__} predicts no tokens")
        inputs = batches if model.config.causal else mask_batches(batches, tokenizer)
        around = {
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
        }  # special tokens around the text
        positions = [index for index, number in enumerate(ids.tolist()) if number not in around] or [len(ids) - 1]
        guesses = candidates(model, ids, positions[-POSITIONS:], top, mask_id=tokenizer.mask_token_id)
        return [lens_panel(lens(model, inputs)), candidates_panel(guesses, tokenizer, model.config.causal)]

    def activity() -> list[Panel]:
        stats = units(model, batches, top=top)
        return [firing_panel(stats), unit_panel(stats, tokenizer)]

    def attention() -> list[Panel]:
        index = max(model.config.num_hidden_layers - 2, 0) if layer is None else layer
        weights = token_attention(model, ids[:ATTENTION_TOKENS], index)
        labels = [token_label(tokenizer, number) for number in ids[:ATTENTION_TOKENS].tolist()]
        index %= model.config.num_hidden_layers
        return [token_attention_panel(weights, labels, index, model.config.causal)]

    return [
        *_or_reason("lens", "The model's head on every layer", language),
        *_or_reason("units", "Units of the sparse code", activity),
        *_or_reason("token-attention", "Attention between tokens", attention),
    ]


def encode(model: CratePreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> Tensor:
    """Return the ids (n,) of a text, truncated to the model's context length."""
    ids = torch.tensor(tokenizer(text, verbose=False)["input_ids"][: model.config.max_tokens])
    if len(ids) < 2:
        raise CrateError(f"the text {text!r} has fewer than two tokens; give a longer one")
    return ids


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
        describe_trend(name, table[column].tolist()) if len(table) > 1 else f"{name} is {last[column]:.3g}"
        for column, name in measures.items()
    ]
    nats = [Curve(table, "cross_entropy", "$-\\log p$ of the truth"), Curve(table, "entropy", "entropy")]
    plots = {"nats per token": nats, "share of correct first guesses": [Curve(table, "top1", "first guess")]}
    return Panel(
        "lens",
        "Logit lens: predictions of every layer through the model's head",
        "",
        f"Over {int(last['tokens']):,} tokens, {' and '.join(parts)}; the last layer is the model itself.",
        lambda figure: draw_plots(figure, plots, from_zero=True),
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
        lambda figure: _draw_candidates(figure, guesses, tokenizer, causal),
        candidates_table(guesses, tokenizer),
    )


def candidates_table(guesses: Candidates, tokenizer: PreTrainedTokenizerBase) -> pd.DataFrame:
    """Return a row per position and layer: the token there, the truth and its rank (0 if unknown), the candidates."""
    rows = []
    for index, position in enumerate(guesses.positions):
        truth = guesses.truth[index]
        for layer in range(len(guesses.ids)):
            row = {
                "position": position,
                "token": token_label(tokenizer, guesses.read[index]),
                "truth": "" if truth is None else token_label(tokenizer, truth),
                "layer": layer + 1,
                "truth_rank": int(guesses.truth_rank[layer, index]),
                "truth_probability": float(guesses.truth_probability[layer, index]),
                "entropy": float(guesses.entropy[layer, index]),
            }
            pairs = zip(guesses.ids[layer, index].tolist(), guesses.probabilities[layer, index].tolist(), strict=True)
            for number, (token, probability) in enumerate(pairs, 1):
                row |= {f"candidate_{number}": token_label(tokenizer, token), f"probability_{number}": probability}
            rows.append(row)
    return pd.DataFrame(rows)


def token_attention_panel(weights: Tensor, labels: Sequence[str], layer: int, causal: bool) -> Panel:
    """Build the panel of the heads of one layer (from 0) on a text with token `labels`; up to six heads are drawn."""
    table = token_attention_table(weights, causal)
    order = table.sort_values("distance", kind="stable").index.to_numpy()
    drawn = order[np.linspace(0, len(order) - 1, min(ATTENTION_HEADS, len(order))).round().astype(int)].tolist()
    n = weights.shape[-1]
    visible = torch.ones(1, n, n).tril() if causal else torch.ones(1, n, n)
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
        lambda figure: _draw_attention(figure, weights, labels, drawn, table),
        table,
    )


def _or_reason(name: str, title: str, build: Callable[[], list[Panel]]) -> list[Panel]:
    """Build panels, or a panel that states why the model has none of them."""
    try:
        return build()
    except UnavailableError as error:
        return [Panel(name, title, "", f"Not shown: {error}.")]


def _draw_candidates(figure: Figure, guesses: Candidates, tokenizer: PreTrainedTokenizerBase, causal: bool) -> None:
    """Draw a grid of layers and positions, with the truth below and, for a causal model, the text above."""
    layers, count = guesses.ids.shape[:2]
    (axes,) = subplots(figure, WIDTH, ROW * (layers + 4) + 0.2)
    axes.imshow(ink_rgba(guesses.probabilities[..., 0].double().numpy()), aspect="auto")
    limit = max(2, round(120 / count))
    style: Any = {"fontfamily": FONT, "fontsize": 7 if count <= 20 else 6, "parse_math": False}

    def label(token_id: int) -> str:
        return printable(token_label(tokenizer, token_id), limit)

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
    texts = [printable(label, 8) for label in labels]
    turn = 90 if max(map(len, texts)) > 1 else 0  # single letters stay upright
    style: Any = {"fontfamily": FONT, "fontsize": min(7.0, 190 / len(texts)), "parse_math": False}  # a side: ~200 pt
    for axes in grid[len(heads) :]:
        axes.axis("off")
    for axes, head in zip(grid, heads, strict=False):
        share = weights[head].double().numpy()
        axes.imshow(ink_rgba(np.sqrt(share), strongest=1.0), interpolation="nearest")  # the root shows small values too
        axes.set_xticks(range(len(texts)), texts, rotation=turn, **style)
        axes.set_yticks(range(len(texts)), texts, **style)
        axes.tick_params(length=0, pad=1)
        axes.set_title(f"head {head + 1}: {table['distance'][head]:.1f} tokens away", fontsize=9)
