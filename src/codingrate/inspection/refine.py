"""Edges of masks drawn to those of the image: mean field of a dense CRF (paper 4.3: "CRF … smooths the edges").

This is our own mean field: pydensecrf, which MaskCut calls, has no wheel for Python 3.11, and for two labels it comes
down to the few lines below, with the bilateral filter of `permutohedral` and SciPy's Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CrateError
from .maskcut import overlap
from .permutohedral import Permutohedral

SMOOTH_WEIGHT, SMOOTH_SPREAD = 7.0, 3.0
"""Weight of the kernel of places alone, and its deviation in pixels."""
COLOR_WEIGHT, PLACE_SPREAD, COLOR_SPREAD = 10.0, 50.0, 5.0
"""Weight of the kernel of places and colours, and its deviations in pixels and in steps of 255."""
ITERATIONS = 10
KEPT = 0.5
"""Overlap of a mask with its refined form below which it was no object of the image."""

Filter = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def mean_field(image: NDArray[np.uint8], masks: NDArray[np.bool_], iterations: int = ITERATIONS) -> NDArray[np.float32]:
    """Q of the object at every pixel, (c, height, width), for masks of one image (height, width) or (height, width, 3).

    With labels ±1 and t_i = 2Q_i − 1 an update of the dense CRF with Potts penalties is
    t ← tanh(½(m + 7 G t + 10 B t)), m_i = ±1 being the mask (so that it counts 0.731 against 0.269), and G, B
    the kernels exp(−‖x_i − x_j‖²/2·3²) and exp(−‖x_i − x_j‖²/2·50² − ‖c_i − c_j‖²/2·5²), each normalised to
    N^-½KN^-½, N = K1. The sums run over j = i too, as in the code of Krähenbühl and Koltun that MaskCut calls.
    """
    if image.shape[:2] != masks.shape[1:] or image.dtype != np.uint8:
        raise CrateError(f"masks {masks.shape} are not of the image {image.shape} of bytes; resize them to it")
    smooth, bilateral = (_normalized(kernel, image.shape[:2]) for kernel in (_gaussian, _bilateral(image)))
    unary = np.where(masks, 1.0, -1.0).astype(np.float32)
    t = np.tanh(unary / 2)
    for _ in range(iterations):
        t = np.tanh((unary + SMOOTH_WEIGHT * smooth(t) + COLOR_WEIGHT * bilateral(t)) / 2)
    return np.asarray((t + 1) / 2)


def refine(image: NDArray[np.uint8], masks: Sequence[NDArray[np.bool_]]) -> list[NDArray[np.bool_] | None]:
    """Each mask (height, width) with its edges at those of the image and its holes filled.

    None for a mask that keeps less than half its overlap with itself: it followed nothing in the image.
    """
    from scipy.ndimage import binary_fill_holes

    if not masks:
        return []
    refined = [np.asarray(binary_fill_holes(q > 0.5)) for q in mean_field(image, np.stack(masks))]
    return [new if new.any() and overlap(old, new) >= KEPT else None for old, new in zip(masks, refined, strict=True)]


def _normalized(kernel: Filter, shape: tuple[int, int]) -> Filter:
    """N^-½KN^-½."""
    scale: NDArray[np.float32] = np.maximum(kernel(np.ones((1, *shape), np.float32)), 1e-20) ** np.float32(-0.5)
    return lambda x: scale * kernel(scale * x)


def _gaussian(x: NDArray[np.float32]) -> NDArray[np.float32]:
    from scipy.ndimage import gaussian_filter

    return np.asarray(gaussian_filter(x, (0, SMOOTH_SPREAD, SMOOTH_SPREAD), mode="constant"))


def _bilateral(image: NDArray[np.uint8]) -> Filter:
    height, width = image.shape[:2]
    places = np.moveaxis(np.mgrid[:height, :width], 0, -1) / PLACE_SPREAD
    points: NDArray[Any] = np.concatenate([places, image.reshape(height, width, -1) / COLOR_SPREAD], axis=-1)
    lattice = Permutohedral(points.reshape(height * width, -1))
    return lambda x: lattice(x.reshape(len(x), -1).T).T.reshape(x.shape)
