"""Tokens to look at: a piece of Z^{ℓ+1} at every layer (paper 4.2), and patches coloured by their principal parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import objective
from ..errors import CrateError
from .across import trend
from .grids import COLUMNS, draw_grid
from .panel import Panel
from .trace import ForwardTrace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from PIL.Image import Image

SIZE = 50
"""Rows and columns of the piece that is drawn, the paper's."""
TAIL = 1.0
"""Percent of values at each end that colours do not tell apart, so that an outlier does not darken all others."""


def token_heat(passed: ForwardTrace, sample: int = 0, size: int = SIZE, seed: int = 0) -> dict[int, Tensor]:
    """|Z^{ℓ+1}| of one sample at some random tokens and coordinates, (size, size) by layer ℓ from 1 (paper 4.2).

    Tokens and coordinates are the same at every layer of the encoder, in order, and fewer where there are fewer; of a
    padded text the real tokens count. The paper draws the entries and does not say how it chose them.
    """
    layers = _sample(passed, sample)
    draw = torch.Generator().manual_seed(seed)
    count, d = next(iter(layers.values())).shape
    rows, columns = (torch.randperm(n, generator=draw)[:size].sort().values for n in (count, d))
    return {layer: z.cpu()[rows[:, None], columns].abs() for layer, z in layers.items()}


def token_panels(passed: ForwardTrace, sample: int = 0) -> list[Panel]:
    """Heat maps of one sample's tokens at every layer that was traced, of a vision or a text model."""
    import pandas as pd

    layers = _sample(passed, sample)
    heat = token_heat(passed, sample)
    rows = [
        {
            "layer": layer,
            "nonzero": float(objective.l0_fraction(z)),
            "effective_rank": float(objective.effective_rank(z)),
            "largest": float(z.abs().max()),
        }
        for layer, z in layers.items()
    ]
    table = pd.DataFrame(rows)
    count, d = next(iter(layers.values())).shape
    return [
        Panel(
            "tokens",
            "Tokens of one sample after each layer",
            "Z^{ℓ+1} becomes sparser with depth, and more structured, that is of lower rank (4.2).",
            f"Of this sample's {count} tokens in {d} dimensions, "
            + trend("the share of non-zero entries", table["nonzero"].tolist())
            + "; "
            + trend("the effective rank", table["effective_rank"].tolist())
            + ".",
            lambda figure: _draw_heat(figure, heat, table),
            table,
        )
    ]


def _sample(passed: ForwardTrace, sample: int) -> dict[int, Tensor]:
    """Z^{ℓ+1} (n, d) of one sample by layer ℓ from 1, of the encoder's layers that were traced; real tokens only."""
    real: Any = slice(None) if passed.mask is None else passed.mask[sample]
    found = {layer: z[sample, real] for layer, z in encoder_tokens(passed).items()}
    if not found:
        raise CrateError("no layer of the encoder was traced; name one in layers=")
    return found


def encoder_tokens(passed: ForwardTrace) -> dict[int, Tensor]:
    """Z^{ℓ+1} (batch, n, d) by layer ℓ from 1, of the encoder's layers that were traced."""
    outputs: Sequence[Tensor | None] = passed.tokens[1 : passed.encoder_depth + 1]
    return {layer: z for layer, z in enumerate(outputs, 1) if z is not None}


def _draw_heat(figure: Figure, heat: dict[int, Tensor], table: pd.DataFrame) -> None:
    """Every layer on a scale of its own, zeros white.

    Layers differ in size by orders of magnitude. On one scale a layer of small entries would look empty, though none
    of them were zero: the picture would show size for sparsity. White is kept for what is exactly zero.
    """
    from matplotlib import colormaps

    pictures = []
    for part in heat.values():
        values = part.double().numpy()
        top = np.percentile(values[values > 0], 100 - TAIL) if (values > 0).any() else 1.0
        pictures.append(np.ma.masked_equal(np.minimum(values / top, 1), 0))
    shares = zip(table["layer"], table["nonzero"], strict=True)
    captions = [f"layer {layer}, {share:.0%} non-zero" for layer, share in shares]
    colors = colormaps["viridis"].with_extremes(bad="white")
    scale = f"|z| over its layer's {100 - TAIL:g}th percentile"
    draw_grid(figure, pictures, captions, scale=scale, vmin=0, vmax=1, cmap=colors)


def pca_colors(tokens: Tensor, grid: tuple[int, int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Patch tokens as colours, (batch, rows, columns, 3) in [0, 1], and the three shares of variance behind them.

    Tokens z_i (batch, n, d), the class token left out, are centred over all patches of all images together; red, green
    and blue are their coordinates in the first three eigenvectors of the covariance, so that one colour means the same
    in every image. An eigenvector's largest entry is made positive, which fixes its sign; the middle 98 % of each
    coordinate fill [0, 1]. A component without variance is ½ everywhere.
    """
    rows, columns = grid
    batch, n, d = tokens.shape
    if n - rows * columns not in (0, 1):
        raise CrateError(f"{n} tokens do not fill the grid {rows} × {columns}, with or without a class token")
    patches = tokens[:, n - rows * columns :].reshape(-1, d).double().cpu()
    centred = patches - patches.mean(0)
    variances, vectors = torch.linalg.eigh(centred.mT @ centred)  # ascending
    total = variances.clamp(min=0).sum()
    rounding = d * torch.finfo(torch.float64).eps
    kept = [d - 1 - i for i in range(min(3, d)) if variances[d - 1 - i] > rounding * patches.square().sum()]
    colors, shares = np.full((len(patches), 3), 0.5), np.zeros(3)
    for place, index in enumerate(kept):
        vector = vectors[:, index]
        values = (centred @ vector * vector[vector.abs().argmax()].sign()).numpy()
        low, high = np.percentile(values, [TAIL, 100 - TAIL])
        if high > low:
            colors[:, place] = np.clip((values - low) / (high - low), 0, 1)
        shares[place] = variances[index] / total
    return colors.reshape(batch, rows, columns, 3), shares


def pca_panel(passed: ForwardTrace, images: Sequence[Image], grid: tuple[int, int], shown: int = 6) -> Panel:
    """Patches coloured by their first three principal components after a few layers, fitted to all images of the pass.

    `images` are what the model saw, in the order of the pass, of which the first `shown` are drawn; `grid` is that of
    patches. The layers are the first, the last and some between them, of those that were traced.
    """
    import pandas as pd

    traced = encoder_tokens(passed)
    if not traced:
        raise CrateError("no layer of the encoder was traced; name one in layers=")
    places = np.linspace(0, len(traced) - 1, min(len(traced), COLUMNS - 1)).round().astype(int)
    chosen = [list(traced)[place] for place in places]
    colors, shares = zip(*(pca_colors(traced[layer], grid) for layer in chosen), strict=True)
    table = pd.DataFrame([{"layer": layer, **_named(share)} for layer, share in zip(chosen, shares, strict=True)])
    held = ", ".join(f"{s.sum():.0%} after layer {layer}" for layer, s in zip(chosen, shares, strict=True))
    return Panel(
        "patches",
        "Patches in the colours of their first three principal components",
        "Attention maps tell the parts of objects apart (4.3). Where tokens do so too, like parts have like colours in "
        "all images.",
        f"Over {len(colors[0])} images, three components hold {held} of the variance of the patches' tokens.",
        lambda figure: _draw_colors(figure, images[:shown], colors, chosen),
        table,
    )


def _named(shares: NDArray[np.float64]) -> dict[str, float]:
    return {f"component_{place}": float(share) for place, share in enumerate(shares, 1)}


def _draw_colors(
    figure: Figure, images: Sequence[Image], colors: Sequence[NDArray[np.float64]], layers: Sequence[int]
) -> None:
    pictures, captions = [], []
    for index, image in enumerate(images):
        pictures += [np.asarray(image.convert("RGB")), *(layer[index] for layer in colors)]
        captions += ["image", *(f"layer {layer}" for layer in layers)] if index == 0 else [""] * (1 + len(layers))
    draw_grid(figure, pictures, captions, 1 + len(layers))
