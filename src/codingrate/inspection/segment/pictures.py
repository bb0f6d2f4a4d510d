"""Show what a model sees in an image: its objects by MaskCut, and the class token's attention by layer and head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn.functional import normalize

from ..._attention_mass import MASS, at_size, check_mass, mass_masks
from ..._files import atomic_write
from ...data import Augment, BatchAugment, crop_for_evaluation
from ...errors import CrateError
from ...models.base import CratePreTrainedModel
from ...models.config import CrateConfig
from ..measure.attention import attention_entropy, layer_attention_maps, projections
from ..measure.tracing import default_layer, layer_indices
from .crf import refine as refine_masks
from .cuts import THRESHOLD, Box, Rule, bounding_box, maskcut

SIDE = 480  # default side in pixels of the square to which an image is resized, as in MaskCut
GRID = 60  # largest default number of patches along a side: 3,600 patches, whose graph takes 100 MB
MAX_GRID = 128  # largest number of patches along a side: 16,384 patches, whose graph takes 2 GB
COLORS = ((230, 159, 0), (0, 114, 178), (0, 158, 115), (204, 121, 167), (213, 94, 0), (86, 180, 233))
"""Colors that most people can tell apart, including the color-blind (Okabe and Ito)."""

COLORMAP = "inferno"  # perceptually uniform, also for the color-blind and in grayscale
OPACITY = 0.6  # opacity of the heat over the image
DIMMED = 0.25  # brightness of an image outside a mask
TILE = 240  # longest side of an image within a grid, in pixels

GAP, HEADER, NAME = 4, 18, 56
"""Layout of a grid in pixels: space between images, height of the names above them, width of a column at least."""


@dataclass(frozen=True, eq=False)
class Segment:
    """One region of an image that MaskCut found: an object, or a part of the background such as the sky."""

    mask: NDArray[np.bool_]  # (height, width) of the image
    box: Box  # bounding box of the mask: x, y, width, height in pixels
    cut_quality: float
    """1 − Ncut/2 in [0, 1]: how little connects the region with the rest of the image. It is not the probability of an
    object; a clear sky has a high one."""
    threshold: float  # cosine above which two patches counted as alike

    @property
    def border(self) -> float:
        """Share of the image's border that the region covers, in [0, 1]; large for many backgrounds."""
        edge = np.ones_like(self.mask)
        edge[1:-1, 1:-1] = False
        return float(self.mask[edge].mean())


def find_objects(
    model: CratePreTrainedModel,
    image: Image.Image,
    augment: Augment,
    *,
    masks: int = 3,
    threshold: float | None = None,
    layer: int | None = None,
    refine: bool = True,
    side: int | None = None,
    rule: Rule = "symmetric",
) -> list[Segment]:
    """Find at most `masks` regions in an image by MaskCut, in the order of the cuts.

    A region may be an object or background: MaskCut takes the side of a cut with fewer corners of the image for the
    object, and that can be the sky. The image is resized to a square of `side` pixels and normalized as `augment` says.
    The masks on its grid of patches are refined there (`refine`, which drops masks that follow nothing in the image)
    and resized to the image. `rule` is that of `maskcut`. `layer` is an index, from 0 or from the end; its default
    is -2 for CRATE and -1 for a ViT, the layers of the paper's attention maps. The paper does not name that of MaskCut.

    The default of `threshold` is MaskCut's, 0.15, or in an image in which it separates no patches the mean cosine of
    two patches: the tokens of small models share a large part, so that all of them are alike at 0.15.
    """
    square, pixels = square_input(model, image, augment, side)
    patch = model.config.patch_size
    grid = (square.height // patch, square.width // patch)
    features = projections(model, pixels, default_layer(model.config) if layer is None else layer)[0]
    used = THRESHOLD if threshold is None else threshold
    cuts = maskcut(features, grid, masks, used, rule)
    mean = float(normalize(features.double(), dim=-1).mean(0).square().sum())
    if threshold is None and not cuts and used < mean < 1:
        used, cuts = mean, maskcut(features, grid, masks, mean, rule)
    large = [cut.mask.repeat(patch, axis=0).repeat(patch, axis=1) for cut in cuts]
    segments = []
    for coarse, cut in zip(refine_masks(np.asarray(square), large) if refine else large, cuts, strict=True):
        if coarse is not None:
            picture = Image.fromarray(coarse.astype(np.uint8) * 255).resize(image.size, Image.Resampling.BICUBIC)
            mask = np.asarray(picture) >= 128
            if mask.any():
                segments.append(Segment(mask, bounding_box(mask), cut.cut_quality, used))
    return segments


def square_input(
    model: CratePreTrainedModel, image: Image.Image, augment: Augment, side: int | None = None
) -> tuple[Image.Image, Tensor]:
    """Resize an image to a square; return it and the pixel values (1, channels, side, side) that the model reads."""
    side = default_side(model.config) if side is None else side
    patch = model.config.patch_size
    if side < patch or side % patch:
        raise CrateError(f"side {side} is not divisible by the model's patch_size {patch}; use {_nearest(side, patch)}")
    if side > MAX_GRID * patch:
        raise CrateError(
            f"side {side} has more than {MAX_GRID} patches of {patch} pixels; use at most {MAX_GRID * patch}"
        )
    augment = replace(augment, image_size=side, evaluation="resize", interpolation="lanczos")
    square = crop_for_evaluation(image, augment)
    values = torch.from_numpy(np.array(square))
    values = values[None] if augment.channels == 1 else values.permute(2, 0, 1)
    return square, BatchAugment(augment).eval()(values[None]).to(model.device, model.dtype)


def overlay(image: Image.Image, segments: Sequence[Segment]) -> Image.Image:
    """Draw regions over an image: tinted masks and boxes with a number in the corner."""
    pixels = np.array(image.convert("RGB"), dtype=np.float32)
    colored = list(zip(segments, cycle(COLORS), strict=False))
    for part, color in colored:
        pixels[part.mask] = 0.5 * pixels[part.mask] + 0.5 * np.array(color, dtype=np.float32)
    picture = Image.fromarray(pixels.round().astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    line = max(1, round(max(picture.size) / 320))
    for number, (part, color) in enumerate(colored, 1):
        x, y, width, height = part.box
        draw.rectangle((x, y, x + width - 1, y + height - 1), outline=color, width=line)
        text, size = f" {number} ", max(8, 4 * line + 6)
        draw.rectangle(draw.textbbox((x, y), text, font_size=size), fill=color)
        draw.text((x, y), text, fill="white", font_size=size)
    return picture


def default_side(config: CrateConfig) -> int:
    """Return the multiple of the patch size nearest to 480 pixels, or to 60 patches if these are fewer pixels."""
    return _nearest(min(SIDE, GRID * config.patch_size), config.patch_size)


def _nearest(side: int, patch: int) -> int:
    return max(round(side / patch), 1) * patch


@dataclass(frozen=True, eq=False)
class ImageAttention:
    """The class token's attention at one layer over one image; maps are named `head 1` … `head K` and `mean`."""

    image: Image.Image  # the image as it was given
    square: Image.Image  # the square that the model read
    layer: int  # index of the layer, from 0
    mass: float  # share of the attention that a mask holds
    maps: dict[str, NDArray[Any]]  # attention over the patches, each (rows, columns), summing to one

    @property
    def entropies(self) -> dict[str, float]:
        """Entropy of each map relative to uniform attention."""
        return {name: float(attention_entropy(torch.from_numpy(own))) for name, own in self.maps.items()}

    @property
    def masks(self) -> dict[str, NDArray[np.bool_]]:
        """The fewest patches that hold the share `mass` of each map, each (rows, columns)."""
        return {name: mass_masks(own, self.mass) for name, own in self.maps.items()}

    def image_masks(self) -> dict[str, Image.Image]:
        """Return the masks at the size of the image."""
        size = self.image.height, self.image.width
        return {name: Image.fromarray(at_size(mask, *size)) for name, mask in self.masks.items()}

    def save(self, folder: Path, name: str) -> dict[str, Any]:
        """Write the grid and the mask of each map; return their paths, and the spread of each map."""
        stem = f"{name}-layer{self.layer + 1}"
        files = {head: f"{stem}-{head.replace(' ', '')}-mask.png" for head in self.maps}
        masks = {files[head]: picture for head, picture in self.image_masks().items()}
        write_pictures(folder, {f"{stem}.png": self.grid(), **masks})
        heads = [
            {"head": head.removeprefix("head "), "entropy": self.entropies[head], "patches": int(mask.sum()),
             "mask": str(folder / files[head])}
            for head, mask in self.masks.items()
        ]  # fmt: skip
        return {"layer": self.layer + 1, "picture": str(folder / f"{stem}.png"), "heads": heads}

    def grid(self) -> Image.Image:
        """Draw the image, the heat of each map beside it, and the mask of each map below its heat."""
        small = tile(self.image).convert("RGB")
        width, height = small.size
        step = max(width, NAME) + GAP
        grid = Image.new("RGB", ((1 + len(self.maps)) * step - GAP, HEADER + 2 * height + GAP), "white")
        draw = ImageDraw.Draw(grid)
        below = HEADER + height + GAP
        draw.text((2, 2), "image", fill="black", font_size=12)
        draw.text((2, below + 2), f"patches\nholding\n{self.mass:.0%} of it", fill="black", font_size=12)
        grid.paste(small, (0, HEADER))
        for column, (name, mask) in enumerate(self.masks.items(), 1):
            draw.text((column * step + 2, 2), name, fill="black", font_size=12)
            grid.paste(heat_overlay(small, self.maps[name]), (column * step, HEADER))
            grid.paste(mask_overlay(small, mask), (column * step, below))
        return grid


def attend_images(
    model: CratePreTrainedModel,
    images: Sequence[Image.Image],
    augment: Augment,
    *,
    layers: Iterable[int | str] | None = None,
    head: int | None = None,
    mass: float = MASS,
    size: int | None = None,
) -> list[list[ImageAttention]]:
    """Compute the class token's attention over images; the result has a list for each image with an entry per layer.

    Images are resized to squares of `size` pixels, by default the model's own size, and normalized as `augment` says.
    `layers` are indices, from 0 or, if negative, from the end; an entry "all" stands for every layer. The default is
    -2 for CRATE and -1 for a ViT. `head` selects one head, counted from 1; by default all heads and their mean are
    returned.
    """
    config = model.config
    check_mass(mass, "mass")
    chosen = layer_indices([default_layer(config)] if layers is None else layers, config.num_hidden_layers)
    if head is not None and not 1 <= head <= config.num_attention_heads:
        heads = config.num_attention_heads
        raise CrateError(f"head {head} is out of range; the model has {heads} heads, 1 to {heads}")
    side = max(config.image_sides) if size is None else size
    names = [*(f"head {k + 1}" for k in range(config.num_attention_heads)), "mean"]

    def attend(image: Image.Image) -> list[ImageAttention]:
        square, pixels = square_input(model, image, augment, side)
        heads = layer_attention_maps(model, pixels, chosen)[:, 0].double().cpu().numpy()  # (layers, K, rows, columns)
        maps = [dict(zip(names, [*own, own.mean(axis=0)], strict=True)) for own in heads]
        maps = maps if head is None else [{names[head - 1]: own[names[head - 1]]} for own in maps]
        return [ImageAttention(image, square, layer, mass, own) for layer, own in zip(chosen, maps, strict=True)]

    return [attend(image) for image in images]


def heat_overlay(image: Image.Image, attention: NDArray[Any]) -> Image.Image:
    """Draw a map (rows, columns) over the image in gray: (1 − α)·pixel + α·color(A / max A), α = `OPACITY`.

    The image is gray, so every color comes from the map. A is interpolated bilinearly between the centers of patches,
    because steps at their edges would draw lines that are not in the image. A is divided by its maximum only: uniform
    attention is then one bright color, whereas stretching from minimum to maximum would show its noise.
    """
    values = Image.fromarray((attention / attention.max()).astype(np.float32))
    large = np.asarray(values.resize(image.size, Image.Resampling.BILINEAR))
    colors = Image.fromarray(colormaps[COLORMAP](large, bytes=True)[..., :3])
    return Image.blend(image.convert("L").convert("RGB"), colors, OPACITY)


def mask_overlay(image: Image.Image, mask: NDArray[np.bool_]) -> Image.Image:
    """Dim an image outside a mask (rows, columns) of patches."""
    bright = image.convert("RGB")
    dim = Image.blend(Image.new("RGB", image.size), bright, DIMMED)
    return Image.composite(bright, dim, Image.fromarray(at_size(mask, image.height, image.width)))


def save_segments(
    folder: Path, name: str, image: Image.Image, segments: Sequence[Segment], layer: int
) -> dict[str, Any]:
    """Write the overlay and the masks of the regions of an image; return their paths and the regions' measures."""
    stem = f"{name}-layer{layer + 1}"
    files = [f"{stem}-mask{number}.png" for number in range(1, len(segments) + 1)]
    masks = {file: Image.fromarray(part.mask) for file, part in zip(files, segments, strict=True)}
    write_pictures(folder, {f"{stem}-overlay.png": overlay(image, segments), **masks})
    entries = [
        {"box": list(part.box), "area": float(part.mask.mean()), "border": part.border,
         "cut_quality": part.cut_quality, "threshold": part.threshold, "mask": str(folder / file)}
        for part, file in zip(segments, files, strict=True)
    ]  # fmt: skip
    return {"layer": layer + 1, "overlay": str(folder / f"{stem}-overlay.png"), "segments": entries}


def write_pictures(folder: Path, pictures: Mapping[str, Image.Image]) -> None:
    """Write pictures to PNG files."""
    for file, picture in pictures.items():
        with atomic_write(folder / file) as draft:
            picture.save(draft, format="PNG")


def stack_pictures(pictures: Mapping[str, Image.Image]) -> Image.Image:
    """Put pictures below each other, each under its title, to compare what several models show of one image."""
    width = max(picture.width for picture in pictures.values())
    height = sum(picture.height + HEADER + GAP for picture in pictures.values())
    sheet, top = Image.new("RGB", (width, height), "white"), 0
    for title, picture in pictures.items():
        ImageDraw.Draw(sheet).text((2, top + 2), title, fill="black", font_size=12)
        sheet.paste(picture.convert("RGB"), (0, top + HEADER))
        top += picture.height + HEADER + GAP
    return sheet


def tile(image: Image.Image, longest: int = TILE) -> Image.Image:
    """Resize an image so that its longer side has the given number of pixels; no side is shorter than one."""
    share = longest / max(image.size)
    width, height = (max(round(side * share), 1) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)
