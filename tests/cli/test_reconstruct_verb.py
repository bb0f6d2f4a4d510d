"""`crate reconstruct`, and `crate evaluate` of runs without classes, as a user meets them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from tests.training.test_autoencoding import mae
from tests.training.test_distillation import dino
from tests.training.toys import lines
from tests.training.toys import run as train_toy

from .test_training_verbs import crate


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mae") / "run"
    train_toy(folder, mae({"schedule.steps": 2}))
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two image files of another size and colour than the run's."""
    folder = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for name in ("one.png", "two.jpg"):
        Image.fromarray(draw.integers(0, 256, (23, 31, 3), dtype=np.uint8)).save(folder / name)
    return folder


def test_of_the_first_test_images(capsys, trained, tmp_path):
    code, out, _ = crate(capsys, "reconstruct", trained, "--count", 3, "--output", tmp_path / "a.png", "--json")
    report = json.loads(out)
    assert code == 0
    assert [entry["image"] for entry in report["images"]] == ["test image 0", "test image 1", "test image 2"]
    assert report["loss"] == pytest.approx(np.mean([entry["loss"] for entry in report["images"]]))
    sheet = Image.open(tmp_path / "a.png")
    assert sheet.size == (3 * 160 + 4 * 8, 20 + 3 * 168)
    # the masked picture shows the visible quarter of the original and grey elsewhere; the third is something else
    original, masked, rebuilt = (
        np.asarray(sheet.convert("L"))[20:180, left : left + 160].astype(int) for left in (8, 176, 344)
    )
    same = (masked == original).reshape(4, 40, 4, 40).all(axis=(1, 3))
    grey = (np.abs(masked - 128) <= 1).reshape(4, 40, 4, 40).all(axis=(1, 3))
    assert (same | grey).all()
    assert grey.sum() >= 12
    assert (rebuilt != original).any()


def test_of_files(capsys, trained, pictures, tmp_path):
    files = [pictures / "one.png", pictures / "two.jpg"]
    code, out, _ = crate(capsys, "reconstruct", trained, *files, "--output", tmp_path / "b.png")
    assert code == 0
    assert "one.png" in out
    assert "mean loss" in out
    assert (tmp_path / "b.png").is_file()
    other = crate(capsys, "reconstruct", trained, *files, "--seed", 5, "--output", tmp_path / "c.png", "--json")[1]
    same = crate(capsys, "reconstruct", trained, *files, "--output", tmp_path / "d.png", "--json")[1]
    assert json.loads(other)["loss"] != json.loads(same)["loss"]


@pytest.mark.parametrize(
    ("content", "message"), [(None, "no such image file"), (b"not an image", "is not an image that can be read")]
)
def test_a_file_that_is_no_image(capsys, trained, tmp_path, content, message):
    path = tmp_path / "broken.png"
    if content is not None:
        path.write_bytes(content)
    code, _, said = crate(capsys, "reconstruct", trained, path)
    assert code == 1
    assert f"{path}: {message}" in said


def test_evaluate_gives_the_mean_loss(capsys, trained, tmp_path):
    code, out, _ = crate(capsys, "evaluate", trained, "--output", tmp_path / "found", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["loss"] == pytest.approx(lines(trained, "evaluation")[-1]["eval_loss"], rel=1e-5)
    assert (report["images"], report["split"]) == (359, "test")
    assert json.loads((tmp_path / "found" / "metrics.json").read_text())["loss"] == report["loss"]
    code, out, _ = crate(capsys, "evaluate", trained, "--split", "train", "--output", tmp_path / "found")
    assert "1438 images of the train split" in out


def test_runs_of_another_kind(capsys, tmp_path, trained):
    train_toy(tmp_path / "dino", dino({"schedule.steps": 1}))
    assert "crate probe" in crate(capsys, "evaluate", tmp_path / "dino")[2]
    assert "takes the run of an autoencoder" in crate(capsys, "reconstruct", tmp_path / "dino")[2]
    assert "no recipe.yaml" in crate(capsys, "reconstruct", tmp_path)[2]
    assert "--which" in crate(capsys, "reconstruct", trained, "--which", "worst")[2]
