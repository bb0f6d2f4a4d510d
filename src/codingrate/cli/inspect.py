"""`crate inspect`: what a model does inside, layer by layer, as a report that opens in any browser."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import CrateError
from .output import Json, print_json, print_table, progress
from .runs import Loaded, open_model
from .samples import Samples, augment_of, check_pair, open_samples
from .vision import say_note

if TYPE_CHECKING:
    import pandas as pd

    from ..inspection.panel import Panel


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
    start = time.perf_counter()
    if eps is not None and not eps > 0:
        raise CrateError(f"--eps is {eps}; it must be positive")
    opened = _open([model, *(compare or [])], which)
    loaded = next(iter(opened.values()))
    samples = open_samples(loaded, data, path, split, limit, batch)
    tables, seen = _measured(opened, samples, {"eps": eps, "layers": layers, "measure": measure})
    with progress("look inside", 0):
        panels, missing = _panels(loaded, tables, samples, seen, layers)
    options = {
        "--data": data, "--path": path, "--split": split, "--limit": limit, "--compare": compare, "--which": which,
        "--layers": layers, "--eps": eps, "--measure": measure,
    }  # fmt: skip
    facts = {
        **{f"Model {name}": _about_model(one, which) for name, one in opened.items()},
        "Data": {"name": samples.data, "split": samples.split, "samples": seen.count},
        "Command": _command(model, options),
        "Environment": _environment(time.perf_counter() - start),
        **{f"Recipe of {name}": _recipe(one) for name, one in opened.items() if one.recipe is not None},
    }
    notes = [*(f"{one.note}." for one in opened.values() if one.note), *samples.notes, *samples.left_out(), *missing]
    for name, one in opened.items():
        if _body(one) is not one.model:
            notes.append(f"Of {name}, an autoencoder, the encoder is looked into, and sees whole images.")
    _write(panels, facts, notes, opened, output, tables, as_json)


def _open(sources: list[str], which: str) -> dict[str, Loaded]:
    """The models by the name they have in the report, that to look into first."""
    found: list[Loaded] = []
    for source in sources:
        found.append(open_model(source, which))
        for other in found[:-1]:
            check_pair(other, found[-1])
    names = [one.name for one in found]
    return dict(zip(names if len(set(names)) == len(names) else sources, found, strict=True))


def _body(loaded: Loaded) -> Any:
    """What is looked into: of an autoencoder its encoder, which then sees whole images."""
    from ..models import CrateForMaskedAutoencoding

    model = loaded.model
    return model.base_model if isinstance(model, CrateForMaskedAutoencoding) else model


class _Seen:
    """Batches that pass through are counted, and the first images are kept."""

    def __init__(self) -> None:
        self.count = 0
        self.pixels: list[Any] = []

    def passing(self, batches: Iterable[Any], keep: int) -> Iterator[Any]:
        for batch in batches:
            if isinstance(batch, Mapping):
                self.count += len(batch["input_ids"])
            else:
                if self.count < keep:
                    self.pixels.append(batch[: keep - self.count])
                self.count += len(batch)
            yield batch


def _measured(
    opened: dict[str, Loaded], samples: Samples, options: dict[str, Any]
) -> tuple[dict[str, pd.DataFrame], _Seen]:
    """The layer-wise table of every model over the same samples."""
    from ..inspection import layerwise
    from ..inspection.panels import PICTURES

    tables, all_seen = {}, []
    for name, one in opened.items():
        all_seen.append(_Seen())
        with progress(f"measure {name}", samples.total) as advance:
            batches = all_seen[-1].passing(samples.read(one, advance), PICTURES)
            tables[name] = layerwise(_body(one), batches, **options)
    return tables, all_seen[0]


def _panels(
    loaded: Loaded, tables: dict[str, pd.DataFrame], samples: Samples, seen: _Seen, layers: list[int] | None
) -> tuple[list[Panel], list[str]]:
    from ..inspection.panels import language_panels, vision_panels

    metrics = None if loaded.run is None else loaded.run / "metrics.jsonl"
    if loaded.model.config.modality == "vision":
        import torch

        pixels, augment = torch.cat(seen.pixels), augment_of(loaded)
        return vision_panels(_body(loaded), tables, pixels, augment, layers=layers, metrics=metrics)
    batches = samples.read(loaded, lambda _: None)
    return language_panels(loaded.model, tables, batches, samples.tokenizer, layers=layers, metrics=metrics)


def _about_model(loaded: Loaded, which: str) -> dict[str, Any]:
    model = loaded.model
    named = set(type(model.config).field_names()) - {"id2label", "label2id"}  # a thousand names tell little
    config = {key: value for key, value in model.config.to_dict().items() if key in named}
    return {
        "source": loaded.source
        if loaded.run is None or loaded.run != loaded.folder
        else f"{loaded.source}, {which} model",
        "class": type(model).__name__,
        "parameters": model.num_parameters(),
        "config": config,
    }


def _recipe(loaded: Loaded) -> str:
    assert loaded.run is not None  # or there were no recipe
    return (loaded.run / "recipe.yaml").read_text(encoding="utf-8")


def _command(model: str, options: dict[str, Any]) -> str:
    """What to type for this report again, wherever it is written."""
    import shlex

    words = ["crate", "inspect", model]
    defaults = {"--limit": 1000, "--which": "last", "--measure": "paper"}
    for flag, value in options.items():
        if value is not None and value != defaults.get(flag):
            words += [word for one in (value if isinstance(value, list) else [value]) for word in (flag, str(one))]
    return shlex.join(words)


def _environment(seconds: float) -> dict[str, Any]:
    import platform

    import torch

    from .. import __version__

    return {
        "codingrate": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {torch.get_num_threads()} threads",
        "seconds": round(seconds, 1),
    }


def _write(
    panels: list[Panel],
    facts: dict[str, Any],
    notes: list[str],
    opened: dict[str, Loaded],
    output: Path | None,
    tables: dict[str, pd.DataFrame],
    as_json: bool,
) -> None:
    """Write the report and say where it is, with the numbers people look for first."""
    from ..inspection.report import report_json, write_report

    loaded, title = next(iter(opened.values())), f"Inside {' and '.join(opened)}"
    folder = output or (
        Path(f"inspect-{Path(loaded.source).stem}") if loaded.folder is None else loaded.folder / "inspect"
    )
    with progress("draw", len(panels)) as advance:
        report = write_report(folder, panels, facts, notes, title, advance)
    for note in notes:
        say_note(note)
    if as_json:
        print_json({**report_json(panels, facts, notes, title), "report": str(report)})
        return
    data = facts["Data"]
    for name, table in tables.items():
        print_table(
            name,
            ("layer", "R^c", "rate", "non-zero"),
            [
                (f"{row.layer:.0f}", f"{row.compression:.1f}", f"{row.rate:.1f}", f"{row.nonzero:.1%}")
                for row in table.itertuples()
            ],
        )
    print(f"{data['samples']:,} samples of the {data['split']} split of {data['name']}")
    print(f"report: {report}")
