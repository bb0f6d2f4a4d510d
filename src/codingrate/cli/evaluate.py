"""`crate evaluate`: how good a trained model is, class by class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import Json, print_json, print_table, progress


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[str | None, typer.Option(help="Other data than the run's: a name, a path or a hub id.")] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    which: Annotated[str, typer.Option(help="The run's best model or its last.")] = "last",
    batch: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 64,
    real: Annotated[Path | None, typer.Option(help="ImageNet ReaL labels (real.json).")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for tables and the picture; RUN/evaluation.")] = None,
    as_json: Json = False,
) -> None:
    """Top-1 and top-5 accuracy, accuracy by class, and the confusion matrix as a picture."""
    import dataclasses

    from ..errors import CrateError, unknown_name

    if which not in ("best", "last"):
        raise unknown_name("--which", which, ("best", "last"))
    if not (run / "recipe.yaml").is_file():
        raise CrateError(f"{run}: is not a run folder (no recipe.yaml); train one with crate train")
    from ..evaluation import classify
    from ..models.classifier import CrateForImageClassification
    from ..training import load_recipe, saved_model
    from ..training.run import load_data

    recipe = load_recipe(str(run / "recipe.yaml"))
    section = recipe.data if data is None else dataclasses.replace(recipe.data, name=data, path=None)
    images = load_data(section)
    model = CrateForImageClassification.from_pretrained(saved_model(run, which))
    rows = images.train if split == "train" else images.test
    with progress("evaluate", len(rows) if hasattr(rows, "__len__") else 0) as advance:
        report = classify(
            model,
            images,
            recipe.augment,
            split=split,
            batch_size=batch,
            workers=0,
            real_labels=real,
            progress=advance,
        )
    folder = output or run / "evaluation"
    report.save(folder)
    if as_json:
        print_json({"run": str(run), "which": which, "split": split, **report.to_json(), "folder": str(folder)})
        return
    print_table(
        f"{run}, {which} model, {split} split",
        ("class", "images", "accuracy"),
        [
            (row["class"], str(row["images"]), "" if row["accuracy"] is None else f"{row['accuracy']:.2%}")
            for row in report.per_class[:50]
        ],
    )
    more = f", ReaL {report.real_top1:.2%}" if report.real_top1 is not None else ""
    five = f", top-5 {report.top5:.2%}" if report.top5 is not None else ""
    print(f"top-1 {report.top1:.2%}{five}{more}, loss {report.loss:.4f}, {report.images} images")
    print(f"tables and confusion.png in {folder}")
