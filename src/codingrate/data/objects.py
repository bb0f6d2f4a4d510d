"""Images with annotated objects: COCO (a JSON file and a folder of images) and PASCAL VOC (a class per pixel)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .._files import as_path
from ..errors import CrateError
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
            sizes = f"{image.width} × {image.height} pixels, but its annotations are for {self.width} × {self.height}"
            raise CrateError(f"{self.file}: has {sizes}; use the images that were annotated")
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


def load_coco(path: str | Path, split: str | None = None, limit: int | None = None) -> CocoData:
    """Load COCO from an annotation file, or from a folder with annotations.json or annotations/instances_SPLIT.json.

    The images are beside the file, in `images`, or in a folder with the name of the split. `limit` takes the first
    images only.
    """
    file = _annotation_file(as_path(path, "COCO"), split)
    _check_limit(limit)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CrateError(f"{file}: cannot be read as JSON ({error})") from error
    for key in ("images", "annotations"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise CrateError(f"{file}: has no list of {key}; use annotations in COCO's format (instances_*.json)")
    if not content["images"]:
        raise CrateError(f"{file}: lists no images")
    folder = _image_folder(file, str(*_fields(file, content["images"][0], "file_name")))
    images = [_coco_image(file, folder, record) for record in content["images"]]
    chosen = images[:limit]
    missing = [image.file.name for image in chosen if not os.path.isfile(image.file)]
    if missing:
        count = f"{len(missing)} of its {len(chosen)} images are not in {folder}"
        raise CrateError(f"{file}: {count}; the first is {missing[0]}")
    sizes = {image.id: (image.height, image.width) for image in images}
    objects = [_coco_object(file, record, sizes) for record in content["annotations"]]
    ids = {image.id for image in chosen}
    return CocoData(str(path), tuple(chosen), tuple(one for one in objects if one.image in ids))


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


def _fields(file: Path, record: Any, *keys: str) -> list[Any]:
    for key in keys:
        if not isinstance(record, Mapping) or key not in record:
            raise CrateError(f"{file}: an entry has no {key!r}: {str(record)[:80]}")
    return [record[key] for key in keys]


def _coco_image(file: Path, folder: Path, record: Any) -> CocoImage:
    number, name, width, height = _fields(file, record, "id", "file_name", "width", "height")
    if not all(isinstance(value, int) for value in (number, width, height)) or min(width, height) < 1:
        values = f"{number!r}, {width!r}, {height!r}"
        raise CrateError(f"{file}: id, width and height of an image must be positive integers (got {values})")
    return CocoImage(number, folder / str(name), width, height)


def _coco_object(file: Path, record: Any, sizes: Mapping[int, tuple[int, int]]) -> CocoObject:
    image, box = _fields(file, record, "image_id", "bbox")
    if not isinstance(image, int) or image not in sizes:
        raise CrateError(f"{file}: an annotation is for image {image}, which is not listed; the file is incomplete")
    if not _are_numbers(box) or len(box) != 4 or min(box[2:]) < 0:
        raise CrateError(f"{file}: a box of image {image} must be x, y, width, height (got {str(box)[:60]})")
    outline = record.get("segmentation") or None
    if isinstance(outline, dict) and outline.get("size") != list(sizes[image]):
        shapes = f"{str(outline.get('size'))[:60]}, but the image {list(sizes[image])}"
        raise CrateError(f"{file}: a mask of image {image} has height and width {shapes}; use matching annotations")
    if isinstance(outline, dict) and not _fills(outline.get("counts"), math.prod(sizes[image])):
        raise CrateError(f"{file}: the run lengths of a mask of image {image} do not add up to its pixels")
    polygons = isinstance(outline, list) and all(_are_numbers(part) and len(part) >= 6 for part in outline)
    if not (outline is None or isinstance(outline, dict) or polygons):
        problem = f"must be polygons x, y, x, y, … (got {str(outline)[:60]})"
        raise CrateError(f"{file}: an outline of image {image} {problem}")
    x, y, width, height = map(float, box)
    area = record.get("area", width * height)
    if not _are_numbers([area]):
        raise CrateError(f"{file}: the area of an object of image {image} must be a number (got {str(area)[:60]})")
    return CocoObject(image, (x, y, width, height), float(area), outline, bool(record.get("iscrowd", 0)))


def _are_numbers(values: Any) -> bool:
    """Return whether the value is a list of numbers that a mask can have as coordinates."""
    numbers = isinstance(values, list) and all(isinstance(value, (int, float)) for value in values)
    return numbers and all(abs(value) < 2**31 for value in values)  # False for NaN


def _fills(counts: Any, pixels: int) -> bool:
    """Return whether run lengths, as a list or in COCO's code of six bits a character, cover an image exactly."""
    if isinstance(counts, str):
        runs, value, shift = [0, 0, 0], 0, 0  # a run is coded as the difference from the second last, from the third on
        for code in (ord(character) - 48 for character in counts):
            if not 0 <= code < 64 or shift > 30:
                return False
            value, shift = value | (code & 31) << shift, shift + 5
            if not code & 32:  # the last part of a number; its highest bit is the sign
                value -= (code & 16) << (shift - 4)
                runs.append(value + (runs[-2] if len(runs) > 5 else 0))
                value, shift = 0, 0
        counts = None if shift else runs
    is_list = isinstance(counts, list) and all(isinstance(run, int) and run >= 0 for run in counts)
    return is_list and sum(counts) == pixels


def _check_limit(limit: Any) -> None:
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise CrateError(f"`limit` must be a positive integer (got {limit!r})")


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
            sizes = f"{stored.width} × {stored.height} pixels, but its image {image.width} × {image.height}"
            raise CrateError(f"{self.label_file}: has {sizes}; unpack VOC again")
        return image, np.array(stored).astype(np.uint8)


def load_voc(path: str | Path, split: str | None = None, limit: int | None = None) -> tuple[VocImage, ...]:
    """Return the segmented images of a split (default `val`); `path` is VOC2012 or a folder above it."""
    path, split = as_path(path, "VOC"), split or "val"
    _check_limit(limit)
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
