"""The catalogue of heads: what each looks at and on which images it looks most sharply, so that a person can name it.

The paper names heads of its penultimate layer by looking: legs, body, face, ear (4.3, semantic heads).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from .attention_maps import attention_entropy, attention_maps
from .attention_overlay import heat_overlay, tile
from .grids import WIDTH
from .panel import Panel
from .segment import default_layer
from .trace import layer_index

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from PIL.Image import Image

TOP = 0.1
"""The share of patches that counts as what a head looks at."""
SHOWN = 4
"""Images that stand for a head."""
BATCH = 32
"""Images of one forward pass."""
PIXELS, GAP = 112, 6
"""Longest side of an image that is drawn, and what lies between two."""


@dataclass(frozen=True, eq=False)
class HeadCatalogue:
    """The heads of one layer on a set of images."""

    layer: int
    """From 0."""
    maps: Tensor
    """A_k, the class token's attention over the patches, (images, K, rows, columns), each summing to one."""
    focus: Tensor
    """The share of A_k in its ⌈N/10⌉ largest patches, (images, K)."""
    best: Tensor
    """Of each head the images of the largest focus, in falling order, (K, at most `shown`)."""
    table: pd.DataFrame
    """A row per head: see `head_catalogue`."""

    @property
    def even(self) -> float:
        """The focus of even attention."""
        patches = self.maps.shape[-2] * self.maps.shape[-1]
        return _top(patches) / patches


def head_catalogue(
    model: CratePreTrainedModel, pixel_values: Tensor, layer: int | None = None, shown: int = SHOWN
) -> HeadCatalogue:
    """Which heads light up where, over images (batch, channels, height, width); refused without a class token.

    A head lights up most sharply on the images of the largest *focus*, the mass of its map in the tenth of patches
    where it is largest: an object that is lit as a whole counts as much as one bright patch, where entropy or the peak
    would prefer the patch. The table has a row for each head, counted from 1, with means over images: `focus`;
    `entropy`, over that of even attention; `overlap`, the cosine ⟨A_k, A_l⟩/(‖A_k‖‖A_l‖) with the other heads l; and
    `best`, the images chosen, counted from 0. `layer` None is the last but one of CRATE and the last of a ViT.
    """
    import pandas as pd

    if not len(pixel_values):
        raise CrateError("the catalogue of heads needs images; give at least one")
    layer = default_layer(model.config) if layer is None else layer
    parts = [attention_maps(model, part, layer).double().cpu() for part in pixel_values.split(BATCH)]
    maps = torch.cat(parts)
    flat = maps.flatten(2)
    K, patches = flat.shape[1:]
    focus = flat.topk(_top(patches), dim=-1).values.sum(-1)
    best = focus.mT.argsort(dim=-1, descending=True, stable=True)[:, :shown]
    table = pd.DataFrame(
        {
            "head": range(1, K + 1),
            "focus": focus.mean(0),
            "entropy": attention_entropy(maps).mean(0),
            "overlap": _overlap(flat),
            "best": [" ".join(str(int(image)) for image in row) for row in best],
        }
    )
    return HeadCatalogue(layer_index(layer, model.config.num_hidden_layers), maps, focus, best, table)


def head_panel(
    model: CratePreTrainedModel,
    pixel_values: Tensor,
    images: Sequence[Image],
    layer: int | None = None,
    shown: int = SHOWN,
) -> Panel:
    """The catalogue as a panel: for each head its images, bare and under its map; `images` are what the model saw."""
    found = head_catalogue(model, pixel_values, layer, shown)
    if len(images) != len(found.maps):
        raise CrateError(f"{len(images)} images do not fit {len(found.maps)} rows of pixel values; give one for each")
    return Panel(
        "heads",
        f"What each head looks at, layer {found.layer + 1}",
        "Some heads of CRATE's last layer but one follow one part of objects through many images, such as legs or "
        "ears, and can be named by a person who looks (4.3).",
        _measured(found),
        lambda figure: _draw(figure, found, images),
        found.table,
    )


def _top(patches: int) -> int:
    return math.ceil(TOP * patches)


def _overlap(flat: Tensor) -> Tensor:
    """Mean cosine of each head's maps (images, K, N) with those of the others, (K,); NaN for a single head."""
    unit = torch.nn.functional.normalize(flat, dim=-1)
    cosines = unit @ unit.mT  # (images, K, K)
    K = cosines.shape[-1]
    others = cosines.sum(-1) - cosines.diagonal(dim1=-2, dim2=-1)
    return others.mean(0) / (K - 1) if K > 1 else torch.full((1,), torch.nan)


def _measured(found: HeadCatalogue) -> str:
    table = found.table
    sharp, blunt = (table.iloc[int(place)] for place in (table["focus"].argmax(), table["focus"].argmin()))
    even = f"where even attention has {found.even:.0%}"
    images = f"{len(found.maps)} image{'s' if len(found.maps) > 1 else ''}"
    if len(table) == 1:
        return f"On {images} the only head has {sharp['focus']:.0%} of its attention in a tenth of the patches, {even}."
    overlap = float(table["overlap"].mean())
    return (
        f"On {images} head {sharp['head']} is the sharpest, with {sharp['focus']:.0%} of its attention in a tenth of "
        f"the patches, and head {blunt['head']} the least sharp, with {blunt['focus']:.0%}, {even}. Maps of two heads "
        f"have a cosine of {overlap:.2f} on average: {_alike(overlap)}."
    )


def _alike(overlap: float) -> str:
    if overlap > 0.9:
        return "the heads look at nearly the same patches"
    return "the heads share part of what they look at" if overlap > 0.5 else "the heads look at different patches"


def _draw(figure: Figure, found: HeadCatalogue, images: Sequence[Image]) -> None:
    """A strip for each head, one picture each: image and map of each of its images."""
    strips = [_strip(found, head, images) for head in range(len(found.best))]
    height, width = strips[0].shape[:2]
    figure.set_size_inches(WIDTH * min(1, found.best.shape[1] / SHOWN), 1)
    inches = figure.get_figwidth() * height / width + 0.28
    figure.set_figheight(inches * len(strips))
    figure.set_layout_engine("constrained")
    all_axes = figure.subplots(len(strips), 1, squeeze=False)[:, 0]
    for axes, strip, row in zip(all_axes, strips, found.table.to_dict("records"), strict=True):
        axes.imshow(strip, interpolation="none")  # a file of vectors then holds its own pixels, not scaled ones
        axes.set_axis_off()
        words = f"head {row['head']}: focus {row['focus']:.0%}, entropy {row['entropy']:.2f}"
        overlap = "" if math.isnan(row["overlap"]) else f", overlap {row['overlap']:.2f}"
        axes.set_title(words + overlap, loc="left", fontsize="small")


def _strip(found: HeadCatalogue, head: int, images: Sequence[Image]) -> NDArray[np.uint8]:
    """Pairs of image and map side by side, (height, width, 4), nothing between them."""
    parts = []
    for index in found.best[head].tolist():
        small = tile(images[index], PIXELS).convert("RGB")
        heat = heat_overlay(small, found.maps[index, head].numpy())
        pair = [np.asarray(picture.convert("RGBA")) for picture in (small, heat)]
        gap = np.zeros((small.height, GAP, 4), dtype=np.uint8)
        parts += [pair[0], gap[:, : GAP // 3], pair[1], gap]
    return np.concatenate(parts[:-1], axis=1)
