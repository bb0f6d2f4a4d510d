"""`crate predict` and `crate export`: use a trained model on own inputs, here or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from .._report import Table
from .output import CheckpointOption, Json, ModelArgument, RunArgument, emit, open_run


def predict(
    model: ModelArgument,
    inputs: Annotated[list[str], Argument(help="Image files, folders of images, or texts; a tab separates a pair.")],
    top: Annotated[int, Option(min=1, help="Number of classes or candidates to show.")] = 3,
    checkpoint: CheckpointOption = "last",
    output: Annotated[Path | None, Option(help="File for the predictions as JSON, or .npy for features.")] = None,
    as_json: Json = False,
) -> None:
    """Predict classes with probabilities, numbers, text, tokens or features: what the run was trained for."""
    run = open_run(model)
    names, values = _inputs(run.task.modality, inputs)
    answers = run.predict(values, checkpoint=checkpoint)
    entries = [{"input": name, **_entry(answer, top)} for name, answer in zip(names, answers, strict=True)]
    if output is not None:
        _write(output, entries)
    title = f"{model}, checkpoint {checkpoint}"
    parts = [Table(title, ("input", *columns.split("|")), rows) for columns, rows in _tables(entries).items()]
    saved = [] if output is None else [f"predictions in {output}"]
    emit(as_json, {"model": model, "checkpoint": checkpoint, "predictions": entries}, [*parts, *saved])


def _inputs(modality: str, inputs: Sequence[str]) -> tuple[list[str], list[Any]]:
    """Return names and values of the inputs: files, with those in folders, or texts and pairs of texts."""
    if modality == "vision":
        files = [str(file) for text in inputs for file in _image_files(Path(text))]
        return files, list(files)
    return list(inputs), [text if "\t" not in text else tuple(text.split("\t", 1)) for text in inputs]


def _image_files(path: Path) -> list[Path]:
    """Return an image file itself, or the images below a folder in order of their names."""
    from ..data.sources import IMAGE_SUFFIXES
    from ..errors import CrateError

    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise CrateError(f"{path}: there are no images in the folder")
    return files


def _entry(answer: Any, top: int) -> dict[str, Any]:
    """Return a task's answer under the name of its kind."""
    if isinstance(answer, str):
        return {"text": answer}
    if isinstance(answer, float):
        return {"number": answer}
    if not isinstance(answer, list):
        return {"features": answer.tolist()}
    if answer and isinstance(answer[0], list):
        return {"masks": [candidates[:top] for candidates in answer]}
    return {"classes": answer[:top]}


def _tables(entries: list[dict[str, Any]]) -> dict[str, list[tuple[str, ...]]]:
    """Return rows to print by the titles of their columns."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for entry in entries:
        name = entry["input"]
        if "classes" in entry:
            shown = [(part["label"], f"{part['score']:.2%}") for part in entry["classes"]]
            rows.setdefault("class|probability", []).extend(
                (name if index == 0 else "", *part) for index, part in enumerate(shown)
            )
        elif "masks" in entry:
            rows.setdefault("mask|token|probability", []).extend(
                (name, str(number), repr(part.token), f"{part.probability:.2%}")
                for number, candidates in enumerate(entry["masks"], 1)
                for part in candidates
            )
        elif "features" in entry:
            rows.setdefault("features", []).append((name, f"{len(entry['features'])} values; see --json or --output"))
        else:
            (kind,) = entry.keys() - {"input"}
            rows.setdefault(kind, []).append((name, str(entry[kind])))
    return rows


def _write(path: Path, entries: list[dict[str, Any]]) -> None:
    """Write predictions to a JSON file, or features to a NumPy file with a row for each input."""
    from .._files import atomic_write, write_json
    from ..errors import CrateError

    if path.suffix != ".npy":
        write_json(path, entries)
        return
    if "features" not in entries[0]:
        raise CrateError(f"--output {path}: only features can be written as .npy; use .json")
    import numpy as np

    with atomic_write(path) as draft, draft.open("wb") as file:
        np.save(file, np.array([entry["features"] for entry in entries], dtype=np.float32))


def export(
    run: RunArgument,
    output: Annotated[Path | None, Option(help="File to write. Default: RUN/model.onnx.")] = None,
    checkpoint: CheckpointOption = "last",
    as_json: Json = False,
) -> None:
    """Export a model to ONNX with a free batch size, and check it against PyTorch with onnxruntime."""
    opened = open_run(run)
    result = opened.export(output or opened.output_folder("model.onnx"), checkpoint=checkpoint)
    names = {key: ", ".join(result[key]) for key in ("inputs", "outputs")}
    emit(
        as_json,
        {"run": run, "checkpoint": checkpoint, **result},
        [
            f"wrote {result['file']}, {result['bytes'] / 1e6:.1f} MB: {names['inputs']} → {names['outputs']}",
            f"largest difference from PyTorch {result['difference']:.1e} at batch sizes {result['batch_sizes']}",
        ],
    )


def publish(
    run: RunArgument,
    folder: Annotated[Path, Argument(help="New folder to write.")],
    data: Annotated[str | None, Option(help="Name under which others know the dataset. Default: the run's.")] = None,
    about: Annotated[
        Path | None, Option(help="Markdown file with further paragraphs of the model card: results, license, limits.")
    ] = None,
    samples: Annotated[int, Option(min=1, help="Number of samples to store with the model's metrics on them.")] = 32,
    checkpoint: CheckpointOption = "last",
    as_json: Json = False,
) -> None:
    """Write a run to share: 16-bit weights, recipe, metrics, a model card, and a sample to check a copy with."""
    from ..runs import publish as publish_run

    text = "" if about is None else about.read_text(encoding="utf-8")
    options: dict[str, Any] = {"data": data, "about": text, "samples": samples, "checkpoint": checkpoint}
    written = publish_run(open_run(run), folder, **options)
    size = sum(file.stat().st_size for file in written.rglob("*") if file.is_file())
    values = {"run": run, "checkpoint": checkpoint, "folder": str(written), "bytes": size}
    emit(as_json, values, [f"wrote {written}, {size / 1e6:.1f} MB; open it with codingrate.Run({str(written)!r})"])
