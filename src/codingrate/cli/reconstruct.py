"""`crate reconstruct`: what a masked autoencoder makes of images it sees a quarter of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ..errors import CrateError
from .output import Json, print_json, print_table
from .runs import open_run


def reconstruct(
    run: Annotated[Path, typer.Argument(help="A run folder of an autoencoder.")],
    images: Annotated[
        list[Path] | None, typer.Argument(help="Image files; the run's first test images if none.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many test images, when no files are given.")] = 8,
    which: Annotated[str, typer.Option(help="The run's best model or its last.")] = "last",
    seed: Annotated[int, typer.Option(min=0, help="Another seed removes other patches.")] = 0,
    output: Annotated[Path | None, typer.Option(help="The picture; RUN/reconstruction.png.")] = None,
    as_json: Json = False,
) -> None:
    """Write original | masked | reconstruction side by side, and print the loss of each image."""
    recipe, folder = open_run(run, which)
    if recipe.task != "autoencoding":
        raise CrateError(f"{run}: was trained for {recipe.task}; reconstruct takes the run of an autoencoder")
    import torch

    from ..data import BatchAugment
    from ..evaluation import reconstructed, reconstruction_picture
    from ..models.autoencoder import CrateForMaskedAutoencoding
    from ..training import load_weights

    names, pixels = _from_files(images, recipe) if images else _from_data(count, recipe)
    model = cast(CrateForMaskedAutoencoding, load_weights(str(folder)))
    rows, losses = reconstructed(model, BatchAugment(recipe.augment).eval()(torch.stack(pixels)), recipe.augment, seed)
    path = reconstruction_picture(rows, output or run / "reconstruction.png")
    mean = sum(losses) / len(losses)
    if as_json:
        found = [{"image": name, "loss": loss} for name, loss in zip(names, losses, strict=True)]
        print_json({"run": str(run), "images": found, "loss": mean, "picture": str(path)})
        return
    rows_shown = [(name, f"{loss:.4f}") for name, loss in zip(names, losses, strict=True)]
    print_table(f"{run}, {which} model", ("image", "loss"), rows_shown)
    print(f"mean loss {mean:.4f}; {path}")


def _from_files(paths: list[Path], recipe: Any) -> tuple[list[str], list[Any]]:
    from ..data import read_image

    return [str(path) for path in paths], [read_image(path, recipe.augment) for path in paths]


def _from_data(count: int, recipe: Any) -> tuple[list[str], list[Any]]:
    from ..data import torch_dataset
    from ..training import load_data

    dataset = torch_dataset(load_data(recipe.data), recipe.augment, train=False)
    rows = [row for row, _ in zip(iter_rows(dataset), range(count), strict=False)]
    good = [(f"test image {place}", row["image"]) for place, row in enumerate(rows) if row["corrupt"] is None]
    return [name for name, _ in good], [image for _, image in good]


def iter_rows(dataset: Any) -> Any:
    """The rows of a dataset, by number or as they come."""
    return (dataset[index] for index in range(len(dataset))) if hasattr(dataset, "__len__") else iter(dataset)
