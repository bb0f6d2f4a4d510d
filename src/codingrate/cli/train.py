"""`crate train`, `crate recipes`: an experiment from its recipe."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .output import Json, print_json, print_table

if TYPE_CHECKING:
    from ..training import RunResult


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe by name (`crate recipes`), or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, such as optimise.lr=0.001 or model.from=runs/digits.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data: a built-in name, a local path or a hub id.")] = None,
    output: Annotated[Path | None, typer.Option(help="Run folder; runs/RECIPE by default.")] = None,
    variant: Annotated[str | None, typer.Option(help="A variant the recipe names, such as an ablation.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run in --output was stopped.")] = False,
    as_json: Json = False,
) -> None:
    """Train by a recipe. One process, or as many as torchrun or accelerate launch start."""
    from ..training import load_recipe
    from ..training import train as train_run
    from ..training.processes import leave_processes

    changes = [*(overrides or []), *([f"data.name={json.dumps(data)}"] if data is not None else [])]
    loaded = load_recipe(recipe, changes, variant)
    folder = output or Path("runs") / "-".join(filter(None, (Path(recipe).stem, variant)))
    result = train_run(loaded, folder, resume=resume, quiet=as_json)
    if not int(os.environ.get("RANK", "0")):
        _show(result, as_json)
    leave_processes()


def _show(result: RunResult, as_json: bool) -> None:
    folder = result.folder
    if as_json:
        print_json({"run": str(folder), "seconds": result.seconds, "parameters": result.parameters, **result.figures})
        return
    print(f"{result.headline} with {result.parameters:,} parameters in {result.seconds:.0f} s")
    print(f"run: {folder}; next: crate evaluate {folder}")


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe's file.")] = None,
    as_json: Json = False,
) -> None:
    """List the recipes, or show one."""
    from ..training import load_recipe, recipe_header, recipe_names, recipe_path

    if name is not None and as_json:
        print_json(load_recipe(name).to_dict())
        return
    if name is not None:
        print(recipe_path(name).read_text(encoding="utf-8"), end="")
        return
    rows = [(recipe, recipe_header(recipe)) for recipe in recipe_names()]
    if as_json:
        print_json([{"name": recipe, **header} for recipe, header in rows])
        return
    print_table("Recipes", ("name", "what", "time"), [(r, h["what"], h["time"]) for r, h in rows])
