"""`crate train`, `finetune`, `recipes`, `models`, `convert`: recipes, models and training."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from .output import (
    CheckpointOption,
    DataOption,
    Json,
    PathOption,
    RunArgument,
    open_run,
    parse_checkpoint,
    print_json,
    print_note,
    print_table,
    progress,
    thousands,
)

if TYPE_CHECKING:
    from ..runs import Run

Overrides = Annotated[
    list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Overrides of the recipe: optimizer.lr=0.001.")
]
Resume = Annotated[bool, Option("--resume", help="Continue the run in --output from its last checkpoint.")]


def train(
    recipe: Annotated[str, Argument(help="Name of a shipped recipe (see crate recipes), or a YAML file.")],
    overrides: Overrides = None,
    data: Annotated[str | None, Option(help="Dataset: a built-in name, a local path or a hub id.")] = None,
    output: Annotated[Path | None, Option(help="Run folder. Default: runs/RECIPE.")] = None,
    variant: Annotated[str | None, Option(help="Variant of the recipe, such as an ablation.")] = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Train a model by a recipe, in one process or in those that torchrun or accelerate launch start."""
    from .._distributed import leave_process_group
    from ..runs import train as train_run

    changes = [*(overrides or []), *([f"data.name={json.dumps(data)}"] if data is not None else [])]
    run = train_run(recipe, output, overrides=changes, variant=variant, resume=resume, quiet=as_json)
    if int(os.environ.get("RANK", "0")) == 0:
        _show(run, as_json)
    leave_process_group()


def finetune(
    run: RunArgument,
    overrides: Overrides = None,
    data: DataOption = None,
    path: PathOption = None,
    checkpoint: CheckpointOption = "last",
    output: Annotated[Path | None, Option(help="Folder of the new run. Default: RUN/finetune.")] = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a run's whole model with a new head, by the paper's recipe (finetune-cifar10)."""
    tuned = open_run(run).finetune(
        output,
        overrides or [],
        data=data,
        path=path,
        checkpoint=parse_checkpoint(checkpoint),
        resume=resume,
        quiet=as_json,
    )
    _show(tuned, as_json)


def _show(run: Run, as_json: bool) -> None:
    if as_json:
        print_json({"run": run.source, "seconds": run.seconds, "parameters": run.parameters(), **run.metrics})
        return
    print(f"{run.headline} with {run.parameters():,} parameters in {run.seconds:.0f} s")
    print(f"run: {run.source}; next: crate evaluate {run.source}")


def recipes(
    name: Annotated[str | None, Argument(help="Recipe to show. Default: list all recipes.")] = None,
    as_json: Json = False,
) -> None:
    """List the recipes, or show one."""
    from ..recipes import load_recipe, recipe_header, recipe_names, recipe_path

    if name is not None and as_json:
        print_json(load_recipe(name).to_dict())
    elif name is not None:
        print(recipe_path(name).read_text(encoding="utf-8"), end="")
    else:
        headers = {recipe: recipe_header(recipe) for recipe in recipe_names()}
        if as_json:
            print_json([{"name": recipe, **header} for recipe, header in headers.items()])
        else:
            rows = [(recipe, header["what"], header["time"]) for recipe, header in headers.items()]
            print_table("Recipes", ("name", "what", "time"), rows)


def models(
    pattern: Annotated[str, Argument(help="Shell pattern such as 'crate-*'. Default: all models.")] = "*",
    as_json: Json = False,
) -> None:
    """List the models by name with width d, layers L, heads K, parameters and operations."""
    from ..errors import CrateError
    from ..models.presets import list_models

    names = list_models(pattern)
    if not names:
        raise CrateError(f"no model matches {pattern!r}; crate models lists all of them")
    with progress("counting", len(names)) as advance:
        from ..models.counts import count_model

        counts = []
        for name in names:
            counts.append(count_model(name))
            advance()
    if as_json:
        print_json(counts)
        return
    rows = [
        (c.name, str(c.width), str(c.layers), str(c.heads), f"{c.parameters:,}", f"{thousands(c.flops)}/{c.unit}")
        for c in counts
    ]
    print_table("Models", ("name", "d", "L", "K", "parameters", "FLOPs"), rows)


def convert(
    source: Annotated[Path, Argument(help="Released checkpoint file, or a transformers folder.")],
    folder: Annotated[Path, Argument(help="Folder to write; it must be new or empty.")],
    heads: Annotated[int | None, Option(help="Number of heads K, which no file contains.")] = None,
    sparsity: Annotated[float | None, Option(help="Weight λ of ISTA, which no file contains.")] = None,
    step_size: Annotated[float | None, Option(help="Step size η of ISTA, which no file contains.")] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace a folder that is not empty.")] = False,
    as_json: Json = False,
) -> None:
    """Convert a released checkpoint to a folder with weights, config and image processor.

    CRATE, CRATE-MAE and CRATE-alpha files, and folders of GPT-2 and RoBERTa, which become black-box twins.
    """
    from ..models.loading import convert as convert_file

    notes: list[str] = []
    settings = {"heads": heads, "sparsity": sparsity, "step_size": step_size}
    model = convert_file(source, folder, **settings, overwrite=overwrite, report=notes.append)
    name, parameters = type(model).__name__, model.num_parameters()
    if as_json:
        print_json({"folder": str(folder), "model": name, "parameters": parameters, "notes": notes})
        return
    for note in notes:
        print_note(note)
    print(f"wrote {name} with {parameters:,} parameters to {folder}")
