"""`crate inspect`: what a model does inside, layer by layer, as a report that opens in any browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import CrateError
from .output import Json, print_json, print_table, progress
from .runs import Loaded, open_model
from .samples import Samples, augment_of, check_pair, open_samples
from .vision import say_note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..inspection import InspectionReport, Subject


def inspect(
    model: Annotated[str, typer.Argument(help="A run folder, a saved model, a checkpoint file or a model by name.")],
    data: Annotated[str | None, typer.Option(help="Other data than the run's: a name, a path or a hub id.")] = None,
    path: Annotated[str | None, typer.Option(help="Where the files of a known --data name lie.")] = None,
    split: Annotated[str | None, typer.Option(help="train or test, by default test; of text validation.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Images, or pieces of text, that are measured at most.")] = 1000,
    compare: Annotated[
        list[str] | None, typer.Option(help="Another model to measure on the same samples; may be repeated.")
    ] = None,
    which: Annotated[str, typer.Option(help="A run's best model or its last.")] = "last",
    batch: Annotated[int, typer.Option(min=1, help="Images, or pieces of text, at a time.")] = 64,
    layers: Annotated[
        list[int] | None,
        typer.Option(help="Layer to look at, from 0 or from the end; may be repeated; all.", show_default=False),
    ] = None,
    eps: Annotated[float | None, typer.Option(help="ε of the rates; 0.5, with --measure released 0.1.")] = None,
    measure: Annotated[
        str, typer.Option(help="paper or released: R^c as defined, or as the authors' script computes it.")
    ] = "paper",
    output: Annotated[Path | None, typer.Option(help="Folder for the report; RUN/inspect, or inspect-NAME.")] = None,
    as_json: Json = False,
) -> None:
    """Measure every layer against the objective, look at subspaces, tokens and attention, and write report.html."""
    if eps is not None and not eps > 0:
        raise CrateError(f"--eps is {eps}; it must be positive")
    opened = _open([model, *(compare or [])], which)
    loaded = next(iter(opened.values()))
    samples = open_samples(loaded, data, path, split, limit, batch)
    options = {
        "--data": data, "--path": path, "--split": split, "--limit": limit, "--compare": compare, "--which": which,
        "--layers": layers, "--eps": eps, "--measure": measure,
    }  # fmt: skip
    from ..inspection import inspect_models

    report = inspect_models(
        [_subject(name, one, samples, which) for name, one in opened.items()],
        data={"name": samples.data, "split": samples.split, "samples": samples.total},
        layers=layers,
        eps=eps,
        measure=measure,
        notes=_notes(opened, samples),
        command=_command(model, options),
        progress=progress,
    )
    folder = output or (
        Path(f"inspect-{Path(loaded.source).stem}") if loaded.folder is None else loaded.folder / "inspect"
    )
    with progress("draw", len(report.panels)) as advance:
        report.save(folder, advance)
    _print(report, folder / "report.html", as_json)


def _open(sources: list[str], which: str) -> dict[str, Loaded]:
    """The models by the name they have in the report, that to look into first."""
    found: list[Loaded] = []
    for source in sources:
        found.append(open_model(source, which))
        for other in found[:-1]:
            check_pair(other, found[-1])
    names = [one.name for one in found]
    return dict(zip(names if len(set(names)) == len(names) else sources, found, strict=True))


def _subject(name: str, loaded: Loaded, samples: Samples, which: str) -> Subject:
    """A model with its samples, as the library inspects it."""
    from ..inspection import Subject

    source, run = loaded.source, loaded.run
    return Subject(
        name,
        loaded.model,
        lambda: samples.read(loaded, lambda _: None),
        {"source": source if run is None or run != loaded.folder else f"{source}, {which} model"},
        recipe_text=None if run is None else (run / "recipe.yaml").read_text(encoding="utf-8"),
        augment=augment_of(loaded) if loaded.model.config.modality == "vision" else None,
        tokenizer=samples.tokenizer,
        history=None if run is None else run / "metrics.jsonl",
    )


def _notes(opened: dict[str, Loaded], samples: Samples) -> Iterator[str]:
    """What to know of the models and, once they were read, of the samples."""
    yield from (f"{one.note}." for one in opened.values() if one.note)
    yield from samples.notes
    yield from samples.left_out()


def _command(model: str, options: dict[str, Any]) -> str:
    """What to type for this report again, wherever it is written."""
    import shlex

    words = ["crate", "inspect", model]
    defaults = {"--limit": 1000, "--which": "last", "--measure": "paper"}
    for flag, value in options.items():
        if value is not None and value != defaults.get(flag):
            words += [word for one in (value if isinstance(value, list) else [value]) for word in (flag, str(one))]
    return shlex.join(words)


def _print(report: InspectionReport, page: Path, as_json: bool) -> None:
    """Say where the report is, with the numbers people look for first."""
    for note in report.notes:
        say_note(note)
    if as_json:
        print_json({**report.to_dict(), "report": str(page)})
        return
    for name, table in report.tables.items():
        print_table(
            name,
            ("layer", "R^c", "rate", "non-zero"),
            [
                (f"{row.layer:.0f}", f"{row.compression:.1f}", f"{row.rate:.1f}", f"{row.nonzero:.1%}")
                for row in table.itertuples()
            ],
        )
    data: Any = report.facts["Data"]
    print(f"{data['samples']:,} samples of the {data['split']} split of {data['name']}")
    print(f"report: {page}")
