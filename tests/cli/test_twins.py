"""Verbs on models that transformers saved: converted to a folder of this package, and opened as they are."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
    ViTMAEConfig,
    ViTMAEForPreTraining,
)

from codingrate import Run

from .conftest import check_refusal, crate_json

LAYERS = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48}


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A ViT with random weights for 10 classes of gray images, as transformers saves it, and its processor."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("theirs") / "vit"
    config = ViTConfig(**LAYERS, image_size=8, patch_size=2, num_channels=1, num_labels=10)
    config.id2label = {index: str(index) for index in range(10)}
    ViTForImageClassification(config).save_pretrained(folder)
    size = {"height": 8, "width": 8}
    ViTImageProcessorPil(size=size, image_mean=[0.4], image_std=[0.3], do_convert_rgb=False).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def converted(vit, tmp_path_factory):
    """The ViT after `crate convert`."""
    from codingrate.models.loading import convert

    folder = tmp_path_factory.mktemp("ours") / "vit"
    convert(vit, folder)
    return folder


def test_convert_takes_folders_of_transformers(capsys, vit, tmp_path):
    report = crate_json(capsys, "convert", vit, tmp_path / "out")
    theirs = ViTForImageClassification.from_pretrained(vit)
    assert report == {
        "folder": str(tmp_path / "out"), "model": "CrateForImageClassification", "notes": [],
        "parameters": theirs.num_parameters(),
    }  # fmt: skip
    check_refusal(capsys, ["convert", vit, tmp_path / "two", "--heads", 3], 1, "leave out heads")
    check_refusal(capsys, ["convert", "nobody-here/no-such-model", tmp_path / "three"], 1, "reachable hub id")


def test_a_vit_is_probed_and_evaluated_with_its_own_normalization(capsys, vit, converted, tmp_path):
    digits = ("--data", "digits")
    probe = crate_json(capsys, "probe", converted, *digits, "--limit", 200, "--output", tmp_path / "probe")
    assert 0.5 < probe["probes"]["trained"]["metrics"]["top1"] <= 1, "even random features tell digits apart"
    bare = crate_json(capsys, "probe", converted, *digits, "--limit", 200, "--protocol", "paper", "--method", "knn")
    assert bare["probes"]["trained"]["about"]["protocol"] == "paper"
    transform = Run(converted).task.recipe.augment
    assert (list(transform.mean), list(transform.std), transform.evaluation) == ([0.4], [0.3], "resize")
    measured = [
        crate_json(capsys, "evaluate", folder, *digits, "--output", tmp_path / folder.parent.name)["loss"]
        for folder in (vit, converted)
    ]
    assert measured[0] == measured[1], "a folder of transformers is opened as its twin"


@pytest.mark.usefixtures("undrawn")
def test_a_vit_is_inspected(capsys, converted, tmp_path):
    output = tmp_path / "report"
    crate_json(capsys, "inspect", converted, "--data", "digits", "--limit", 8, "--token-samples", 3, "--output", output)
    panels = json.loads((output / "report.json").read_text())["panels"]
    assert {"tokens", "tokens-2", "tokens-3", "attention"} <= set(panels), list(panels)
    assert (output / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("verb", ["segment", "attention"])
def test_a_vit_shows_segments_and_attention(capsys, converted, photo, tmp_path, verb):
    report = crate_json(capsys, verb, converted, photo, "--output", tmp_path / "out")
    assert [layer["layer"] for layer in report["images"][0]["layers"]] == [2], "the last layer of a ViT"
    assert list((tmp_path / "out").glob("*.png"))
    assert "compare" not in report["images"][0]


@pytest.mark.parametrize("verb", ["segment", "attention"])
def test_two_models_are_shown_in_one_picture(capsys, converted, saved, photo, tmp_path, verb):
    report = crate_json(capsys, verb, saved, photo, "--compare", converted, "--size", 96, "--output", tmp_path / "out")
    with Image.open(report["images"][0]["compare"]) as both:
        assert both.height > 60 * 2, "a picture of 60 rows for each model"
        assert len(np.unique(np.asarray(both).reshape(-1, 3), axis=0)) > 20


def test_an_autoencoder_reconstructs(capsys, photo, tmp_path):
    torch.manual_seed(0)
    decoder = {"decoder_hidden_size": 12, "decoder_num_attention_heads": 3, "decoder_num_hidden_layers": 1}
    config = ViTMAEConfig(**LAYERS, **decoder, decoder_intermediate_size=24, image_size=32, patch_size=8)
    ViTMAEForPreTraining(config).save_pretrained(tmp_path / "mae")
    shutil.copytree(tmp_path / "mae", tmp_path / "copy")
    report = crate_json(capsys, "reconstruct", tmp_path / "mae", photo, "--output", tmp_path / "out.png")
    assert np.isfinite(report["loss"])
    both = crate_json(
        capsys, "reconstruct", tmp_path / "mae", photo, "--compare", tmp_path / "copy", "--output", tmp_path / "two.png"
    )
    assert list(both["compare"].values()) == [report["loss"]] * 2, "the same mask for both"
    with Image.open(tmp_path / "out.png") as one, Image.open(tmp_path / "two.png") as two:
        assert two.height > 2 * one.height


def test_a_gpt2_is_measured_with_its_tokenizer(capsys, gpt, tmp_path):
    tokenizer = Run(gpt).processor
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=len(tokenizer), n_positions=32, bos_token_id=0, eos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    crate_json(capsys, "convert", tmp_path / "gpt2", tmp_path / "ours")
    text = gpt.parent / "text" / "test.txt"
    losses = [
        crate_json(capsys, "perplexity", folder, "--data", text)["cross_entropy"]
        for folder in (tmp_path / "gpt2", tmp_path / "ours")
    ]
    assert losses[0] == losses[1]
    assert losses[0] == pytest.approx(np.log(len(tokenizer)), rel=0.05), "random weights know nothing"
