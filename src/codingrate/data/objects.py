"""Images with annotated objects: COCO (a JSON file and a folder of images) and PASCAL VOC (a class per pixel)."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, Field, NonNegativeInt, ValidationError
from typing_extensions import TypedDict

from .._files import as_path
from ..errors import CrateError, check_positive, validation_error
from .image_files import read_picture

COCO_SPLIT = "val2017"
"""Split of COCO on which the paper evaluates."""
BACKGROUND, VOID = 0, 255
"""Labels of VOC's pixels without a class: around the objects, and along their borders."""


@dataclass(frozen=True)
class CocoImage:
    """An image file and the size that its annotations refer to."""

    id: int
    file: Path
    width: int
    height: int

    def read(self) -> Image.Image:
        """Return the stored pixels, to which the annotations refer; refuse an image of another size."""
        image, _ = read_picture(self.file, upright=False, largest=None)
        if image.size != (self.width, self.height):
            raise CrateError(
                f"{self.file}: has {image.width} × {image.height} pixels, "
                f"but its annotations are for {self.width} × {self.height}; use the images that were annotated"
            )
        return image


@dataclass(frozen=True)
class CocoObject:
    """An annotated object, without its class, because objects that are found without labels have none."""

    image: int
    """Id of its image."""
    box: tuple[float, float, float, float]
    """x, y, width and height in pixels."""
    area: float
    outline: list[Any] | dict[str, Any] | None
    """Polygons or a run-length encoding; None if only the box was annotated."""
    crowd: bool
    """Whether this is a region with any number of objects."""


@dataclass(frozen=True)
class CocoData:
    """Images and their objects."""

    name: str
    images: tuple[CocoImage, ...]
    objects: tuple[CocoObject, ...]


Coordinate = Annotated[float, Field(gt=-(2**31), lt=2**31)]
Length = Annotated[float, Field(ge=0, lt=2**31)]
Pixels = Annotated[int, Field(gt=0)]
Polygon = Annotated[list[Coordinate], Field(min_length=6)]


class _RunLengths(TypedDict):
    size: list[int]
    counts: str | list[NonNegativeInt]


class _ImageRecord(BaseModel):
    id: int
    file_name: str
    width: Pixels
    height: Pixels


class _ObjectRecord(BaseModel):
    image_id: int
    bbox: tuple[Coordinate, Coordinate, Length, Length]
    area: Coordinate | None = None
    segmentation: list[Polygon] | _RunLengths | None = Field(default=None, union_mode="left_to_right")
    iscrowd: int | bool = 0


class _Annotations(BaseModel):
    """The parts of an annotation file in COCO's format (instances_*.json) that are read."""

    images: Annotated[list[_ImageRecord], Field(min_length=1)]
    annotations: list[_ObjectRecord]


def load_coco(path: str | Path, split: str | None = None, limit: int | None = None) -> CocoData:
    """Load COCO from an annotation file, or from a folder with annotations.json or annotations/instances_SPLIT.json.

    The images are beside the file, in `images`, or in a folder with the name of the split. `limit` takes the first
    images only.
    """
    file = _annotation_file(as_path(path, "COCO"), split)
    check_positive(limit=limit)
    try:
        content = _Annotations.model_validate_json(file.read_bytes(), strict=True)
    except ValidationError as error:
        if error.errors(include_input=False)[0]["type"] == "json_invalid":
            raise CrateError(f"{file}: cannot be read as JSON; download it again") from None
        raise CrateError(f"{file}: {validation_error(error)}; use annotations in COCO's format") from None
    except OSError as error:
        raise CrateError(f"{file}: cannot be read ({error.strerror or error})") from error
    folder = _image_folder(file, content.images[0].file_name)
    images = [CocoImage(image.id, folder / image.file_name, image.width, image.height) for image in content.images]
    missing = [image.file.name for image in images[:limit] if not os.path.isfile(image.file)]
    if missing:
        raise CrateError(
            f"{file}: {len(missing)} of its {len(images[:limit])} images are not in {folder}; the first is {missing[0]}"
        )
    sizes, ids = {image.id: (image.height, image.width) for image in images}, {image.id for image in images[:limit]}
    objects = [_coco_object(file, record, sizes) for record in content.annotations]
    return CocoData(str(path), tuple(images[:limit]), tuple(one for one in objects if one.image in ids))


def _coco_object(file: Path, record: _ObjectRecord, sizes: Mapping[int, tuple[int, int]]) -> CocoObject:
    image, outline = record.image_id, record.segmentation or None
    if image not in sizes:
        raise CrateError(f"{file}: an annotation is for image {image}, which is not listed; the file is incomplete")
    if isinstance(outline, dict):
        if outline["size"] != list(sizes[image]):
            raise CrateError(
                f"{file}: a mask of image {image} has height and width {outline['size']}, "
                f"but the image {list(sizes[image])}; use matching annotations"
            )
        if _mask_pixels(outline["counts"]) != math.prod(sizes[image]):
            raise CrateError(f"{file}: the run lengths of a mask of image {image} do not add up to its pixels")
    area = record.bbox[2] * record.bbox[3] if record.area is None else record.area
    return CocoObject(image, record.bbox, area, cast(Any, outline), bool(record.iscrowd))


def _mask_pixels(counts: str | list[int]) -> int | None:
    """Return the number of pixels that run lengths cover, a list or COCO's code of six bits a character, if valid."""
    if not isinstance(counts, str):
        return sum(counts)
    runs, value, shift = [0, 0, 0], 0, 0  # a run is coded as the difference from the second last, from the third on
    for code in (ord(character) - 48 for character in counts):
        if not 0 <= code < 64 or shift > 30:
            return None
        value, shift = value | (code & 31) << shift, shift + 5
        if not code & 32:  # the last part of a number; its highest bit is the sign
            value -= (code & 16) << (shift - 4)
            runs.append(value + (runs[-2] if len(runs) > 5 else 0))
            value, shift = 0, 0
    return None if shift or min(runs) < 0 else sum(runs)


def _annotation_file(path: Path, split: str | None) -> Path:
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        raise CrateError(f"{path}: no such file or folder; use a folder in COCO's format or its .json file")
    wanted = path / "annotations" / f"instances_{split or COCO_SPLIT}.json"
    available = sorted(wanted.parent.glob("instances_*.json"))
    if wanted not in available and available and (split is not None or len(available) > 1):
        names = ", ".join(file.stem.removeprefix("instances_") for file in available)
        raise CrateError(f"{path}: has no annotations of split {split or COCO_SPLIT!r}; its splits are {names}")
    files = [file for file in (wanted, path / "annotations.json", *available) if file.is_file()]
    if not files:
        raise CrateError(f"{path}: has neither annotations.json nor annotations/instances_*.json; name the .json file")
    return files[0]


def _image_folder(file: Path, first: str) -> Path:
    """Return the folder that has the first image."""
    base = file.parent.parent if file.parent.name == "annotations" else file.parent
    split = file.stem.removeprefix("instances_")
    folders = [folder for folder in (base / "images", base / split, base / "images" / split, base) if folder.is_dir()]
    for folder in folders:
        if os.path.isfile(folder / first):
            return folder
    searched = ", ".join(map(str, dict.fromkeys(folders)))
    raise CrateError(f"{file}: its first image {first} is in none of {searched}; put the images beside the file")


@dataclass(frozen=True)
class VocImage:
    """An image and its map of classes."""

    file: Path
    label_file: Path

    def read(self) -> tuple[Image.Image, NDArray[np.uint8]]:
        """Return the image, and the class of every pixel (height, width)."""
        image, _ = read_picture(self.file, upright=False, largest=None)
        stored, _ = read_picture(self.label_file, None, upright=False, largest=None)
        if stored.mode not in ("P", "L"):
            raise CrateError(f"{self.label_file}: has colors ({stored.mode}), not classes; use VOC's palette images")
        if stored.size != image.size:
            raise CrateError(
                f"{self.label_file}: has {stored.width} × {stored.height} pixels, "
                f"but its image {image.width} × {image.height}; unpack VOC again"
            )
        return image, np.array(stored).astype(np.uint8)


def load_voc(path: str | Path, split: str | None = None, limit: int | None = None) -> tuple[VocImage, ...]:
    """Return the segmented images of a split (default `val`); `path` is VOC2012 or a folder above it."""
    path, split = as_path(path, "VOC"), split or "val"
    check_positive(limit=limit)
    roots = (path, *sorted(path.glob("VOC*"), reverse=True), *sorted(path.glob("VOCdevkit/VOC*"), reverse=True))
    root = next((folder for folder in roots if (folder / "ImageSets" / "Segmentation").is_dir()), None)
    if root is None:
        raise CrateError(f"{path}: has no ImageSets/Segmentation; use the folder VOC2012 of PASCAL VOC")
    file = root / "ImageSets" / "Segmentation" / f"{split}.txt"
    if not file.is_file():
        known = ", ".join(sorted(entry.stem for entry in file.parent.glob("*.txt"))) or "none"
        raise CrateError(f"{path}: has no split {split!r}; its splits are {known}")
    try:
        names = file.read_text(encoding="utf-8").split()[:limit]
    except (OSError, ValueError) as error:
        raise CrateError(f"{file}: cannot be read as text ({error})") from error
    if not names:
        raise CrateError(f"{file}: lists no images")
    folders = root / "JPEGImages", root / "SegmentationClass"
    images = tuple(VocImage(folders[0] / f"{name}.jpg", folders[1] / f"{name}.png") for name in names)
    missing = [part for image in images for part in (image.file, image.label_file) if not os.path.isfile(part)]
    if missing:
        raise CrateError(f"{file}: {len(missing)} of the files that it lists are missing; the first is {missing[0]}")
    return images
