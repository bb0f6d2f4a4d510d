"""The built-in digits, image tasks, and models whose answers are known without running an evaluation."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedConfig

from codingrate.data import Augment, BatchAugment, collate, load_images, torch_dataset
from codingrate.models import CrateConfig, CrateForImageClassification
from codingrate.recipes import build_recipe
from codingrate.tasks import open_task
from tests.data.conftest import _private_cache  # noqa: F401  (an autouse fixture)

GRAY = Augment(image_size=8, channels=1, crop="resize", flip=0)
RGB = Augment(image_size=7, crop="resize")


def image_task(data, augment=GRAY, *, task="classification", **section):
    """Return a task on opened images; `section` are keys of the recipe's section `data`."""
    fields = {"image_size": augment.image_size, "channels": augment.channels, "crop": "resize", "flip": 0}
    opened = open_task(build_recipe({"task": task, "data": {"workers": 0, **section}, "augment": fields}))
    opened.data = data
    return opened


def evaluate(model, data, augment=GRAY, *, max_corrupt=0.01, workers=0, **reading):
    """Return the report of a classifier on opened images."""
    return image_task(data, augment, max_corrupt=max_corrupt, workers=workers).evaluate(model, **reading)


def tiny(**fields):
    base = {
        "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
        "image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 10,
    }  # fmt: skip
    return CrateForImageClassification(CrateConfig(**{**base, **fields}))


class Classifier(nn.Module):
    """What a task asks of a classifier beside its logits; `classes` are their number or their names."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, classes):
        super().__init__()
        names = None if isinstance(classes, int) else dict(enumerate(classes))
        self.config = PreTrainedConfig(num_labels=classes) if names is None else PreTrainedConfig(id2label=names)


class Linear(Classifier):
    """Logits linear in the pixels: fast, different for every image, and the same whatever the batch."""

    def __init__(self, classes, pixels=64):
        super().__init__(classes)
        self.map = nn.Linear(pixels, self.config.num_labels)
        self.modes = []

    dtype = property(lambda self: self.map.weight.dtype)

    def forward(self, pixel_values):
        self.modes.append((self.training, torch.is_inference_mode_enabled()))
        return SimpleNamespace(logits=self.map(pixel_values.flatten(1)))


class Fixed(Classifier):
    """The rows of a table, one after another, whatever the images are."""

    def __init__(self, logits):
        super().__init__(logits.shape[1])
        self.table, self.position = torch.as_tensor(logits), 0

    def forward(self, pixel_values):
        start, self.position = self.position, self.position + len(pixel_values)
        return SimpleNamespace(logits=self.table[start : self.position])


def one_hot(guesses, classes):
    """Return the logits of a model that predicts these classes."""
    return torch.eye(classes)[torch.as_tensor(guesses)]


def pixels_and_labels(data, augment, split="test"):
    """Return pixels and labels of a split as a model reads them, without tasks or the evaluation room."""
    rows = getattr(data, split)
    dataset = torch_dataset(data.with_splits(test=rows), augment, train=False)
    batch = next(iter(DataLoader(dataset, batch_size=len(rows), collate_fn=collate)))
    return BatchAugment(augment).eval()(batch["pixel_values"]), batch["labels"].numpy()


def answers(model, data, augment=GRAY, split="test"):
    """Return logits and labels of a split."""
    pixels, labels = pixels_and_labels(data, augment, split)
    with torch.no_grad():
        return model(pixel_values=pixels).logits.double().numpy(), labels


@pytest.fixture(scope="session")
def digits():
    return load_images("digits")
