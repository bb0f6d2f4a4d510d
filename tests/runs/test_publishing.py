"""Published runs, those that ship with the package, and names that open them."""

import json
import re
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import codingrate as cr
from codingrate.models import pretrained
from codingrate.recipes import build_recipe
from codingrate.runs import check_published, publish
from tests.refusals import refused

from .toys import assert_same, toy_task, train_toy


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A folder with one published run on digits."""
    folder = tmp_path_factory.mktemp("weights")
    run = train_toy(folder.parent / "run")
    publish(run, folder / "crate-toy", about="Trained for a test.", samples=20)
    return folder


def test_a_published_run_opens_like_the_run(shipped):
    run = cr.Run(shipped / "crate-toy")
    assert run.recipe.data.name == "digits"
    assert run.finished
    stored = json.loads((shipped / "crate-toy" / "sample.json").read_text())
    assert check_published(run)["top1"] == (stored["metrics"]["top1"],) * 2
    assert run.evaluate().metrics["loss"] == pytest.approx(run.metrics["loss"], rel=1e-2), "16 bits change little"
    assert run.model().dtype == torch.float32
    card = (shipped / "crate-toy" / "README.md").read_text()
    assert "Trained for a test." in card
    assert "from_pretrained" in card
    (changed,) = re.findall("```yaml\n(.*?)```", card, re.DOTALL)
    assert "distillation" not in changed, "only what differs from the defaults"
    assert build_recipe(yaml.safe_load(changed)) == run.recipe


def test_shipped_names_open_everywhere(shipped, monkeypatch, tmp_path):
    monkeypatch.setattr(pretrained, "WEIGHTS", shipped)
    monkeypatch.chdir(tmp_path)
    assert cr.pretrained_names("crate-*") == ["crate-toy"]
    run, model = cr.Run("crate-toy"), cr.create_model("crate-toy", pretrained=True)
    for one, two in zip(model.parameters(), run.model().parameters(), strict=True):
        assert torch.equal(one, two)
    assert run.output_folder("evaluation") == run.output_folder("evaluation").relative_to("."), "not in the package"
    report = run.evaluate()
    assert report.save(run.output_folder("evaluation")).parent.resolve() == tmp_path
    refused("leave out sparsity", cr.create_model, "crate-toy", pretrained=True, sparsity=1)
    refused("did you mean 'crate-toy'", cr.create_model, "crate-tiy", pretrained=True)
    refused("did you mean 'crate-toy'", cr.Run, "crate-toyy")


def test_training_starts_from_a_shipped_name(shipped, monkeypatch):
    """Weights of 16 bits are trained in single precision."""
    monkeypatch.setattr(pretrained, "WEIGHTS", shipped)
    model, source = toy_task({"model.from": "crate-toy", "model.config": {}}).build_model(), cr.Run("crate-toy").model()
    assert model.dtype == torch.float32
    assert_same(model.crate.state_dict(), source.crate.state_dict())


def test_damage_is_noticed(shipped, tmp_path):
    copy = shutil.copytree(shipped / "crate-toy", tmp_path / "copy")
    file = copy / "model" / "last" / "model.safetensors"
    weights = load_file(file)
    weights["head.bias"] = weights["head.bias"].flip(0) + 3 * torch.arange(10)
    save_file(weights, file, metadata={"format": "pt"})
    refused("on its sample, but was", check_published, cr.Run(copy))
    file.write_bytes(file.read_bytes()[:-100])
    refused("model.safetensors", cr.Run(copy).model)
    file.unlink()
    refused(str(copy), cr.Run(copy).model)


def test_what_cannot_be_published(shipped, tmp_path):
    untrained = cr.Run("crate-tiny-patch16-224")
    for call in (
        (publish, cr.Run(shipped / "crate-toy"), shipped),
        (publish, untrained, tmp_path),
        (check_published, untrained),
    ):
        refused("", *call)


@pytest.mark.parametrize("name", cr.pretrained_names())
def test_shipped_models_give_their_stored_metrics(name, monkeypatch):
    run = cr.Run(name)
    assert check_published(run)

    def elsewhere(self):
        raise AssertionError("the data that the model was trained on are not needed")

    monkeypatch.setattr(type(run.task), "data", property(elsewhere))
    assert "loss" in run.headline or "top-1" in run.headline
    assert all(parameter.isfinite().all() for parameter in run.model().parameters())


def test_shipped_weights_are_small():
    files = [file for file in pretrained.WEIGHTS.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 30e6


def test_a_shipped_autoencoder_reconstructs_its_stored_sample():
    result = cr.Run("crate-cifar10-mae").reconstruct(count=3)
    assert len(result.names) == 3
    assert result.loss < 1  # the variance of the targets, which a constant gray reaches
