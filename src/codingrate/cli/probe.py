"""`crate probe`: what the features of a trained model are worth for a classification it may never have seen."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._files import write_json
from ..errors import CrateError, unknown_name
from .finetune import finetune
from .output import Json, print_json, print_table, progress
from .runs import open_run

if TYPE_CHECKING:
    from ..data import ImageData
    from ..evaluation import Features, ProbeReport
    from ..training import Recipe

METHODS = ("logistic", "knn", "finetune")
BASELINES = ("untrained", "pixels")


def probe(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="With finetune: key=value, such as schedule.epochs=20.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Other data than the run's: a name, a path or a hub id.")] = None,
    path: Annotated[str | None, typer.Option(help="Where the files of a known --data name lie.")] = None,
    method: Annotated[str, typer.Option(help="logistic, knn or finetune.")] = "logistic",
    baseline: Annotated[
        list[str] | None, typer.Option(help="Also the untrained model or the bare pixels: untrained, pixels; repeat.")
    ] = None,
    which: Annotated[str, typer.Option(help="The run's best model or its last.")] = "last",
    limit: Annotated[
        int | None, typer.Option(min=1, help="So many images of each split, of every class its share.")
    ] = None,
    k: Annotated[list[int] | None, typer.Option(min=1, help="With knn: neighbours; repeat to choose.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 256,
    cache: Annotated[Path | None, typer.Option(help="Folder where features are kept; RUN/features.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the reports; RUN/probe, or RUN/finetune.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="With finetune: go on where it was stopped.")] = False,
    as_json: Json = False,
) -> None:
    """Probe features: logistic regression or nearest neighbours on them, or fine-tuning of the whole model."""
    if method not in METHODS:
        raise unknown_name("--method", method, METHODS)
    tuning = method == "finetune"
    for flag, given, fits in (
        ("key=value", overrides, tuning),
        ("--resume", resume, tuning),
        ("--k", k, method == "knn"),
        ("--baseline", baseline, not tuning),
        ("--limit", limit, not tuning),
    ):
        if given and not fits:
            raise CrateError(f"{flag} does not go with --method {method}; leave it out")
    for name in baseline or ():
        if name not in BASELINES:
            raise unknown_name("--baseline", name, BASELINES)
    recipe, folder = open_run(run, which)
    if path is not None and data is None:
        raise CrateError("--path says where the files of --data lie; give both")
    if data is not None:
        own: dict[str, Any] = {"streaming": False, "image_column": None, "label_column": None}  # the run's may not fit
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, name=data, path=path, **own))
    if tuning:
        finetune(recipe, folder, overrides or [], output or run / "finetune", resume, as_json)
        return
    about = {"run": str(run), "which": which, "data": recipe.data.name}
    settings = {"cache": cache or run / "features", "batch_size": batch, "limit": limit}
    reports = _probes(recipe, folder, baseline or [], settings, method, {"ks": k} if k else {}, about)
    place = output or run / "probe"
    for name, report in reports.items():
        write_json(place / f"{method}-{name}.json", report.to_dict())
    if as_json:
        probes = {name: report.to_dict() for name, report in reports.items()}
        print_json({**about, "method": method, "probes": probes, "folder": str(place)})
        return
    _show(reports, f"{run}, {which} model, {method} on {recipe.data.name}")
    print(f"reports in {place}")


def _probes(
    recipe: Recipe,
    folder: Path,
    baselines: list[str],
    settings: dict[str, Any],
    method: str,
    options: dict[str, Any],
    about: dict[str, str],
) -> dict[str, ProbeReport]:
    """The report of the trained model and of each of the baselines."""
    import torch

    from ..evaluation import extract_features, pixel_features, probe_features, probe_steps
    from ..training import load_data, load_weights

    model = load_weights(str(folder))
    if not hasattr(model, "features"):
        raise CrateError(f"{folder}: a {type(model).__name__} gives no features of images; probe a vision model")
    images = load_data(recipe.data)
    settings |= {"workers": recipe.data.workers, "max_corrupt": recipe.data.max_corrupt}
    place = "cuda" if torch.cuda.is_available() else "cpu"

    def features(name: str, split: str) -> Features:
        with progress(f"{name}, {split}", _count(images, split, settings["limit"])) as advance:
            how = {**settings, "split": split, "progress": advance}
            if name == "pixels":
                return pixel_features(images, recipe.augment, **how)
            source = model if name == "trained" else fresh
            return extract_features(source, images, recipe.augment, device=place, **how)

    if "untrained" in baselines:
        with torch.random.fork_rng():
            torch.manual_seed(recipe.run.seed)
            fresh: Any = type(model)(type(model.config).from_dict(model.config.to_dict()))
    reports = {}
    for name in dict.fromkeys(("trained", *baselines)):
        train, test = features(name, "train"), features(name, "test")
        with progress(f"{method} on {name}", probe_steps(len(train), len(test), method, options)) as advance:
            described = {**about, "features": name}
            reports[name] = probe_features(train, test, method, progress=advance, about=described, **options)
    return reports


def _count(images: ImageData, split: str, limit: int | None) -> int:
    rows = images.train if split == "train" else images.test
    known = len(rows) if hasattr(rows, "__len__") else limit or 0
    return min(known, limit or known)


def _show(reports: dict[str, ProbeReport], title: str) -> None:
    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.2%}"

    rows = []
    for name, report in reports.items():
        ((letter, value),) = report.chosen.items()
        figures = (share(report.metrics[key]) for key in ("top1", "top5", "train_top1"))
        rows.append((name, str(report.width), f"{letter} = {value:g}", *figures, f"{report.seconds:.1f} s"))
    print_table(title, ("features", "width", "chosen", "top-1", "top-5", "training", "time"), rows)
    for name, report in reports.items():
        for note in report.notes:
            print(f"{name}: {note}")
