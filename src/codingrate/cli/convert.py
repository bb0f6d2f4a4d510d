"""`crate convert`: a released checkpoint to a folder that from_pretrained reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import Json, print_json


def convert(
    file: Annotated[Path, typer.Argument(help="A released checkpoint, or a transformers folder.")],
    directory: Annotated[Path, typer.Argument(help="Folder to write; must be new or empty.")],
    heads: Annotated[int | None, typer.Option(help="Heads K, which no file tells.")] = None,
    sparsity: Annotated[float | None, typer.Option(help="Weight λ of ISTA, which no file tells.")] = None,
    step_size: Annotated[float | None, typer.Option(help="Step η of ISTA, which no file tells.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a folder that is not empty.")] = False,
    as_json: Json = False,
) -> None:
    """Convert a released checkpoint to safetensors, config and image processor in one folder.

    CRATE, CRATE-MAE and CRATE-alpha files; folders of GPT-2 and RoBERTa, which become black-box twins.
    """
    from ..models.released import convert as convert_file

    notes: list[str] = []
    model = convert_file(
        file,
        directory,
        heads=heads,
        sparsity=sparsity,
        step_size=step_size,
        overwrite=overwrite,
        report=notes.append,
    )
    parameters = model.num_parameters()
    if as_json:
        kind = type(model).__name__
        print_json({"directory": str(directory), "model": kind, "parameters": parameters, "notes": notes})
        return
    for note in notes:
        print(f"note: {note}")
    print(f"wrote {type(model).__name__} with {parameters:,} parameters to {directory}")
