"""`crate train`, `finetune`, `recipes`, `models`, `convert`: recipes, models and training."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from .._distributed import first_process
from .output import (
    CheckpointOption,
    DataOption,
    Json,
    PathOption,
    RunArgument,
    open_run,
    print_indented,
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
Resume = Annotated[bool, Option("--resume", help="Continue the run from its last checkpoint.")]


def train(
    recipe: Annotated[
        str, Argument(help="Name of a shipped recipe (see crate recipes), a YAML file, or with --resume a run folder.")
    ],
    overrides: Overrides = None,
    data: Annotated[str | None, Option(help="Dataset: a built-in name, a local path or a hub id.")] = None,
    output: Annotated[Path | None, Option(help="Run folder. Default: runs/RECIPE.")] = None,
    variant: Annotated[str | None, Option(help="Variant of the recipe, such as an ablation.")] = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Train a model by a recipe, in one process or in those that torchrun or accelerate launch start.

    Ctrl-C saves a checkpoint; crate train --resume RUN continues from it.
    """
    from ..recipes import load_recipe

    changes = [*(overrides or []), *([f"data.name={json.dumps(data)}"] if data is not None else [])]
    if not resume:
        load_recipe(recipe, changes, variant)  # refuses a mistake before torch is imported, which takes seconds

    from ..runs import TrainingStopped
    from ..runs import train as train_run

    try:
        run = train_run(recipe, output, overrides=changes, variant=variant, resume=resume, quiet=as_json)
    except TrainingStopped as stopped:
        if first_process():
            print(f"crate: {stopped}", file=sys.stderr)
        raise SystemExit(128 + stopped.signal) from None
    if first_process():
        _show(run, as_json)


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
        checkpoint=checkpoint,
        resume=resume,
        quiet=as_json,
    )
    if first_process():
        _show(tuned, as_json)


def _show(run: Run, as_json: bool) -> None:
    if as_json:
        print_json({"run": run.source, "seconds": run.seconds, "parameters": run.parameters(), **run.metrics})
        return
    print(f"{run.headline} with {run.parameters():,} parameters in {run.seconds:.0f} s")
    print(f"run: {run.source}; next: crate evaluate {run.source}")


def recipes(
    name: Annotated[str | None, Argument(help="Recipe to print as it is in its file. Default: list all.")] = None,
    as_json: Json = False,
) -> None:
    """List the recipes with their results, those for a laptop first; see also crate recipe."""
    from ..recipes import load_recipe, recipe_header, recipe_names, recipe_path
    from ..recipes.files import read_recipe_text

    if name is not None and as_json:
        print_json(load_recipe(name).to_dict())
    elif name is not None:
        print(read_recipe_text(recipe_path(name)), end="")
    elif as_json:
        print_json([{"name": recipe, **recipe_header(recipe)} for recipe in recipe_names()])
    else:
        headers = {recipe: recipe_header(recipe) for recipe in recipe_names()}
        for title, laptop in (("Recipes for a laptop", True), ("Recipes of the paper, for GPUs", False)):
            print(f"{title}\n")
            for recipe, header in headers.items():
                if header["paper"].startswith("none") is laptop:
                    print(recipe)
                    print_indented(f"{header['what']}.")
                    print_indented(f"Result: {header['metric']}.")
                    print_indented(f"Time: {header['time']}.")
                    print()
        print("Show all keys of a recipe: crate recipe NAME")


def recipe(
    name: Annotated[str, Argument(help="Name of a shipped recipe (see crate recipes), or a YAML file.")],
    overrides: Overrides = None,
    variant: Annotated[str | None, Option(help="Variant of the recipe.")] = None,
    as_json: Json = False,
) -> None:
    """Show every key of a recipe: its value, its default if that differs, and what it means."""
    from ..recipes import load_recipe, recipe_header, recipe_keys

    values = load_recipe(name, overrides or [], variant).to_dict()
    keys = recipe_keys()
    if as_json:
        print_json(
            {key: {"value": _value(values, key), "default": keys[key][0], "meaning": keys[key][1]} for key in keys}
        )
        return
    for title, text in recipe_header(name).items():
        if text:
            print_indented(f"{title}: {text}", "", "  ")
    for key, (default, meaning) in keys.items():
        value = _value(values, key)
        default = list(default) if isinstance(default, tuple) else default
        changed = "" if value == default else f"  (default: {json.dumps(default)})"
        print(f"\n{key}: {json.dumps(value, ensure_ascii=False)}{changed}")
        print_indented(meaning)


def _value(values: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        values = values[part]
    return values


def _show_pretrained(pattern: str, as_json: bool) -> None:
    from ..models.pretrained import pretrained_names
    from ..runs import Run

    entries: list[dict[str, Any]] = []
    for name in pretrained_names(pattern):
        run = Run(name)
        task = run.task.recipe.task
        entries.append({"name": name, "task": task, "parameters": run.parameters(), **run.metrics})
    if as_json:
        print_json(entries)
        return
    rows = [(entry["name"], entry["task"], f"{entry['parameters']:,}") for entry in entries]
    print_table("Trained models that ship with the package", ("name", "task", "parameters"), rows)
    for entry in entries:
        print(f"{entry['name']}: {Run(entry['name']).headline}")


def models(
    pattern: Annotated[str, Argument(help="Shell pattern such as 'crate-*'. Default: all models.")] = "*",
    pretrained: Annotated[bool, Option("--pretrained", help="List the trained models that ship instead.")] = False,
    as_json: Json = False,
) -> None:
    """List the models by name with width d, layers L, heads K, parameters and operations."""
    from ..errors import CrateError
    from ..models.presets import list_models

    if pretrained:
        _show_pretrained(pattern, as_json)
        return
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
    source: Annotated[str, Argument(help="Released checkpoint file, or a transformers folder or hub id.")],
    folder: Annotated[Path, Argument(help="Folder to write; it must be new or empty.")],
    heads: Annotated[int | None, Option(help="Number of heads K, which no file contains.")] = None,
    sparsity: Annotated[float | None, Option(help="Weight λ of ISTA, which no file contains.")] = None,
    step_size: Annotated[float | None, Option(help="Step size η of ISTA, which no file contains.")] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace a folder that is not empty.")] = False,
    as_json: Json = False,
) -> None:
    """Convert a released checkpoint to a folder with weights, config and image processor or tokenizer.

    CRATE, CRATE-MAE and CRATE-alpha files, and folders or hub ids of ViT, ViTMAE, BERT, RoBERTa and GPT-2, which become
    black-box twins with equal outputs.
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
