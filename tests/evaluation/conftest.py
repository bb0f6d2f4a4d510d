"""The built-in digits, and models whose answers are known without running the evaluation."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from codingrate.data import Augment, BatchAugment, collate, load_images, torch_dataset
from codingrate.models import CrateConfig, CrateForImageClassification
from tests.data.conftest import _private_cache  # noqa: F401  (an autouse fixture)

GREY = Augment(image_size=8, channels=1, crop="resize", flip=0)
RGB = Augment(image_size=7, crop="resize")


def tiny(**fields):
    base = {
        "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
        "image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 10,
    }  # fmt: skip
    return CrateForImageClassification(CrateConfig(**{**base, **fields}))


class Linear(nn.Module):
    """Logits linear in the pixels: fast, different for every image, and the same whatever the batch."""

    def __init__(self, classes, pixels=64):
        super().__init__()
        self.map = nn.Linear(pixels, classes)
        self.modes = []

    def forward(self, pixel_values):
        self.modes.append((self.training, torch.is_inference_mode_enabled()))
        return SimpleNamespace(logits=self.map(pixel_values.flatten(1)))


class Fixed(nn.Module):
    """The rows of a table, one after another, whatever the images are."""

    def __init__(self, logits):
        super().__init__()
        self.table, self.place = torch.as_tensor(logits), 0

    def forward(self, pixel_values):
        start, self.place = self.place, self.place + len(pixel_values)
        return SimpleNamespace(logits=self.table[start : self.place])


def one_hot(guesses, classes):
    """Logits of a model that predicts so."""
    return torch.eye(classes)[torch.as_tensor(guesses)]


def answers(model, data, augment, split="test"):
    """Logits and labels of a split, computed without the evaluation room."""
    rows = getattr(data, split)
    dataset = torch_dataset(replace(data, test=rows), augment, train=False)
    batch = next(iter(DataLoader(dataset, batch_size=len(rows), collate_fn=collate)))
    with torch.no_grad():
        logits = model(pixel_values=BatchAugment(augment).eval()(batch["pixel_values"])).logits
    return logits.double().numpy(), batch["labels"].numpy()


@pytest.fixture(scope="session")
def digits():
    return load_images("digits")
