"""Datasets of images for torch's DataLoader: random access or a stream, one crop of each image or several views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, TypedDict

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..errors import CrateError, unknown_name
from .augment import Augment, Views, view_augments
from .image_files import CorruptImages, UnreadableImageError, decode_image, image_key, stack_images
from .images import ImageData
from .transforms import BatchAugment, crop_for_evaluation, crop_for_training, sample_generator


class ImageExample(TypedDict, total=False):
    """One image as the loader's workers return it, with either `image` or `views`."""

    image: Tensor
    """The only crop, uint8 (channels, side, side)."""
    views: list[Tensor]
    """Several crops, one tensor (views, channels, side, side) per size: the global views, then the local ones."""
    label: int
    corrupt: str | None
    """Name of the image if it could not be read, in which case its pixels are black and its label is -1."""


def collate(examples: Sequence[ImageExample]) -> dict[str, Any]:
    """Stack the readable images of a batch.

    Return `labels` (batch,), the names of the unreadable images as `corrupt`, and either `pixel_values`
    (batch, channels, side, side) or, for several views, `views`: one tensor (views, batch, channels, side, side) per
    size. The batch axis is empty if no image could be read.
    """
    readable = [example for example in examples if example["corrupt"] is None]
    corrupt = [example["corrupt"] for example in examples if example["corrupt"]]
    labels = torch.tensor([example["label"] for example in readable], dtype=torch.long)
    shown = readable or examples[:1]  # an unreadable image still has the right shape
    if "views" in examples[0]:
        groups = zip(*(example["views"] for example in shown), strict=True)
        views = [torch.stack(group, dim=1)[:, : len(readable)] for group in groups]
        return {"views": views, "labels": labels, "corrupt": corrupt}
    pixels = torch.stack([example["image"] for example in shown])[: len(readable)]
    return {"pixel_values": pixels, "labels": labels, "corrupt": corrupt}


class _CroppedImages:
    """Decode images and cut their crops: one for evaluation or training, or several views for training."""

    def __init__(
        self,
        data: ImageData,
        augment: Augment,
        *,
        train: bool,
        seed: int = 0,
        views: Views | None = None,
        rank: int = 0,
        world_size: int = 1,
        shuffle_buffer: int = 1000,
    ) -> None:
        if seed < 0:
            raise CrateError(f"`seed` must not be negative (got {seed})")
        self.dataset = data.train if train else data.test
        if data.streaming and train and shuffle_buffer > 1:
            self.dataset = self.dataset.shuffle(seed=seed, buffer_size=shuffle_buffer)
        if data.streaming and world_size > 1:
            from datasets.distributed import split_dataset_by_node

            self.dataset = split_dataset_by_node(self.dataset, rank, world_size)
        self.image_column, self.label_column, self.classes = data.image_column, data.label_column, len(data.classes)
        self.seed, self.train, self.single = seed, train, views is None or not train
        self.groups = [[augment]]
        if views is not None and train:
            first, second, local = view_augments(augment, views)
            self.groups = [[first, second]] + ([[local] * views.local_count] if views.local_count else [])
        # The epoch lies in shared memory, so that workers that outlive an epoch see the next one.
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which changes training crops and a stream's order; call it before the loader is iterated."""
        self.epoch.fill_(epoch)

    def example(self, value: Any, label: int, key: int, name: str) -> ImageExample:
        """Return the example of an image column's value.

        The crops depend on the seed, the epoch and `key` only. `name` stands for an unreadable image without a path.
        """
        generator, corrupt = sample_generator(self.seed, int(self.epoch), key), None
        try:
            image = decode_image(value, self.groups[0][0].channels)
        except UnreadableImageError:
            path = value.get("path") if isinstance(value, dict) else None
            image, label, corrupt = (
                Image.new("RGB" if self.groups[0][0].channels == 3 else "L", (1, 1)),
                -1,
                path or name,
            )
        crop = partial(crop_for_training, generator=generator) if self.train else crop_for_evaluation
        crops = [stack_images([crop(image, augment) for augment in group]) for group in self.groups]
        if self.single:
            return {"image": crops[0][0], "label": label, "corrupt": corrupt}
        return {"views": crops, "label": label, "corrupt": corrupt}


class ImageDataset(_CroppedImages, Dataset[ImageExample]):
    """Random access to the crops of the training or test images.

    The crops of image i in epoch e depend on (seed, e, i) only. With `views`, training examples hold several crops.
    """

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> ImageExample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[ImageExample]:
        """Return a batch of examples with a single look-up; the DataLoader calls this where it exists."""
        indices = [range(len(self.dataset))[index] for index in indices]
        columns = self.dataset[indices]
        rows = zip(columns[self.image_column], columns[self.label_column], indices, strict=True)
        return [self.example(image, label, index, f"row {index}") for image, label, index in rows]


class ImageStream(_CroppedImages, IterableDataset[ImageExample]):
    """The crops of a stream of images, divided among processes and workers so that each image is read once per epoch.

    Crops depend on the image, not on the process that reads it. The order depends on the number of processes and
    workers; in training it is shuffled within a buffer.
    """

    def set_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(epoch)
        super().set_epoch(epoch)

    def __iter__(self) -> Iterator[ImageExample]:
        for index, row in enumerate(self.dataset):
            image, label = row[self.image_column], row[self.label_column]
            if label is None or not 0 <= label < self.classes:
                raise CrateError(f"label {label} in column {self.label_column!r} is outside the {self.classes} classes")
            yield self.example(image, int(label), image_key(image), f"row {index} of a stream")


def torch_dataset(data: ImageData, augment: Augment, *, train: bool, **options: Any) -> ImageDataset | ImageStream:
    """Return the training or test split of `data`, cropped for training or evaluation, for a DataLoader with `collate`.

    The options are those of `ImageStream`: `seed`, `views` (training examples hold several crops each), `rank`,
    `world_size` and `shuffle_buffer`. The last three are for streams; random access leaves them to the sampler.
    """
    return (ImageStream if data.streaming else ImageDataset)(data, augment, train=train, **options)


@dataclass(eq=False, repr=False)
class EvaluationBatches:
    """Normalized evaluation crops of a split, batch by batch, without the images that cannot be read.

    Iterating yields pixels (batch, channels, side, side) on `device`, in `dtype` if given, and labels (batch,) on the
    CPU. It calls `progress` with the number of images of each batch and raises an error if more than `max_corrupt` of
    the images are unreadable. Each iteration reads the images again. `limit` takes that many images of the split, in
    which every class keeps its share; of a stream, the first ones.
    """

    data: ImageData
    augment: Augment
    _: KW_ONLY
    split: str = "test"
    batch_size: int = 64
    workers: int = 0
    limit: int | None = None
    device: torch.device | str = "cpu"
    dtype: torch.dtype | None = None
    progress: Callable[[int], None] | None = None
    max_corrupt: float = 0.01
    indices: list[int] | None = field(default=None, init=False)
    """The rows of the split that are read; None for all of them, or for a stream."""
    readable: list[bool] = field(default_factory=list, init=False)
    """Whether each image could be read, in order; complete after an iteration."""
    corrupt: tuple[str, ...] = field(default=(), init=False)
    """Names of the images that could not be read; known after an iteration."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.workers < 0 or (self.limit is not None and self.limit < 1):
            values = f"got {self.batch_size}, {self.limit} and {self.workers}"
            raise CrateError(f"`batch_size` and `limit` must be positive and `workers` not negative ({values})")
        splits = {"train": self.data.train, "test": self.data.test}
        if self.split not in splits:
            raise unknown_name("split", self.split, splits)
        self.dataset = splits[self.split]
        """The part of the split that is read."""
        if self.limit is not None and self.data.streaming:
            self.dataset = self.dataset.take(self.limit)
        elif self.limit is not None and self.limit < len(self.dataset):
            by_class = np.argsort(np.asarray(self.dataset[self.data.label_column]), kind="stable")
            self.indices = sorted(by_class[np.arange(self.limit) * len(self.dataset) // self.limit].tolist())
            self.dataset = self.dataset.select(self.indices)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        dataset = torch_dataset(replace(self.data, test=self.dataset), self.augment, train=False)
        device = torch.device(self.device)
        options: dict[str, Any] = {"num_workers": self.workers, "pin_memory": device.type == "cuda"}
        options["generator"] = torch.Generator()  # a loader would draw from the global one
        normalize = BatchAugment(self.augment).eval().to(device)
        corrupt = CorruptImages(self.max_corrupt)
        self.readable, self.corrupt = [], ()
        for batch, readable in DataLoader(dataset, self.batch_size, collate_fn=_collate_with_flags, **options):
            corrupt.add(batch)
            self.readable += readable
            if any(readable):
                pixels = normalize(batch["pixel_values"].to(device, non_blocking=True))
                yield pixels if self.dtype is None else pixels.to(self.dtype), batch["labels"]
            if self.progress is not None:
                self.progress(len(readable))
        if not self.readable:
            where = f"the {self.split} split of {self.data.name}"
            raise CrateError(f"{where} has no images; use the other split or another `test_share`")
        self.corrupt = corrupt.finish()


def _collate_with_flags(examples: Sequence[ImageExample]) -> tuple[dict[str, Any], list[bool]]:
    return collate(examples), [example["corrupt"] is None for example in examples]
