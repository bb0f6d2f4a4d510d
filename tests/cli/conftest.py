"""What tests of several verbs look at."""

from __future__ import annotations

import pytest
import torch

from codingrate import create_model
from tests.inspection.test_segment import SMALL, disc_image


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model with a class token that reads colours, in a folder of its own."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("saved") / "model"
    create_model("crate-tiny-patch16-224", **SMALL, num_labels=7).save_pretrained(folder)
    return folder


@pytest.fixture
def photo(tmp_path):
    """A disc on 90 × 60 pixels."""
    disc_image()[0].save(tmp_path / "disc.png")
    return tmp_path / "disc.png"
