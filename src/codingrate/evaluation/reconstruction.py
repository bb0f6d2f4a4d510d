"""How well a masked autoencoder fills in what it cannot see: the loss over a split, and pictures of single images."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._files import atomic_write
from ..data import Augment, CorruptImages, ImageData
from ..errors import CrateError
from ..models.autoencoder import CrateForMaskedAutoencoding, kept_patches
from ..models.modes import evaluating
from ._images import batches, check_input, check_numbers, empty, split_rows
from .inputs import match_dtype, move_to_device


@dataclass(frozen=True)
class ReconstructionReport:
    """The reconstruction loss of a split, each image under its own mask."""

    data: str
    split: str
    images: int
    corrupt: tuple[str, ...]
    loss: float
    """Mean over images of the loss the model is trained on."""
    loss_std: float
    """Its deviation over images."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {**asdict(self), "corrupt": list(self.corrupt)}

    def save(self, folder: Path) -> None:
        """Write metrics.json, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / "metrics.json") as draft:
            draft.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")


def own_masks(pixel_values: Tensor, patches: int, ratio: float, seed: int = 0) -> Tensor:
    """A mask (batch, N) for each image, True = removed, that belongs to it: drawn at random from its own pixels.

    So a loss does not depend on how a split is cut into batches, or by how many processes it is measured.
    """
    kept = kept_patches(patches, ratio)
    masks = np.ones((len(pixel_values), patches), dtype=bool)
    for mask, image in zip(masks, (pixel_values.float() * 64).round().short().cpu().numpy(), strict=True):
        draw = np.random.default_rng((seed, zlib.crc32(np.ascontiguousarray(image).tobytes())))
        mask[draw.permutation(patches)[:kept]] = False
    return torch.from_numpy(masks)


def reconstruct(
    model: CrateForMaskedAutoencoding,
    data: ImageData,
    augment: Augment,
    *,
    split: str = "test",
    batch_size: int = 64,
    workers: int = 0,
    device: torch.device | str | None = None,
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
    max_corrupt: float = 0.01,
) -> ReconstructionReport:
    """Measure an autoencoder on the evaluation crops of a split; arguments as of `classify`."""
    check_input(model, augment)
    check_numbers(batch_size, workers, limit)
    rows, chosen = split_rows(data, split, limit)
    rows = rows if chosen is None else rows.select(chosen)
    place, corrupt = move_to_device(model, device), CorruptImages(max_corrupt)
    losses: list[Tensor] = []
    start = time.perf_counter()
    with evaluating(model), torch.inference_mode():
        for pixels, _, good in batches(
            data, rows, augment, corrupt, place=place, batch_size=batch_size, workers=workers
        ):
            if len(pixels):
                losses.append(_forward(model, pixels, 0).losses.double().cpu())
            if progress is not None:
                progress(len(good))
    names = corrupt.finish()
    if not losses:
        raise empty(data, split)
    found = torch.cat(losses)
    if not found.isfinite().all():
        raise CrateError("the model gives losses that are not numbers: its training diverged or its file is damaged")
    return ReconstructionReport(
        data=data.name,
        split=split,
        images=len(found),
        corrupt=names,
        loss=float(found.mean()),
        loss_std=float(found.std(correction=0)),
        seconds=time.perf_counter() - start,
    )


@torch.inference_mode()
def reconstructed(
    model: CrateForMaskedAutoencoding, pixel_values: Tensor, augment: Augment, seed: int = 0
) -> tuple[list[list[Any]], list[float]]:
    """Original, masked and reconstructed picture of each image (PIL), and the loss of each.

    A model whose targets are patches scaled to unit variance knows a patch up to its mean and scale; these are
    taken from the original. Another `seed` removes other patches.
    """
    check_input(model, augment)
    with evaluating(model):
        output = _forward(model, pixel_values, seed)
    patches, grid = model.embedding.patches(pixel_values)
    rebuilt = output.reconstruction
    if model.config.normalize_pixels:
        mean, var = patches.mean(dim=-1, keepdim=True), patches.var(dim=-1, keepdim=True)
        rebuilt = rebuilt * (var + 1e-6).sqrt() + mean
    grey = torch.where(output.mask[..., None], torch.zeros(()), patches)  # zero is the mean of the data
    rows = [model.image(part, grid) for part in (patches, grey, rebuilt)]
    return [list(row) for row in zip(*(_pictures(row, augment) for row in rows), strict=True)], output.losses.tolist()


def _forward(model: CrateForMaskedAutoencoding, pixels: Tensor, seed: int) -> Any:
    height, width = (side // model.config.patch_size for side in pixels.shape[-2:])
    mask = own_masks(pixels, height * width, model.config.mask_ratio, seed).to(pixels.device)
    return model(pixel_values=match_dtype(model, pixels), mask=mask, return_dict=True)


def _pictures(pixels: Tensor, augment: Augment) -> list[Any]:
    from PIL import Image

    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in augment.normalization)
    values = ((pixels.float().cpu() * std + mean).clamp(0, 1) * 255).round().byte()
    return [
        Image.fromarray((image[0] if len(image) == 1 else image.permute(1, 2, 0)).contiguous().numpy())
        for image in values
    ]


def reconstruction_picture(rows: list[list[Any]], path: Path, scale: int | None = None) -> Path:
    """Rows of pictures, original | masked | reconstruction, as one PNG, small images enlarged without blur."""
    from PIL import Image, ImageDraw

    side = rows[0][0].width
    scale = scale or max(1, 160 // side)
    size, gap, top = side * scale, 8, 20
    sheet = Image.new("RGB", (3 * size + 4 * gap, top + len(rows) * (size + gap)), "white")
    for column, title in enumerate(("original", "masked", "reconstruction")):
        ImageDraw.Draw(sheet).text((gap + column * (size + gap), 4), title, fill="black")
        for line, row in enumerate(rows):
            image = row[column].convert("RGB").resize((size, size), Image.Resampling.NEAREST)
            sheet.paste(image, (gap + column * (size + gap), top + line * (size + gap)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as draft:
        sheet.save(draft, format="PNG")
    return path
