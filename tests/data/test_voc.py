"""VOC's folders: what is read, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from codingrate import CrateError
from codingrate.data import load_voc

from .conftest import picture


def write_voc(root, names=("a", "b"), split="val", size=(13, 11)):
    """Images with a block of class 7, a block of class 2, and a strip that is void."""
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        picture(number, *size).save(root / "JPEGImages" / f"{name}.jpg")
        labels = np.zeros(size[::-1], dtype=np.uint8)
        labels[2:6, 3:8], labels[7:10, 3:8], labels[6] = 7, 2, 255
        stored = Image.fromarray(labels).convert("P")
        stored.putpalette([value for index in range(256) for value in (index, 0, 255 - index)])
        stored.putdata(labels.ravel().tolist())
        stored.save(root / "SegmentationClass" / f"{name}.png")
    (root / "ImageSets" / "Segmentation" / f"{split}.txt").write_text("\n".join(names) + "\n")
    return root


@pytest.mark.parametrize("above", [".", "VOCdevkit"])
def test_images_with_their_classes(tmp_path, above):
    write_voc(tmp_path / above / "VOC2012")
    images = load_voc(tmp_path)
    assert [image.file.stem for image in images] == ["a", "b"]
    image, labels = images[1].read()
    assert image.size == (13, 11)
    assert labels.shape == (11, 13)
    assert labels.dtype == np.uint8
    assert labels[3, 4] == 7
    assert sorted(set(labels.ravel().tolist())) == [0, 2, 7, 255]
    assert len(load_voc(tmp_path, limit=1)) == 1


def test_refusals(tmp_path):
    with pytest.raises(CrateError, match="has no ImageSets/Segmentation"):
        load_voc(tmp_path)
    root = write_voc(tmp_path / "VOC2012")
    with pytest.raises(CrateError, match="no split 'tset'; its splits are val"):
        load_voc(tmp_path, "tset")
    image = load_voc(root)[0]
    Image.new("RGB", (13, 11)).save(image.label_file)
    with pytest.raises(CrateError, match=r"a\.png: has colors \(RGB\), not classes"):
        image.read()
    Image.new("L", (11, 13)).save(image.label_file)
    with pytest.raises(CrateError, match=r"a\.png: has 11 × 13 pixels, but its image 13 × 11"):
        image.read()
    image.label_file.write_bytes(b"no")
    with pytest.raises(CrateError, match=r"a\.png: is not an image"):
        image.read()
    image.label_file.unlink()
    with pytest.raises(CrateError, match=r"1 of the files that it lists are missing; the first is .*a\.png"):
        load_voc(root)
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("\n")
    with pytest.raises(CrateError, match="lists no images"):
        load_voc(root)
