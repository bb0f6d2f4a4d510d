"""`crate attention` as a user meets it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from PIL import Image

from codingrate import create_model, inspection
from codingrate.data import Augment
from codingrate.inspection.segment import square_input
from codingrate.operators.attention_mass import at_size, mass_masks
from codingrate.training import load_weights
from tests.inspection.test_segment import SMALL

from .test_training_verbs import crate


def naive_maps(folder, path, side, layer):
    """The class token's row of the attention inside the forward pass, over the patches, (K, side/8, side/8)."""
    model = load_weights(str(folder)).eval()
    with Image.open(path) as image:
        pixels = square_input(model, image, Augment(), side)[1]
    row = inspection.trace(model, pixels).attention(layer)[0, :, 0, 1:].double()
    return (row / row.sum(-1, keepdim=True)).unflatten(-1, (side // 8, side // 8)).numpy()


def check(entry, maps, mass, width, height):
    """The figures and files of one layer."""
    wanted = {str(k): own for k, own in enumerate(maps, 1)} | {"mean": sum(maps) / len(maps)}
    assert [part["head"] for part in entry["heads"]] == list(wanted)
    for part in entry["heads"]:
        own = wanted[part["head"]]
        shares = own.ravel().tolist()
        entropy = -sum(share * math.log(share) for share in shares) / math.log(len(shares))
        assert part["entropy"] == pytest.approx(entropy, abs=1e-6)
        running, count = 0.0, 0
        for share in sorted(shares, reverse=True):
            running, count = running + share, count + 1
            if running >= mass:
                break
        assert part["patches"] == count
        with Image.open(part["mask"]) as drawn:
            np.testing.assert_array_equal(np.asarray(drawn) > 0, at_size(mass_masks(own, mass), height, width))


def test_grids_masks_and_figures_are_those_of_the_maps(capsys, saved, photo, tmp_path):
    output = tmp_path / "out"
    options = ("--layer", -1, "--layer", 0, "--layer", 2, "--mass", 0.45, "--size", 40)
    code, out, _ = crate(capsys, "attention", saved, photo, photo, *options, "--output", output, "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["size"], report["patches"], report["mass"]) == (40, 25, 0.45)
    for entry, name in zip(report["images"], ("disc", "disc-2"), strict=True):
        assert (entry["image"], entry["width"], entry["height"], entry["note"]) == (str(photo), 90, 60, None)
        assert [found["layer"] for found in entry["layers"]] == [2, 0]
        for found in entry["layers"]:
            assert found["picture"] == str(output / f"{name}-layer{found['layer']}.png")
            with Image.open(found["picture"]) as grid:
                assert grid.size == (7 * 244 - 4, 18 + 2 * 160 + 4)  # image, five heads, mean
            assert found["heads"][1]["mask"] == str(output / f"{name}-layer{found['layer']}-head2-mask.png")
            check(found, naive_maps(saved, photo, 40, found["layer"]), 0.45, 90, 60)
    assert len(list(output.iterdir())) == 2 * 2 * (1 + 6)


def test_the_default_layer_size_and_folder(capsys, saved, photo):
    code, out, _ = crate(capsys, "attention", saved, photo, "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["size"], report["mass"]) == (32, 0.6)
    found = report["images"][0]["layers"]
    assert [entry["layer"] for entry in found] == [1]  # the last but one of three
    assert found[0]["picture"] == str(saved / "attention" / "disc-layer1.png")
    check(found[0], naive_maps(saved, photo, 32, 1), 0.6, 90, 60)


def test_a_table_of_one_head_in_all_layers(capsys, saved, photo, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # so that no path is broken into lines
    output = tmp_path / "out"
    code, out, _ = crate(capsys, "attention", saved, photo, "--layer", "all", "--head", 4, "--output", output)
    assert code == 0
    rows = [line.split("│")[1:-1] for line in out.splitlines() if str(photo) in line]
    assert [(row[1].strip(), row[2].strip()) for row in rows] == [("0", "4"), ("1", "4"), ("2", "4")]
    for layer, row in enumerate(rows):
        count = int(mass_masks(naive_maps(saved, photo, 32, layer)[3]).sum())
        assert row[4].strip() == f"{count} ({count / 16:.0%})"
    assert f"patches of 16 with 60% of it; pictures in {output}" in out
    assert len(list(output.iterdir())) == 3 * 2


def test_a_preset_is_said_to_be_untrained_and_an_enormous_image_scaled(capsys, tmp_path, monkeypatch):
    from codingrate import models

    build = models.create_model
    monkeypatch.setattr(models, "create_model", lambda name: build(name, **SMALL))
    path = tmp_path / "large.png"
    Image.new("L", (5000, 50), 90).save(path)  # grey, for a model of colours
    options = ("--output", tmp_path / "out", "--json")
    code, out, said = crate(capsys, "attention", "vit-tiny-patch16-224", path, *options)
    assert code == 0
    assert "note: vit-tiny-patch16-224 has random weights" in said
    assert f"note: {path}: scaled down from 5000 × 50 to 4096 × 41 pixels" in said
    entry = json.loads(out)["images"][0]
    assert (entry["width"], entry["height"]) == (4096, 41)
    assert [found["layer"] for found in entry["layers"]] == [2]  # the last of a ViT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layer", 3), "layer 3 is out of range; the model has 3 layers, -3 to 2"),
        (("--layer", 0, "--layer", -4), "layer -4 is out of range"),
        (("--layer", "last"), "--layer last: give numbers from -3 to 2, or all"),
        (("--head", 6), "--head 6 is out of range; the model has 5 heads, 1 to 5"),
        (("--head", 0), "--head 0 is out of range"),
        (("--mass", 0), "--mass must lie in (0, 1], not 0"),
        (("--mass", 1.5), "--mass must lie in (0, 1], not 1.5"),
        (("--size", 7), "side 7 is not divisible by the model's patch_size 8; take 8"),
        (("--size", 41), "side 41 is not divisible by the model's patch_size 8; take 40"),
        (("--which", "worst"), "--which"),
    ],
)
def test_bad_options(capsys, saved, photo, tmp_path, options, message):
    code, _, said = crate(capsys, "attention", saved, photo, "--output", tmp_path / "out", *options)
    assert code == 1
    assert message in said
    assert not (tmp_path / "out").exists()


def test_bad_images(capsys, saved, tmp_path):
    Image.new("RGB", (1, 1)).save(tmp_path / "one.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    for name, message in (
        ("one.png", "one.png: is only 1 × 1 pixels"),
        ("broken.png", "broken.png: is not an image that can be read"),
        ("none.png", "none.png: no such image file"),
    ):
        code, _, said = crate(capsys, "attention", saved, tmp_path / name)
        assert code == 1
        assert message in said


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("crate-mae-small", SMALL, "no class token whose attention could be shown; take one with class_token=True"),
        ("crate-tiny-patch16-224", {**SMALL, "attention": "tssa"}, "'tssa' compares no two tokens"),
        (
            "crate-bert-medium",
            {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "vocab_size": 50},
            "which reads text; give a vision model",
        ),
    ],
)
def test_models_without_maps(capsys, photo, tmp_path, name, fields, message):
    create_model(name, **fields).save_pretrained(tmp_path / "model")
    code, _, said = crate(capsys, "attention", tmp_path / "model", photo)
    assert code == 1
    assert message in said
