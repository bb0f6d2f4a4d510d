"""`crate inspect`, `attention`, `segment`, `reconstruct`: look inside a model."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from .._distributed import share
from .._report import Table
from .output import (
    BatchSize,
    CheckpointOption,
    CompareOption,
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
    paragraph,
    print_note,
    progress,
    save_report,
)

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..runs import Run

Images = Annotated[list[Path], Argument(help="Image files.")]
ABOUT_REGIONS = (
    "MaskCut finds regions, listed in the order of its cuts. A region may be background, such as the sky, which often "
    "covers much of the image's border. The cut quality, 1 - Ncut/2, says how clearly a region is separated from the "
    "rest of the image: 1 if nothing connects them, 0.5 or less if not at all. It is not the probability of an object."
)


def inspect(
    model: ModelArgument,
    data: DataOption = None,
    path: PathOption = None,
    split: Annotated[
        str | None, Option(help="Split: train, validation or test. Default: test; text: validation.")
    ] = None,
    limit: Annotated[int, Option(min=1, help="Largest number of images or text samples.")] = 1000,
    compare: Annotated[
        list[str] | None,
        Option(
            help="Another model to measure on the same samples, or untrained for the same one with random weights; "
            "can be repeated."
        ),
    ] = None,
    checkpoint: CheckpointOption = "last",
    batch_size: BatchSize = 64,
    layer: LayerOption = None,
    eps: Annotated[
        float | None, Option(help="Coding precision ε of the rates. Default: 0.5; with --measure released 0.1.")
    ] = None,
    measure: Annotated[
        Literal["paper", "released"], Option(help="R^c as the paper defines it, or as the released script does.")
    ] = "paper",
    controls: Annotated[
        bool, Option(help="Measure what every verdict is compared with, and the untrained model.")
    ] = True,
    token_samples: Annotated[
        int, Option("--token-samples", min=1, max=6, help="Images whose tokens are drawn as heat maps.")
    ] = 1,
    output: Annotated[Path | None, Option(help="Folder for the report. Default: RUN/inspect.")] = None,
    as_json: Json = False,
) -> None:
    """Measure every layer against the objective, show subspaces, tokens and attention, and write report.html."""
    run = open_run(model)
    options = {
        "--data": data, "--path": path, "--split": split, "--limit": limit, "--compare": compare,
        "--checkpoint": checkpoint, "--layer": layer, "--eps": eps, "--measure": measure,
        "--token-samples": token_samples, "--no-controls": None if controls else "",
    }  # fmt: skip
    report = run.inspect(
        compare=compare or (),
        data=data,
        path=path,
        split=split,
        limit=limit,
        checkpoint=checkpoint,
        batch_size=batch_size,
        layers=layer_option(run, checkpoint, layer),
        eps=eps,
        measure=measure,
        controls=controls,
        token_samples=token_samples,
        command=_command(model, options),
    )
    with progress("draw", len(report.panels)) as advance:
        folder = save_report(report, output or run.output_folder("inspect", data, split), advance)
    for note in report.notes:
        print_note(note)
    page = folder / "report.html"
    emit(as_json, {**report.to_dict(), "report": str(page)}, [*report.describe(), f"report: {page}"])


def _command(model: str, options: Mapping[str, Any]) -> str:
    """Return the command that writes the report again."""
    words = ["crate", "inspect", model]
    defaults = {"--limit": 1000, "--checkpoint": "last", "--measure": "paper", "--token-samples": 1}
    for option, value in options.items():
        if value is not None and value != defaults.get(option):
            words += [
                word for one in (value if isinstance(value, list) else [value]) for word in (option, str(one)) if word
            ]
    return shlex.join(words)


def attention(
    model: ModelArgument,
    images: Images,
    layer: LayerOption = None,
    head: Annotated[int | None, Option(help="Head to show, from 1. Default: all heads and their mean.")] = None,
    mass: Annotated[float, Option(help="Share of the attention that a mask holds, in (0, 1].")] = 0.6,
    size: Annotated[
        int | None, Option(min=1, help="Side in pixels of the image the model reads. Default: the model's own.")
    ] = None,
    checkpoint: CheckpointOption = "last",
    compare: CompareOption = None,
    output: Annotated[Path | None, Option(help="Folder for the pictures. Default: RUN/attention.")] = None,
    as_json: Json = False,
) -> None:
    """Draw the class token's attention over images: a grid per layer and a mask per head."""
    run = open_run(model)
    folder = output or run.output_folder("attention")
    others = [open_run(other) for other in compare or ()]
    settings: dict[str, Any] = {
        "layers": layer_option(run, checkpoint, layer),
        "head": head,
        "mass": mass,
        "size": size,
    }

    def attend(name: str, picture: Image) -> dict[str, Any]:
        entries = run.attention([picture], checkpoint=checkpoint, **settings)[0]
        shown = {run.name: entries[-1].grid()}
        for other in others:
            shown[other.name] = other.attention([picture], head=head, mass=mass, size=size)[0][-1].grid()
        saved = [entry.save(folder, name) for entry in entries]
        sizes = {"patches": next(iter(entries[0].maps.values())).size, "side": entries[0].square.width}
        return {"layers": saved, **_save_comparison(folder, name, shown), **sizes}

    results = _of_images(run, images, attend, "attention")
    patches, side = [(entry.pop("patches"), entry.pop("side")) for entry in results][-1]
    rows = [
        (entry["image"], str(one["layer"]), part["head"], f"{part['entropy']:.3f}", f"{part['patches']} of {patches}")
        for entry in results
        for one in entry["layers"]
        for part in one["heads"]
    ]
    emit(
        as_json,
        {"model": model, "mass": mass, "size": side, "patches": patches, "images": results},
        [
            Table(f"attention of {model}", ("image", "layer", "head", "entropy", "patches"), rows),
            f"entropy relative to uniform attention; patches that hold {mass:.0%} of it; pictures in {folder}",
        ],
    )


def segment(
    model: ModelArgument,
    images: Images,
    masks: Annotated[int, Option(min=1, help="Largest number of regions per image.")] = 3,
    threshold: Annotated[
        float | None,
        Option(
            help="Cosine above which two patches are alike, in [0, 1). Default: 0.15, or in an image in which "
            "this separates no patches, the mean cosine of two patches."
        ),
    ] = None,
    layer: LayerOption = None,
    refine: Annotated[bool, Option(help="Refine masks to the edges of the image.")] = True,
    rule: RuleOption = "symmetric",
    size: Annotated[
        int | None,
        Option(min=1, help="Side in pixels of the image the model reads. Default: 480, at most 60 patches."),
    ] = None,
    checkpoint: CheckpointOption = "last",
    compare: CompareOption = None,
    output: Annotated[Path | None, Option(help="Folder for the pictures. Default: RUN/segments.")] = None,
    as_json: Json = False,
) -> None:
    """Find regions in images by MaskCut, and write an overlay and a mask per region.

    A region may be an object or background, such as the sky.
    """
    from ..inspection import default_layer, layer_index, overlay, save_segments

    run = open_run(model)
    others = [open_run(other) for other in compare or ()]
    folder = output or run.output_folder("segments")
    settings: dict[str, Any] = {"masks": masks, "threshold": threshold, "refine": refine, "side": size}
    settings["rule"] = rule
    config = run.loaded(checkpoint).config
    layers = layer_option(run, checkpoint, layer) or [layer_index(default_layer(config), config.num_hidden_layers)]

    def find(name: str, picture: Image) -> dict[str, Any]:
        entries = []
        for index in layers:
            segments = run.segment([picture], checkpoint=checkpoint, layer=index, **settings)[0]
            entries.append(save_segments(folder, name, picture, segments, index))
        shown = {"image": picture, run.name: overlay(picture, segments)}
        shown |= {other.name: overlay(picture, other.segment([picture], **settings)[0]) for other in others}
        return {"layers": entries, **_save_comparison(folder, name, shown if others else {})}

    results = _of_images(run, images, find, "segment")
    rows = [
        (entry["image"], str(one["layer"]), str(number), ", ".join(map(str, part["box"])), f"{part['area']:.1%}",
         f"{part['border']:.0%}", f"{part['cut_quality']:.3f}", f"{part['threshold']:.2f}")
        for entry in results
        for one in entry["layers"]
        for number, part in enumerate(one["segments"], 1)
    ]  # fmt: skip
    columns = ("image", "layer", "region", "x, y, width, height", "area", "border", "cut quality", "threshold")
    empty = sum(not any(one["segments"] for one in entry["layers"]) for entry in results)
    parts: list[Table | str] = [
        Table(f"regions found by {model}", columns, rows),
        f"{len(rows)} regions in {len(results)} images{f', none in {empty}' if empty else ''}; pictures in {folder}",
    ]
    if empty:
        parts.append(
            "if too many patches are alike, nothing can be cut; try a --threshold nearer to 1, or another --layer"
        )
    parts.append(paragraph(ABOUT_REGIONS, "", ""))
    emit(as_json, {"model": model, "about": ABOUT_REGIONS, "images": results}, parts)


def _save_comparison(folder: Path, name: str, pictures: Mapping[str, Image]) -> dict[str, Any]:
    """Write the pictures of several models as one, if there are several; return its path."""
    from ..inspection import stack_pictures, write_pictures

    if len(pictures) < 2:
        return {}
    write_pictures(folder, {f"{name}-compare.png": stack_pictures(pictures)})
    return {"compare": str(folder / f"{name}-compare.png")}


def _of_images(
    run: Run, images: Sequence[Path], compute: Callable[[str, Image], dict[str, Any]], title: str
) -> list[dict[str, Any]]:
    """Return facts on each image file and what `compute` makes of a name for its results and its picture.

    Several processes share the images. Notes on the model and on files are printed.
    """
    from ..runs.inspecting import read_pictures

    def result(item: tuple[Path, str]) -> dict[str, Any]:
        path, name = item
        (picture,), notes = read_pictures(run, [path])
        about = {"image": str(path), "width": picture.width, "height": picture.height}
        return {**about, "note": notes[0] if notes else None, **compute(name, picture)}

    if run.untrained:
        print_note(f"{run.source} has random weights, so what it shows means little")
    results = []
    with progress(title, len(images)) as advance:
        for entry in share(result, zip(images, picture_names(images), strict=True)):
            if entry["note"] is not None:
                print_note(entry["note"])
            results.append(entry)
            advance()
    return results


def picture_names(images: Sequence[Path]) -> list[str]:
    """Return a name for the pictures of each image: its stem, numbered if another image has the same."""
    names: list[str] = []
    for path in images:
        same = sum(other.stem == path.stem for other in images[: len(names)])
        names.append(f"{path.stem}-{same + 1}" if same else path.stem)
    return names


def reconstruct(
    run: RunArgument,
    images: Annotated[
        list[Path] | None, Argument(help="Image files. Default: test images, balanced over classes.")
    ] = None,
    count: Annotated[int, Option(min=1, help="Number of test images, if no files are given.")] = 8,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, help="Seed of the masks.")] = 0,
    checkpoint: CheckpointOption = "last",
    compare: CompareOption = None,
    output: Annotated[
        Path | None,
        Option(help="Picture to write. Default: RUN/reconstruction.png, or with the name of the first image."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw original, masked and reconstructed images side by side, and print the loss of each."""
    opened = open_run(run)
    result = opened.reconstruct(images, count=count, seed=seed, checkpoint=checkpoint)
    results = {opened.name: result}
    for other in compare or ():
        another = open_run(other)
        results[another.name] = another.reconstruct(images, count=count, seed=seed)
    picture = output or opened.output_folder("reconstruction.png", images[0].stem if images else None)
    if compare:
        from ..inspection import stack_pictures, write_pictures

        sheets = {name: one.sheet() for name, one in results.items()}
        write_pictures(picture.parent, {picture.name: stack_pictures(sheets)})
    else:
        result.save(picture)
    compared = {"compare": {name: one.loss for name, one in results.items()}} if compare else {}
    parts = [*result.describe(f"{run}, checkpoint {checkpoint}"), f"picture in {picture}"]
    emit(as_json, {"run": run, **result.to_dict(), "picture": str(picture), **compared}, parts)
