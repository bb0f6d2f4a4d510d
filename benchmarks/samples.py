"""Samples that suites measure on: photographs as JPEG files, and features of Gaussian classes."""

from __future__ import annotations

import io

import numpy as np

from codingrate.data import OpenedData
from codingrate.evaluation import Features

CLASSES, SPREAD = 10, 4.0  # of the features that are probed


def photographs(count: int) -> OpenedData:
    """Return a dataset of JPEG photographs with a short side of 256 pixels: scikit-learn's two samples, repeated."""
    from datasets import Dataset, Features, Image, Value
    from PIL import Image as Picture
    from sklearn.datasets import load_sample_images

    files = []
    for array in load_sample_images().images:
        picture = Picture.fromarray(array)
        scale = 256 / min(picture.size)
        buffer = io.BytesIO()
        picture.resize((round(picture.width * scale), round(picture.height * scale))).save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    rows = [{"image": {"bytes": files[i % 2], "path": None}, "label": i % 2} for i in range(count)]
    samples = Dataset.from_list(rows, features=Features({"image": Image(decode=False), "label": Value("int64")}))
    return OpenedData("photographs", {"train": samples, "test": samples}, ("image",), "label", ("photograph",))


def gaussian_features(train: int, test: int, width: int) -> tuple[Features, Features]:
    """Draw training and test features around ten means, from a fixed seed, with so much spread that classes overlap."""
    generator = np.random.default_rng(0)
    means = generator.standard_normal((CLASSES, width), dtype=np.float32)
    names = tuple(f"class {number}" for number in range(CLASSES))
    parts = []
    for count in (train, test):
        labels = np.arange(count) % CLASSES
        values = generator.standard_normal((count, width), dtype=np.float32)
        values *= SPREAD
        values += means[labels]
        parts.append(Features(values, labels, names))
    return parts[0], parts[1]
