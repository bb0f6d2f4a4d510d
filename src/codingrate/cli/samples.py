"""What `crate inspect` looks at: batches of a split of images or of text, as a model reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CrateError, unknown_name
from .runs import Loaded

if TYPE_CHECKING:
    from ..data import Augment, ImageData

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Samples:
    """Samples that can be read again and again, by one model or another."""

    data: str
    """Name of the data."""
    split: str
    total: int
    """How many there are; 0 where nobody knows."""
    read: Callable[[Loaded, Advance], Iterator[Any]]
    """Batches as a model reads them: pixels (batch, channels, side, side), or a mapping with `input_ids` (batch, n)."""
    notes: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Names of images that could not be read."""
    tokenizer: Any = None
    """Of texts."""

    def left_out(self) -> list[str]:
        """What to say of images that could not be read."""
        count = len(self.unreadable)
        return [f"{count} images could not be read, the first of them {self.unreadable[0]}."] if count else []


def open_samples(
    loaded: Loaded, data: str | None, path: str | None, split: str | None, limit: int, batch: int
) -> Samples:
    """The run's own data, or others, for a model of images or of text."""
    from ..data import dataset_names, text_names

    vision = loaded.model.config.modality == "vision"
    reads, others, other, example = (
        ("images", text_names(), "text", "digits") if vision else ("text", dataset_names(), "images", "pydoc")
    )
    if data in others:
        raise CrateError(f"--data {data}: holds {other}, but {loaded.source} reads {reads}; give {reads}, as {example}")
    if path is not None and data is None:
        raise CrateError("--path says where the files of --data lie; give both")
    if vision:
        return _images(loaded, data, path, split or "test", limit, batch)
    if loaded.recipe is not None and loaded.recipe.task == "sequence-classification" and data is None:
        return _sentences(loaded, split, limit, batch)
    return _text(loaded, data, path, split or "validation", limit, batch)


def augment_of(loaded: Loaded) -> Augment:
    """How a model wants images: as in its run, else by ImageNet's convention at its own size."""
    if loaded.recipe is not None:
        return loaded.recipe.augment
    from ..data import Augment

    config = loaded.model.config
    return Augment(image_size=max(config.image_sides), channels=config.num_channels)


def _images(loaded: Loaded, data: str | None, path: str | None, split: str, limit: int, batch: int) -> Samples:
    if split not in ("train", "test"):
        raise unknown_name("--split", split, ("train", "test"))
    recipe, augment = loaded.recipe, augment_of(loaded)
    images, notes, changes = _image_data(loaded, data, path, augment)
    rows = images.train if split == "train" else images.test
    unreadable: list[str] = []
    options: dict[str, Any] = {"split": split, "limit": limit, "batch_size": batch, "unreadable": unreadable}
    if recipe is not None:
        options |= {"workers": recipe.data.workers, "max_corrupt": recipe.data.max_corrupt}

    def read(reader: Loaded, advance: Advance) -> Iterator[Any]:
        from ..evaluation import image_batches

        unreadable.clear()
        crops = replace(augment_of(reader), **changes)
        yield from image_batches(reader.model, images, crops, **options, progress=advance)

    total = min(len(rows), limit) if hasattr(rows, "__len__") else limit
    return Samples(images.name, split, total, read, notes, unreadable)


def _image_data(
    loaded: Loaded, data: str | None, path: str | None, augment: Augment
) -> tuple[ImageData, list[str], dict[str, Any]]:
    """The images, what to say of them, and what they change in how they are cropped."""
    from ..data import dataset_names, load_images, sample_photographs

    recipe = loaded.recipe
    if data is None and recipe is None:
        images = sample_photographs(augment.image_size)
        note = f"Without --data, on {len(images.test)} parts of {images.name}: enough to look, not to judge."
        return images, [note], {"evaluation": "resize"}
    if recipe is not None and (data is None or (data == recipe.data.name and path is None)):
        from ..training import load_data

        return load_data(recipe.data), [], {}
    assert data is not None
    share = 0.1 if data in dataset_names() else 1  # all of a folder without splits is measured on
    return load_images(data, path=path, test_share=share), [], {}


def _text(loaded: Loaded, data: str | None, path: str | None, split: str, limit: int, batch: int) -> Samples:
    """Pieces of as many tokens as in training, spread evenly over the text."""
    if path is not None:
        raise CrateError("--path is for images; give the path of a text as --data")
    from .text import Opened, open_text, open_tokens

    tokenizer, recipe = _tokenizer(loaded), loaded.recipe
    opened = Opened(loaded.run or loaded.folder or Path(loaded.source), loaded.model, tokenizer, recipe)
    text = open_text(opened, data, None, None)
    tokens = open_tokens(opened, text, split)
    if len(tokens) < 2:
        raise CrateError(f"the {split} split of {text.name} has {len(tokens)} tokens; give more text or another split")
    block = loaded.model.config.max_tokens
    if recipe is not None and recipe.task != "sequence-classification":
        block = min(block, recipe.text.block)
    block = min(block, len(tokens))
    from ..data import Blocks

    pieces = Blocks(tokens, block)
    count = min(limit, len(pieces))
    places = [number * len(pieces) // count for number in range(count)]

    def read(reader: Loaded, advance: Advance) -> Iterator[Any]:
        import torch

        for start in range(0, count, batch):
            ids = torch.stack([pieces[place]["input_ids"] for place in places[start : start + batch]])
            yield {"input_ids": ids.to(reader.model.device)}
            advance(len(ids))

    return Samples(text.name, split, count, read, [f"Samples are pieces of {block} tokens."], tokenizer=tokenizer)


def _sentences(loaded: Loaded, split: str | None, limit: int, batch: int) -> Samples:
    """The labelled sentences of a run; padding is masked."""
    from ..data import SentenceDataset, sentence_collator
    from ..training import task_of

    assert loaded.recipe is not None
    task = task_of(loaded.recipe)
    labelled = task.load_data(loaded.run)
    sentences = labelled.sentences
    sets = {"train": sentences.train, **sentences.validation}
    split = split or next(iter(sentences.validation))
    if split not in sets:
        raise unknown_name("--split", split, sets)
    options: Any = (sentences.columns, labelled.tokenizer, loaded.recipe.text.max_length, sentences.label_column)
    rows = SentenceDataset(sets[split], *options)
    if len(rows) == 0:
        raise CrateError(f"the {split} split of {sentences.name} has no rows; take another --split")
    count = min(limit, len(rows))
    collate = sentence_collator(labelled.tokenizer)
    places = [number * len(rows) // count for number in range(count)]

    def read(reader: Loaded, advance: Advance) -> Iterator[Any]:
        for start in range(0, count, batch):
            some = collate(rows.__getitems__(places[start : start + batch]))
            yield {name: some[name].to(reader.model.device) for name in ("input_ids", "attention_mask")}
            advance(len(some["input_ids"]))

    return Samples(sentences.name, split, count, read, tokenizer=labelled.tokenizer)


def _tokenizer(loaded: Loaded) -> Any:
    from ..training.start_text import saved_tokenizer

    place = loaded.run or loaded.folder
    tokenizer = None if place is None else saved_tokenizer(str(place))
    if tokenizer is None:
        raise CrateError(
            f"{loaded.source}: has no tokenizer; give a run, or a saved model with its tokenizer beside it"
        )
    return tokenizer


def check_pair(loaded: Loaded, other: Loaded) -> None:
    """Refuse to compare models that do not read the same samples."""
    one, two = loaded.model.config, other.model.config
    if one.modality != two.modality:
        reads = {"vision": "images", "text": "text"}
        raise CrateError(
            f"--compare {other.source}: reads {reads[two.modality]}, but {loaded.source} reads {reads[one.modality]}"
        )
    if loaded.source == other.source:
        raise CrateError(f"--compare {other.source}: is the model itself; give another")
    if one.modality == "vision":
        seen, wanted = augment_of(other), augment_of(loaded)
        for name, here, there in (
            ("pixels a side", wanted.image_size, seen.image_size),
            ("channels", wanted.channels, seen.channels),
        ):
            if here != there:
                raise CrateError(f"--compare {other.source}: reads {there} {name}, but {loaded.source} reads {here}")
    elif _tokenizer(loaded).get_vocab() != _tokenizer(other).get_vocab():
        raise CrateError(f"--compare {other.source}: has another tokenizer than {loaded.source}; their tokens differ")
