"""`crate evaluate`: how good a trained model is, class by class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ..errors import CrateError
from .output import Json, print_json, print_table, progress
from .runs import open_run


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[str | None, typer.Option(help="Other data than the run's: a name, a path or a hub id.")] = None,
    split: Annotated[str | None, typer.Option(help="train or test, by default test; of text validation.")] = None,
    which: Annotated[str, typer.Option(help="The run's best model or its last.")] = "last",
    batch: Annotated[int, typer.Option(min=1, help="Images, or pieces of text, at a time.")] = 64,
    real: Annotated[Path | None, typer.Option(help="ImageNet ReaL labels (real.json).")] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Of labelled sentences, also logistic regression on their words.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for tables and the picture; RUN/evaluation.")] = None,
    task: Annotated[str | None, typer.Option(help="coco or voc: objects found without labels, on --data.")] = None,
    layer: Annotated[int | None, typer.Option(help="With --task, the layer; -2, of a ViT -1.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="With --task coco the cosine of alike patches, 0.15; voc the share kept, 0.6.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="With --task, pixels of the square the model sees; 480.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="With --task, the first so many images.")] = None,
    refine: Annotated[bool, typer.Option(help="With --task coco, draw masks to the edges of the image.")] = True,
    as_json: Json = False,
) -> None:
    """Accuracy by class with the confusion matrix as a picture; of other runs the measure of what they learned.

    That is the reconstruction loss, the perplexity, the loss on hidden tokens, or the metrics of a GLUE task. With
    --task coco, AP of the objects MaskCut finds; with --task voc, mIoU of attention maps.
    """
    import dataclasses

    if task is not None:
        from .evaluate_objects import evaluate_objects

        evaluate_objects(
            run, task, data=data, split=split, which=which, layer=layer, threshold=threshold, size=size,
            limit=limit, refine=refine, output=output, as_json=as_json,
        )  # fmt: skip
        return
    if any(option is not None for option in (layer, threshold, size, limit)):
        raise CrateError(
            "--layer, --threshold, --size and --limit are for --task coco or voc; give it or leave them out"
        )
    recipe, folder = open_run(run, which)
    if recipe.task == "distillation":
        raise CrateError(f"{run}: holds features without classes; measure them with crate probe {run}")
    if recipe.task in ("causal-lm", "masked-lm", "sequence-classification"):
        from .evaluate_text import evaluate_text

        if real is not None:
            raise CrateError(f"--real is for ImageNet; {run} was trained for {recipe.task}, leave it out")
        evaluate_text(
            recipe, run, folder, data=data, split=split, which=which, batch=batch,
            output=output or run / "evaluation", baseline=baseline, as_json=as_json,
        )  # fmt: skip
        return
    if baseline:
        raise CrateError("--baseline is for runs on labelled sentences; for images see crate probe --baseline")
    from ..training import load_data, load_weights

    split = split or "test"
    section = recipe.data if data is None else dataclasses.replace(recipe.data, name=data, path=None)
    images, model = load_data(section), load_weights(str(folder))
    rows = images.train if split == "train" else images.test
    output = output or run / "evaluation"
    with progress("evaluate", len(rows) if hasattr(rows, "__len__") else 0) as advance:
        report: Any
        if recipe.task == "autoencoding":
            from ..evaluation import reconstruct

            report = reconstruct(
                cast(Any, model), images, recipe.augment, split=split, batch_size=batch, progress=advance
            )
        else:
            from ..evaluation import classify

            report = classify(
                model, images, recipe.augment, split=split, batch_size=batch, real_labels=real, progress=advance
            )
    report.save(output)
    if as_json:
        print_json({"run": str(run), "which": which, "split": split, **report.to_json(), "folder": str(output)})
    elif recipe.task == "autoencoding":
        deviation = f"± {report.loss_std:.4f} over images"
        print(f"reconstruction loss {report.loss:.4f} {deviation}, {report.images} images of the {split} split")
        print(f"metrics.json in {output}; next: crate reconstruct {run}")
    else:
        _show(report, f"{run}, {which} model, {split} split", output)


def _show(report: Any, title: str, folder: Path) -> None:
    print_table(
        title,
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
