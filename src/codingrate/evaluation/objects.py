"""Objects found without labels: average precision on COCO (MaskCut) and mIoU on PASCAL VOC (attention), paper 4.3."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._attention_mass import MASS, at_size, mass_masks
from .._files import write_text
from .._report import Report, Table
from ..data.objects import BACKGROUND, VOID, CocoData
from ..errors import CrateError, unknown_name

HeadRule = Literal["best", "mean"]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Detection:
    """An object found in an image."""

    image: int  # id of the image
    box: Box  # x, y, width, height in pixels
    score: float  # confidence; a higher score ranks first
    rle: dict[str, Any]  # the mask in COCO's run-length encoding, a few hundred bytes instead of one per pixel

    @classmethod
    def from_mask(cls, image: int, mask: NDArray[np.bool_], box: Box, score: float) -> Detection:
        """Encode a mask (height, width)."""
        from faster_coco_eval.core import mask as codec

        rle = codec.encode(np.asfortranarray(mask, dtype=np.uint8))
        return cls(image, box, score, {"size": list(rle["size"]), "counts": rle["counts"].decode("ascii")})

    def to_coco(self) -> dict[str, Any]:
        """Return the entry of a COCO results file."""
        entry = {"image_id": self.image, "category_id": 1, "bbox": list(self.box), "score": self.score}
        return {**entry, "segmentation": self.rle}


@dataclass(frozen=True)
class Precision:
    """AP averaged over IoU thresholds 0.50, 0.55 … 0.95, and at 0.50 and 0.75; all sizes, at most 100 detections."""

    ap: float
    ap50: float
    ap75: float


@dataclass(frozen=True)
class CocoReport(Report):
    """Average precision of detections, with all classes treated as one."""

    data: str
    images: int
    objects: int
    detections: int
    box: Precision
    mask: Precision | None  # None if no image has annotated masks
    without_masks: int  # number of images left out of the masks' AP because an object in them has only a box

    def save(self, folder: str | Path, detections: Iterable[Detection] = ()) -> Path:
        """Write metrics.json, and detections.json in the format of COCO's tools; return the folder."""
        write_text(Path(folder) / "detections.json", json.dumps([one.to_coco() for one in detections]) + "\n")
        return super().save(folder)

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the precision of boxes and masks, and what was counted."""
        parts = {"boxes": self.box, "masks": self.mask}
        rows = [
            (name, *(f"{100 * value:.2f}" for value in (part.ap50, part.ap75, part.ap)))
            for name, part in parts.items()
            if part is not None
        ]
        yield Table(title or f"objects of {self.data}", ("", "AP50", "AP75", "AP"), rows)
        partial = f"; {self.without_masks} images without masks count only for boxes" if self.without_masks else ""
        yield f"{self.detections} detections, {self.objects} objects, {self.images} images, one class{partial}"


def coco_precision(data: CocoData, detections: Sequence[Detection]) -> CocoReport:
    """Compute the AP of detections with COCO's metric, as implemented by faster-coco-eval.

    All classes are treated as one, as in the paper. Detections with equal scores are ordered by image id, then as
    given.
    """
    if not any(not annotated.crowd for annotated in data.objects):
        raise CrateError(f"{data.name}: there are no annotated objects; use annotations with at least one")
    known = {image.id for image in data.images}
    unknown = next((one.image for one in detections if one.image not in known), None)
    if unknown is not None:
        raise CrateError(f"a detection is of image {unknown}, which {data.name} does not contain; use the same images")
    with_masks = known - {annotated.image for annotated in data.objects if annotated.outline is None}
    has_masks = any(not annotated.crowd and annotated.image in with_masks for annotated in data.objects)
    return CocoReport(
        data=data.name,
        images=len(data.images),
        objects=len(data.objects),
        detections=len(detections),
        box=_precision(data, detections, known, "bbox"),
        mask=_precision(data, detections, with_masks, "segm") if has_masks else None,
        without_masks=len(known - with_masks),
    )


def _precision(
    data: CocoData, detections: Sequence[Detection], image_ids: set[int], kind: Literal["bbox", "segm"]
) -> Precision:
    """Measure the detections of some images by their boxes or by their masks."""
    detections = [one for one in detections if one.image in image_ids]
    if not detections:  # `loadRes` needs at least one
        return Precision(0.0, 0.0, 0.0)
    from faster_coco_eval import COCO, COCOeval_faster

    images = [{"id": i.id, "width": i.width, "height": i.height} for i in data.images if i.id in image_ids]
    annotations = [
        {
            "id": number, "image_id": annotated.image, "category_id": 1, "bbox": list(annotated.box),
            "area": annotated.area, "iscrowd": int(annotated.crowd),
            **({"segmentation": annotated.outline} if kind == "segm" else {}),
        }
        for number, annotated in enumerate((one for one in data.objects if one.image in image_ids), 1)
    ]  # fmt: skip
    unused = "segmentation" if kind == "bbox" else "bbox"
    results = [{key: value for key, value in one.to_coco().items() if key != unused} for one in detections]
    truth = COCO({"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "object"}]})
    evaluator = COCOeval_faster(truth, truth.loadRes(results), kind, print_function=lambda *_: None)
    evaluator.run()
    values = evaluator.stats_as_dict
    return Precision(*(float(values[key]) for key in ("AP_all", "AP_50", "AP_75")))


@dataclass(frozen=True)
class VocReport(Report):
    """Mean intersection over union (IoU) of attention masks with the classes of a split."""

    data: str
    images: int  # number of images that contain a class
    miou: float  # mean over images of the mean IoU of their classes
    per_class: dict[int, float]  # mean IoU of each class over the images that contain it
    mass: float  # share of the attention that a mask keeps
    heads: HeadRule  # how the IoUs of several heads are combined

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the mIoU in a sentence."""
        masks = f"masks of {self.mass:.0%} of the attention{title and f' of {title}'}"
        yield f"mIoU {self.miou:.2%}, {self.images} images; {masks}, {self.heads} head for each class"


def class_overlaps(masks: NDArray[np.bool_], labels: NDArray[np.uint8], heads: HeadRule = "best") -> dict[int, float]:
    """Return the IoU of the heads' masks (K, rows, columns) with each class of a label map (height, width).

    For each class, `heads` selects the best head or the mean over heads. Masks are scaled to the size of the map by
    nearest neighbor. Void pixels are ignored; the public script means to do the same but counts them in the union.
    """
    if heads not in ("best", "mean"):
        raise unknown_name("heads", heads, ("best", "mean"))
    scaled = at_size(masks, *labels.shape) & (labels != VOID)
    overlaps = {}
    for number in np.setdiff1d(labels, (BACKGROUND, VOID)):
        inside = labels == number
        ratios = (scaled & inside).sum(axis=(1, 2)) / (scaled | inside).sum(axis=(1, 2))
        overlaps[int(number)] = float(ratios.max() if heads == "best" else ratios.mean())
    return overlaps


def voc_overlap(
    name: str, pairs: Iterable[tuple[NDArray[Any], NDArray[np.uint8]]], *, mass: float = MASS, heads: HeadRule = "best"
) -> VocReport:
    """Compute the mIoU over pairs of attention maps (K, rows, columns) and label maps (height, width), one per image.

    The paper gives no procedure for its number. This is the public one for attention maps, with DINO's share of mass.
    """
    means: list[float] = []
    by_class: dict[int, list[float]] = {}
    for attention, labels in pairs:
        overlaps = class_overlaps(mass_masks(attention, mass), labels, heads)
        for number, value in overlaps.items():
            by_class.setdefault(number, []).append(value)
        if overlaps:
            means.append(sum(overlaps.values()) / len(overlaps))
    if not means:
        raise CrateError(f"{name}: no label map contains a class; use images with objects")
    per_class = {number: sum(values) / len(values) for number, values in sorted(by_class.items())}
    return VocReport(name, len(means), sum(means) / len(means), per_class, mass, heads)
