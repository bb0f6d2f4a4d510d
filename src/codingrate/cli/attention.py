"""`crate attention`: where the class token looks, layer by layer and head by head, drawn over images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import CrateError
from .output import Json, print_json, print_table, progress
from .vision import open_vision_model, picture_names, say_note, write_pictures

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from ..models.config import CrateConfig


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
    from ..data import read_picture
    from ..inspection.attention_maps import layer_attention_maps
    from ..inspection.segment import square_input
    from ..operators.attention_mass import check_mass

    config = opened.model.config
    check_mass(mass, "--mass")
    layers = _layers(layer, config)
    if head is not None and not 1 <= head <= config.num_attention_heads:
        raise CrateError(
            f"--head {head} is out of range; the model has {config.num_attention_heads} heads, "
            f"1 to {config.num_attention_heads}"
        )
    side = max(config.image_sides) if size is None else size
    folder = output or (opened.folder or Path(".")) / "attention"
    found: list[dict[str, Any]] = []
    with progress("attention", len(images)) as advance:
        for path, name in zip(images, picture_names(images), strict=True):
            image, note = read_picture(path, config.num_channels)
            if note is not None:
                say_note(note)
            pixels = square_input(opened.model, image, opened.augment, side)[1]
            maps = layer_attention_maps(opened.model, pixels, layers)[:, 0].double().cpu()  # (layers, K, rows, columns)
            found.append({"image": str(path), "width": image.width, "height": image.height, "note": note})
            found[-1]["layers"] = [
                {"layer": number, **_written(folder, f"{name}-layer{number}", image, own, head, mass)}
                for number, own in zip(layers, maps, strict=True)
            ]
            advance()
    patches = (side // config.patch_size) ** 2
    if as_json:
        print_json({"model": model, "mass": mass, "size": side, "patches": patches, "images": found})
        return
    _show(model, found, patches)
    print(f"entropy over that of even attention; patches of {patches} with {mass:.0%} of it; pictures in {folder}")


def _layers(asked: list[str] | None, config: CrateConfig) -> list[int]:
    """Layers from 0, each once, in the order asked for."""
    from ..inspection.segment import default_layer
    from ..inspection.trace import layer_index

    depth = config.num_hidden_layers
    if not asked:
        return [layer_index(default_layer(config), depth)]
    if "all" in asked:
        return list(range(depth))
    try:
        numbers = [int(text) for text in asked]
    except ValueError:
        raise CrateError(f"--layer {', '.join(asked)}: give numbers from {-depth} to {depth - 1}, or all") from None
    return list(dict.fromkeys(layer_index(number, depth) for number in numbers))


def _written(folder: Path, stem: str, image: Image, maps: Tensor, head: int | None, mass: float) -> dict[str, Any]:
    """Write the grid of one layer (K, rows, columns) and its masks, and say where they are and how maps are spread."""
    import torch
    from PIL import Image

    from ..inspection.attention_maps import attention_entropy
    from ..inspection.attention_overlay import attention_grid, named_maps
    from ..operators.attention_mass import at_size, mass_masks

    named = named_maps(maps.numpy(), head)
    masks = {name: mass_masks(own, mass) for name, own in named.items()}
    pictures = {f"{stem}.png": attention_grid(image, named, mass)}
    for name, mask in masks.items():
        large = at_size(mask, image.height, image.width)
        pictures[f"{stem}-{name.replace(' ', '')}-mask.png"] = Image.fromarray(large)
    grid, *files = write_pictures(folder, pictures)
    entropies = (float(attention_entropy(torch.from_numpy(own))) for own in named.values())
    heads = [
        {"head": name.removeprefix("head "), "entropy": entropy, "patches": int(mask.sum()), "mask": file}
        for (name, mask), entropy, file in zip(masks.items(), entropies, files, strict=True)
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
