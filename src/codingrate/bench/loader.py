"""Whether the loader keeps up: images per second it delivers, against what a model trains on."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from ..data import Augment, BatchAugment, ImageData, ImageDataset, collate
from ..models.presets import create_model
from .timing import Progress, medians


def bench_loader(
    name: str = "crate-tiny-patch16-224",
    images: int = 512,
    workers: int = 1,
    repeats: int = 3,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Decoding, random resized crops and batch augmentation of JPEG photographs, against training steps of a model."""
    augment = Augment()
    dataset = photographs(images)
    data = ImageData("photographs", dataset, dataset, ("temple", "flower"), "image", "label")
    rows = ImageDataset(data, augment, train=True)
    loader = DataLoader(rows, batch_size=64, num_workers=workers, collate_fn=collate, persistent_workers=workers > 0)
    batch_augment = BatchAugment(augment).train()

    def load() -> None:
        for index, batch in enumerate(loader):
            batch_augment(batch["pixel_values"], seed=index)

    model = create_model(name).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    pixels, labels = torch.randn(16, 3, augment.image_size, augment.image_size), torch.zeros(16, dtype=torch.long)

    def train() -> None:
        F.cross_entropy(model(pixels).logits, labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    seconds = medians({"loader": load, "training": train}, repeats, warmup=1, progress=progress)
    speed = {"loader": images / seconds["loader"], "training": len(pixels) / seconds["training"]}
    return {
        "model": name,
        "workers": workers,
        "images_per_second": speed,
        "ratio": speed["loader"] / speed["training"],
    }


def photographs(count: int) -> Any:
    """Rows of JPEG photographs with a short side of 256 pixels: the two that scikit-learn has, over and over."""
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
    values = {
        "image": [{"bytes": files[i % 2], "path": None} for i in range(count)],
        "label": [i % 2 for i in range(count)],
    }
    return Dataset.from_dict(values, features=Features({"image": Image(decode=False), "label": Value("int64")}))
