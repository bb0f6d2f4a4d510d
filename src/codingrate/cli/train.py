"""`crate train`, `finetune`, `recipes`, `models`, `convert`: recipes, models and training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from .._distributed import first_process
from .._report import Table
from .output import (
    CheckpointOption,
    DataOption,
    Json,
    PathOption,
    RunArgument,
    emit,
    open_run,
    paragraph,
    print_note,
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

    from ..runs import train as train_run

    run = train_run(recipe, output, overrides=changes, variant=variant, resume=resume, quiet=as_json)
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
    values = {"run": run.source, "seconds": run.seconds, "parameters": run.parameters(), **run.metrics}
    trained = f"{run.headline} with {run.parameters():,} parameters in {run.seconds:.0f} s"
    emit(as_json, values, [trained, f"run: {run.source}; next: crate evaluate {run.source}"])


def recipes(
    name: Annotated[str | None, Argument(help="Recipe to print as it is in its file. Default: list all.")] = None,
    as_json: Json = False,
) -> None:
    """List the recipes with their results, those for a laptop first; see also crate recipe."""
    from ..recipes import load_recipe, recipe_header, recipe_names, recipe_path
    from ..recipes.files import read_recipe_text

    if name is not None:
        emit(as_json, load_recipe(name).to_dict(), [read_recipe_text(recipe_path(name)).rstrip("\n")])
        return
    headers = {recipe: recipe_header(recipe) for recipe in recipe_names()}
    parts = []
    for title, laptop in (("Recipes for a laptop", True), ("Recipes of the paper, for GPUs", False)):
        parts.append(f"{title}\n")
        for recipe, header in headers.items():
            if header["paper"].startswith("none") is laptop:
                about = (f"{header['what']}.", f"Result: {header['metric']}.", f"Time: {header['time']}.")
                parts.append("\n".join((recipe, *map(paragraph, about), "")))
    values = [{"name": recipe, **header} for recipe, header in headers.items()]
    emit(as_json, values, [*parts, "Show all keys of a recipe: crate recipe NAME"])


def recipe(
    name: Annotated[str, Argument(help="Name of a shipped recipe (see crate recipes), or a YAML file.")],
    overrides: Overrides = None,
    variant: Annotated[str | None, Option(help="Variant of the recipe.")] = None,
    as_json: Json = False,
) -> None:
    """Show every key of a recipe: its value, its default if that differs, and what it means."""
    from ..recipes import load_recipe, recipe_header, recipe_keys

    values, keys, parts = load_recipe(name, overrides or [], variant).to_dict(), {}, []
    for title, text in recipe_header(name).items():
        parts += [paragraph(f"{title}: {text}", "", "  ")] if text else []
    for key, (default, meaning) in recipe_keys().items():
        keys[key] = {"value": _value(values, key), "default": default, "meaning": meaning}
        value, default = keys[key]["value"], list(default) if isinstance(default, tuple) else default
        changed = "" if value == default else f"  (default: {json.dumps(default)})"
        parts.append(f"\n{key}: {json.dumps(value, ensure_ascii=False)}{changed}\n{paragraph(meaning)}")
    emit(as_json, keys, parts)


def _value(values: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        values = values[part]
    return values


def _show_pretrained(pattern: str, as_json: bool) -> None:
    from ..models.pretrained import pretrained_names
    from ..runs import Run

    entries: list[dict[str, Any]] = []
    headlines = []
    for name in pretrained_names(pattern):
        run = Run(name)
        task = run.task.recipe.task
        entries.append({"name": name, "task": task, "parameters": run.parameters(), **run.metrics})
        headlines.append(f"{name}: {run.headline}")
    rows = [(entry["name"], entry["task"], f"{entry['parameters']:,}") for entry in entries]
    table = Table("Trained models that ship with the package", ("name", "task", "parameters"), rows)
    emit(as_json, entries, [table, *headlines])


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
    rows = [
        (c.name, str(c.width), str(c.layers), str(c.heads), f"{c.parameters:,}", f"{thousands(c.flops)}/{c.unit}")
        for c in counts
    ]
    emit(as_json, counts, [Table("Models", ("name", "d", "L", "K", "parameters", "FLOPs"), rows)])


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
    values = {"folder": str(folder), "model": name, "parameters": parameters, "notes": notes}
    for note in () if as_json else notes:
        print_note(note)
    emit(as_json, values, [f"wrote {name} with {parameters:,} parameters to {folder}"])
