"""The report's page on attention: a few images under each head's map, and how far the maps are from even."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ..data import Augment
from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from ..operators.attention_mass import MASS, mass_masks
from .attention_maps import attention_entropy, attention_maps
from .attention_overlay import heat_overlay, named_maps, tile
from .grids import WIDTH
from .panel import Panel
from .segment import default_layer, square_input

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

IMAGES, HEADS = 4, 12
"""The most that are drawn; all are measured."""
PIXELS = 144
"""Longest side of an image that is drawn."""
CLOSE_TO_EVEN, FOCUSED = 0.75, 0.5
"""Patches needed for a share of the attention, over those that even attention needs: the limits of the words for it."""


@dataclass(frozen=True, eq=False)
class AttentionStudy:
    """The class token's maps of some images at one layer."""

    layer: int
    """From 0."""
    layers: int
    """How many the model has, L."""
    white_box: bool
    """Whether attention compares tokens in subspaces, as CRATE's."""
    squares: Sequence[Image.Image]
    """What the model saw."""
    maps: NDArray[Any]
    """(images, K, rows, columns)."""
    entropy: NDArray[Any]
    """(images, K), as a share of that of even attention."""
    patches: NDArray[Any]
    """(images, K), the share of patches that hold `mass` of the attention."""
    mass: float

    @property
    def even(self) -> float:
        """The share of patches that even attention would need."""
        return float(mass_masks(np.ones(self.maps.shape[2:]), self.mass).mean())

    def table(self) -> pd.DataFrame:
        """Means over images, a row for each head k, counted from 1 as layers ℓ are."""
        import pandas as pd

        heads = self.maps.shape[1]
        return pd.DataFrame(
            {
                "layer": [self.layer + 1] * heads,
                "head": range(1, heads + 1),
                "entropy": self.entropy.mean(axis=0),
                "entropy_std": self.entropy.std(axis=0),
                "patches": self.patches.mean(axis=0),
                "patches_std": self.patches.std(axis=0),
            }
        )


def attention_study(
    model: CratePreTrainedModel,
    images: Sequence[Image.Image],
    augment: Augment,
    *,
    layer: int | None = None,
    side: int | None = None,
    mass: float = MASS,
) -> AttentionStudy:
    """Look at images at one layer, None being that of `segment`, in squares of `side`, None being the model's own."""
    if not images:
        raise CrateError("attention needs images; give at least one")
    config = model.config
    layer = default_layer(config) if layer is None else layer
    side = max(config.image_sides) if side is None else side
    inputs = [square_input(model, image, augment, side) for image in images]
    maps = torch.stack([attention_maps(model, pixels, layer)[0].double().cpu() for _, pixels in inputs])
    return AttentionStudy(
        layer=layer % config.num_hidden_layers,
        layers=config.num_hidden_layers,
        white_box=config.attention != "mhsa",
        squares=[square for square, _ in inputs],
        maps=maps.numpy(),
        entropy=attention_entropy(maps).numpy(),
        patches=mass_masks(maps.numpy(), mass).mean(axis=(2, 3)),
        mass=mass,
    )


def attention_panel(study: AttentionStudy) -> Panel:
    """What `attention_study` found, as a panel."""
    return Panel(
        name="attention",
        title="Where the class token looks",
        expected=_expected(study),
        measured=_measured(study),
        draw=lambda figure: _draw(study, figure),
        table=study.table(),
    )


def _expected(study: AttentionStudy) -> str:
    if study.white_box:
        return (
            "A CRATE that was trained on labels alone attends to the regions of the main object in its last layer but "
            "one, each head to a part of it, so that its maps segment the image; a ViT trained alike does not (4.3)."
        )
    return "The maps of a ViT that was trained on labels alone do not follow objects, where those of CRATE do (4.3)."


def _measured(study: AttentionStudy) -> str:
    """Sentences from the numbers alone: nothing here says whether the patches are an object's."""
    images, heads = study.entropy.shape
    entropy, patches = study.entropy.mean(axis=0), float(study.patches.mean())
    least, most = int(entropy.argmin()), int(entropy.argmax())
    spread = f", from {entropy[least]:.0%} (head {least + 1}) to {entropy[most]:.0%} (head {most + 1})"
    needed = patches / study.even
    if needed > CLOSE_TO_EVEN:
        verdict = "the maps are close to even"
    elif needed > FOCUSED:
        verdict = "the maps favour some patches"
    else:
        verdict = "the maps are focused on few patches"
    return (
        f"In layer {study.layer + 1} of {study.layers} the {heads} heads have {entropy.mean():.0%} of the entropy of "
        f"even attention on {images} images{spread if heads > 1 else ''}. {study.mass:.0%} of the attention lies on "
        f"{patches:.0%} of the patches, where even attention needs {study.even:.0%}: {verdict}. "
        "Whether they are an object's, crate evaluate --task voc measures."
    )


def _draw(study: AttentionStudy, figure: Figure) -> None:
    """A row for each image: the image, its heads, their mean."""
    rows = min(len(study.squares), IMAGES)
    columns = 2 + min(study.maps.shape[1], HEADS)
    cell = min(1.3, WIDTH / columns)
    figure.set_size_inches(cell * columns, cell * rows + 0.3)
    figure.set_layout_engine("constrained", w_pad=0.01, h_pad=0.01, wspace=0, hspace=0)
    axes = figure.subplots(rows, columns, squeeze=False)
    for row in range(rows):
        small = tile(study.squares[row], PIXELS)
        maps = named_maps(study.maps[row])
        shown = {name: maps[name] for name in (*list(maps)[:-1][:HEADS], "mean")}
        pictures = {"image": small.convert("RGB")} | {name: heat_overlay(small, own) for name, own in shown.items()}
        for place, (name, picture) in zip(axes[row], pictures.items(), strict=True):
            place.imshow(np.asarray(picture), interpolation="nearest")
            place.set_axis_off()
            if row == 0:
                place.set_title(name, fontsize=8, pad=3)
