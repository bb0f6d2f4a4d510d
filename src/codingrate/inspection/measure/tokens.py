"""Tokens made visible: a part of Z^{ℓ+1} at every layer (paper 4.2), and colors of patches by principal components."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import CrateError
from .tracing import ForwardTrace

SIZE = 50  # number of rows and columns of the part that is drawn, as in the paper
TAIL = 1.0  # percentage of values at each end that share the extreme color, so that outliers do not dominate the scale


def encoder_tokens(passed: ForwardTrace) -> dict[int, Tensor]:
    """Return Z^{ℓ+1} (batch, n, d) by layer ℓ from 1, for the encoder layers that were traced."""
    outputs: Sequence[Tensor | None] = passed.tokens[1 : passed.encoder_depth + 1]
    tokens = {layer: z for layer, z in enumerate(outputs, 1) if z is not None}
    if not tokens:
        raise CrateError("no encoder layer was traced; add one to `layers`")
    return tokens


def sample_tokens(passed: ForwardTrace, sample: int) -> dict[int, Tensor]:
    """Return Z^{ℓ+1} (n, d) of one sample by layer ℓ from 1, without padding."""
    real: Any = slice(None) if passed.mask is None else passed.mask[sample]
    return {layer: z[sample, real] for layer, z in encoder_tokens(passed).items()}


def token_heat(passed: ForwardTrace, sample: int = 0, size: int = SIZE, seed: int = 0) -> dict[int, Tensor]:
    """Return |Z^{ℓ+1}| of one sample at random tokens and coordinates, (size, size) by layer ℓ from 1 (paper 4.2).

    The tokens and coordinates are the same at every encoder layer, sorted, and fewer if the sample has fewer. Padding
    is left out. The paper draws such entries without saying how it chose them.
    """
    layers = sample_tokens(passed, sample)
    generator = torch.Generator().manual_seed(seed)
    count, d = next(iter(layers.values())).shape
    rows, columns = (torch.randperm(n, generator=generator)[:size].sort().values for n in (count, d))
    return {layer: z.cpu()[rows[:, None], columns].abs() for layer, z in layers.items()}


def pca_colors(tokens: Tensor, grid: tuple[int, int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Color patches by principal components: (batch, rows, columns, 3) in [0, 1], and three shares of variance.

    Tokens z_i (batch, n, d) without the class token are centered over all patches of all images. Red, green and blue
    are their coordinates along the first three eigenvectors of the covariance, so a color means the same in every
    image. The largest entry of an eigenvector is made positive, which fixes its sign. The middle 98 % of each
    coordinate fill [0, 1]. A component without variance is ½ everywhere.
    """
    rows, columns = grid
    batch, n, d = tokens.shape
    if n - rows * columns not in (0, 1):
        raise CrateError(f"{n} tokens do not fill the grid {rows} × {columns}, with or without a class token")
    patches = tokens[:, n - rows * columns :].reshape(-1, d).double().cpu()
    centered = patches - patches.mean(0)
    variances, vectors = torch.linalg.eigh(centered.mT @ centered)  # ascending
    total = variances.clamp(min=0).sum()
    rounding = d * torch.finfo(torch.float64).eps
    kept = [d - 1 - i for i in range(min(3, d)) if variances[d - 1 - i] > rounding * patches.square().sum()]
    colors, shares = np.full((len(patches), 3), 0.5), np.zeros(3)
    for component, index in enumerate(kept):
        vector = vectors[:, index]
        values = (centered @ vector * vector[vector.abs().argmax()].sign()).numpy()
        low, high = np.percentile(values, [TAIL, 100 - TAIL])
        if high > low:
            colors[:, component] = np.clip((values - low) / (high - low), 0, 1)
        shares[component] = variances[index] / total
    return colors.reshape(batch, rows, columns, 3), shares
