"""Masks of the patches that receive most of the attention, as DINO draws them, on the patch grid and on an image."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import CrateError

MASS = 0.6  # share of the attention that a mask keeps (DINO's value)


def check_mass(mass: float, name: str = "the share of attention") -> None:
    """Raise an error if `mass` is not a share; `name` is what the user calls it."""
    if not 0 < mass <= 1:
        raise CrateError(f"{name} must lie in (0, 1], not {mass}; DINO uses {MASS}")


def mass_masks(attention: NDArray[Any], mass: float = MASS) -> NDArray[np.bool_]:
    """Select the fewest patches that hold the share x = `mass` of each map (…, rows, columns); returns masks.

    Patches are sorted by attention, which is normalized to sum to one. Those whose running sum exceeds 1 − x are
    kept. Among equal patches the later ones are kept.
    """
    check_mass(mass)
    flat = attention.reshape(*attention.shape[:-2], -1).astype(np.float64)
    total = flat.sum(axis=-1, keepdims=True)
    if not np.isfinite(flat).all() or (flat < 0).any() or (total <= 0).any():
        raise CrateError("attention maps must be finite, not negative and not all zero; the model may have diverged")
    order = np.argsort(flat, axis=-1, kind="stable")
    running = np.cumsum(np.take_along_axis(flat / total, order, axis=-1), axis=-1)
    slack = flat.shape[-1] * np.finfo(np.float64).eps  # rounding of the sum must not keep one patch too many
    masks = np.zeros(flat.shape, dtype=bool)
    np.put_along_axis(masks, order, running > 1 - mass + slack, axis=-1)
    return masks.reshape(attention.shape)


def at_size(masks: NDArray[np.bool_], height: int, width: int) -> NDArray[np.bool_]:
    """Enlarge masks (…, rows, columns) to (…, height, width); every pixel takes the value of its patch."""
    rows, columns = (np.arange(n) * side // n for n, side in ((height, masks.shape[-2]), (width, masks.shape[-1])))
    return masks[..., rows[:, None], columns]
