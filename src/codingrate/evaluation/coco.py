"""Average precision of found objects on COCO, of boxes and of masks, without classes (paper 4.3, table of MaskCut)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._files import atomic_write
from ..data import CocoData, CocoObject
from ..errors import CrateError


@dataclass(frozen=True)
class Detection:
    """An object found in an image."""

    image: int
    """The image's id."""
    box: tuple[float, float, float, float]
    """x, y, width, height in pixels."""
    score: float
    code: dict[str, Any]
    """Its mask as COCO's run-length code, some hundred bytes in place of one per pixel."""

    @staticmethod
    def of(image: int, mask: NDArray[np.bool_], box: tuple[float, float, float, float], score: float) -> Detection:
        """From a mask (height, width)."""
        from faster_coco_eval.core import mask as codes

        return Detection(image, box, score, codes.encode(np.asfortranarray(mask, dtype=np.uint8)))


@dataclass(frozen=True)
class Precision:
    """AP over overlaps 0.50, 0.55 … 0.95, and at 0.50 and 0.75; of any size, at most 100 an image."""

    ap: float
    ap50: float
    ap75: float


@dataclass(frozen=True)
class CocoReport:
    """How well objects were found."""

    data: str
    images: int
    objects: int
    detections: int
    box: Precision
    mask: Precision | None
    """None where no image has masks to compare with."""
    without_masks: int
    """Images left out of the masks' AP, because an object in them has a box only."""

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)

    def save(self, folder: Path, detections: Iterable[Detection] = ()) -> None:
        """Write metrics.json, and detections.json as COCO's own tools read it."""
        rows = [
            {
                "image_id": one.image, "category_id": 1, "bbox": list(one.box), "score": one.score,
                "segmentation": {"size": list(one.code["size"]), "counts": _text(one.code["counts"])},
            }
            for one in detections
        ]  # fmt: skip
        for name, content in (("metrics.json", self.to_json()), ("detections.json", rows)):
            with atomic_write(folder / name) as draft:
                draft.write_text(json.dumps(content, indent=2 if name == "metrics.json" else None) + "\n")


def coco_precision(data: CocoData, detections: Sequence[Detection]) -> CocoReport:
    """AP of detections by COCO's own metric, computed by faster-coco-eval.

    All classes are one, as in the paper's protocol. Where scores tie, detections count in the order of their images'
    ids and then as given.
    """
    if not any(not thing.crowd for thing in data.objects):
        raise CrateError(f"{data.name}: has no objects to find; give annotations with some")
    known = {image.id for image in data.images}
    unknown = next((one.image for one in detections if one.image not in known), None)
    if unknown is not None:
        raise CrateError(f"a detection is of image {unknown}, which {data.name} has not; give both the same images")
    drawn = known - {thing.image for thing in data.objects if thing.outline is None}
    masked = [thing for thing in data.objects if thing.image in drawn]
    with_masks = any(not thing.crowd for thing in masked)
    return CocoReport(
        data=data.name,
        images=len(data.images),
        objects=len(data.objects),
        detections=len(detections),
        box=_precision(data, data.objects, detections, known, "bbox"),
        mask=_precision(data, masked, [one for one in detections if one.image in drawn], drawn, "segm")
        if with_masks
        else None,
        without_masks=len(known - drawn),
    )


def _precision(
    data: CocoData, objects: Iterable[CocoObject], detections: Sequence[Detection], chosen: set[int], kind: str
) -> Precision:
    if not detections:  # what the metric comes to, and its readers of results want at least one
        return Precision(0.0, 0.0, 0.0)
    from faster_coco_eval import COCO, COCOeval_faster

    images = [{"id": i.id, "width": i.width, "height": i.height} for i in data.images if i.id in chosen]
    truth = [
        {
            "id": number, "image_id": thing.image, "category_id": 1, "bbox": list(thing.box), "area": thing.area,
            "iscrowd": int(thing.crowd), **({"segmentation": thing.outline} if kind == "segm" else {}),
        }
        for number, thing in enumerate(objects, 1)
    ]  # fmt: skip
    found = [
        {
            "image_id": one.image, "category_id": 1, "score": one.score,
            **({"bbox": list(one.box)} if kind == "bbox" else {"segmentation": one.code}),
        }
        for one in detections
    ]  # fmt: skip
    reference = COCO({"images": images, "annotations": truth, "categories": [{"id": 1, "name": "object"}]})
    measure = COCOeval_faster(reference, reference.loadRes(found), kind, print_function=_silent)
    measure.run()
    values = measure.stats_as_dict
    return Precision(*(float(values[key]) for key in ("AP_all", "AP_50", "AP_75")))


def _silent(*_: Any) -> None: ...


def _text(code: Any) -> str:
    return code.decode("ascii") if isinstance(code, bytes) else str(code)
