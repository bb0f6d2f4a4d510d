"""Learning to fill in what was masked (paper 3.3, 4.1.2): CRATE-MAE and the black-box MAE."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...data import ImageData
from ...evaluation.reconstruction import own_masks
from ...models.autoencoder import random_mask
from ...models.base import CratePreTrainedModel
from ..start import build_autoencoder
from .base import Step, generator
from .images import ImageTask


class Autoencoding(ImageTask):
    """The reconstruction loss: in training under a new mask every time, in evaluation under each image's own."""

    best = "loss"

    def build_model(self, data: ImageData) -> CratePreTrainedModel:
        return build_autoencoder(self.recipe)

    def prepare(self, batch: dict[str, Any], seed: int | None) -> dict[str, Any]:
        batch = super().prepare(batch, seed)
        pixels, patches, ratio = batch["pixel_values"], self.config.num_patches, self.config.mask_ratio
        if seed is None:
            mask = own_masks(pixels, patches, ratio)
        else:
            mask = random_mask(len(pixels), patches, ratio, generator=generator(seed))
        return {**batch, "mask": mask.to(pixels.device)}

    def step(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        output = model(pixel_values=batch["pixel_values"], mask=batch["mask"])
        count = len(batch["mask"])
        return Step(output.loss if count else output.reconstruction.sum() * 0, count)

    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        output = model(pixel_values=batch["pixel_values"], mask=batch["mask"])
        return {"loss": output.losses}

    def headline(self, figures: dict[str, float]) -> str:
        return f"test reconstruction loss {figures['loss']:.4f}"
