"""`crate attention`: where the class token looks, layer by layer and head by head, drawn over images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import Json, print_json, print_table, progress
from .vision import open_vision_model, picture_names, say_note, write_pictures

if TYPE_CHECKING:
    from ..inspection import ImageAttention


def attention(
    model: Annotated[str, typer.Argument(help="A run folder, a saved model, a checkpoint file or a model by name.")],
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    layer: Annotated[
        list[str] | None,
        typer.Option(
            help="Layer to look at, from 0 or from the end, or all; may be repeated; -2, of a ViT -1.",
            show_default=False,
        ),
    ] = None,
    head: Annotated[int | None, typer.Option(help="One head, from 1; all and their mean if left out.")] = None,
    mass: Annotated[float, typer.Option(help="Share of the attention that a mask keeps, in (0, 1].")] = 0.6,
    size: Annotated[
        int | None, typer.Option(min=1, help="Pixels of the square the model sees; the model's own.")
    ] = None,
    which: Annotated[str, typer.Option(help="A run's best model or its last.")] = "last",
    output: Annotated[Path | None, typer.Option(help="Folder for the pictures; RUN/attention.")] = None,
    as_json: Json = False,
) -> None:
    """Draw the class token's attention over images; write a grid per layer and a mask per head, print their spread."""
    opened = open_vision_model(model, which)
    from ..data.pictures import read_picture
    from ..inspection import attend_images

    config = opened.model.config
    side = max(config.image_sides) if size is None else size
    folder = output or (opened.folder or Path(".")) / "attention"
    found: list[dict[str, Any]] = []
    with progress("attention", len(images)) as advance:
        for path, name in zip(images, picture_names(images), strict=True):
            image, note = read_picture(path, config.num_channels)
            if note is not None:
                say_note(note)
            (attended,) = attend_images(
                opened.model, [image], opened.augment, layers=layer or None, head=head, mass=mass, size=side
            )
            found.append({"image": str(path), "width": image.width, "height": image.height, "note": note})
            found[-1]["layers"] = [
                {"layer": one.layer, **_written(folder, f"{name}-layer{one.layer}", one)} for one in attended
            ]
            advance()
    patches = (side // config.patch_size) ** 2
    if as_json:
        print_json({"model": model, "mass": mass, "size": side, "patches": patches, "images": found})
        return
    _show(model, found, patches)
    print(f"entropy over that of even attention; patches of {patches} with {mass:.0%} of it; pictures in {folder}")


def _written(folder: Path, stem: str, attended: ImageAttention) -> dict[str, Any]:
    """Write the grid and the masks of one layer, and return their paths and measures."""
    pictures = {f"{stem}.png": attended.grid()}
    for name, mask in attended.image_masks().items():
        pictures[f"{stem}-{name.replace(' ', '')}-mask.png"] = mask
    grid, *files = write_pictures(folder, pictures)
    entropies = attended.entropies
    heads = [
        {"head": name.removeprefix("head "), "entropy": entropies[name], "patches": int(mask.sum()), "mask": file}
        for (name, mask), file in zip(attended.masks.items(), files, strict=True)
    ]
    return {"picture": grid, "heads": heads}


def _show(model: str, found: list[dict[str, Any]], patches: int) -> None:
    rows = [
        (
            entry["image"], str(layer["layer"]), part["head"], f"{part['entropy']:.3f}",
            f"{part['patches']} ({part['patches'] / patches:.0%})",
        )
        for entry in found
        for layer in entry["layers"]
        for part in layer["heads"]
    ]  # fmt: skip
    print_table(f"attention of {model}", ("image", "layer", "head", "entropy", "patches"), rows)
