"""`crate fill`: what a masked language model would put in the place of a mask."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..errors import CrateError
from .output import Json, print_json, print_table
from .text import open_text_model


def fill(
    run: Annotated[Path, typer.Argument(help="A run folder, or that of a saved model.")],
    text: Annotated[str, typer.Argument(help="A text with <mask>, or the tokenizer's own mask, once or more.")],
    top: Annotated[int, typer.Option(min=1, help="Candidates for each mask.")] = 5,
    which: Annotated[str, typer.Option(help="The run's best model or its last.")] = "last",
    as_json: Json = False,
) -> None:
    """The likeliest tokens for each mask of a text, with their probabilities; each mask by itself."""
    if not text.strip():
        raise CrateError("the text is empty; write some, with <mask> where a token is to be filled in")
    opened = open_text_model(run, which, "CrateForMaskedLM", "fill")
    from ..evaluation import fill_masks

    found = fill_masks(opened.model, opened.tokenizer, text, top)
    if as_json:
        masks = [[asdict(candidate) for candidate in candidates] for candidates in found]
        print_json({"run": str(run), "which": which, "text": text, "masks": masks})
        return
    columns = [f"mask {number}" if len(found) > 1 else "token" for number in range(1, len(found) + 1)]
    rows = [
        [cell for candidate in line for cell in (repr(candidate.token), f"{candidate.probability:.2%}")]
        for line in zip(*found, strict=True)
    ]
    print_table(text, [cell for column in columns for cell in (column, "probability")], rows)
