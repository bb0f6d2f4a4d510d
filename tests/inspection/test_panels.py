"""The panels of a model, put together."""

import pytest
import torch

from codingrate import create_model
from codingrate.data import Augment, BatchAugment
from codingrate.inspection import layerwise
from codingrate.inspection.panels import pictures, vision_panels
from tests.inspection.test_segment import SMALL


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_what_the_crops_were(channels):
    augment = Augment(channels=channels)
    crops = torch.randint(256, (2, channels, 5, 7), dtype=torch.uint8)
    found = pictures(BatchAugment(augment).eval()(crops), augment)
    assert [image.size for image in found] == [(7, 5), (7, 5)]
    for image, crop in zip(found, crops, strict=True):
        values = torch.tensor(list(image.tobytes()), dtype=torch.uint8).view(5, 7, channels)
        assert torch.equal(values.permute(2, 0, 1), crop)


def named(model, layers=None, **options):
    pixels = torch.randn(3, 3, 32, 32)
    tables = {"it": layerwise(model, [pixels], layers=layers)}
    panels, notes = vision_panels(model, tables, pixels, Augment(image_size=32), layers=layers, **options)
    return {panel.name: panel for panel in panels}, notes


def test_names_are_fit_for_files_and_the_model_stays_as_it_was():
    model = create_model("crate-tiny-patch16-224", **SMALL).train()
    panels, notes = named(model, layers=[0, 1])
    assert model.training
    assert notes == []
    assert all(name == name.lower() and name.replace("-", "").isalnum() for name in panels)
    assert panels["attention"].table["layer"].tolist() == [2] * 5
    assert panels["tokens"].table["layer"].tolist() == [1, 2]


def test_what_a_model_has_not_is_left_out_or_noted():
    twin, notes = named(create_model("vit-tiny-patch16-224", **SMALL))
    assert notes == []
    assert "subspaces" not in twin
    assert twin["attention"].table["layer"].tolist() == [3] * 5
    blind, notes = named(create_model("crate-tiny-patch16-224", **SMALL, class_token=False, pooling="mean"))
    assert "attention" not in blind
    assert "heads" not in blind
    assert len(notes) == 1
    assert notes[0].startswith("No attention maps: the model has no class token")


def test_a_run_without_measures_has_no_panel_across_training(tmp_path):
    model = create_model("crate-tiny-patch16-224", **SMALL)
    assert "across-training" not in named(model, metrics=tmp_path / "metrics.jsonl")[0]
