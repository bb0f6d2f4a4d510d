"""Images with objects drawn in, as COCO keeps them: a JSON file of annotations and a folder of images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from ..errors import CrateError
from .pictures import read_picture

SPLIT = "val2017"
"""The images the paper measures on."""


@dataclass(frozen=True)
class CocoImage:
    """An image and the size its annotations were made for."""

    id: int
    file: Path
    width: int
    height: int

    def read(self) -> Image.Image:
        """The pixels as they are stored, which is how annotations count them; refused where the size is another."""
        image, _ = read_picture(self.file, upright=False, largest=None)
        if image.size != (self.width, self.height):
            found = f"{image.width} × {image.height} pixels, but its annotations are for {self.width} × {self.height}"
            raise CrateError(f"{self.file}: has {found}; give the images the annotations were made for")
        return image


@dataclass(frozen=True)
class CocoObject:
    """One object; its class is not kept, as objects found without labels have none."""

    image: int
    """The id of its image."""
    box: tuple[float, float, float, float]
    """x, y, width, height in pixels."""
    area: float
    outline: list[Any] | dict[str, Any] | None
    """Polygons or a run-length code; None where only the box was drawn."""
    crowd: bool
    """A region of many, in which any number of objects may be found."""


@dataclass(frozen=True)
class CocoData:
    """Images and the objects in them."""

    name: str
    images: tuple[CocoImage, ...]
    objects: tuple[CocoObject, ...]


def load_coco(path: str | Path, split: str | None = None, limit: int | None = None) -> CocoData:
    """COCO from a file of annotations, or from a folder with annotations.json or annotations/instances_SPLIT.json.

    Images lie beside the file, in `images`, or in a folder of the split's name. `limit` takes the first so many.
    """
    file = _annotation_file(Path(path), split)
    content = _content(file)
    folder = _image_folder(file, content["images"])
    listed = tuple(_image(file, folder, record) for record in content["images"])
    images = listed[:limit]
    missing = [image.file for image in images if not image.file.is_file()]
    if missing:
        raise CrateError(
            f"{file}: {len(missing)} of its {len(images)} images are not in {folder}; the first: {missing[0].name}"
        )
    sizes = {image.id: (image.height, image.width) for image in listed}
    chosen = {image.id for image in images}
    objects = (_object(file, record, sizes) for record in content["annotations"])
    return CocoData(str(path), images, tuple(found for found in objects if found.image in chosen))


def _annotation_file(path: Path, split: str | None) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise CrateError(f"--data {path}: no such file or folder; give a folder in COCO's form or its .json file")
    wanted = path / "annotations" / f"instances_{split or SPLIT}.json"
    known = sorted((path / "annotations").glob("instances_*.json"))
    if wanted.is_file():
        return wanted
    if known and (split is not None or len(known) > 1):
        names = ", ".join(file.stem.removeprefix("instances_") for file in known)
        raise CrateError(f"--data {path}: has no annotations of split {split or SPLIT!r}; take --split out of {names}")
    for file in (path / "annotations.json", *known):
        if file.is_file():
            return file
    raise CrateError(
        f"--data {path}: has neither annotations.json nor annotations/instances_*.json; give the .json file"
    )


def _content(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CrateError(f"{file}: cannot be read as JSON ({error})") from error
    for key in ("images", "annotations"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise CrateError(f"{file}: has no list of {key}; give annotations in COCO's form (instances_*.json)")
    if not content["images"]:
        raise CrateError(f"{file}: lists no images")
    return dict(content)


def _image_folder(file: Path, records: list[Any]) -> Path:
    base = file.parent.parent if file.parent.name == "annotations" else file.parent
    split = file.stem.removeprefix("instances_")
    places = (base / "images", base / split, base / "images" / split, base)
    name = str(_field(file, records[0], "file_name"))
    found = next((place for place in places if (place / name).is_file()), None)
    if found is None:
        looked = ", ".join(map(str, dict.fromkeys(place for place in places if place.is_dir())))
        raise CrateError(f"{file}: its first image {name} is in none of {looked}; put the images beside the file")
    return found


def _field(file: Path, record: Any, key: str) -> Any:
    if not isinstance(record, Mapping) or key not in record:
        raise CrateError(f"{file}: an entry has no {key!r}: {str(record)[:80]}")
    return record[key]


def _image(file: Path, folder: Path, record: Any) -> CocoImage:
    number, name, width, height = (_field(file, record, key) for key in ("id", "file_name", "width", "height"))
    if not all(isinstance(value, int) for value in (number, width, height)) or min(width, height) < 1:
        raise CrateError(f"{file}: an image has id, width and height {number!r}, {width!r}, {height!r}; give integers")
    return CocoImage(number, folder / str(name), width, height)


def _object(file: Path, record: Any, sizes: Mapping[int, tuple[int, int]]) -> CocoObject:
    image, box = _field(file, record, "image_id"), _field(file, record, "bbox")
    if image not in sizes:
        raise CrateError(f"{file}: an annotation is of image {image}, which it does not list; the file is not whole")
    numbers = isinstance(box, list) and all(isinstance(value, (int, float)) for value in box)
    if not numbers or len(box) != 4 or min(box[2:]) < 0:
        raise CrateError(f"{file}: a box of image {image} is {box}; expected x, y, width, height")
    outline = record.get("segmentation") or None
    if isinstance(outline, list) and not all(isinstance(part, list) and len(part) >= 6 for part in outline):
        raise CrateError(f"{file}: an outline of image {image} is {str(outline)[:60]}; expected polygons x, y, x, y, …")
    if isinstance(outline, dict) and tuple(outline.get("size", ())) != tuple(sizes[image]):
        found = f"{outline.get('size')}, but the image {list(sizes[image])}"
        raise CrateError(f"{file}: a mask of image {image} has height and width {found}; give annotations that match")
    x, y, width, height = map(float, box)
    area = float(record.get("area", width * height))
    return CocoObject(image, (x, y, width, height), area, outline, bool(record.get("iscrowd", 0)))
