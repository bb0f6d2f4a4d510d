"""scikit-learn's two photographs as a dataset: something real to look at where no data are given, also offline."""

from __future__ import annotations

import numpy as np
from PIL import Image

from ..errors import CrateError
from .sources import ImageData

CLASSES = ("temple", "flower")


def sample_photographs(side: int) -> ImageData:
    """The centre of each photograph, and 15 overlapping parts of it at twice the scale, in squares of `side` pixels.

    32 images in all, which are the test split; the training split has none. Enough to see that a model works, far
    from enough to say how it does on images at large.
    """
    import datasets
    from sklearn.datasets import load_sample_images

    if side < 1:
        raise CrateError(f"side is {side}; an image has at least one pixel")
    squares = [_squares(Image.fromarray(np.asarray(pixels)), side) for pixels in load_sample_images().images]
    header = b"P6 %d %d 255\n" % (side, side)
    rows = [
        ({"bytes": header + square.tobytes(), "path": None}, label)
        for parts in zip(*squares, strict=True)  # in turn, so that a few images show both
        for label, square in enumerate(parts)
    ]
    features = datasets.Features(
        {"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=[*CLASSES])}
    )
    images, labels = zip(*rows, strict=True)
    table = datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)
    return ImageData("scikit-learn's two photographs", table.select([]), table, CLASSES, "image", "label")


def _squares(photograph: Image.Image, side: int) -> list[Image.Image]:
    whole, large = (_scaled(photograph, scale * side) for scale in (1, 2))
    found = [_square(whole, (whole.width - side) // 2, (whole.height - side) // 2, side)]
    for top in np.linspace(0, large.height - side, 3).round().astype(int).tolist():
        for left in np.linspace(0, large.width - side, 5).round().astype(int).tolist():
            found.append(_square(large, left, top, side))
    return found


def _square(photograph: Image.Image, left: int, top: int, side: int) -> Image.Image:
    return photograph.crop((left, top, left + side, top + side))


def _scaled(photograph: Image.Image, short: int) -> Image.Image:
    """The photograph with its short side at so many pixels."""
    scale = short / min(photograph.size)
    width, height = (max(round(length * scale), short) for length in photograph.size)
    return photograph.resize((width, height), Image.Resampling.LANCZOS)
