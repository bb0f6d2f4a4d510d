"""`crate evaluate`, `imagenet-real`, `detect`, `probe`: measure a trained model."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from typer import Argument, Option

from .._distributed import first_process
from .._report import Table
from ..errors import CrateError
from .output import (
    BatchSize,
    CheckpointOption,
    DataOption,
    Json,
    LayerOption,
    ModelArgument,
    PathOption,
    RuleOption,
    RunArgument,
    emit,
    layer_option,
    open_run,
    print_note,
    save_report,
)


class Baseline(str, Enum):
    """Features that a probe is compared with."""

    untrained = "untrained"
    pixels = "pixels"


Output = Annotated[
    Path | None, Option(help="Folder for tables and pictures. Default: RUN/evaluation, or RUN/evaluation-DATA-SPLIT.")
]


def evaluate(
    run: RunArgument,
    data: DataOption = None,
    split: Annotated[
        str | None,
        Option(
            help="Split of the data: train, validation, test, or all of them together. "
            "Default: test; text: validation. Other data without splits are measured in full."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        Option(
            metavar="FILE.json|a=b,c=d",
            help="Model classes by data class, where the names differ. By default, classes are matched by name.",
        ),
    ] = None,
    checkpoint: CheckpointOption = "last",
    batch_size: BatchSize = 64,
    baseline: Annotated[
        bool, Option("--baseline", help="Also measure a simple rival: n-grams or a bag of words (text only).")
    ] = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Evaluate a trained model by the metrics of its task.

    Images: accuracy per class with a confusion picture, the reconstruction loss, or nearest neighbors of features.
    Text: perplexity, the loss on masked tokens, or the metrics of labeled sentences.
    """
    if baseline and data is not None:
        raise CrateError("--baseline learns from the run's own data; leave out --data or --baseline")
    opened = open_run(run)
    rivals = opened.baseline(split) if baseline else {}
    report: Any = opened.evaluate(data, split, labels=labels, checkpoint=checkpoint, batch_size=batch_size)
    special = None if checkpoint == "last" else checkpoint
    folder = save_report(report, output or opened.output_folder("evaluation", data, split, special))
    name = opened.data_name(data)
    values = {"run": run, "checkpoint": checkpoint, "data": name, "split": report.split, **report.to_dict()}
    values |= {"baseline": rivals} if baseline else {}
    compared = [
        f"baseline {rival}: " + ", ".join(f"{key} {value:.4f}" for key, value in metrics.items())
        for rival, metrics in rivals.items()
    ]
    if not as_json and (note := getattr(report, "note", None)):
        print_note(note)
    parts = report.describe(f"{run}, checkpoint {checkpoint}, {report.part} {name}")
    emit(as_json, {**values, "folder": str(folder)}, [*parts, *compared, f"results in {folder}"])


def imagenet_real(
    run: RunArgument,
    labels: Annotated[Path, Argument(help="ImageNet ReaL labels (real.json).")],
    data: DataOption = None,
    checkpoint: CheckpointOption = "last",
    batch_size: BatchSize = 64,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Evaluate a classifier on ImageNet's validation images by the ReaL labels."""
    opened = open_run(run)
    report: Any = opened.evaluate_real(labels, data=data, checkpoint=checkpoint, batch_size=batch_size)
    folder = save_report(report, output or opened.output_folder("evaluation", data, "real"))
    values = {"run": run, "checkpoint": checkpoint, **report.to_dict(), "folder": str(folder)}
    emit(as_json, values, [*report.describe(f"{run}, checkpoint {checkpoint}"), f"results in {folder}"])


def detect(
    model: ModelArgument,
    data: Annotated[str, Option(help="Folder of COCO or VOC images with annotations.")],
    benchmark: Annotated[
        Literal["coco", "voc"], Option(help="COCO: AP of MaskCut's objects. VOC: mIoU of attention maps.")
    ] = "coco",
    split: Annotated[str | None, Option(help="Split of the annotations. Default: the benchmark's.")] = None,
    layer: LayerOption = None,
    threshold: Annotated[
        float | None,
        Option(help="COCO: cosine above which patches are alike (0.15). VOC: share of attention kept (0.6)."),
    ] = None,
    size: Annotated[
        int | None, Option(min=1, help="Side in pixels of the image the model reads. Default: 480.")
    ] = None,
    limit: Annotated[int | None, Option(min=1, help="Number of images. Default: all.")] = None,
    refine: Annotated[bool, Option(help="COCO: refine masks to the edges of the image.")] = True,
    rule: RuleOption = "symmetric",
    checkpoint: CheckpointOption = "last",
    output: Annotated[Path | None, Option(help="Folder for results. Default: RUN/evaluation/BENCHMARK.")] = None,
    as_json: Json = False,
) -> None:
    """Measure objects that the model finds without labels against annotations, for each layer."""
    opened = open_run(model)
    folder = output or opened.output_folder("evaluation") / benchmark
    layers: list[Any] = layer_option(opened, checkpoint, layer) or [None]
    settings: dict[str, Any] = {"split": split, "threshold": threshold, "size": size, "limit": limit, "refine": refine}
    results, parts = [], []
    for index in layers:
        report = opened.detect(data, benchmark, layer=index, rule=rule, checkpoint=checkpoint, **settings)
        saved = save_report(report, folder / f"layer{report.layer + 1}" if len(layers) > 1 else folder)
        results.append({**report.to_dict(), "folder": str(saved)})
        parts += [*report.describe(f"{model}, on {data}"), f"results in {saved}"]
    emit(as_json, {"model": model, "benchmark": benchmark, "layers": results}, parts)


def probe(
    run: RunArgument,
    data: DataOption = None,
    path: PathOption = None,
    method: Annotated[Literal["logistic", "knn"], Option(help="Classifier on the features.")] = "logistic",
    baseline: Annotated[
        list[Baseline] | None,
        Option(help="Also probe the untrained model or raw pixels; can be repeated."),
    ] = None,
    checkpoint: CheckpointOption = "last",
    limit: Annotated[
        int | None, Option(min=1, help="Number of images per split, balanced over classes. Default: all.")
    ] = None,
    k: Annotated[list[int] | None, Option(min=1, help="Neighbors for knn; repeat to choose among several.")] = None,
    metric: Annotated[
        Literal["cosine", "coding-rate"],
        Option(help="Similarity for knn; coding-rate shrinks directions that most images share."),
    ] = "cosine",
    protocol: Annotated[
        Literal["default", "paper"],
        Option(help="paper: bare tokens, no standardization, images vote for themselves (C.2, C.3)."),
    ] = "default",
    batch_size: BatchSize = 256,
    cache: Annotated[Path | None, Option(help="Folder for cached features. Default: RUN/features.")] = None,
    output: Annotated[Path | None, Option(help="Folder for the reports. Default: RUN/probe.")] = None,
    as_json: Json = False,
) -> None:
    """Probe the features of a model with logistic regression or nearest neighbors."""
    from .._files import write_json

    if method != "knn" and (k or metric != "cosine"):
        raise typer.BadParameter(f"{'--k' if k else '--metric'} is only for --method knn; leave it out")
    options: dict[str, Any] = {**({"ks": k} if k else {}), **({"metric": metric} if metric != "cosine" else {})}
    options |= {"data": data, "path": path, "checkpoint": checkpoint, "limit": limit, "batch_size": batch_size}
    opened = open_run(run)
    reports = {
        features: opened.probe(method, cast(Any, features), cache=cache, protocol=protocol, **options)
        for features in dict.fromkeys(("trained", *(name.value for name in baseline or ())))
    }
    folder = output or opened.output_folder("probe", data)
    probe_name = method if metric == "cosine" else f"{method}-{metric}"
    for name, report in reports.items() if first_process() else ():
        write_json(folder / f"{probe_name}-{name}.json", report.to_dict())
    trained = reports["trained"]
    values = {"run": run, "checkpoint": checkpoint, "data": trained.about["data"], "method": method, "probes": reports}
    similarity = "" if metric == "cosine" else ", metric of the coding rate"
    parts = trained.describe(f"{run}, checkpoint {checkpoint}, {method}{similarity}", reports)
    emit(as_json, {**values, "folder": str(folder)}, [*parts, f"reports in {folder}"])


def curves(
    runs: Annotated[list[str], Argument(metavar="RUN...", help="Run folders.")],
    metric: Annotated[str, Option(help="Metric to draw: loss, or one of the evaluations such as top1.")] = "loss",
    output: Annotated[Path, Option(help="Picture to write, PNG or SVG.")] = Path("curves.png"),
    as_json: Json = False,
) -> None:
    """Draw the training and validation loss of one or several runs against training steps."""
    from ..runs import learning_curve, save_curves

    opened = [open_run(run) for run in runs]
    names = [run.name if sum(run.name == one.name for one in opened) == 1 else run.source for run in opened]
    tables = {name: learning_curve(run, metric) for name, run in zip(names, opened, strict=True)}
    save_curves(tables, output, metric)
    rows = [
        (name, str(split), str(len(part)), f"{part.iloc[-1]['value']:.4f}", str(int(part.iloc[-1]["step"])))
        for name, table in tables.items()
        for split, part in table.groupby("split", sort=False)
    ]
    values = {"picture": str(output), "curves": {name: table.to_dict("records") for name, table in tables.items()}}
    columns = ("run", "split", "points", "last value", "at step")
    emit(as_json, values, [Table(f"{metric}, picture in {output}", columns, rows)])
