"""`crate segment`, and `crate evaluate --task coco` and `voc`, as a user meets them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from codingrate import create_model, inspection
from codingrate.data import Augment
from codingrate.data.voc import load_voc
from codingrate.evaluation import voc_overlap
from codingrate.inspection.segment import square_input
from tests.data.test_objects import write_voc
from tests.inspection.test_segment import SMALL, disc_image
from tests.training.toys import run as train_toy

from .test_training_verbs import crate

QUICK = ("--threshold", 0.5, "--size", 96)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An untrained model without positions: it tells patches apart by their colour alone."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("saved") / "model"
    create_model("crate-tiny-patch16-224", **SMALL, positions="none", num_labels=7).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def grey(tmp_path_factory):
    """A run on grey images of digits."""
    folder = tmp_path_factory.mktemp("grey") / "run"
    train_toy(folder, {"schedule.steps": 1})
    return folder


def test_masks_and_overlays_are_written(capsys, saved, photo, tmp_path):
    output = tmp_path / "out"
    code, out, _ = crate(capsys, "segment", saved, photo, photo, *QUICK, "--output", output, "--json")
    report = json.loads(out)
    assert code == 0
    disc = disc_image()[1]
    for entry, name in zip(report["images"], ("disc", "disc-2"), strict=True):
        assert (entry["image"], entry["width"], entry["height"]) == (str(photo), 90, 60)
        assert entry["overlay"] == str(output / f"{name}-overlay.png")
        with Image.open(entry["overlay"]) as drawn:
            assert drawn.size == (90, 60)
        first = entry["segments"][0]
        assert first["mask"] == str(output / f"{name}-mask1.png")
        with Image.open(first["mask"]) as drawn:
            mask = np.asarray(drawn) > 0
        assert (mask & disc).sum() / (mask | disc).sum() > 0.9
        assert first["area"] == mask.sum()
        x, y, width, height = first["box"]
        assert mask[y : y + height, x : x + width].sum() == mask.sum()
        assert 0.5 < first["score"] <= 1
    assert len(list(output.iterdir())) == sum(1 + len(entry["segments"]) for entry in report["images"])


def test_a_table_and_where_the_pictures_are(capsys, saved, photo, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # so that no path is broken into lines
    Image.new("RGB", (30, 30), (9, 90, 190)).save(tmp_path / "even.png")
    options = (*QUICK, "--masks", 1, "--no-refine", "--layer", 0)
    code, out, _ = crate(capsys, "segment", saved, photo, tmp_path / "even.png", *options)
    assert code == 0
    assert "disc.png" in out
    assert f"1 objects in 2 images, none in 1; pictures in {saved / 'segments'}" in " ".join(out.split())
    assert (saved / "segments" / "disc-mask1.png").is_file()


def test_a_run_of_grey_images(capsys, grey, photo):
    code, out, _ = crate(capsys, "segment", grey, photo, "--size", 64, "--json")
    assert code == 0
    assert json.loads(out)["images"][0]["overlay"] == str(grey / "segments" / "disc-overlay.png")


def test_a_preset_is_said_to_be_untrained_and_an_enormous_image_scaled(capsys, tmp_path, monkeypatch):
    from codingrate import models

    build = models.create_model
    monkeypatch.setattr(models, "create_model", lambda name: build(name, **SMALL))
    photo = tmp_path / "large.png"
    disc_image()[0].resize((5000, 500)).save(photo)
    options = (*QUICK, "--output", tmp_path / "out", "--json")
    code, out, said = crate(capsys, "segment", "crate-tiny-patch16-224", photo, *options)
    assert code == 0
    assert "note: crate-tiny-patch16-224 has random weights" in said
    assert f"note: {photo}: scaled down from 5000 × 500 to 4096 × 410 pixels" in said
    entry = json.loads(out)["images"][0]
    assert (entry["width"], entry["height"]) == (4096, 410)
    assert entry["note"].endswith("4096 × 410 pixels")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layer", 9), "layer 9 is out of range; the model has 3 layers"),
        (("--threshold", 1.5), "threshold in [0, 1)"),
        (("--size", 97), "side 97 is not divisible by the model's patch_size 8; take 96"),
        (("--size", 8), "an image of one patch cannot be cut"),
        (("--which", "worst"), "--which"),
    ],
)
def test_bad_options(capsys, saved, photo, tmp_path, options, message):
    code, _, said = crate(capsys, "segment", saved, photo, "--output", tmp_path / "out", *options)
    assert code == 1
    assert message in said


def test_bad_sources(capsys, saved, photo, tmp_path):
    assert "did you mean 'crate-tiny-patch16-224'" in crate(capsys, "segment", "crate-tny-patch16-224", photo)[2]
    assert "holds no saved model" in crate(capsys, "segment", tmp_path, photo)[2]
    Image.new("RGB", (1, 1)).save(tmp_path / "one.png")
    assert "one.png: is only 1 × 1 pixels" in crate(capsys, "segment", saved, tmp_path / "one.png")[2]
    (tmp_path / "broken.png").write_bytes(b"no image")
    assert "broken.png: is not an image" in crate(capsys, "segment", saved, tmp_path / "broken.png")[2]
    text = create_model("crate-bert-medium", hidden_size=24, num_hidden_layers=1, num_attention_heads=3, vocab_size=50)
    text.save_pretrained(tmp_path / "text")
    assert "which reads text; give a vision model" in crate(capsys, "segment", tmp_path / "text", photo)[2]


# evaluate --task


@pytest.fixture
def coco(tmp_path):
    """Two images, each with the disc drawn as a polygon."""
    root = tmp_path / "coco"
    (root / "images").mkdir(parents=True)
    image, disc = disc_image()
    angles = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    polygon = np.stack([40.5 + 20 * np.cos(angles), 30.5 + 20 * np.sin(angles)], axis=1).ravel().tolist()
    content = {"images": [], "annotations": []}
    for number in range(2):
        image.save(root / "images" / f"{number}.png")
        content["images"].append({"id": number, "file_name": f"{number}.png", "width": 90, "height": 60})
        thing = {"id": number + 1, "image_id": number, "bbox": [20.5, 10.5, 40, 40], "area": int(disc.sum())}
        content["annotations"].append({**thing, "category_id": number, "segmentation": [polygon], "iscrowd": 0})
    (root / "annotations.json").write_text(json.dumps(content))
    return root


def test_coco_of_planted_objects(capsys, saved, coco, tmp_path):
    options = ("--task", "coco", "--data", coco, *QUICK, "--output", tmp_path / "out")
    code, out, _ = crate(capsys, "evaluate", saved, *options, "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["images"], report["objects"], report["layer"], report["size"]) == (2, 2, -2, 96)
    assert report["mask"]["ap50"] == pytest.approx(1)
    assert report["box"]["ap75"] == pytest.approx(1)
    assert report["mask"]["ap"] > 0.8
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["box"] == report["box"]
    assert len(json.loads((tmp_path / "out" / "detections.json").read_text())) == report["detections"]
    code, out, _ = crate(capsys, "evaluate", saved, *options, "--limit", 1, "--no-refine")
    assert code == 0
    assert "1 images, all classes as one" in " ".join(out.split())


def naive_maps(model, pixel_values, layer=-2):
    """The class token's row of the attention inside the forward pass."""
    side = pixel_values.shape[-1] // model.config.patch_size
    weights = inspection.trace(model, pixel_values).attention(layer % 3)
    return weights[:, :, 0, 1:].unflatten(-1, (side, side))


def test_voc_takes_attention_maps(capsys, saved, tmp_path):
    from codingrate.training import load_weights

    root = write_voc(tmp_path / "VOC2012", size=(40, 24))
    options = ("--task", "voc", "--data", root, "--size", 32, "--output", tmp_path / "out")
    code, out, _ = crate(capsys, "evaluate", saved, *options, "--json")
    report = json.loads(out)
    assert code == 0
    model, pairs = load_weights(str(saved)).eval(), []
    for entry in load_voc(root):
        image, labels = entry.read()
        pixels = square_input(model, image, Augment(), 32)[1]
        pairs.append((naive_maps(model, pixels)[0].detach().numpy(), labels))
    assert report["miou"] == pytest.approx(voc_overlap("voc", pairs, mass=0.6).miou)
    assert sorted(report["per_class"]) == ["2", "7"]
    code, out, _ = crate(capsys, "evaluate", saved, *options, "--threshold", 0.9, "--layer", 0)
    assert "masks of 90% of the attention" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--task", "cocoa", "--data", "."), "unknown --task 'cocoa'; did you mean 'coco'"),
        (("--task", "coco"), "--task coco is measured on --data"),
        (("--task", "coco", "--data", "nowhere"), "nowhere: no such file or folder"),
        (("--task", "voc", "--data", "nowhere"), "nowhere: has no ImageSets/Segmentation"),
    ],
)
def test_bad_tasks(capsys, saved, options, message):
    code, _, said = crate(capsys, "evaluate", saved, *options)
    assert code == 1
    assert message in said


def test_options_of_tasks_only(capsys, saved, coco, grey):
    assert "are for --task coco or voc" in crate(capsys, "evaluate", saved, "--layer", 1)[2]
    Image.new("RGB", (9, 9)).save(coco / "images" / "1.png")
    said = crate(capsys, "evaluate", saved, "--task", "coco", "--data", coco, *QUICK)[2]
    assert "1.png: has 9 × 9 pixels, but its annotations are for 90 × 60" in said
    said = crate(capsys, "evaluate", grey, "--task", "coco", "--data", coco)[2]
    assert "reads 1 channel(s); --task coco has colour images" in said
