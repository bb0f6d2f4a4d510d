"""Crops of labeled images for torch's DataLoader: random access, streams, and batches for evaluation."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypedDict, TypeVar, cast

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from .._distributed import SharedBatches, gather_in_turn, own_turns
from ..errors import CrateError, check_positive
from .augment import Augment, Views, view_augments
from .classes import balanced_indices
from .columns import label_indices
from .image_files import MODES, CorruptImages, UnreadableImageError, decode_image, image_key, stack_images
from .opened import OpenedData
from .rows import LabeledRows
from .sources import first_line, read_rows
from .transforms import BatchAugment, EpochGenerators, crop_for_evaluation, crop_for_training

T = TypeVar("T")


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


class _CroppedImages(EpochGenerators):
    """Decode images and cut their crops: one for evaluation or training, or several views for training."""

    def __init__(
        self,
        data: OpenedData,
        augment: Augment,
        *,
        train: bool,
        seed: int = 0,
        views: Views | None = None,
        rank: int = 0,
        world_size: int = 1,
        shuffle_buffer: int = 1000,
    ) -> None:
        super().__init__(seed)
        self.dataset = data.train if train else data.test
        if data.streaming and train and shuffle_buffer > 1:
            self.dataset = self.dataset.shuffle(seed=seed, buffer_size=shuffle_buffer)
        if data.streaming and train and world_size > 1:
            from datasets.distributed import split_dataset_by_node

            self.dataset = split_dataset_by_node(self.dataset, rank, world_size)
        self.image_column, self.label_column = data.column, data.label_column
        self.train, self.single = train, views is None or not train
        self.groups = [[augment]]
        if views is not None and train:
            first, second, local = view_augments(augment, views)
            self.groups = [[first, second]] + ([[local] * views.local_count] if views.local_count else [])

    def example(self, value: Any, label: int, key: int, name: str) -> ImageExample:
        """Return the example of an image column's value.

        The crops depend on the seed, the epoch and `key` only. `name` stands for an unreadable image without a path.
        """
        channels, corrupt = self.groups[0][0].channels, None
        try:
            image = decode_image(value, channels)
        except UnreadableImageError:
            path = value.get("path") if isinstance(value, dict) else None
            image, label, corrupt = Image.new(MODES[channels], (1, 1)), -1, path or name
        crop = partial(crop_for_training, generator=self.generator(key)) if self.train else crop_for_evaluation
        crops = [stack_images([crop(image, augment) for augment in group]) for group in self.groups]
        if self.single:
            return {"image": crops[0][0], "label": label, "corrupt": corrupt}
        return {"views": crops, "label": label, "corrupt": corrupt}


class ImageDataset(_CroppedImages, LabeledRows[ImageExample]):
    """Random access to the crops of the training or test images.

    The crops of image i in epoch e depend on (seed, e, i) only. With `views`, training examples hold several crops.
    """

    def __getitems__(self, indices: list[int]) -> list[ImageExample]:
        indices = [range(len(self.dataset))[index] for index in indices]
        (columns,) = read_rows("the images", map(self.dataset.__getitem__, [indices]))
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
        for index, row in enumerate(read_rows("the stream of images", self.dataset)):
            image = row[self.image_column]
            yield self.example(image, row[self.label_column], image_key(image), f"row {index} of a stream")


def torch_dataset(data: OpenedData, augment: Augment, *, train: bool, **options: Any) -> ImageDataset | ImageStream:
    """Return the training or test split of `data`, cropped for training or evaluation, for a DataLoader with `collate`.

    The options are those of `ImageStream`: `seed`, `views` (training examples hold several crops each), `rank`,
    `world_size` and `shuffle_buffer`. The last three are for streams; random access leaves them to the sampler.
    """
    return (ImageStream if data.streaming else ImageDataset)(data, augment, train=train, **options)


@dataclass(eq=False, repr=False)
class EvaluationBatches(SharedBatches[tuple[Tensor, Tensor]]):
    """Normalized evaluation crops of a split, batch by batch, without the images that cannot be read.

    Iterating yields pixels (batch, channels, side, side) on `device`, in `dtype` if given, and labels (batch,) on the
    CPU. It calls `progress` with the number of images of each batch and raises an error if more than `max_corrupt` of
    the images are unreadable. Each iteration reads the images again. `limit` takes at most that many images of the
    split, chosen and ordered by `balanced_indices`; of a stream, the first ones. The split `all` is all of them.

    `map` computes something of each batch and shares the batches among several processes: each reads only its own, but
    of a stream all.
    """

    data: OpenedData
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
    unreadable: list[str] | None = None
    """List to which the names of images that could not be read are added after an iteration."""
    indices: list[int] | None = field(default=None, init=False)
    """The rows of the split that are read; None for all of them, or for a stream."""
    readable: list[bool] = field(default_factory=list, init=False)
    """Whether each image could be read, in order; complete after an iteration."""
    corrupt: tuple[str, ...] = field(default=(), init=False)
    """Names of the images that could not be read; known after an iteration."""

    def __post_init__(self) -> None:
        check_positive(batch_size=self.batch_size, limit=self.limit, workers=self.workers or None)
        self.dataset = self.data.split(self.split)
        """The part of the split that is read."""
        if self.limit is not None and self.data.streaming:
            self.dataset = self.dataset.take(self.limit)
        elif self.limit is not None:
            self.indices = balanced_indices(label_indices(self.dataset, self.data.label_column), self.limit)
            self.dataset = self.dataset.select(self.indices)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._counted(self._read(0, None, 1))

    def map(self, function: Callable[[tuple[Tensor, Tensor]], T]) -> Iterator[T]:
        def results() -> Iterator[tuple[T | None, list[bool], list[str]]]:
            for batch, readable, names in self._read(*own_turns()):
                yield None if batch is None else function(batch), readable, names

        return self._counted(gather_in_turn(results()))

    def _read(
        self, start: int, stop: None, step: int
    ) -> Iterator[tuple[tuple[Tensor, Tensor] | None, list[bool], list[str]]]:
        """Yield batches number `start`, `start + step`, …, which images are readable, and the names of the others.

        A batch is None if none of its images is readable.
        """
        dataset = torch_dataset(self.data.with_splits(test=self.dataset), self.augment, train=False)
        device = torch.device(self.device)
        options: dict[str, Any] = {"num_workers": self.workers, "pin_memory": device.type == "cuda"}
        options["generator"] = torch.Generator()  # a loader would draw from the global one
        options["collate_fn"] = _collate_with_flags
        normalize = BatchAugment(self.augment).eval().to(device)
        loaded: Iterator[Any]
        if isinstance(dataset, ImageStream):
            loaded = islice(load_batches(DataLoader(dataset, self.batch_size, **options)), start, stop, step)
        else:
            rows, size = range(len(dataset)), self.batch_size
            own = [rows[first : first + size] for first in rows[start * size : stop : step * size]]
            loaded = load_batches(DataLoader(dataset, batch_sampler=cast(Any, own), **options))
        for batch, readable in loaded:
            if not any(readable):
                yield None, readable, batch["corrupt"]
                continue
            pixels = normalize(batch["pixel_values"].to(device, non_blocking=True))
            pixels = pixels if self.dtype is None else pixels.to(self.dtype)
            yield (pixels, batch["labels"]), readable, batch["corrupt"]

    def _counted(self, results: Iterator[tuple[T | None, list[bool], list[str]]]) -> Iterator[T]:
        """Yield the results of the batches with readable images, and count the images."""
        corrupt = CorruptImages(self.max_corrupt)
        self.readable, self.corrupt = [], ()
        for result, readable, names in results:
            corrupt.count(sum(readable), names)
            self.readable += readable
            if any(readable):
                yield cast(T, result)
            if self.progress is not None:
                self.progress(len(readable))
        if not self.readable:
            raise CrateError(
                f"the {self.split} split of {self.data.name} has no images; use the other split or another `test_share`"
            )
        self.corrupt = corrupt.finish()
        if self.unreadable is not None:
            self.unreadable.extend(self.corrupt)


def load_batches(loader: Iterable[T]) -> Iterator[T]:
    """Yield the batches of a DataLoader; an error in a worker, or its end, becomes an error of one line."""
    batches: Any = None
    with loader_errors():
        try:
            batches = iter(loader)
            yield from batches
        except (RuntimeError, ConnectionError, EOFError):
            with contextlib.suppress(RuntimeError, AttributeError):  # else torch would raise the error again, anywhere
                batches._shutdown_workers()
            raise


@contextlib.contextmanager
def loader_errors() -> Iterator[None]:
    """Turn an error in a worker of a DataLoader, or its end, into an error of one line."""
    try:
        yield
    except CrateError as error:
        if "CrateError: " not in str(error):
            raise
        raise CrateError(str(error).rpartition("CrateError: ")[2]) from error  # torch put the worker's traceback before
    except (RuntimeError, ConnectionError, EOFError) as error:  # a worker may end while it sends a batch
        if isinstance(error, RuntimeError) and not re.search(r"DataLoader worker .*(killed|exited)", str(error)):
            raise
        raise CrateError(
            f"a process that loads data has ended: {first_line(error)}; "
            "use fewer workers or a smaller batch size, in case memory ran out"
        ) from error


def _collate_with_flags(examples: Sequence[ImageExample]) -> tuple[dict[str, Any], list[bool]]:
    return collate(examples), [example["corrupt"] is None for example in examples]
