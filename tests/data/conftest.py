"""Small images and folders made on the spot, and a cache of their own for what `datasets` writes."""

import io

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)  # 5 s at the end of every Parquet stream
    datasets.disable_progress_bars()


def picture(seed, width=13, height=11, mode="RGB"):
    """Noise of a given size; different for every seed."""
    draw = np.random.RandomState(seed)
    bands = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    return Image.fromarray(draw.randint(0, 256, (height, width, *bands), dtype=np.uint8))


def encoded(image, kind="PNG"):
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def write_classes(root, counts, start=0):
    """Class folders with so many PNG files each."""
    number = start
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for index in range(count):
            picture(number).save(root / name / f"{index:03}.png")
            number += 1
    return root


def write_voc(root, names=("a", "b"), split="val", size=(13, 11)):
    """Write images in VOC's folders, each with a block of class 7, a block of class 2 and a void strip."""
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
