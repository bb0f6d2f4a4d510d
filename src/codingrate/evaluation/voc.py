"""Coarse segmentation by attention on PASCAL VOC: how much of a class one head covers (the paper's VOC column)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._files import atomic_write
from ..data import BACKGROUND, VOID
from ..errors import CrateError, unknown_name
from ..operators.attention_mass import MASS, at_size, mass_masks

HeadRule = Literal["best", "mean"]


@dataclass(frozen=True)
class VocReport:
    """Mean overlap of attention with the classes of a split."""

    data: str
    images: int
    """Those with a class in them."""
    miou: float
    """Mean over images of the mean over their classes of intersection over union."""
    per_class: dict[int, float]
    """Mean over the images that have the class."""
    mass: float
    heads: HeadRule

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)

    def save(self, folder: Path) -> None:
        """Write metrics.json, whole or not at all."""
        with atomic_write(folder / "metrics.json") as draft:
            draft.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")


def class_overlaps(masks: NDArray[np.bool_], labels: NDArray[np.uint8], heads: HeadRule = "best") -> dict[int, float]:
    """Intersection over union of the heads' masks (K, rows, columns) with each class in a map (height, width).

    Of each class the best head's, or the mean over heads. Masks are brought to the map's size by nearest neighbour.
    Pixels marked void count neither way; the public script meant the same, but counts them in the union.
    """
    if heads not in ("best", "mean"):
        raise unknown_name("heads", heads, ("best", "mean"))
    large = at_size(masks, *labels.shape) & (labels != VOID)
    overlaps = {}
    for number in np.setdiff1d(labels, (BACKGROUND, VOID)):
        inside = labels == number
        ratios = (large & inside).sum(axis=(1, 2)) / (large | inside).sum(axis=(1, 2))
        overlaps[int(number)] = float(ratios.max() if heads == "best" else ratios.mean())
    return overlaps


def voc_overlap(
    name: str,
    pairs: Iterable[tuple[NDArray[Any], NDArray[np.uint8]]],
    *,
    mass: float = MASS,
    heads: HeadRule = "best",
) -> VocReport:
    """mIoU over pairs of attention maps (K, rows, columns) and class maps (height, width), one pair an image.

    The paper gives no procedure for its number; this is the public one for attention maps, with DINO's share of mass.
    """
    means: list[float] = []
    by_class: dict[int, list[float]] = {}
    for attention, labels in pairs:
        overlaps = class_overlaps(mass_masks(attention, mass), labels, heads)
        for number, value in overlaps.items():
            by_class.setdefault(number, []).append(value)
        if overlaps:
            means.append(sum(overlaps.values()) / len(overlaps))
    if not means:
        raise CrateError(f"{name}: no image has a class in its map; give images with objects")
    per_class = {number: sum(values) / len(values) for number, values in sorted(by_class.items())}
    return VocReport(name, len(means), sum(means) / len(means), per_class, mass, heads)
