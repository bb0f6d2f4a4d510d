"""Datasets known by a short name: where the Hugging Face hub keeps them, and what their columns and classes are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BUILT_IN_IMAGES, BUILT_IN_TEXT = "digits", "pydoc"


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the Hugging Face hub."""

    id: str
    """Hub id, `owner/name`."""
    config: str | None = None
    splits: Mapping[str, str] | None = None
    """Splits to open, our name → the hub's. Default: all of them."""
    image_column: str = "image"
    label_column: str = "label"
    classes: tuple[str, ...] | None = None
    """Class names, for copies whose labels are plain numbers (which are then class indices)."""
    revision: str | None = None
    """Branch or commit of the hub's repository. Default: its main branch."""
    validation_share: float = 0.05
    """Share of the documents to hold out if the hub has a single split of text."""


def _images(
    hub: str, classes: int | tuple[str, ...], image: str = "image", label: str = "label", test: str | None = "test"
) -> HubDataset:
    names = tuple(map(str, range(classes))) if isinstance(classes, int) else classes
    splits = {"train": "train"} if test is None else {"train": "train", "test": test}
    return HubDataset(hub, splits=splits, image_column=image, label_column=label, classes=names)


_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

IMAGES = {
    "fashion-mnist": _images("zalando-datasets/fashion_mnist", _FASHION),
    "cifar10": _images("uoft-cs/cifar10", 10, image="img"),
    "cifar100": _images("uoft-cs/cifar100", 100, image="img", label="fine_label"),
    # As in the released fine-tuning script: Flowers on its 1,020 training images, Pets on trainval (the hub's train).
    "flowers102": _images("dpdl-benchmark/oxford_flowers102", 102),
    "oxford-pets": _images("timm/oxford-iiit-pet", 37),
    # ImageNet's test labels are not public; results are reported on its validation split.
    "imagenet-1k": _images("ILSVRC/imagenet-1k", 1000, test="validation"),
    # The Fall 2011 release with the paper's 21,841 classes; it has a single split.
    "imagenet-21k": _images("timm/imagenet-22k-wds", 21841, image="jpg", label="cls", test=None),
}

TEXTS = {
    "wikitext": HubDataset("Salesforce/wikitext", "wikitext-2-raw-v1"),
    "wikitext-2": HubDataset("Salesforce/wikitext", "wikitext-2-raw-v1"),
    "wikitext-103": HubDataset("Salesforce/wikitext", "wikitext-103-raw-v1"),
    "lambada": HubDataset("cimec/lambada", splits={"validation": "validation", "test": "test"}),
    # The hub's copy is a script, which is not run; its conversion to tables is.
    "ptb": HubDataset("ptb-text-only/ptb_text_only", revision="refs/convert/parquet"),
    "openwebtext": HubDataset("Skylion007/openwebtext", validation_share=0.0005),  # nanoGPT's share, other documents
}


def dataset_names() -> list[str]:
    """Return the short names that `load_images` accepts, sorted."""
    return sorted((BUILT_IN_IMAGES, *IMAGES))


def text_names() -> list[str]:
    """Return the short names that `load_text` accepts, sorted."""
    return sorted((BUILT_IN_TEXT, *TEXTS))


@dataclass(frozen=True)
class GlueTask:
    """One GLUE task; the settings of its fine-tuning are in the recipe `glue`."""

    columns: tuple[str, ...]
    """Column of the sentence, or of both sentences."""
    classes: tuple[str, ...] | None
    """Class names in the order of the labels; None for regression."""
    metrics: tuple[str, ...] = ("accuracy",)
    """Metrics on the validation set, the one that the paper reports first."""
    validation: tuple[str, ...] = ("validation",)
    """Names of the validation sets."""
    in_average: bool = True
    """Whether the task counts in the paper's average, in which each validation set of MNLI is one number."""


_PAIR = ("sentence1", "sentence2")

GLUE = {
    "sst2": GlueTask(("sentence",), ("negative", "positive")),
    "mrpc": GlueTask(_PAIR, ("not_equivalent", "equivalent"), ("f1", "accuracy")),
    "stsb": GlueTask(_PAIR, None, ("spearman", "pearson")),
    "qqp": GlueTask(("question1", "question2"), ("not_duplicate", "duplicate"), ("f1", "accuracy")),
    "mnli": GlueTask(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        validation=("validation_matched", "validation_mismatched"),
    ),
    "qnli": GlueTask(("question", "sentence"), ("entailment", "not_entailment")),
    "rte": GlueTask(_PAIR, ("entailment", "not_entailment")),
    "wnli": GlueTask(_PAIR, ("not_entailment", "entailment")),
    "cola": GlueTask(("sentence",), ("unacceptable", "acceptable"), ("matthews",), in_average=False),
}
"""GLUE tasks by their name on the hub, in the order of the paper's table, which leaves out CoLA."""

HUB_DATASETS: dict[str, Mapping[str, HubDataset]] = {
    "images": IMAGES,
    "text": TEXTS,
    "sentences": {task: HubDataset("nyu-mll/glue", task) for task in GLUE},
}
"""Known datasets by kind and short name."""
