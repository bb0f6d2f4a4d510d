"""Images of any kind are decoded, unreadable ones are counted, and whole files are read or refused in one line."""

import io

import numpy as np
import pytest
from PIL import ExifTags, Image

from codingrate.data import CorruptImages, UnreadableImageError, decode_image, read_picture
from codingrate.data.image_files import file_content
from codingrate.errors import CrateError

from .conftest import encoded, picture


def array(value, channels=3):
    image = decode_image(value, channels)
    assert image.mode == {1: "L", 3: "RGB"}[channels]
    return np.asarray(image)


def test_same_pixels_from_every_kind_of_value(tmp_path):
    image = picture(0)
    image.save(tmp_path / "a.png")
    raw, pixels = encoded(image), np.asarray(image)
    for value in (
        raw, str(tmp_path / "a.png"), {"bytes": raw, "path": "x"}, {"bytes": None, "path": str(tmp_path / "a.png")},
        image, pixels, pixels.tolist(), np.moveaxis(pixels, 2, 0), pixels.astype(np.int64),
    ):  # fmt: skip
        assert (array(value) == pixels).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_file_content_keeps_the_pixels(tmp_path, channels):
    """A stored file is passed on byte by byte; pixels in lists become a file that decodes to the same pixels."""
    image = picture(0).convert("L" if channels == 1 else "RGB")
    stored = encoded(image)
    (tmp_path / "image.png").write_bytes(stored)
    for value in ({"bytes": stored, "path": None}, {"bytes": None, "path": str(tmp_path / "image.png")}):
        assert file_content(value, channels) == stored
    content = file_content(np.asarray(image).tolist(), channels)
    assert np.array_equal(np.asarray(decode_image(content, channels)), np.asarray(image))


def test_gray_and_color():
    gray, color = picture(1, mode="L"), picture(2)
    assert (array(encoded(gray)) == np.asarray(gray)[:, :, None]).all()
    assert (array(encoded(color), 1) == np.asarray(color.convert("L"))).all()
    assert (array(np.asarray(gray)[:, :, None], 1) == np.asarray(gray)).all()
    bits = np.eye(4, dtype=bool)
    assert (array(bits, 1) == bits * 255).all()
    assert (array(encoded(Image.fromarray(bits)), 1) == bits * 255).all()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_by_their_range(kind):
    values = np.array([[0, 257, 32768, 65535]], np.uint16)
    for value in (encoded(Image.fromarray(values), kind), values):
        assert array(value, 1).tolist() == [[0, 1, 128, 255]]
    assert array(Image.fromarray(values.astype(np.int32)), 3)[0, :, 1].tolist() == [0, 1, 128, 255]


def test_transparency_is_laid_over_white():
    rgba = Image.new("RGBA", (2, 1), (200, 0, 0, 255))
    rgba.putpixel((1, 0), (200, 0, 0, 0))
    assert array(encoded(rgba)).tolist() == [[[200, 0, 0], [255, 255, 255]]]
    assert array(encoded(Image.merge("LA", [Image.new("L", (1, 1), 9), Image.new("L", (1, 1), 0)])), 1) == 255
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    assert array(encoded(palette)).tolist() == [[[10, 20, 30], [40, 50, 60]]]
    palette.info["transparency"] = 1
    assert array(encoded(palette)).tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_cmyk_and_orientation():
    assert array(encoded(Image.new("CMYK", (3, 2), (0, 255, 255, 0)), "TIFF")).tolist() == [[[255, 0, 0]] * 3] * 2
    image, exif = picture(3, 5, 3), Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # to be turned a quarter clockwise
    file = io.BytesIO()
    image.save(file, "PNG", exif=exif)
    turned = file.getvalue()
    assert (array(turned) == np.rot90(np.asarray(image), -1)).all()


def test_unreadable(tmp_path, monkeypatch):
    whole = encoded(picture(4, 50, 50))
    for value in (
        b"", b"no image", whole[: len(whole) // 2], str(tmp_path / "gone.png"), {"bytes": None, "path": None},
        np.full((2, 2), 300), np.zeros((2, 2)), None,
    ):  # fmt: skip
        with pytest.raises(UnreadableImageError):
            decode_image(value)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)  # 2,500 would only be warned of
    with pytest.raises(UnreadableImageError, match="DecompressionBomb"):
        decode_image(whole)


def test_few_corrupt_images_are_counted():
    corrupt = CorruptImages(max_share=0.02)
    for name in ("a.png", "b.png"):
        corrupt.add({"labels": range(49), "corrupt": [name]})
    assert corrupt.seen == 100
    assert corrupt.finish() == ("a.png", "b.png")
    assert (corrupt.seen, corrupt.finish()) == (100, ()), "each is named once"


def test_the_share_of_all_images_is_judged_not_that_of_the_first_ones():
    corrupt = CorruptImages(max_share=0.01)
    corrupt.add({"labels": range(98), "corrupt": ["a.png", "b.png"]})  # 2 % of those seen, 0.33 % of all
    corrupt.add({"labels": range(505), "corrupt": []})
    assert corrupt.finish() == ("a.png", "b.png")


def test_too_many_corrupt_images_are_an_error():
    corrupt = CorruptImages(max_share=0.02)
    corrupt.add({"labels": range(940), "corrupt": ["a.png"] * 20})  # too few to judge
    with pytest.raises(CrateError, match=r"^21 of 1001 images cannot .* 0\.02 is allowed; the first is a\.png"):
        corrupt.add({"labels": range(40), "corrupt": ["c.png"]})
    late = CorruptImages()
    late.count(40, ["a.png"])
    with pytest.raises(CrateError, match="1 of 41"):
        late.finish()
    every = CorruptImages(max_share=1.0)
    every.count(0, ["a.png", "b.png"])
    with pytest.raises(CrateError, match="all 2 images"):
        every.finish()
    with pytest.raises(CrateError, match="max_share"):
        CorruptImages(max_share=2)


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
