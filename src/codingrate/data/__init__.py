"""Data: one way to name a dataset, images decoded and cropped in loader workers, augmented in batches on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from .augment import Augment
    from .catalogue import dataset_names
    from .decode import CorruptImages, UnreadableImageError, decode_image
    from .loading import Batch, ImageRows, ImageStream, Row, collate, torch_dataset
    from .sources import ImageData, load_images
    from .splits import stratified_split
    from .transforms import BatchAugment

__all__ = [
    "Augment",
    "Batch",
    "BatchAugment",
    "CorruptImages",
    "ImageData",
    "ImageRows",
    "ImageStream",
    "Row",
    "UnreadableImageError",
    "collate",
    "dataset_names",
    "decode_image",
    "load_images",
    "stratified_split",
    "torch_dataset",
]

_HOMES = {
    "augment": ("Augment",),
    "catalogue": ("dataset_names",),
    "decode": ("CorruptImages", "UnreadableImageError", "decode_image"),
    "loading": ("Batch", "ImageRows", "ImageStream", "Row", "collate", "torch_dataset"),
    "sources": ("ImageData", "load_images"),
    "splits": ("stratified_split",),
    "transforms": ("BatchAugment",),
}
__getattr__, __dir__ = _lazy.attach(__name__, {name: home for home, names in _HOMES.items() for name in names})
