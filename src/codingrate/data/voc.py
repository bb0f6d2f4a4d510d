"""Images with a class for every pixel, as PASCAL VOC keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import CrateError
from .pictures import read_picture

BACKGROUND, VOID = 0, 255
"""Labels of pixels that belong to no class: what is around objects, and the strip along their edges."""


@dataclass(frozen=True)
class VocImage:
    """An image and its map of classes."""

    file: Path
    label_file: Path

    def read(self) -> tuple[Image.Image, NDArray[np.uint8]]:
        """The image, and the class of every pixel (height, width)."""
        image, _ = read_picture(self.file, upright=False, largest=None)
        try:
            with Image.open(self.label_file) as stored:
                stored.load()
                mode, labels = stored.mode, np.array(stored)
        except (OSError, ValueError, SyntaxError) as error:
            raise CrateError(f"{self.label_file}: is not an image that can be read; unpack VOC again") from error
        if mode not in ("P", "L"):
            raise CrateError(f"{self.label_file}: holds colours ({mode}), not classes; take VOC's own palette images")
        if labels.shape != (image.height, image.width):
            sizes = f"{labels.shape[1]} × {labels.shape[0]} pixels, its image {image.width} × {image.height}"
            raise CrateError(f"{self.label_file}: has {sizes}; unpack VOC again")
        return image, labels.astype(np.uint8)


def load_voc(path: str | Path, split: str | None = None, limit: int | None = None) -> tuple[VocImage, ...]:
    """The images of a split (`val` by default) that have a segmentation; `path` is VOC2012 or a folder above it."""
    root = _root(Path(path))
    split = split or "val"
    file = root / "ImageSets" / "Segmentation" / f"{split}.txt"
    if not file.is_file():
        known = ", ".join(sorted(entry.stem for entry in file.parent.glob("*.txt"))) or "none"
        raise CrateError(f"--data {path}: has no split {split!r}; take --split out of {known}")
    names = file.read_text(encoding="utf-8").split()[:limit]
    if not names:
        raise CrateError(f"{file}: lists no images")
    images = tuple(
        VocImage(root / "JPEGImages" / f"{name}.jpg", root / "SegmentationClass" / f"{name}.png") for name in names
    )
    missing = [part for image in images for part in (image.file, image.label_file) if not part.is_file()]
    if missing:
        raise CrateError(f"{file}: {len(missing)} of the files it asks for are not there; the first: {missing[0]}")
    return images


def _root(path: Path) -> Path:
    places = [path, *sorted(path.glob("VOC*"), reverse=True), *sorted(path.glob("VOCdevkit/VOC*"), reverse=True)]
    for place in places:
        if (place / "ImageSets" / "Segmentation").is_dir():
            return place
    raise CrateError(f"--data {path}: has no ImageSets/Segmentation; give the folder VOC2012 of PASCAL VOC")
