"""The patches on which most of a map's attention lies: masks as DINO draws them, on the grid and on an image."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CrateError

MASS = 0.6
"""Share of the attention that a mask keeps (DINO's)."""


def check_mass(mass: float, name: str = "the share of attention") -> None:
    """Refuse a share that is none; `name` is what the user called it."""
    if not 0 < mass <= 1:
        raise CrateError(f"{name} must lie in (0, 1], not {mass}; {MASS} is DINO's")


def mass_masks(attention: NDArray[Any], mass: float = MASS) -> NDArray[np.bool_]:
    """The fewest patches that hold the share x = `mass` of each map's attention: maps (…, rows, columns) to masks.

    In rising order the patches whose running sum, of maps that sum to one, exceeds 1 − x. Of patches that are equal
    the later ones are kept.
    """
    check_mass(mass)
    flat = attention.reshape(*attention.shape[:-2], -1).astype(np.float64)
    total = flat.sum(axis=-1, keepdims=True)
    if not np.isfinite(flat).all() or (flat < 0).any() or (total <= 0).any():
        raise CrateError("attention maps must be finite, not negative and not all zero; the model may have diverged")
    order = np.argsort(flat, axis=-1, kind="stable")
    running = np.cumsum(np.take_along_axis(flat / total, order, axis=-1), axis=-1)
    slack = flat.shape[-1] * np.finfo(np.float64).eps  # the sum's rounding must not keep one patch too many
    masks = np.zeros(flat.shape, dtype=bool)
    np.put_along_axis(masks, order, running > 1 - mass + slack, axis=-1)
    return masks.reshape(attention.shape)


def at_size(masks: NDArray[np.bool_], height: int, width: int) -> NDArray[np.bool_]:
    """Masks (…, rows, columns) at (…, height, width): every pixel is its patch's, be the patches whole or not."""
    rows, columns = (np.arange(n) * side // n for n, side in ((height, masks.shape[-2]), (width, masks.shape[-1])))
    return masks[..., rows[:, None], columns]
