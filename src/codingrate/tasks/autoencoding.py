"""Masked autoencoding (paper 3.3, 4.1.2): CRATE-MAE and the black-box MAE."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from ..errors import CrateError
from ..evaluation.features import check_image_input
from ..models.autoencoder import CrateForMaskedAutoencoding, kept_patches, random_mask
from ..models.base import CratePreTrainedModel, eval_mode
from .base import SHOWN, Reading, Step, balanced_samples, expect_model, generator
from .images import ImageTask, MeasuredSplit
from .reports import Reconstruction, ReconstructionReport

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..inspection import Outcome


def own_masks(pixel_values: Tensor, patches: int, ratio: float, seed: int = 0) -> Tensor:
    """Draw a mask (batch, N) for each image, True = removed, at random from the image's own pixels.

    The loss of a split then does not depend on batches or on the number of processes.
    """
    kept = kept_patches(patches, ratio)
    masks = np.ones((len(pixel_values), patches), dtype=bool)
    for mask, image in zip(masks, (pixel_values.float() * 64).round().short().cpu().numpy(), strict=True):
        draw = np.random.default_rng((seed, zlib.crc32(np.ascontiguousarray(image).tobytes())))
        mask[draw.permutation(patches)[:kept]] = False
    return torch.from_numpy(masks)


class Autoencoding(ImageTask):
    """The reconstruction loss: under a new mask in every training step, under each image's own mask in evaluation."""

    def create_model(self) -> CratePreTrainedModel:
        model = self.build_vision_model(continue_training=True)
        if not isinstance(model, CrateForMaskedAutoencoding):
            name = self.recipe.source or self.recipe.model.name
            raise CrateError(f"model {name}: task autoencoding needs a masked autoencoder such as crate-mae-base")
        return model

    def add_targets(self, batch: dict[str, Any], seed: int | None, model: CratePreTrainedModel) -> dict[str, Any]:
        pixels, ratio = batch["pixel_values"], model.config.mask_ratio
        height, width = (side // model.config.patch_size for side in pixels.shape[-2:])
        if seed is None:
            mask = own_masks(pixels, height * width, ratio)
        else:
            mask = random_mask(len(pixels), height * width, ratio, generator=generator(seed))
        return {**batch, "mask": mask.to(pixels.device)}

    def loss(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> Step:
        output = model(pixel_values=batch["pixel_values"], mask=batch["mask"])
        count = len(batch["mask"])
        return Step(output.loss if count else output.reconstruction.sum() * 0, count)

    def measure(self, model: nn.Module, inner: CratePreTrainedModel, batch: dict[str, Any]) -> dict[str, Tensor]:
        return {"loss": model(pixel_values=batch["pixel_values"], mask=batch["mask"]).losses}

    def headline(self, metrics: dict[str, float]) -> str:
        return f"test reconstruction loss {metrics['loss']:.4f}"

    def report(self, measured: MeasuredSplit) -> ReconstructionReport:
        losses = measured.values["loss"]
        return ReconstructionReport(
            data=measured.crops.data.name,
            split=measured.crops.split,
            images=len(losses),
            corrupt=measured.crops.corrupt,
            loss=float(losses.mean()),
            loss_std=float(losses.std()),
            seconds=measured.seconds,
            total=measured.crops.data.total,
            unreadable=len(measured.crops.corrupt),
        )

    def outcome(
        self, model: CratePreTrainedModel, images: Sequence[Image], own_data: bool, **reading: Unpack[Reading]
    ) -> Outcome:
        """Compare with one color: the mean of the data or, if patches are normalized, the mean of each patch."""
        from ..inspection import Outcome, Sample, Score

        autoencoder = expect_model(model, CrateForMaskedAutoencoding, self.recipe.task)

        def errors(pixels: Tensor) -> list[float]:
            mask = self.add_targets({"pixel_values": pixels}, None, model)["mask"]
            patches = autoencoder.embedding.patches(pixels)[0]
            masked: Tensor = autoencoder.patch_errors(patches, torch.zeros_like(patches))[mask]
            return masked.flatten().tolist()

        with eval_mode(model), torch.inference_mode():
            losses = [loss for part in self.batches(model, **reading).map(errors) for loss in part]
        loss = float(self.measure_split(model, **reading).values["loss"].mean())
        name = "the mean of each patch" if model.config.normalize_pixels else "the mean color of the data"
        score = Score("Reconstruction loss of masked patches", loss, False, float(np.mean(losses)), name)
        rebuilt = self.reconstruct_samples(model, SHOWN)
        rows = zip(rebuilt.pictures(), rebuilt.losses, strict=True)
        samples = [Sample(f"loss {loss:.3f}", None, row) for row, loss in rows]
        return Outcome([score], samples, "Original, masked and reconstructed images")

    def reconstruct(self, model: CratePreTrainedModel, images: Sequence[Any], seed: int = 0) -> Reconstruction:
        """Reconstruct image files or PIL images under masks drawn from `seed`."""
        return self.reconstruct_pixels(model, [str(image) for image in images], self.read(images), seed)

    def reconstruct_samples(self, model: CratePreTrainedModel, count: int, seed: int = 0) -> Reconstruction:
        """Reconstruct readable images of the test split, balanced over its classes."""
        samples = balanced_samples(self.datasets()[1], count)
        readable = {index: sample for index, sample in samples.items() if sample["corrupt"] is None}
        pixels = self.layerwise_batch([*readable.values()])[0]
        return self.reconstruct_pixels(model, [f"test image {index}" for index in readable], pixels, seed)

    def reconstruct_pixels(
        self, model: CratePreTrainedModel, names: list[str], pixels: Tensor, seed: int
    ) -> Reconstruction:
        """Reconstruct normalized pixels (batch, channels, height, width).

        A model whose targets are normalized patches knows each patch only up to its mean and scale; these are taken
        from the original.
        """
        check_image_input(model, self.recipe.augment)
        autoencoder = cast(CrateForMaskedAutoencoding, model)
        config = model.config
        pixels = pixels.to(model.device)
        height, width = (side // config.patch_size for side in pixels.shape[-2:])
        mask = own_masks(pixels, height * width, config.mask_ratio, seed).to(model.device)
        with eval_mode(model), torch.inference_mode():
            output = autoencoder(pixel_values=pixels.to(model.dtype), mask=mask, return_dict=True)
            patches, grid = autoencoder.embedding.patches(pixels)
            rebuilt = output.reconstruction
            if config.normalize_pixels:
                mean, var = patches.mean(dim=-1, keepdim=True), patches.var(dim=-1, keepdim=True)
                rebuilt = rebuilt * (var + 1e-6).sqrt() + mean
            visible = torch.where(output.mask[..., None], torch.zeros(()), patches)  # zero is the mean of the data
            columns = [autoencoder.image(part, grid) for part in (patches, visible, rebuilt)]
        return Reconstruction(names, output.losses.tolist(), columns, self.recipe.augment)
