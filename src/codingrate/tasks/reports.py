"""Reports of evaluations: numbers, tables and pictures, saved to a folder or shown in a notebook."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from .._files import atomic_write
from .._report import EvaluationReport, Report, Table, counted, percent
from ..data import Augment, unnormalize
from ..errors import CrateError

if TYPE_CHECKING:
    from PIL.Image import Image

    from .base import Values
    from .images import MeasuredSplit

_LARGEST_CONFUSION = 4096  # classes; the matrix of ImageNet-21K would take four gigabytes
_LARGEST_IN_JSON = 100
_SHOWN = 50  # number of classes that a table shows


def majority_note(accuracy: float, counts: Sequence[int] | NDArray[np.integer[Any]]) -> str | None:
    """Return a sentence if an accuracy does not exceed the share of the most frequent class by its standard error.

    `counts` are the numbers of samples of the classes; with fewer than two classes there is nothing to compare.
    """
    total, share = sum(counts), max(counts) / max(sum(counts), 1)
    if share in (0, 1) or accuracy > share + math.sqrt(share * (1 - share) / total):
        return None
    return f"the model is no better than always answering the most frequent class, {share:.2%} of {total:,}"


@dataclass(frozen=True, eq=False)
class ClassificationReport(EvaluationReport):
    """Accuracy of a classifier. Shares lie in [0, 1]; unreadable images count only in `corrupt` and `unreadable`."""

    data: str
    """Name of the dataset."""
    split: str
    images: int
    """Number of images measured."""
    corrupt: tuple[str, ...]
    """Names of the images that could not be read."""
    loss: float
    """Mean cross-entropy in nats, without label smoothing or penalties."""
    top1: float
    """Share of images whose highest logit is that of their class."""
    top5: float | None
    """Share of images whose class is among the five highest logits; None for five classes or fewer."""
    per_class: list[dict[str, Any]]
    """`class`, number of `images` and top-1 `accuracy` (None without images) of each class."""
    confusion: NDArray[np.int64] | None
    """Number of images of class i (row) predicted as class j (column), (C, C); None if C is too large."""
    classes: tuple[str, ...]
    real_top1: float | None
    """Top-1 accuracy by the ReaL labels, if they were given."""
    seconds: float
    """Time of the evaluation, including loading."""
    images_per_second: float
    total: int | None = None
    """Number of images in all splits of the data; None for streams."""
    unreadable: int = 0
    """Number of images that could not be read."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; the confusion matrix is included for at most 100 classes, `top5` for more than five."""
        values = super().to_dict()
        if self.confusion is None or len(self.classes) > _LARGEST_IN_JSON:
            del values["confusion"]
        if self.top5 is None:
            del values["top5"]
        return values

    def save(self, folder: str | Path) -> Path:
        """Write per_class.csv, confusion.csv, confusion.png, and metrics.json last."""
        _save_classes(Path(folder), self.per_class, self.confusion, self.classes)
        return super().save(folder)

    @property
    def note(self) -> str | None:
        """A sentence if the model is no better than the most frequent class."""
        return majority_note(self.top1, [row["images"] for row in self.per_class])

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the accuracy of each class, and that of all."""
        yield from _describe_classes(self.per_class, "images", title or f"{self.part} {self.data}")
        five = "" if self.top5 is None else f", top-5 {self.top5:.2%}"
        real = "" if self.real_top1 is None else f"ReaL {self.real_top1:.2%}, "
        images = counted(self.images, self.total, "images", self.unreadable)
        yield f"{real}top-1 {self.top1:.2%}{five}, loss {self.loss:.4f}, {images}"


def classification_report(measured: MeasuredSplit, metrics: dict[str, float]) -> ClassificationReport:
    """Build the report of a classifier from the predictions and labels of a split."""
    crops, classes = measured.crops, measured.crops.data.class_names
    images = len(measured.values["label"])
    per_class, confusion = class_tables(measured.values, classes, "images")
    return ClassificationReport(
        data=crops.data.name,
        split=crops.split,
        images=images,
        corrupt=crops.corrupt,
        loss=metrics["loss"],
        top1=metrics["top1"],
        top5=metrics.get("top5"),
        per_class=per_class,
        confusion=confusion,
        classes=classes,
        real_top1=None,
        seconds=measured.seconds,
        images_per_second=images / measured.seconds,
        total=crops.data.total,
        unreadable=len(crops.corrupt),
    )


def class_tables(
    values: Values, classes: Sequence[str], unit: str
) -> tuple[list[dict[str, Any]], NDArray[np.int64] | None]:
    """Return the accuracy of each class and the confusion matrix, from the `label` and `prediction` of every sample.

    `unit` is the key of the number of samples of a class: images or sentences.
    """
    true, predicted = (values[name].astype(np.int64) for name in ("label", "prediction"))
    samples = np.bincount(true, minlength=len(classes))
    correct = np.bincount(true[true == predicted], minlength=len(classes))
    confusion = None
    if len(classes) <= _LARGEST_CONFUSION:
        confusion = np.zeros((len(classes), len(classes)), np.int64)
        np.add.at(confusion, (true, predicted), 1)
    per_class = [
        {"class": name, unit: int(count), "accuracy": int(right) / int(count) if count else None}
        for name, count, right in zip(classes, samples, correct, strict=True)
    ]
    return per_class, confusion


def _describe_classes(per_class: list[dict[str, Any]], unit: str, title: str) -> Iterator[Table | str]:
    """Yield a table of the classes that occur."""
    rows = [(row["class"], f"{row[unit]:,}", percent(row["accuracy"])) for row in per_class if row[unit]]
    yield Table(title, ("class", unit, "accuracy"), rows[:_SHOWN])
    if len(rows) > _SHOWN:
        yield f"{len(rows) - _SHOWN:,} more classes in per_class.csv"


def _save_classes(
    folder: Path,
    per_class: list[dict[str, Any]],
    confusion: NDArray[np.int64] | None,
    classes: Sequence[str],
    unit: str = "images",
    suffix: str = "",
) -> None:
    """Write per_class.csv, confusion.csv and confusion.png, with a `suffix` in their names."""
    _write_csv(pd.DataFrame(per_class), folder / f"per_class{suffix}.csv")
    if confusion is not None:
        table = pd.DataFrame(confusion, columns=list(classes))
        table.insert(0, "true \\ predicted", list(classes), allow_duplicates=True)
        _write_csv(table, folder / f"confusion{suffix}.csv")
        confusion_picture(confusion, classes, folder / f"confusion{suffix}.png", unit)


def _write_csv(table: pd.DataFrame, path: Path) -> None:
    with atomic_write(path) as draft:
        table.to_csv(draft, index=False, lineterminator="\n")


_LARGEST_PICTURE = 1000  # with more classes, several share a pixel
_NUMBERED = 20  # number of classes up to which cells show their counts
_LABELED = 50  # number of classes up to which the axes show names


def confusion_picture(
    confusion: NDArray[np.integer[Any]], classes: Sequence[str], path: str | Path, unit: str = "images"
) -> Path:
    """Draw a confusion matrix (rows true, columns predicted) as a PNG file; `unit` is what was classified.

    The color is the share of the true class, so that rare classes are as visible as frequent ones, on a square-root
    scale, so that the few errors of a good model are visible too.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    from .._fonts import drawable_names, font_families

    counts = np.asarray(confusion)
    if counts.ndim != 2 or counts.shape != (len(classes), len(classes)) or not len(classes):
        raise CrateError(f"a confusion matrix of {len(classes)} classes must be square, not {counts.shape}")
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
    starts = np.arange(0, len(shares), -(-len(shares) // _LARGEST_PICTURE))
    shares = np.maximum.reduceat(np.maximum.reduceat(shares, starts, axis=0), starts, axis=1)  # keeps the diagonal
    side = 6 if len(shares) <= 600 else len(shares) / 100  # at least one pixel per cell
    figure = Figure(figsize=(side + 2, side + 2), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names = [name if len(name) <= 24 else f"{name[:23]}…" for name in classes] if len(classes) <= _LABELED else None
    numbered_names = names is not None and drawable_names(names) is None  # a script that no installed font has
    if numbered_names:
        names = [str(number) for number in range(1, len(classes) + 1)]
    display = ConfusionMatrixDisplay(shares, display_labels=names)
    numbered = len(classes) <= _NUMBERED
    display.plot(
        include_values=numbered,
        cmap="cividis",  # looks the same with and without color blindness, and in gray
        ax=axes,
        xticks_rotation="vertical",
        im_kw={"norm": PowerNorm(0.5, 0, 1), "interpolation": "nearest"},
        text_kw={"fontsize": min(11.0, 540 / len(classes) / len(str(int(counts.max()))))},
    )
    if numbered:
        for text, count in zip(display.text_.ravel(), counts.ravel(), strict=True):
            text.set_text(str(count) if count else "")
    if names is None:
        axes.set(xticks=[], yticks=[])
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)  # a dollar sign in a class name is a dollar sign
        label.set_fontfamily(font_families())
    legend = ", by the row of the class in per_class.csv" if numbered_names else ""
    axes.set(xlabel=f"predicted{legend}", ylabel=f"true{legend}")
    samples = int(totals.sum())
    axes.set_title(f"accuracy {np.trace(counts) / samples:.1%}, {samples:,} {unit}" if samples else f"no {unit}")
    with atomic_write(Path(path)) as draft:
        figure.savefig(draft, format="png", bbox_inches="tight", pad_inches=0.15)
    return Path(path)


@dataclass(frozen=True)
class ReconstructionReport(EvaluationReport):
    """The reconstruction loss of a split, each image under its own mask."""

    data: str
    split: str
    images: int
    corrupt: tuple[str, ...]
    loss: float
    """Mean over images of the training loss."""
    loss_std: float
    """Standard deviation over images."""
    seconds: float
    total: int | None = None
    """Number of images in all splits of the data; None for streams."""
    unreadable: int = 0
    """Number of images that could not be read."""

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the loss in a sentence."""
        images = counted(self.images, self.total, "images", self.unreadable)
        name = title or f"{self.part} {self.data}"
        yield f"{name}: reconstruction loss {self.loss:.4f} ± {self.loss_std:.4f} over {images}"


@dataclass(frozen=True)
class FeatureReport(EvaluationReport):
    """How well the features of a model without classes tell the classes of a split apart."""

    data: str
    split: str
    images: int
    corrupt: tuple[str, ...]
    neighbor_top1: float
    """Share of images whose class wins the vote of their 20 nearest neighbors within the split."""
    seconds: float
    total: int | None = None
    """Number of images in all splits of the data; None for streams."""
    unreadable: int = 0
    """Number of images that could not be read."""

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the accuracy in a sentence, and where there is more."""
        images = counted(self.images, self.total, "images", self.unreadable)
        name = title or f"{self.part} {self.data}"
        yield f"{name}: {self.neighbor_top1:.2%} by nearest neighbors within the split, {images}"
        yield "crate probe measures the same features with the training images as neighbors"


@dataclass(frozen=True, eq=False)
class Reconstruction(Report):
    """Images, what the model saw of them, and what it reconstructed."""

    names: list[str]
    losses: list[float]
    columns: list[Tensor]
    """Original, masked and reconstructed images, each (batch, channels, height, width), normalized."""
    augment: Augment
    """How the images are normalized."""

    @property
    def loss(self) -> float:
        """The mean loss."""
        return sum(self.losses) / len(self.losses)

    def to_dict(self) -> dict[str, Any]:
        """Return the loss of each image and their mean."""
        images = [{"image": name, "loss": loss} for name, loss in zip(self.names, self.losses, strict=True)]
        return {"images": images, "loss": self.loss}

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the loss of each image, and their mean."""
        losses = zip(self.names, self.losses, strict=True)
        yield Table(title or "reconstruction", ("image", "loss"), [(name, f"{loss:.4f}") for name, loss in losses])
        yield f"mean loss {self.loss:.4f}"

    def pictures(self) -> list[list[Image]]:
        """Return the original, masked and reconstructed picture of each image."""
        return [list(row) for row in zip(*(unnormalize(part, self.augment) for part in self.columns), strict=True)]

    def sheet(self, scale: int | None = None) -> Image:
        """Return all pictures side by side as one; small images are enlarged without blur."""
        from PIL import Image, ImageDraw

        rows = self.pictures()
        side = rows[0][0].width
        scale = scale or max(1, 160 // side)
        size, gap, top = side * scale, 8, 20
        sheet = Image.new("RGB", (3 * size + 4 * gap, top + len(rows) * (size + gap)), "white")
        for column, title in enumerate(("original", "masked", "reconstruction")):
            ImageDraw.Draw(sheet).text((gap + column * (size + gap), 4), title, fill="black")
            for line, row in enumerate(rows):
                image = row[column].convert("RGB").resize((size, size), Image.Resampling.NEAREST)
                sheet.paste(image, (gap + column * (size + gap), top + line * (size + gap)))
        return sheet

    def save(self, path: str | Path, scale: int | None = None) -> Path:
        """Write all pictures side by side to one PNG file."""
        with atomic_write(Path(path)) as draft:
            self.sheet(scale).save(draft, format="PNG")
        return Path(path)


@dataclass(frozen=True)
class MaskedReport(EvaluationReport):
    """Prediction of masked tokens."""

    cross_entropy: float
    """Mean of −log P(true token) over the masked tokens, in nats."""
    perplexity: float
    """Its exponential; not comparable with that of a causal model, which sees only one side."""
    accuracy: float
    """Share of the masked tokens whose true id has the highest logit."""
    tokens: int
    """Number of masked tokens."""
    block: int
    """Tokens read at a time."""
    seconds: float
    split: str | None = None
    """Split of the text; "all" for a text without splits."""
    total: int | None = None
    """Number of tokens in the split."""

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the metrics in a sentence."""
        yield (
            f"{title or 'masked tokens'}: loss {self.cross_entropy:.4f} nats per masked token, "
            f"accuracy {self.accuracy:.2%}, {counted(self.tokens, self.total, 'tokens')} masked"
        )


@dataclass(frozen=True, eq=False)
class SentenceReport(EvaluationReport):
    """The metrics of labeled sentences, for each split."""

    data: str
    splits: dict[str, dict[str, float]]
    """For each split `loss`, the metrics of the task and the number of `rows`."""
    total: int | None = None
    """Number of sentences or pairs in all splits of the data."""
    classes: tuple[str, ...] | None = None
    """Class names; None for numbers."""
    per_class: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """For each split the `class`, number of `sentences` and `accuracy` of each class."""
    confusion: dict[str, NDArray[np.int64] | None] = field(default_factory=dict)
    """For each split the number of sentences of class i (row) predicted as class j (column)."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; confusion matrices are included for at most 100 classes."""
        values = super().to_dict()
        if self.classes is None or len(self.classes) > _LARGEST_IN_JSON:
            del values["confusion"]
        return values

    def save(self, folder: str | Path) -> Path:
        """Write per_class.csv, confusion.csv and confusion.png, for several splits one of each, and metrics.json."""
        for split, rows in self.per_class.items():
            suffix = f"-{split}" if len(self.splits) > 1 else ""
            _save_classes(Path(folder), rows, self.confusion[split], self.classes or (), "sentences", suffix)
        return super().save(folder)

    @property
    def split(self) -> str:
        """The names of the splits."""
        return ", ".join(self.splits)

    @property
    def note(self) -> str | None:
        """A sentence if the model is no better than the most frequent class of the first split."""
        split, scores = next(iter(self.splits.items()))
        counts = [row["sentences"] for row in self.per_class.get(split, [])]
        return majority_note(scores["accuracy"], counts) if counts and "accuracy" in scores else None

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the first split."""
        return {name: value for name, value in next(iter(self.splits.values())).items() if name != "rows"}

    @property
    def measured(self) -> int:
        """Number of sentences or pairs that were read."""
        return sum(int(scores.get("rows", 0)) for scores in self.splits.values())

    def describe(self, title: str = "") -> Iterator[Table | str]:
        """Yield the accuracy of each class, and the metrics of each split."""
        title, names = title or f"{self.part} {self.data}", list(self.metrics)
        for split, rows in self.per_class.items():
            name = title if len(self.per_class) == 1 else f"{title}, {split}"
            yield from _describe_classes(rows, "sentences", name)
        sentences = counted(self.measured, self.total, "sentences")
        if len(self.splits) > 1:
            cells = [
                (split, *(f"{scores[name]:.4f}" for name in names), f"{scores.get('rows', 0):,}")
                for split, scores in self.splits.items()
            ]
            yield Table(title, ("split", *names, "sentences"), cells)
            yield sentences
        else:
            about = "" if self.per_class else f"{title}: "
            yield about + ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items()) + f", {sentences}"
