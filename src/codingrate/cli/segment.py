"""`crate segment`: the objects a model tells apart in images, without having learned any."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import Json, print_json, print_table, progress
from .vision import open_vision_model, picture_names, say_note, write_pictures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..inspection.segment import Segment


def segment(
    model: Annotated[str, typer.Argument(help="A run folder, a saved model, a checkpoint file or a model by name.")],
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    masks: Annotated[int, typer.Option(min=1, help="How many objects to look for in an image.")] = 3,
    threshold: Annotated[float, typer.Option(help="Cosine above which two patches are alike, in [0, 1).")] = 0.15,
    layer: Annotated[
        int | None, typer.Option(help="Layer to look at, from 0 or from the end; -2, of a ViT -1.", show_default=False)
    ] = None,
    refine: Annotated[bool, typer.Option(help="Draw the edges of masks to those of the image.")] = True,
    size: Annotated[
        int | None, typer.Option(min=1, help="Pixels of the square the model sees; 480, at most 60 patches.")
    ] = None,
    which: Annotated[str, typer.Option(help="A run's best model or its last.")] = "last",
    output: Annotated[Path | None, typer.Option(help="Folder for the pictures; RUN/segments.")] = None,
    as_json: Json = False,
) -> None:
    """Find objects by MaskCut on a layer's projections; write an overlay and a mask per object, print the boxes."""
    opened = open_vision_model(model, which)
    from ..data import read_picture
    from ..inspection.segment import segment as find

    folder = output or (opened.folder or Path(".")) / "segments"
    found: list[dict[str, Any]] = []
    with progress("segment", len(images)) as advance:
        for path, name in zip(images, picture_names(images), strict=True):
            image, note = read_picture(path, opened.model.config.num_channels)
            if note is not None:
                say_note(note)
            parts = find(
                opened.model, image, opened.augment,
                masks=masks, threshold=threshold, layer=layer, refine=refine, side=size,
            )  # fmt: skip
            found.append({"image": str(path), "width": image.width, "height": image.height, "note": note})
            found[-1] |= _written(folder, name, image, parts)
            advance()
    if as_json:
        print_json({"model": model, "images": found})
        return
    rows = [
        (entry["image"], str(number), *_figures(part, entry["width"] * entry["height"]))
        for entry in found
        for number, part in enumerate(entry["segments"], 1)
    ]
    print_table(f"objects found by {model}", ("image", "object", "x, y, width, height", "area", "score"), rows)
    empty = sum(not entry["segments"] for entry in found)
    print(f"{len(rows)} objects in {len(found)} images{f', none in {empty}' if empty else ''}; pictures in {folder}")


def _written(folder: Path, name: str, image: Any, parts: Sequence[Segment]) -> dict[str, Any]:
    """Write the overlay and the masks, and say where they are."""
    from PIL import Image

    from ..inspection.overlay import overlay

    pictures = {f"{name}-overlay.png": overlay(image, parts)}
    for number, part in enumerate(parts, 1):
        pictures[f"{name}-mask{number}.png"] = Image.fromarray(part.mask)
    paths = write_pictures(folder, pictures)
    segments = [
        {"box": list(part.box), "score": part.score, "area": int(part.mask.sum()), "mask": path}
        for part, path in zip(parts, paths[1:], strict=True)
    ]
    return {"overlay": paths[0], "segments": segments}


def _figures(part: dict[str, Any], pixels: int) -> tuple[str, ...]:
    return ", ".join(map(str, part["box"])), f"{part['area'] / pixels:.1%}", f"{part['score']:.3f}"
