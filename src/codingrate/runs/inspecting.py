"""Inspection of runs: reports on several models, and pictures as a model reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from PIL import Image

from .. import inspection
from ..data import dataset_names, read_picture, text_names
from ..errors import CrateError
from ..models.base import CratePreTrainedModel
from ..recipes.schema import MUST_GIVE
from ..tasks import Reading, Task
from .folder import UNTRAINED, Checkpoint, RunFolder

_READS = {"vision": "images", "text": "text"}


def inspect_runs(
    runs: Sequence[RunFolder], task: Task, checkpoint: Checkpoint, reading: Reading, **options: Any
) -> inspection.InspectionReport:
    """Measure the models of runs on the samples of a task; see `Run.inspect`. The first model is shown in detail."""
    _check_data(runs[0], task)
    for index, run in enumerate(runs):
        for other in runs[:index]:
            _check_pair(other, run)
    samples = task.samples(reading.get("split"), reading["limit"])
    names = [run.name for run in runs]
    names = names if len(set(names)) == len(names) else [run.source for run in runs]
    unreadable = reading.setdefault("unreadable", [])

    def notes() -> Iterator[str]:  # consumed after the samples have been read
        if runs[0].untrained:
            yield f"{runs[0].source} has random weights, so its report means little."
        yield from samples.notes
        if missing := list(dict.fromkeys(unreadable)):  # every model has read the same images
            yield f"{len(missing)} images could not be read; the first of them is {missing[0]}."

    def subject(name: str, run: RunFolder) -> inspection.Subject:
        model, vision = run.loaded(checkpoint), run.task.modality == "vision"
        in_run, own = run.run_folder is not None and run.run_folder == run.folder, None if run is runs[0] else run.task
        return inspection.Subject(
            name=name,
            model=model,
            batches=lambda: task.batches(model, own, **reading),
            facts={"source": f"{run.source}, checkpoint {checkpoint}" if in_run else run.source},
            recipe_text=run.recipe_text,
            augment=run.task.recipe.augment if vision else None,
            tokenizer=None if vision else run.task.processor,
            history=None if run.run_folder is None or run.before_training else run.metrics_file,
            trained=not (run.untrained or run.before_training),
            outcome=(lambda images: outcome_of(run, model, images)) if has_data else None,
        )

    def outcome_of(run: RunFolder, model: CratePreTrainedModel, images: Sequence[Image.Image]) -> inspection.Outcome:
        """Measure a model by its own task, with its own preprocessing, on the samples."""
        own = run.task
        same = run is runs[0] or (task.modality == "text" and type(own) is type(task))  # equal tokenizers
        sections: Any = {"data": task.recipe.data, "text": task.recipe.text}
        by = task if same else type(own)(replace(own.recipe, **sections), own.paths)
        return by.outcome(model, images, own_data and same, **read)

    read: Any = {key: value for key, value in reading.items() if key != "unreadable"}  # counted once
    has_data = task.recipe.data.name != MUST_GIVE
    own_data = task is runs[0].task and runs[0].recipe is not None
    subjects = [subject(name, run) for name, run in zip(names, runs, strict=True)]
    if options.get("controls") and subjects[0].trained:
        options["untrained"] = subject(UNTRAINED, cast(Any, runs[0]).without_training())
    data = {"name": samples.data, "split": samples.split, "samples": samples.total}
    return inspection.inspect_models(subjects, data=data, notes=notes(), progress=runs[0].progress, **options)


def _check_data(run: RunFolder, task: Task) -> None:
    """Refuse images for a text model, and text for a vision model."""
    name, other = task.recipe.data.name, text_names() if task.modality == "vision" else dataset_names()
    if name in other:
        reads = _READS[task.modality]
        raise CrateError(f"`data={name!r}`: {run.source} reads {reads}; give {reads} instead")


def _check_pair(run: RunFolder, other: RunFolder) -> None:
    """Refuse to compare models that do not read the same samples."""
    one, two = run.task, other.task
    if run.source == other.source:
        raise CrateError(f"`compare={other.source!r}`: this is the model itself; give another one")
    if one.modality != two.modality:
        raise CrateError(
            f"`compare={other.source!r}`: it reads {_READS[two.modality]}, "
            f"but {run.source} reads {_READS[one.modality]}"
        )
    if one.modality == "vision":
        for key, unit in (("image_size", "pixels a side"), ("channels", "channels")):
            here, there = getattr(one.recipe.augment, key), getattr(two.recipe.augment, key)
            if here != there:
                raise CrateError(f"`compare={other.source!r}`: it reads {there} {unit}, but {run.source} reads {here}")
    elif one.processor.get_vocab() != two.processor.get_vocab():
        raise CrateError(f"`compare={other.source!r}`: its tokenizer differs from that of {run.source}")


def read_pictures(run: RunFolder, images: Sequence[Any]) -> tuple[list[Image.Image], list[str]]:
    """Return image files or PIL images as pictures with the channels of the run's model, and notes on large ones."""
    if run.task.modality != "vision":
        raise CrateError(f"{run.source}: the model reads text; use a vision model")
    pictures, notes = [], []
    for image in images:
        if isinstance(image, (str, Path)):
            picture, note = read_picture(image, run.task.recipe.augment.channels)
            notes += [] if note is None else [note]
        else:
            picture = image.convert("L" if run.task.recipe.augment.channels == 1 else "RGB")
        pictures.append(picture)
    return pictures, notes
