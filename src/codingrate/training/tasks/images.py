"""What tasks on images share: rows, crops, augmentation on the device, unreadable files, the image processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ...data import Augment, BatchAugment, CorruptImages, ImageData, collate, load_images, torch_dataset
from ...models.base import CratePreTrainedModel
from ...models.processing import image_processor
from ..recipe import DataSection, Recipe
from .base import Task


class ImageTask(Task):
    """Learning from images."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.augment = BatchAugment(recipe.augment)
        self.corrupt = CorruptImages(max_share=recipe.data.max_corrupt)

    def load_data(self, folder: Path | None = None) -> ImageData:
        return load_data(self.recipe.data)

    def datasets(self, data: ImageData, rank: int, world: int) -> tuple[Any, Any]:
        spec = self.recipe.augment
        train = torch_dataset(data, spec, train=True, seed=self.recipe.run.seed, rank=rank, world_size=world)
        return train, torch_dataset(data, spec, train=False, rank=rank, world_size=world)

    def collate(self, rows: Any) -> dict[str, Any]:
        return collate(rows)

    def receive(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.corrupt.add(cast(Any, batch))
        return {key: value for key, value in batch.items() if key != "corrupt"}

    def judge(self) -> tuple[str, ...]:
        return self.corrupt.finish()

    def prepare(self, batch: dict[str, Any], seed: int | None) -> dict[str, Any]:
        return {**batch, "pixel_values": self.augment.train(seed is not None)(batch["pixel_values"], seed=seed)}

    def measured_batch(self, rows: list[Any]) -> Tensor:
        return cast(Tensor, self.augment.eval()(torch.stack([row["image"] for row in rows])))

    def save(self, model: CratePreTrainedModel, weights: dict[str, Tensor] | None, folder: Path) -> None:
        model.save_pretrained(folder, state_dict=weights)
        evaluation_processor(model, self.recipe.augment).save_pretrained(folder)


def load_data(section: DataSection) -> ImageData:
    """The images a recipe names."""
    return load_images(
        section.name,
        path=section.path,
        split_seed=section.split_seed,
        test_share=0.1 if section.test_share is None else section.test_share,
        streaming=section.streaming,
        image_column=section.image_column,
        label_column=section.label_column,
    )


def evaluation_processor(model: CratePreTrainedModel, augment: Augment) -> Any:
    """The recipe's evaluation transform as an image processor, so that pipelines see images as evaluation did."""
    from PIL.Image import Resampling

    processor = image_processor(model.config)
    mean, std = augment.normalization
    processor.image_mean, processor.image_std = list(mean), list(std)
    processor.resample = Resampling[augment.interpolation.upper()]
    size = augment.image_size
    if augment.evaluation_crop == "resize":
        processor.size, processor.do_center_crop = {"height": size, "width": size}, False
    else:
        processor.size = {"shortest_edge": round(size * augment.evaluation_ratio)}
    return processor
