"""Inspection of runs: reports on several models, attention, segmentation and object discovery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .._report import Report
from ..data import dataset_names, load_coco, load_voc, read_picture, text_names
from ..errors import CrateError
from ..evaluation import Detection, coco_precision, voc_overlap
from ..inspection import (
    InspectionReport,
    Subject,
    attention_maps,
    default_layer,
    default_side,
    find_objects,
    inspect_models,
    square_input,
)
from ..models.base import CratePreTrainedModel
from ..operators.attention_mass import MASS
from ..tasks import Reading, Task
from .folder import Checkpoint, RunFolder

_READS = {"vision": "images", "text": "text"}


def inspect_runs(
    runs: Sequence[RunFolder], task: Task, checkpoint: Checkpoint, reading: Reading, **options: Any
) -> InspectionReport:
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
        yield from (f"{run.source} has random weights, so its report means little." for run in runs if run.untrained)
        yield from samples.notes
        if missing := list(dict.fromkeys(unreadable)):  # every model has read the same images
            yield f"{len(missing)} images could not be read; the first of them is {missing[0]}."

    def subject(name: str, run: RunFolder) -> Subject:
        model, vision = run.loaded(checkpoint), run.task.modality == "vision"
        in_run, own = run.run_folder is not None and run.run_folder == run.folder, None if run is runs[0] else run.task
        return Subject(
            name=name,
            model=model,
            batches=lambda: task.batches(model, own, **reading),
            facts={"source": f"{run.source}, checkpoint {checkpoint}" if in_run else run.source},
            recipe_text=run.recipe_text,
            augment=run.task.recipe.augment if vision else None,
            tokenizer=None if vision else run.task.processor,
            history=None if run.run_folder is None else run.metrics_file,
        )

    subjects = [subject(name, run) for name, run in zip(names, runs, strict=True)]
    data = {"name": samples.data, "split": samples.split, "samples": samples.total}
    return inspect_models(subjects, data=data, notes=notes(), progress=runs[0].progress, **options)


def _check_data(run: RunFolder, task: Task) -> None:
    """Refuse images for a text model, and text for a vision model."""
    name, other = task.recipe.data.name, text_names() if task.modality == "vision" else dataset_names()
    if name in other:
        reads = _READS[task.modality]
        raise CrateError(f"--data {name}: {run.source} reads {reads}; give {reads} instead")


def _check_pair(run: RunFolder, other: RunFolder) -> None:
    """Refuse to compare models that do not read the same samples."""
    one, two = run.task, other.task
    if run.source == other.source:
        raise CrateError(f"--compare {other.source}: this is the model itself; give another one")
    if one.modality != two.modality:
        raise CrateError(
            f"--compare {other.source}: it reads {_READS[two.modality]}, but {run.source} reads {_READS[one.modality]}"
        )
    if one.modality == "vision":
        for key, unit in (("image_size", "pixels a side"), ("channels", "channels")):
            here, there = getattr(one.recipe.augment, key), getattr(two.recipe.augment, key)
            if here != there:
                raise CrateError(f"--compare {other.source}: it reads {there} {unit}, but {run.source} reads {here}")
    elif one.processor.get_vocab() != two.processor.get_vocab():
        raise CrateError(f"--compare {other.source}: its tokenizer differs from that of {run.source}")


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


@dataclass(frozen=True)
class DetectionReport(Report):
    """Average precision or overlap of the objects that a model finds without labels."""

    benchmark: str
    layer: int
    size: int
    result: Any
    """The CocoReport or VocReport."""
    detections: tuple[Detection, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the settings and the values of the result."""
        return {"benchmark": self.benchmark, "layer": self.layer, "size": self.size, **self.result.to_dict()}

    def save(self, folder: str | Path) -> Path:
        """Write metrics.json, and for COCO detections.json in COCO's result format."""
        if self.benchmark == "coco":
            self.result.save(folder, self.detections)
        return super().save(folder)


def detect_objects(
    run: RunFolder,
    model: CratePreTrainedModel,
    data: str,
    benchmark: str = "coco",
    *,
    split: str | None = None,
    layer: int | None = None,
    threshold: float | None = None,
    size: int | None = None,
    limit: int | None = None,
    refine: bool = True,
) -> DetectionReport:
    """Measure objects found without labels on COCO or VOC; see `Run.detect`."""
    read_pictures(run, [])  # refuses a text model
    augment = run.task.recipe.augment
    if model.config.num_channels != 3:
        raise CrateError(f"{run.source}: the model reads {model.config.num_channels} channel; {benchmark} is in color")
    layer = default_layer(model.config) if layer is None else layer
    size = default_side(model.config) if size is None else size
    if benchmark == "coco":
        objects, found = load_coco(data, split, limit), []
        settings: dict[str, Any] = {"layer": layer, "side": size, "refine": refine}
        settings["threshold"] = 0.15 if threshold is None else threshold
        with run.progress("maskcut", len(objects.images)) as advance:
            for image in objects.images:
                segments = find_objects(model, image.read(), augment, **settings)
                found += [Detection.from_mask(image.id, part.mask, part.box, part.score) for part in segments]
                advance()
        return DetectionReport(benchmark, layer, size, coco_precision(objects, found), tuple(found))
    images = load_voc(data, split, limit)

    def maps() -> Iterator[tuple[np.ndarray[Any, Any], Any]]:
        with run.progress("attention", len(images)) as advance:
            for entry in images:
                image, labels = entry.read()
                pixels = square_input(model, image, augment, size)[1]
                yield attention_maps(model, pixels, layer)[0].float().cpu().numpy(), labels
                advance()

    overlap = voc_overlap(data, maps(), mass=MASS if threshold is None else threshold)
    return DetectionReport(benchmark, layer, size, overlap)
