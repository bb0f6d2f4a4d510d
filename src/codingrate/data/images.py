"""Labeled images by name, path or hub id, and their crops for torch's DataLoader: random access, streams, batches."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from .._distributed import SharedBatches, gather_in_turn, own_turns
from .._files import is_hub_id
from ..errors import CrateError, check_positive, unknown_name
from .augment import Augment, Views, view_augments
from .catalog import BUILT_IN_IMAGES, IMAGES
from .classes import ClassMap, balanced_indices, match_classes
from .columns import common_names, encode_classes, find_column, hold_out, label_indices, map_classes, select_undecoded
from .fingerprint import Fingerprint, fingerprint, stream_fingerprint, table_fingerprint
from .image_files import MODES, CorruptImages, UnreadableImageError, decode_image, image_key, stack_images
from .sources import (
    Seed,
    check_arguments,
    check_share,
    choose_splits,
    first_line,
    image_dataset,
    open_splits,
    read_rows,
)
from .transforms import BatchAugment, EpochGenerators, crop_for_evaluation, crop_for_training

DIGITS_SEED, DIGITS_SHARE = 0, 0.2  # the built-in digits have one split, whatever the seed of the run
T = TypeVar("T")
PHOTOGRAPHS = ("temple", "flower")


@dataclass(frozen=True)
class ImageData:
    """Labeled images in a training and a test split."""

    name: str
    train: Any
    """Training split: `datasets.Dataset`, or `IterableDataset` when streaming."""
    test: Any
    classes: tuple[str, ...]
    """Class names; labels are indices into them."""
    image_column: str
    """Column with the images, as `{"bytes", "path"}` or nested lists of pixels."""
    label_column: str
    streaming: bool = False
    """Whether the splits are streams, without length and random access."""
    validation: Any = None
    """Validation split, if there is one besides the test split."""

    @property
    def splits(self) -> dict[str, Any]:
        """The splits by name."""
        others = {} if self.validation is None else {"validation": self.validation}
        return {"train": self.train, "test": self.test, **others}

    @property
    def total(self) -> int | None:
        """Number of images in all splits; None for streams."""
        return None if self.streaming else sum(map(len, self.splits.values()))

    @property
    def fingerprint(self) -> Fingerprint:
        """Plain values that change with the classes, the number of images, their order, labels or pixels.

        Store it with a run and compare it with `describe_change` when the run is resumed. It holds for copies in
        another folder too. Of large data and streams a sample is read; see `table_fingerprint`.
        """
        if self.streaming:
            splits = {"train": stream_fingerprint(self.train, (self.image_column, self.label_column))}
        else:
            splits = {
                name: table_fingerprint(part, [self.image_column], label_indices(part, self.label_column))
                for name, part in self.splits.items()
            }
        return fingerprint(self.classes, splits)

    def split(self, name: str) -> Any:
        """Return a split by name; `all` stands for all of them, one after the other."""
        import datasets

        if name == "all":
            parts = [*self.splits.values()] if self.streaming else [part for part in self.splits.values() if len(part)]
            return datasets.concatenate_datasets(parts)
        if name not in self.splits:
            raise unknown_name("split", name, (*self.splits, "all"))
        return self.splits[name]

    def with_classes(self, split: str, model: Sequence[str], labels: ClassMap = None) -> ImageData:
        """Return the images with the classes of a model in place of their own, matched by name; see `match_classes`.

        Only the classes that occur in the `split` must have a match; labels of others are -1.
        """
        present = None if self.streaming else np.unique(label_indices(self.split(split), self.label_column))
        indices = match_classes(self.name, self.classes, model, labels, present)
        if indices == list(range(len(self.classes))):
            return replace(self, classes=tuple(model))
        encode = partial(map_classes, column=self.label_column, indices=indices, streaming=self.streaming)
        return replace(self, classes=tuple(model), **{name: encode(part) for name, part in self.splits.items()})


@check_arguments
def load_images(
    name: str,
    *,
    path: str | Path | None = None,
    split_seed: Seed = 0,
    test_share: float = 0.1,
    streaming: bool = False,
    image_column: str | None = None,
    label_column: str | None = None,
) -> ImageData:
    """Open labeled images by a short name (`dataset_names()`), a local path or a hub id, looked up in this order.

    `path` is where the files of a known dataset are; its class names are kept without the hub. If there is a single
    split, `test_share` of every class is held out by `split_seed`. A share of 1 opens data to evaluate a trained model:
    a single split is all test rows, one class is enough, and the columns need not be those that are given. Streams are
    split by a hash of each image instead of by class.
    """
    check_share("test_share", test_share)
    splits, whole = open_splits(name, kind="images", path=path, streaming=streaming), test_share == 1
    if name == BUILT_IN_IMAGES:
        split_seed, test_share = DIGITS_SEED, (1 if whole else DIGITS_SHARE)
    parts, known = choose_splits(name, splits, whole), IMAGES.get(name)
    hints: tuple[str | None, str | None] = (known.image_column, known.label_column) if known else (None, None)
    if whole:
        hints, image_column, label_column = (image_column or hints[0], label_column or hints[1]), None, None
    image, label = image_column or "", label_column or ""
    for split, part in parts.items():
        source = name if len(parts) == 1 else f"the {split} split of {name}"
        features = part.features or dict.fromkeys(next(read_rows(source, part), {}))  # a stream may not know its types
        image = find_column("image", source, features, image, hints[0])
        label = find_column("label", source, features, label, hints[1])
        parts[split] = select_undecoded(part, image, label)
    classes = common_names(parts, label, whole) or (known.classes if known else None)
    if streaming and classes is None and is_hub_id(name):
        raise CrateError(f"{name} has no class names, and its stream is too long to collect them; do not stream it")
    parts, classes = encode_classes(name, parts, label, classes, streaming, whole)
    if not streaming and not whole:
        _check_classes(name, parts, label, classes)
    if "train" not in parts:
        parts["train"] = parts["test"].take(0) if streaming else parts["test"].select([])
    if "test" not in parts and streaming:
        belongs = partial(_belongs, column=image, share=test_share, seed=split_seed)
        parts = {split: parts["train"].filter(partial(belongs, split=split)) for split in ("train", "test")}
    elif "test" not in parts:
        parts["train"], parts["test"] = hold_out(name, parts["train"], label, test_share, split_seed)
    return ImageData(
        name, parts["train"], parts["test"], classes, image, label, streaming, validation=parts.get("validation")
    )


def _check_classes(name: str, parts: Mapping[str, Any], label: str, classes: tuple[str, ...]) -> None:
    """Refuse a training split with a single class, or one that lacks a class of another split."""
    labels = {split: np.unique(label_indices(part, label)) for split, part in parts.items()}
    if len(labels["train"]) < 2:
        only = classes[int(labels["train"][0])]
        raise CrateError(f"{name} has one class only ({only!r}); classification needs two or more")
    for split, values in labels.items():
        unseen = np.setdiff1d(values, labels["train"])
        if len(unseen):
            problem = f"class {classes[int(unseen[0])]!r}, which has no training row"
            raise CrateError(f"the {split} split of {name} has {problem}")


def _belongs(row: Mapping[str, Any], column: str, share: float, seed: int, split: str) -> bool:
    """Return whether a row of a stream belongs to `train` or `test`, by a hash of its image."""
    mixed = zlib.crc32(b"%d" % image_key(row[column]), seed & 0xFFFFFFFF)
    return (mixed / 2**32 < share) is (split == "test")


def sample_photographs(side: int) -> ImageData:
    """Return 32 squares of `side` pixels from scikit-learn's two photographs, which are available offline.

    They are the center of each photograph and 15 overlapping parts of it at twice the scale, all in the test split.
    This is enough to see that a model works, but not to measure it.
    """
    from sklearn.datasets import load_sample_images

    if side < 1:
        raise CrateError(f"`side` must be at least 1 (got {side})")
    squares = [_squares(Image.fromarray(np.asarray(pixels)), side) for pixels in load_sample_images().images]
    header = b"P6 %d %d 255\n" % (side, side)
    images = [header + square.tobytes() for pair in zip(*squares, strict=True) for square in pair]  # in turn
    test = image_dataset(images, (number % 2 for number in range(len(images))), PHOTOGRAPHS)
    return ImageData("scikit-learn's two photographs", test.select([]), test, PHOTOGRAPHS, "image", "label")


def _squares(photograph: Image.Image, side: int) -> list[Image.Image]:
    factor = side / min(photograph.size)
    whole, large = (ImageOps.scale(photograph, scale * factor, Image.Resampling.LANCZOS) for scale in (1, 2))
    corners = [(whole, (whole.width - side) // 2, (whole.height - side) // 2)]
    for top in np.linspace(0, large.height - side, 3).round().astype(int).tolist():
        for left in np.linspace(0, large.width - side, 5).round().astype(int).tolist():
            corners.append((large, left, top))
    return [image.crop((left, top, left + side, top + side)) for image, left, top in corners]


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
        super().__init__(seed)
        self.dataset = data.train if train else data.test
        if data.streaming and train and shuffle_buffer > 1:
            self.dataset = self.dataset.shuffle(seed=seed, buffer_size=shuffle_buffer)
        if data.streaming and train and world_size > 1:
            from datasets.distributed import split_dataset_by_node

            self.dataset = split_dataset_by_node(self.dataset, rank, world_size)
        self.image_column, self.label_column, self.classes = data.image_column, data.label_column, len(data.classes)
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


class ImageDataset(_CroppedImages, Dataset[ImageExample]):
    """Random access to the crops of the training or test images.

    The crops of image i in epoch e depend on (seed, e, i) only. With `views`, training examples hold several crops.
    """

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class index of each image."""
        return label_indices(self.dataset, self.label_column)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> ImageExample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[ImageExample]:
        """Return a batch of examples with a single look-up; the DataLoader calls this where it exists."""
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
class EvaluationBatches(SharedBatches[tuple[Tensor, Tensor]]):
    """Normalized evaluation crops of a split, batch by batch, without the images that cannot be read.

    Iterating yields pixels (batch, channels, side, side) on `device`, in `dtype` if given, and labels (batch,) on the
    CPU. It calls `progress` with the number of images of each batch and raises an error if more than `max_corrupt` of
    the images are unreadable. Each iteration reads the images again. `limit` takes at most that many images of the
    split, chosen and ordered by `balanced_indices`; of a stream, the first ones. The split `all` is all of them.

    `map` computes something of each batch and shares the batches among several processes: each reads only its own, but
    of a stream all.
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
        dataset = torch_dataset(replace(self.data, test=self.dataset), self.augment, train=False)
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
            where = f"the {self.split} split of {self.data.name}"
            raise CrateError(f"{where} has no images; use the other split or another `test_share`")
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
        advice = "use fewer workers or a smaller batch size, in case memory ran out"
        raise CrateError(f"a process that loads data has ended: {first_line(error)}; {advice}") from error


def _collate_with_flags(examples: Sequence[ImageExample]) -> tuple[dict[str, Any], list[bool]]:
    return collate(examples), [example["corrupt"] is None for example in examples]
