"""Panels on tokens and on images: sparsity of tokens, colors of patches, the class token's attention, and its heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor

from ... import objective
from ..._attention_mass import MASS, mass_masks
from ...data import Augment
from ...errors import CrateError
from ...models.base import CratePreTrainedModel
from ..measure.attention import BEST_IMAGES, HeadCatalogue, head_catalogue
from ..measure.predictions import judge_trend
from ..measure.tracing import TAIL, ForwardTrace, encoder_tokens, pca_colors, sample_tokens, token_heat
from ..segment.pictures import attend_images, heat_overlay, tile
from .panel import COLUMNS, WIDTH, Panel, draw_grid, subplots

IMAGES, HEADS = 4, 12  # largest number of images and heads of the attention panel that are drawn; all are measured
ATTENTION_PIXELS, HEAD_PIXELS, GAP = 144, 112, 6
"""Longest side of an image in the two panels on attention, and the space between two images of a head, in pixels."""
CLOSE_TO_UNIFORM, FOCUSED = 0.75, 0.5
"""Thresholds for describing attention, in patches needed for a share of it relative to uniform attention."""


def token_panel(passed: ForwardTrace, sample: int = 0) -> Panel:
    """Build the heat maps of one sample's tokens at every traced layer of a vision or a text model.

    Every layer has a scale of its own, with zeros in white. Layers differ in size by orders of magnitude: on a common
    scale a layer of small entries would look empty although none of them is zero, so the picture would show size
    instead of sparsity.
    """
    layers = sample_tokens(passed, sample)
    measures: dict[str, Callable[[Tensor], Tensor]] = {
        "nonzero": objective.l0_fraction,
        "effective_rank": objective.effective_rank,
        "largest": lambda z: z.abs().max(),
    }
    columns = {name: [float(measure(z)) for z in layers.values()] for name, measure in measures.items()}
    table = pd.DataFrame({"layer": list(layers), **columns})
    pictures = []
    for heat in token_heat(passed, sample).values():
        values = heat.double().numpy()
        top = np.percentile(values[values > 0], 100 - TAIL) if (values > 0).any() else 1.0
        pictures.append(np.ma.masked_equal(np.minimum(values / top, 1), 0))
    captions = [f"layer {layer}, {share:.0%} non-zero" for layer, share in zip(layers, table["nonzero"], strict=True)]
    style: Any = {"vmin": 0, "vmax": 1, "cmap": colormaps["viridis"].with_extremes(bad="white")}
    count, d = next(iter(layers.values())).shape
    findings = [
        judge_trend(name, table, column)
        for name, column in (("the share of non-zero entries", "nonzero"), ("the effective rank", "effective_rank"))
    ]
    return Panel(
        f"tokens-{sample + 1}" if sample else "tokens",
        f"Tokens of {f'sample {sample + 1}' if sample else 'one sample'} after each layer",
        "In a trained CRATE, Z^{ℓ+1} becomes sparser with depth, except in the last layer, and more structured, that "
        "is of lower rank (4.2). The appendix finds that a ViT does not optimize the objective.",
        f"For this sample's {count} tokens in {d} dimensions, {'; '.join(finding.measured for finding in findings)}.",
        partial(draw_grid, pictures=pictures, captions=captions, scale=f"|z| / {100 - TAIL:g}th percentile", **style),
        table,
        findings,
        "one sample has no control; the panels on sparsity and rates judge all of them",
    )


def pca_panel(passed: ForwardTrace, images: Sequence[Image], grid: tuple[int, int], shown: int = 6) -> Panel:
    """Build the panel of patches in the colors of their first three principal components, fitted to all images.

    `images` are those of the trace in their order, and the first `shown` are drawn; `grid` is that of the patches. The
    layers are the first, the last and some between them, among those that were traced.
    """
    traced = encoder_tokens(passed)
    positions = np.linspace(0, len(traced) - 1, min(len(traced), COLUMNS - 1)).round().astype(int)
    layers = [list(traced)[position] for position in positions]
    colors, shares = zip(*(pca_colors(traced[layer], grid) for layer in layers), strict=True)
    table = pd.DataFrame(np.stack(shares), columns=["component_1", "component_2", "component_3"])
    table.insert(0, "layer", layers)
    held = ", ".join(f"{s.sum():.0%} after layer {layer}" for layer, s in zip(layers, shares, strict=True))
    rows = [
        {"image": np.asarray(image.convert("RGB"))}
        | {f"layer {layer}": own[index] for layer, own in zip(layers, colors, strict=True)}
        for index, image in enumerate(images[:shown])
    ]
    return Panel(
        "patches",
        "Patches in the colors of their first three principal components",
        "Attention maps tell the parts of objects apart (4.3). If the tokens do so too, similar parts have similar "
        "colors in all images.",
        f"Over {len(colors[0])} images, three components hold {held} of the variance of the patches' tokens.",
        _draw_rows(rows),
        table,
    )


def attention_panel(
    model: CratePreTrainedModel, images: Sequence[Image], augment: Augment, layer: int | None = None, mass: float = MASS
) -> Panel:
    """Build the panel of the class token's attention maps over a few images at one layer; see `attend_images`."""
    if not images:
        raise CrateError("attention needs images; give at least one")
    layers = None if layer is None else [layer]
    attended = [result[0] for result in attend_images(model, images, augment, layers=layers, mass=mass)]
    entropy = np.array([list(result.entropies.values())[:-1] for result in attended])  # (images, K), without the mean
    patches = np.array([[mask.mean() for mask in list(result.masks.values())[:-1]] for result in attended])
    heads = entropy.shape[1]
    table = pd.DataFrame(
        {
            "layer": [attended[0].layer + 1] * heads,
            "head": range(1, heads + 1),
            "entropy": entropy.mean(axis=0),
            "entropy_std": entropy.std(axis=0),
            "patches": patches.mean(axis=0),
            "patches_std": patches.std(axis=0),
        }
    )
    expected = (
        "The maps of a ViT that was trained on labels alone do not follow objects, whereas those of CRATE do (4.3)."
        if model.config.attention == "mhsa"
        else "In its second to last layer, a CRATE that was trained on labels alone attends to the main object, and "
        "some heads to a part of it, so its maps segment the image; a ViT trained in the same way does not (4.3)."
    )
    uniform = float(mass_masks(np.ones_like(attended[0].maps["mean"]), mass).mean())
    measured = (
        f"In layer {attended[0].layer + 1} of {model.config.num_hidden_layers} "
        f"{describe_attention(entropy, float(patches.mean()), uniform, mass)}"
    )
    rows = []
    for result in attended[:IMAGES]:
        small = tile(result.square, ATTENTION_PIXELS)
        shown = [*list(result.maps)[:-1][:HEADS], "mean"]
        heat = {name: np.asarray(heat_overlay(small, result.maps[name])) for name in shown}
        rows.append({"image": np.asarray(small.convert("RGB")), **heat})
    return Panel("attention", "Attention of the class token", expected, measured, _draw_rows(rows), table)


def describe_attention(entropy: NDArray[np.float64], patches: float, uniform: float, mass: float) -> str:
    """Describe attention by its entropies (images, K) and the share of `patches` that hold `mass` of it."""
    images, heads = entropy.shape
    means = entropy.mean(axis=0)
    least, most = int(means.argmin()), int(means.argmax())
    spread = f", from {means[least]:.0%} (head {least + 1}) to {means[most]:.0%} (head {most + 1})"
    thresholds = {
        CLOSE_TO_UNIFORM: "are close to uniform",
        FOCUSED: "favor some patches",
        -1: "are focused on few patches",
    }
    verdict = next(f"the maps {words}" for share, words in thresholds.items() if patches / uniform > share)
    return (
        f"the {heads} heads have {means.mean():.0%} of the entropy of uniform attention on {images} images"
        f"{spread if heads > 1 else ''}. {mass:.0%} of the attention lies on {patches:.0%} of the patches, where "
        f"uniform attention needs {uniform:.0%}: {verdict}. These numbers do not tell if the patches belong to an "
        "object; the evaluation on VOC does."
    )


def head_panel(
    model: CratePreTrainedModel,
    pixel_values: Tensor,
    images: Sequence[Image],
    layer: int | None = None,
    shown: int = BEST_IMAGES,
) -> Panel:
    """Build the catalogue of heads: for each head the images on which it is most focused, alone and under its map.

    `images` are those of the pixel values, in the same order.
    """
    catalogue = head_catalogue(model, pixel_values, layer, shown)
    if len(images) != len(catalogue.maps):
        raise CrateError(f"{len(images)} images do not fit {len(catalogue.maps)} rows of pixel values; give one each")
    return Panel(
        "heads",
        f"Heads of layer {catalogue.layer + 1} on the images where they are most focused",
        "Some heads of CRATE's second to last layer follow one part of objects through many images, such as legs or "
        "ears, so a person can name them (4.3).",
        _describe_heads(catalogue),
        partial(_draw_heads, catalogue=catalogue, images=images),
        catalogue.table,
    )


def _draw_rows(rows: Sequence[Mapping[str, NDArray[Any]]]) -> Callable[[Figure], None]:
    """Return a function that draws a row of pictures for each image, with their names above the first row."""
    pictures = [picture for row in rows for picture in row.values()]
    captions = [*rows[0], *[""] * (len(pictures) - len(rows[0]))]
    return partial(draw_grid, pictures=pictures, captions=captions, columns=len(rows[0]))


def _describe_heads(catalogue: HeadCatalogue) -> str:
    table = catalogue.table
    sharp, blunt = (table.iloc[int(index)] for index in (table["focus"].argmax(), table["focus"].argmin()))
    uniform = f"where uniform attention has {catalogue.uniform_focus:.0%}"
    images = f"{len(catalogue.maps)} image{'s' if len(catalogue.maps) > 1 else ''}"
    if len(table) == 1:
        focus = f"{sharp['focus']:.0%} of its attention in a tenth of the patches"
        return f"On {images} the only head has {focus}, {uniform}."
    overlap = float(table["overlap"].mean())
    thresholds = {
        0.9: "look at nearly the same patches",
        0.5: "share part of what they look at",
        -1: "look at different patches",
    }
    alike = next(f"the heads {words}" for share, words in thresholds.items() if overlap > share)
    return (
        f"On {images} head {sharp['head']} is the most focused, with {sharp['focus']:.0%} of its attention in a tenth "
        f"of the patches, and head {blunt['head']} the least, with {blunt['focus']:.0%}, {uniform}. The maps of two "
        f"heads have a cosine of {overlap:.2f} on average: {alike}."
    )


def _draw_heads(figure: Figure, catalogue: HeadCatalogue, images: Sequence[Image]) -> None:
    """Draw a strip for each head with the image and the map of each of its images."""
    strips = [_strip(catalogue, head, images) for head in range(len(catalogue.best))]
    height, width = strips[0].shape[:2]
    inches = WIDTH * min(1, catalogue.best.shape[1] / BEST_IMAGES)
    all_axes = subplots(figure, inches, (inches * height / width + 0.28) * len(strips), len(strips))
    for axes, strip, row in zip(all_axes, strips, catalogue.table.to_dict("records"), strict=True):
        axes.imshow(strip, interpolation="none")  # so that an SVG file contains its pixels without scaling
        axes.set_axis_off()
        overlap = "" if math.isnan(row["overlap"]) else f", overlap {row['overlap']:.2f}"
        title = f"head {row['head']}: focus {row['focus']:.0%}, entropy {row['entropy']:.2f}{overlap}"
        axes.set_title(title, loc="left", fontsize="small")


def _strip(catalogue: HeadCatalogue, head: int, images: Sequence[Image]) -> NDArray[np.uint8]:
    """Join pairs of image and map side by side, (height, width, 4), with transparent gaps."""
    parts = []
    for index in catalogue.best[head].tolist():
        small = tile(images[index], HEAD_PIXELS).convert("RGB")
        heat = heat_overlay(small, catalogue.maps[index, head].numpy())
        for picture, gap in ((small, GAP // 3), (heat, GAP)):
            parts.append(np.pad(np.asarray(picture.convert("RGBA")), ((0, 0), (0, gap), (0, 0))))
    return np.concatenate(parts, axis=1)[:, :-GAP]
