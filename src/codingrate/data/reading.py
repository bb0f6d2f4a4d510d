"""One value of an image column to what the loader hands on: decoded, cropped, or named as unreadable."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypedDict, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import CrateError
from .augment import Augment
from .crops import crop_for_evaluation, crop_for_training, sample_generator
from .decode import UnreadableImageError, decode_image
from .views import Views, view_augments


class Row(TypedDict):
    """One image; `corrupt` names it when it could not be read, and then its pixels mean nothing."""

    image: Tensor
    label: int
    corrupt: str | None


class ViewRow(TypedDict):
    """One image as several crops, a tensor (views, channels, side, side) for each size: global, then local ones."""

    views: list[Tensor]
    label: int
    corrupt: str | None


RowT = TypeVar("RowT", Row, ViewRow)


class Reader(ABC, Generic[RowT]):
    """Value of the image column → row. The epoch lies in shared memory, so that workers that outlive it follow."""

    def __init__(self, augment: Augment, seed: int) -> None:
        if seed < 0:
            raise CrateError(f"seed must not be negative, not {seed}")
        self.augment, self.seed = augment, seed
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __call__(self, value: Any, label: int, key: int, name: str) -> RowT:
        """The row of an image; `key` is what its crops depend on besides seed and epoch, `name` is for complaints."""
        try:
            image = decode_image(value, self.augment.channels)
        except UnreadableImageError:
            path = value.get("path") if isinstance(value, dict) else None
            return self.row(None, -1, path or name, key)
        return self.row(image, label, None, key)

    @abstractmethod
    def row(self, image: Image.Image | None, label: int, corrupt: str | None, key: int) -> RowT:
        """The row of a decoded image, or a blank one where there is none."""

    def draw(self, key: int) -> np.random.Generator:
        """The randomness of this image in this epoch."""
        return sample_generator(self.seed, int(self.epoch), key)


class ImageReader(Reader[Row]):
    """One crop of each image, for training or evaluation."""

    def __init__(self, augment: Augment, train: bool, seed: int) -> None:
        super().__init__(augment, seed)
        self.train = train

    def row(self, image: Image.Image | None, label: int, corrupt: str | None, key: int) -> Row:
        """The crop of an image, (channels, side, side)."""
        if image is not None and self.train:
            image = crop_for_training(image, self.augment, self.draw(key))
        elif image is not None:
            image = crop_for_evaluation(image, self.augment)
        return {"image": _pixels([image], self.augment)[0], "label": label, "corrupt": corrupt}


class ViewReader(Reader[ViewRow]):
    """Several crops of each image: two global views and the local ones, all from the image's own randomness."""

    def __init__(self, augment: Augment, views: Views, seed: int) -> None:
        super().__init__(augment, seed)
        first, second, local = view_augments(augment, views)
        self.groups = [[first, second]] + ([[local] * views.local_count] if views.local_count else [])

    def row(self, image: Image.Image | None, label: int, corrupt: str | None, key: int) -> ViewRow:
        """The crops of an image, a tensor for each size."""
        draw = self.draw(key)
        views = [
            _pixels([None if image is None else crop_for_training(image, kind, draw) for kind in kinds], kinds[0])
            for kinds in self.groups
        ]
        return {"views": views, "label": label, "corrupt": corrupt}


def _pixels(images: Sequence[Image.Image | None], augment: Augment) -> Tensor:
    """Crops of one size as uint8 (images, channels, side, side); black for what is not there."""
    blank = np.zeros((augment.image_size, augment.image_size, *((3,) if augment.channels == 3 else ())), np.uint8)
    pixels = torch.from_numpy(np.stack([blank if image is None else np.asarray(image) for image in images]))
    return pixels.unsqueeze(1) if augment.channels == 1 else pixels.permute(0, 3, 1, 2)
