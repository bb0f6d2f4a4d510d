"""Models inspected together: panels, facts, notes and tables of the report."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from codingrate import create_model
from codingrate.data import Augment, BatchAugment, unnormalize
from codingrate.inspection import Subject, inspect_models, layerwise
from tests.inspection.test_segment import SMALL
from tests.models import toys
from tests.refusals import refused


@pytest.mark.parametrize("channels", [1, 3])
def test_unnormalized_pixels_are_the_crops(channels):
    augment = Augment(channels=channels)
    crops = torch.randint(256, (2, channels, 5, 7), dtype=torch.uint8)
    found = unnormalize(BatchAugment(augment).eval()(crops), augment)
    assert [image.size for image in found] == [(7, 5), (7, 5)]
    for image, crop in zip(found, crops, strict=True):
        values = torch.tensor(list(image.tobytes()), dtype=torch.uint8).view(5, 7, channels)
        assert torch.equal(values.permute(2, 0, 1), crop)


def subject(model, count=3, **options):
    pixels = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return Subject("it", model, lambda: iter(pixels.split(2)), augment=Augment(image_size=32), **options)


def named(model, layers=None, **options):
    report = inspect_models([subject(model, **options)], data={"name": "noise", "split": "test"}, layers=layers)
    return {panel.name: panel for panel in report.panels}, report.notes


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
    assert "across-training" not in named(model, history=tmp_path / "metrics.jsonl")[0]


def test_models_are_measured_on_their_samples_and_described():
    encoder = create_model("crate-mae-small", **SMALL)
    first, second = (replace(subject(model, 35), name=name) for name, model in (("a", encoder), ("b", classifier())))
    first = replace(first, facts={"source": "here"}, recipe_text="task: autoencoding\n")
    steps = []

    @contextmanager
    def progress(description, total):
        steps.append([description, total, 0])
        yield lambda amount=1: steps[-1].__setitem__(2, steps[-1][2] + amount)

    def notes():
        yield f"{sum(step[2] for step in steps)} samples were read."

    report = inspect_models(
        [first, second],
        data={"name": "noise", "split": "test", "samples": 40},
        eps=0.3,
        notes=notes(),
        command="crate inspect here",
        progress=progress,
    )
    assert report.title == "Inspection of a and b"
    assert steps == [["measure a", 40, 35], ["measure b", 40, 35], ["look inside", 0, 0], ["summarize", 0, 0]]
    assert report.notes[0] == "70 samples were read."
    assert report.notes[-1] == "a is an autoencoder. Its encoder was inspected, on whole images."
    for one, body in ((first, encoder.base_model), (second, second.model)):
        assert report.tables[one.name].equals(layerwise(body, one.batches(), 0.3))
    facts = report.to_dict()["facts"]
    assert list(facts) == ["Model a", "Model b", "Data", "Command", "Environment", "Recipe of a"]
    assert facts["Data"] == {"name": "noise", "split": "test", "samples": 35}
    assert (facts["Model a"]["source"], facts["Model a"]["class"]) == ("here", "CrateForMaskedAutoencoding")
    assert facts["Model b"]["parameters"] == sum(weight.numel() for weight in second.model.parameters())
    assert facts["Model b"]["config"]["hidden_size"] == 30
    compression = next(panel for panel in report.panels if panel.name == "compression")
    assert set(compression.table["model"]) == {"a", "b"}


def classifier():
    return create_model("crate-tiny-patch16-224", **SMALL, num_labels=7)


def test_heads_choose_among_the_first_images():
    heads = named(classifier(), count=35)[0]["heads"]
    assert "On 32 images" in heads.measured


def test_refusals():
    refused("no models", inspect_models, [], data={})
    blank = Subject("it", classifier(), lambda: [torch.randn(1, 3, 32, 32)])
    refused("it: a vision model needs `augment`", inspect_models, [blank], data={})
    text = toys.build("causal-lm").eval()
    ids = {"input_ids": torch.randint(2, 29, (2, 5))}
    refused("it: a text model needs its `tokenizer`", inspect_models, [Subject("it", text, lambda: [ids])], data={})
