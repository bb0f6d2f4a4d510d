"""Objects that a model finds without labels, measured on COCO and VOC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._attention_mass import MASS
from .._distributed import on_first, share
from .._report import Report, Table
from ..data import load_coco, load_voc
from ..data.objects import CocoImage, VocImage
from ..errors import CrateError
from ..evaluation import Detection, coco_precision, voc_overlap
from ..inspection import attention_maps, default_layer, default_side, find_objects, layer_index, square_input
from ..inspection.segment.cuts import Rule
from ..models.base import CratePreTrainedModel
from .folder import RunFolder
from .inspecting import read_pictures


@dataclass(frozen=True)
class DetectionReport(Report):
    """Average precision or overlap of the objects that a model finds without labels."""

    benchmark: str
    layer: int
    """Index of the layer, from 0; `to_dict` numbers layers from 1."""
    size: int
    result: Any
    """The CocoReport or VocReport."""
    detections: tuple[Detection, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the settings and the values of the result."""
        return {"benchmark": self.benchmark, "layer": self.layer + 1, "size": self.size, **self.result.to_dict()}

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield what the result shows of a layer."""
        return self.result.describe(f"layer {self.layer + 1}{title and f' of {title}'}")

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
    rule: Rule = "symmetric",
) -> DetectionReport:
    """Measure objects found without labels on COCO or VOC; see `Run.detect`."""
    read_pictures(run, [])  # refuses a text model
    augment = run.task.recipe.augment
    if model.config.num_channels != 3:
        raise CrateError(f"{run.source}: the model reads {model.config.num_channels} channel; {benchmark} is in color")
    layer = layer_index(default_layer(model.config) if layer is None else layer, model.config.num_hidden_layers)
    size = default_side(model.config) if size is None else size
    if benchmark == "coco":
        objects = load_coco(data, split, limit)
        found: list[Detection] = []
        settings: dict[str, Any] = {"layer": layer, "side": size, "refine": refine, "rule": rule}
        settings["threshold"] = 0.15 if threshold is None else threshold  # one for all images, as in the paper

        def find(image: CocoImage) -> list[Detection]:
            segments = find_objects(model, image.read(), augment, **settings)
            return [Detection.from_mask(image.id, part.mask, part.box, part.cut_quality) for part in segments]

        with run.progress("maskcut", len(objects.images)) as advance:
            for detections in share(find, objects.images):
                found += detections
                advance()
        precision = on_first(lambda: coco_precision(objects, found))
        return DetectionReport(benchmark, layer, size, precision, tuple(found))
    images = load_voc(data, split, limit)

    def attend(entry: VocImage) -> tuple[np.ndarray[Any, Any], Any]:
        image, labels = entry.read()
        pixels = square_input(model, image, augment, size)[1]
        return attention_maps(model, pixels, layer)[0].float().cpu().numpy(), labels

    def maps() -> Iterator[tuple[np.ndarray[Any, Any], Any]]:
        with run.progress("attention", len(images)) as advance:
            for result in share(attend, images):
                yield result
                advance()

    overlap = voc_overlap(data, maps(), mass=MASS if threshold is None else threshold)
    return DetectionReport(benchmark, layer, size, overlap)
