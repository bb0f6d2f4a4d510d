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
