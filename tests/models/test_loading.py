"""Saved models from every kind of source, and the body of one model in another."""

import json
import logging

import pytest
import torch
import torch.nn.functional as F
from PIL.Image import Resampling
from transformers import AutoImageProcessor
from transformers.utils import logging as transformers_logging

from codingrate.models import load_model, transfer_body
from codingrate.models.loading import inherited_config, load_body
from codingrate.models.processing import IMAGENET_MEAN, image_processor
from tests.refusals import refused

from . import released_files, toys


def global_state():
    return (
        torch.get_rng_state().tolist(),
        torch.get_num_threads(),
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
        logging.getLogger("codingrate").handlers,
        logging.getLogger("codingrate").level,
    )


@pytest.mark.parametrize("task", toys.TASKS)
def test_every_model_comes_back_from_its_folder(task, tmp_path):
    model = toys.build(task).eval()
    model.save_pretrained(tmp_path)
    before = global_state()
    again = load_model(tmp_path)
    assert global_state() == before
    assert type(again) is type(model)
    assert not again.training
    assert {name: t.tolist() for name, t in again.state_dict().items()} == {
        name: t.tolist() for name, t in model.state_dict().items()
    }
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in model.parameters()]


def test_a_released_file_is_loaded_as_such(tmp_path):
    shapes = released_files.classifier(d=384, depth=2, side=4, patches=16, classes=7)
    path = released_files.write(tmp_path, released_files.random_values(shapes))
    before = global_state()
    model = load_model(str(path))
    assert global_state() == before
    assert model.config.num_labels == 7
    assert not model.training


def test_sources_that_hold_no_model(tmp_path):
    refused("holds no saved model; give a folder that save_pretrained wrote", load_model, tmp_path)
    refused("no/such-model: is no checkpoint file, saved model or reachable hub id", load_model, "no/such-model")
    for settings in ({"model_type": "swin", "architectures": ["SwinModel"]}, {"model_type": "crate"}):
        (tmp_path / "config.json").write_text(json.dumps(settings))
        refused(f"holds a {settings['model_type']} model", load_model, tmp_path)


def test_a_body_with_another_head_and_image_size():
    source = toys.build("masked-autoencoding", class_token=True, pooling="class")
    model = transfer_body(source, {"image_size": (28, 14), "num_labels": 7, "pooling": "mean"})
    assert model.head.weight.shape == (7, 12)
    assert model.config.mask_ratio == source.config.mask_ratio
    before, after = source.crate.state_dict(), model.crate.state_dict()
    old, new = before.pop("embedding.positions.weight"), after.pop("embedding.positions.weight")
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    grid, (rows, columns) = source.config.grid, model.config.grid
    patches = F.interpolate(old[1:].T.reshape(1, 12, *grid), size=(rows, columns), mode="bicubic", align_corners=False)
    torch.testing.assert_close(new, torch.cat([old[:1], patches.reshape(12, rows * columns).T]))


def test_bodies_that_do_not_fit():
    source = toys.build("image-classification")
    refused("channels, patch size and width cannot change", transfer_body, source, {"num_channels": 1})
    refused("has no layers.2.attention_norm.weight", transfer_body, source, {"num_hidden_layers": 4})
    text = toys.build("masked-lm")
    refused("the source model is a text model; give a vision model", transfer_body, text, {})
    refused("vocabulary, positions and width cannot change", load_body, text.crate, {
        **text.crate.state_dict(), "embedding.words.weight": torch.zeros(3, 14),
    })  # fmt: skip
    refused("did you mean 'hidden_size'?", inherited_config, text, {"hiden_size": 3})


@pytest.mark.parametrize("channels", [1, 3])
def test_the_image_processor_of_a_recipe(channels, tmp_path):
    plain = image_processor((12, 20), channels)
    assert list(plain.image_mean) == (list(IMAGENET_MEAN) if channels == 3 else [0.5])
    assert dict(plain.size) == {"shortest_edge": round(20 * 256 / 224)}
    assert plain.resample == Resampling.BILINEAR
    mean, std = [0.1] * channels, [0.6] * channels
    given = {"channels": channels, "mean": mean, "std": std, "interpolation": "bicubic"}
    image_processor(12, **given, crop="resize").save_pretrained(tmp_path)
    resized = AutoImageProcessor.from_pretrained(tmp_path)
    assert (list(resized.image_mean), list(resized.image_std), resized.do_center_crop) == (mean, std, False)
    assert dict(resized.size) == {"height": 12, "width": 12}
    assert resized.resample == Resampling.BICUBIC
    cropped = image_processor(12, **given, ratio=1.25)
    assert dict(cropped.size) == {"shortest_edge": 15}
    assert dict(cropped.crop_size) == {"height": 12, "width": 12}
