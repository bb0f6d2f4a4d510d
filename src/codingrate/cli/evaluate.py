"""`crate evaluate`, `imagenet-real`, `detect`, `probe`: measure a trained model."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from .._distributed import first_process
from ..errors import CrateError
from .output import (
    BatchSize,
    CheckpointOption,
    DataOption,
    Json,
    LayerOption,
    MaskRule,
    ModelArgument,
    PathOption,
    RuleOption,
    RunArgument,
    layer_option,
    open_run,
    percent,
    print_json,
    print_note,
    print_table,
    save_report,
)


class Protocol(str, Enum):
    """Protocols of a probe."""

    default = "default"
    paper = "paper"


class Benchmark(str, Enum):
    """Benchmarks of object discovery."""

    coco = "coco"
    voc = "voc"


class Method(str, Enum):
    """Probes of features."""

    logistic = "logistic"
    knn = "knn"


class Metric(str, Enum):
    """Similarities of features for nearest neighbors."""

    cosine = "cosine"
    coding_rate = "coding-rate"


class Baseline(str, Enum):
    """Features that a probe is compared with."""

    untrained = "untrained"
    pixels = "pixels"


TABLE_ROWS = 50
"""Number of classes that a table shows."""

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
    if as_json:
        about = {"run": run, "checkpoint": checkpoint, "data": name, "split": report.split}
        shown = {"baseline": rivals} if baseline else {}
        print_json({**about, **report.to_dict(), **shown, "folder": str(folder)})
        return
    _show(report, f"{run}, checkpoint {checkpoint}, {_part(report)} {name}")
    if note := getattr(report, "note", None):
        print_note(note)
    for name, metrics in rivals.items():
        print(f"baseline {name}: " + ", ".join(f"{key} {value:.4f}" for key, value in metrics.items()))
    print(f"results in {folder}")


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
    if as_json:
        print_json({"run": run, "checkpoint": checkpoint, **report.to_dict(), "folder": str(folder)})
        return
    counted = _counted(report.images, report.total, "images", report.unreadable)
    print(f"ReaL {report.real_top1:.2%}, top-1 {report.top1:.2%}, {counted}; results in {folder}")


def _part(report: Any) -> str:
    """Return which part of the data was measured."""
    measured = sum(getattr(report, name, 0) for name in ("images", "unreadable"))
    measured = measured or sum(int(scores["rows"]) for scores in getattr(report, "splits", {}).values())
    return "all of" if report.split == "all" or measured == report.total else f"{report.split} split of"


def _counted(measured: int, total: int | None, unit: str, unreadable: int = 0) -> str:
    """Return how many samples of the data were measured, and how many could not be read."""
    count = f"{measured:,} {unit}" if total is None else f"{measured:,} of {total:,} {unit}"
    return f"{count} ({unreadable:,} could not be read)" if unreadable else count


def _show(report: Any, title: str) -> None:
    """Print the report of a task."""
    from ..evaluation import PerplexityReport
    from ..tasks import ClassificationReport, FeatureReport, MaskedReport, ReconstructionReport, SentenceReport

    if isinstance(report, ClassificationReport):
        _show_classes(report.per_class, "images", title)
        five = "" if report.top5 is None else f", top-5 {report.top5:.2%}"
        counted = _counted(report.images, report.total, "images", report.unreadable)
        print(f"top-1 {report.top1:.2%}{five}, loss {report.loss:.4f}, {counted}")
    elif isinstance(report, ReconstructionReport):
        counted = _counted(report.images, report.total, "images", report.unreadable)
        print(f"{title}: reconstruction loss {report.loss:.4f} ± {report.loss_std:.4f} over {counted}")
    elif isinstance(report, FeatureReport):
        counted = _counted(report.images, report.total, "images", report.unreadable)
        print(f"{title}: {report.neighbor_top1:.2%} by nearest neighbors within the split, {counted}")
        print("crate probe measures the same features with the training images as neighbors")
    elif isinstance(report, MaskedReport):
        print(
            f"{title}: loss {report.cross_entropy:.4f} nats per masked token, accuracy {report.accuracy:.2%}, "
            f"{_counted(report.tokens, report.total, 'tokens')} masked"
        )
    elif isinstance(report, PerplexityReport):
        print(
            f"{title}: {report.cross_entropy:.4f} nats per token, perplexity {report.perplexity:.2f}, "
            f"{report.bits_per_byte:.4f} bits per byte; {_counted(report.tokens, report.total, 'tokens')}, "
            f"{report.ends:,} of them ends of documents, "
            f"windows of {report.block}"
        )
    elif isinstance(report, SentenceReport):
        names = list(report.metrics)
        table = [
            [split, *(f"{scores[name]:.4f}" for name in names), f"{scores['rows']:,}"]
            for split, scores in report.splits.items()
        ]
        for split, rows in report.per_class.items():
            _show_classes(rows, "sentences", title if len(report.per_class) == 1 else f"{title}, {split}")
        counted = _counted(sum(int(scores["rows"]) for scores in report.splits.values()), report.total, "sentences")
        if len(table) > 1:
            print_table(title, ("split", *names, "sentences"), table)
            print(counted)
        else:
            about = "" if report.per_class else f"{title}: "
            print(about + ", ".join(f"{name} {value:.4f}" for name, value in report.metrics.items()) + f", {counted}")


def _show_classes(per_class: list[dict[str, Any]], unit: str, title: str) -> None:
    """Print the accuracy of the classes that occur."""
    rows = [(row["class"], f"{row[unit]:,}", percent(row["accuracy"])) for row in per_class if row[unit]]
    print_table(title, ("class", unit, "accuracy"), rows[:TABLE_ROWS])
    if len(rows) > TABLE_ROWS:
        print(f"{len(rows) - TABLE_ROWS:,} more classes in per_class.csv")


def detect(
    model: ModelArgument,
    data: Annotated[str, Option(help="Folder of COCO or VOC images with annotations.")],
    benchmark: Annotated[
        Benchmark, Option(help="COCO: AP of MaskCut's objects. VOC: mIoU of attention maps.")
    ] = Benchmark.coco,
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
    rule: RuleOption = MaskRule.symmetric,
    checkpoint: CheckpointOption = "last",
    output: Annotated[Path | None, Option(help="Folder for results. Default: RUN/evaluation/BENCHMARK.")] = None,
    as_json: Json = False,
) -> None:
    """Measure objects that the model finds without labels against annotations, for each layer."""
    opened = open_run(model)
    folder = output or opened.output_folder("evaluation") / benchmark.value
    layers: list[Any] = layer_option(opened, checkpoint, layer) or [None]
    results = []
    for index in layers:
        report = opened.detect(
            data,
            benchmark.value,
            split=split,
            layer=index,
            threshold=threshold,
            size=size,
            limit=limit,
            refine=refine,
            rule=rule.value,
            checkpoint=checkpoint,
        )
        number = report.layer + 1
        saved = save_report(report, folder / f"layer{number}" if len(layers) > 1 else folder)
        results.append({**report.to_dict(), "folder": str(saved)})
        if as_json:
            continue
        if benchmark is Benchmark.coco:
            _show_coco(report.result, f"{model}, layer {number}, on {data}")
            print(f"results in {saved}")
        else:
            voc = report.result
            kept = f"masks of {voc.mass:.0%} of the attention of layer {number}, {voc.heads} head for each class"
            print(f"mIoU {voc.miou:.2%}, {voc.images} images; {kept}; results in {saved}")
    if as_json:
        print_json({"model": model, "benchmark": benchmark.value, "layers": results})


def _show_coco(report: Any, title: str) -> None:
    rows = [
        (name, *(f"{100 * value:.2f}" for value in (part.ap50, part.ap75, part.ap)))
        for name, part in (("boxes", report.box), ("masks", report.mask))
        if part is not None
    ]
    print_table(title, ("", "AP50", "AP75", "AP"), rows)
    partial = f"; {report.without_masks} images without masks count only for boxes" if report.without_masks else ""
    print(f"{report.detections} detections, {report.objects} objects, {report.images} images, one class{partial}")


def probe(
    run: RunArgument,
    data: DataOption = None,
    path: PathOption = None,
    method: Annotated[Method, Option(help="Classifier on the features.")] = Method.logistic,
    baseline: Annotated[
        list[Baseline] | None, Option(help="Also probe the untrained model or raw pixels; can be repeated.")
    ] = None,
    checkpoint: CheckpointOption = "last",
    limit: Annotated[
        int | None, Option(min=1, help="Number of images per split, balanced over classes. Default: all.")
    ] = None,
    k: Annotated[list[int] | None, Option(min=1, help="Neighbors for knn; repeat to choose among several.")] = None,
    metric: Annotated[
        Metric, Option(help="Similarity for knn; coding-rate shrinks directions that most images share.")
    ] = Metric.cosine,
    protocol: Annotated[
        Protocol, Option(help="paper: bare tokens, no standardization, images vote for themselves (C.2, C.3).")
    ] = Protocol.default,
    batch_size: BatchSize = 256,
    cache: Annotated[Path | None, Option(help="Folder for cached features. Default: RUN/features.")] = None,
    output: Annotated[Path | None, Option(help="Folder for the reports. Default: RUN/probe.")] = None,
    as_json: Json = False,
) -> None:
    """Probe the features of a model with logistic regression or nearest neighbors."""
    from .._files import write_json

    if k and method is not Method.knn:
        raise typer.BadParameter("--k is only for --method knn; leave it out")
    if metric is not Metric.cosine and method is not Method.knn:
        raise typer.BadParameter("--metric is only for --method knn; leave it out")
    options = {**({"ks": k} if k else {}), **({"metric": metric.value} if metric is not Metric.cosine else {})}
    opened = open_run(run)
    reports = {}
    for features in dict.fromkeys(("trained", *(name.value for name in baseline or ()))):
        reports[features] = opened.probe(
            method.value,
            features,  # type: ignore[arg-type]
            data=data,
            path=path,
            checkpoint=checkpoint,
            limit=limit,
            batch_size=batch_size,
            cache=cache,
            protocol=protocol.value,
            **options,
        )
    folder = output or opened.output_folder("probe", data)
    probe_name = method.value if metric is Metric.cosine else f"{method.value}-{metric.value}"
    for name, report in reports.items() if first_process() else ():
        write_json(folder / f"{probe_name}-{name}.json", report.to_dict())
    if as_json:
        about = {"run": run, "checkpoint": checkpoint, "data": reports["trained"].about["data"]}
        print_json({**about, "method": method.value, "probes": reports, "folder": str(folder)})
        return
    similarity = "" if metric is Metric.cosine else ", metric of the coding rate"
    _show_probes(reports, f"{run}, checkpoint {checkpoint}, {method.value}{similarity}")
    print(f"reports in {folder}")


def _show_probes(reports: dict[str, Any], title: str) -> None:
    names = {"top1": "top-1", "top5": "top-5", "train_top1": "training"}
    metrics = [key for key in names if key in reports["trained"].metrics]
    rows = []
    for name, report in reports.items():
        ((letter, value),) = report.chosen.items()
        shares = (percent(report.metrics[key]) for key in metrics)
        rows.append((name, str(report.width), f"{letter} = {value:g}", *shares, f"{report.seconds:.1f} s"))
    print_table(title, ("features", "width", "chosen", *(names[key] for key in metrics), "time"), rows)
    trained = reports["trained"]
    counts = (
        _counted(count, trained.total.get(split), f"{split} images", trained.unreadable.get(split, 0))
        for split, count in trained.images.items()
    )
    print(", ".join(counts))
    for name, report in reports.items():
        for note in report.notes:
            print(f"{name}: {note}")


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
    if as_json:
        print_json(
            {"picture": str(output), "curves": {name: table.to_dict("records") for name, table in tables.items()}}
        )
        return
    rows = []
    for name, table in tables.items():
        for split, part in table.groupby("split", sort=False):
            last = part.iloc[-1]
            rows.append((name, str(split), str(len(part)), f"{last['value']:.4f}", str(int(last["step"]))))
    print_table(f"{metric}, picture in {output}", ("run", "split", "points", "last value", "at step"), rows)
