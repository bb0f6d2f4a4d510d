"""The datasets known by a short name: built in, or where the Hugging Face hub keeps them."""

from __future__ import annotations

from dataclasses import dataclass

BUILT_IN = ("digits",)

_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


@dataclass(frozen=True)
class Known:
    """Where a well-known dataset lies on the hub and how its columns and splits are called there."""

    hub: str
    """Hub id, `owner/name`."""
    train: str = "train"
    """Split to learn from."""
    test: str | None = "test"
    """Split with labels to measure on; None where the hub has a single one, which is then split here."""
    image: str = "image"
    """Image column."""
    label: str = "label"
    """Label column."""
    classes: int | tuple[str, ...] | None = None
    """Class names, or how many, for copies whose labels are bare numbers (these are then class indices)."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names, numbers written out where only their count is known."""
        return tuple(map(str, range(self.classes))) if isinstance(self.classes, int) else self.classes


KNOWN = {
    "fashion-mnist": Known("zalando-datasets/fashion_mnist", classes=_FASHION),
    "cifar10": Known("uoft-cs/cifar10", image="img", classes=10),
    "cifar100": Known("uoft-cs/cifar100", image="img", label="fine_label", classes=100),
    # As in the released fine-tuning script: Flowers on its 1,020 training images, Pets on trainval (the hub's train).
    "flowers102": Known("dpdl-benchmark/oxford_flowers102", classes=102),
    "oxford-pets": Known("timm/oxford-iiit-pet", classes=37),
    # ImageNet's test labels are secret: its validation split is what everyone reports.
    "imagenet-1k": Known("ILSVRC/imagenet-1k", test="validation", classes=1000),
    # The Fall 2011 release, the one with the paper's 21,841 classes; a single split.
    "imagenet-21k": Known("timm/imagenet-22k-wds", test=None, image="jpg", label="cls", classes=21841),
}


def dataset_names() -> list[str]:
    """Every short name `load_images` understands, sorted."""
    return sorted((*BUILT_IN, *KNOWN))
