"""Who looks at whom in a text: the attention of every head of a layer between tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..errors import CrateError
from ..models import eval_mode
from ..models.base import CratePreTrainedModel
from ..models.layers import EncoderLayer
from ..operators import TSSA
from .panel import Panel
from .text_passes import text_passes
from .token_text import FONT, drawable, shaded
from .trace import layer_index

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_DRAWN = 6  # heads at most


def no_token_attention(model: CratePreTrainedModel) -> str | None:
    """Why a model has no attention between tokens; None if it has."""
    layer = next(module for module in model.modules() if isinstance(module, EncoderLayer))
    if not isinstance(layer.attention, TSSA):
        return None
    return "attention 'tssa' compares no two tokens, so that there is nothing to show"


def token_attention(model: CratePreTrainedModel, ids: Tensor, layer: int = -2) -> Tensor:
    """A_k of every head k of one layer on one text (n,), (K, n, n): row i is whom token i looks at, and sums to one.

    The layer counts from 0, or from the end if negative.
    """
    reason = no_token_attention(model)
    if reason is not None:
        raise CrateError(reason)
    layer = layer_index(layer, model.config.num_hidden_layers)
    with eval_mode(model):
        (found,) = text_passes(model, [{"input_ids": ids[None]}], [layer])
        return found.passed.attention(layer)[0].cpu()


def attention_numbers(weights: Tensor, causal: bool) -> pd.DataFrame:
    """A row per head of weights (K, n, n), means over the tokens i that look.

    `entropy` is −Σ_j A_ij log A_ij in nats, `distance` Σ_j A_ij |i − j|, how far the head looks (back, if causal),
    `itself` A_ii, and `first` A_i1. In a causal model the first token can only look at itself and is left out.
    """
    import pandas as pd

    n = weights.shape[-1]
    if n < 2:
        raise CrateError(f"the text has {n} token; attention between tokens needs at least 2")
    rows = weights.double()
    place = torch.arange(n, dtype=torch.float64)
    measures = {
        "entropy": torch.special.entr(rows).sum(-1),
        "distance": (rows * (place[:, None] - place).abs()).sum(-1),
        "itself": rows.diagonal(dim1=-2, dim2=-1),
        "first": rows[..., 0],
    }
    means = {name: values[:, int(causal) :].mean(-1).numpy() for name, values in measures.items()}
    return pd.DataFrame({"head": np.arange(1, len(weights) + 1), **means})


def token_attention_panel(weights: Tensor, labels: Sequence[str], layer: int, causal: bool) -> Panel:
    """Heads of one layer (from 0) on a text whose tokens are spelt in `labels`; from near to far, at most six drawn."""
    table = attention_numbers(weights, causal)
    order = table.sort_values("distance", kind="stable").index.to_numpy()
    drawn = order[np.linspace(0, len(order) - 1, min(_DRAWN, len(order))).round().astype(int)].tolist()
    n = weights.shape[-1]
    seen = torch.ones(1, n, n).tril() if causal else torch.ones(1, n, n)
    even = attention_numbers(seen / seen.sum(-1, keepdim=True), causal).iloc[0]
    low, high = table.min(), table.max()
    back = "back" if causal else "away"
    return Panel(
        "token-attention",
        f"Who looks at whom: attention between tokens in layer {layer + 1}",
        "",
        f"The {len(table)} heads look {low['distance']:.1f} to {high['distance']:.1f} tokens {back} on average (even "
        f"attention: {even['distance']:.1f}), with an entropy of {low['entropy']:.2f} to {high['entropy']:.2f} nats "
        f"(even: {even['entropy']:.2f}); {table['itself'].mean():.0%} goes to the token itself and "
        f"{table['first'].mean():.0%} to the first. Rows look at columns.",
        lambda figure: _draw(figure, weights, labels, drawn, table),
        table,
    )


def _draw(figure: Figure, weights: Tensor, labels: Sequence[str], heads: Sequence[int], table: pd.DataFrame) -> None:
    columns = min(3, len(heads))
    rows = -(-len(heads) // columns)
    figure.set_size_inches(9.3 * columns / 3, 3.35 * rows)
    figure.set_layout_engine("constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    texts = [drawable(label, 8) for label in labels]
    turn = 90 if max(map(len, texts)) > 1 else 0  # letters of a text in bytes stand upright
    size = min(7.0, 190 / len(texts))  # in points, of the 200 or so a side has
    for axes in grid[len(heads) :]:
        axes.axis("off")
    for axes, head in zip(grid, heads, strict=False):
        share = weights[head].double().numpy()
        axes.imshow(shaded(np.sqrt(share), strongest=1.0), interpolation="nearest")  # the root shows small ones too
        style = {"fontfamily": FONT, "fontsize": size, "parse_math": False}
        axes.set_xticks(range(len(texts)), texts, rotation=turn, **style)
        axes.set_yticks(range(len(texts)), texts, **style)
        axes.tick_params(length=0, pad=1)
        axes.set_title(f"head {head + 1}: {table['distance'][head]:.1f} tokens away", fontsize=9)
