"""Whole images: upright, at their own size, scaled down with a note where they are enormous, or refused in one line."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from codingrate import CrateError
from codingrate.data import read_picture

from .conftest import encoded, picture


def test_an_image_comes_as_it_is(tmp_path):
    image = picture(0, 17, 11)
    image.save(tmp_path / "a.png")
    found, note = read_picture(tmp_path / "a.png")
    assert note is None
    np.testing.assert_array_equal(np.asarray(found), np.asarray(image))
    assert read_picture(tmp_path / "a.png", 1)[0].mode == "L"


@pytest.mark.parametrize("upright", [True, False])
def test_turned_by_its_orientation_or_left_as_stored(tmp_path, upright):
    image = picture(0, 17, 11)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.png", exif=exif)
    found, _ = read_picture(tmp_path / "a.png", upright=upright)
    assert found.size == ((11, 17) if upright else (17, 11))


@pytest.mark.parametrize("kind", ["png", "jpg"])
def test_an_enormous_image_is_scaled_down_with_a_note(tmp_path, kind):
    path = tmp_path / f"large.{kind}"
    Image.new("RGB", (1000, 300), (9, 90, 190)).save(path)
    image, note = read_picture(path, largest=100)
    assert image.size == (100, 30)
    assert note == f"{path}: scaled down from 1000 × 300 to 100 × 30 pixels"
    assert np.abs(np.asarray(image).astype(int) - (9, 90, 190)).max() <= 3
    assert read_picture(path, largest=None)[0].size == (1000, 300)


def test_beyond_what_pillow_warns_of_it_is_scaled_and_beyond_what_it_refuses_refused(tmp_path, monkeypatch):
    path = tmp_path / "large.png"
    Image.new("RGB", (400, 300)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100_000)
    assert read_picture(path, largest=200)[0].size == (200, 150)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    with pytest.raises(CrateError, match=r"large\.png: is too large to be read safely; scale it down first"):
        read_picture(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such image file"),
        (b"", "is not an image that can be read"),
        (b"not an image", "is not an image that can be read"),
        (encoded(picture(0))[:90], "is not an image that can be read"),
        (encoded(picture(0, 1, 1)), "is only 1 × 1 pixels"),
        (encoded(picture(0, 9, 1)), "is only 9 × 1 pixels"),
    ],
)
def test_what_is_refused(tmp_path, content, message):
    path = tmp_path / "a.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CrateError, match=message) as refusal:
        read_picture(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert "\n" not in str(refusal.value)
