"""Augmentation in batches, on the device the model is on, by kornia; evaluation is normalisation alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from .augment import Augment
from .views import Views, view_augments


class BatchAugment(nn.Module):
    """uint8 images (batch, channels, height, width) in 0…255 to normalised floats, augmented in training mode."""

    mean: Tensor
    std: Tensor

    def __init__(self, augment: Augment) -> None:
        super().__init__()
        mean, std = augment.normalization
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.operations = nn.ModuleList(_operations(augment))
        self.erase = _erasing(augment)

    def forward(self, images: Tensor, seed: int | None = None) -> Tensor:
        """With a `seed` the same images come out bit for bit the same, and the global generators are left alone."""
        if images.dtype != torch.uint8:
            raise TypeError(f"BatchAugment takes uint8 pixels in 0…255, not {images.dtype}")
        pixels = images.to(self.mean.dtype).div_(255)
        if not self.training or len(pixels) == 0:
            return pixels.sub_(self.mean).div_(self.std)
        with _seeded(seed, pixels.device):
            for operation in self.operations:
                pixels = operation(pixels)
            pixels = (pixels - self.mean) / self.std
            return pixels if self.erase is None else self.erase(pixels)


class ViewAugment(nn.Module):
    """uint8 views of images, a tensor (views, batch, channels, side, side) for each size, to normalised floats.

    The first global view, the second and the local ones each have an augmentation of their own. All local views pass
    through theirs as one batch, in which every image still draws for itself.
    """

    def __init__(self, augment: Augment, views: Views) -> None:
        super().__init__()
        first, second, local = view_augments(augment, views)
        self.globals = nn.ModuleList([BatchAugment(first), BatchAugment(second)])
        self.local = BatchAugment(local)

    def forward(self, views: Sequence[Tensor], seed: int | None = None) -> list[Tensor]:
        """With a `seed` the same views come out bit for bit the same, and the global generators are left alone."""
        seeds = [None] * 3 if seed is None else [3 * seed + kind for kind in range(3)]  # no two views share a seed
        shown = [torch.stack([self.globals[kind](views[0][kind], seeds[kind]) for kind in range(2)])]
        for group in views[1:]:
            shown.append(self.local(group.flatten(0, 1), seeds[2]).unflatten(0, group.shape[:2]))
        return shown


@contextlib.contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    if seed is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)  # where kornia draws, whatever the device
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _operations(augment: Augment) -> list[nn.Module]:
    if not _wants_kornia(augment):
        return []
    import kornia.augmentation as K

    found: list[nn.Module] = []
    if augment.flip:
        found.append(K.RandomHorizontalFlip(p=augment.flip))
    if augment.affine_degrees or augment.affine_translate or augment.affine_scale:
        zoom, shift = augment.affine_scale, augment.affine_translate
        found.append(K.RandomAffine(augment.affine_degrees, (shift, shift), (1 - zoom, 1 + zoom), p=1.0))
    if augment.rand_augment:
        found.append(RandAugment(*augment.rand_augment))
    if augment.jitter:
        found.append(K.ColorJitter(*augment.jitter, p=augment.jitter_probability))
    if augment.grayscale:
        found.append(K.RandomGrayscale(p=augment.grayscale))
    if augment.blur:
        kernel = max(3, augment.image_size // 10 | 1)
        found.append(K.RandomGaussianBlur((kernel, kernel), (0.1, 2.0), p=augment.blur))
    if augment.solarize:
        found.append(K.RandomSolarize(thresholds=(0.5, 0.5), additions=(0.0, 0.0), p=augment.solarize))
    return found


def _wants_kornia(augment: Augment) -> bool:
    names = "flip affine_degrees affine_translate affine_scale rand_augment jitter grayscale blur solarize"
    return any(getattr(augment, name) for name in names.split())


def _erasing(augment: Augment) -> nn.Module | None:
    if not augment.erase:
        return None
    import kornia.augmentation as K

    return K.RandomErasing(value=0.0, p=augment.erase)  # after normalisation, so that zero is the mean


class RandAugment(nn.Module):
    """RandAugment (Cubuk et al., 2020): n operations in turn on each image, each at magnitude m out of 30.

    kornia's operations and ranges, with two departures from its own RandAugment, both towards the original: it draws
    its n operations once for the whole batch, here every image draws its own (with replacement); and it reads the
    shear range 0.3 as a share of 180°, here it is the slope (m = 14: 8°, not 25°). At m = 14 that makes: rotation
    14°, slope 0.14, shift 4.7 % of the side, 6 bits, solarising above 0.47, solarise-add 0.2; and colour, contrast,
    sharpness × 0.94, brightness − 0.06, hardly a change, for their range 0.1…1.9 passes "as it was" at m = 15.
    """

    def __init__(self, n: int, m: float) -> None:
        super().__init__()
        from kornia.augmentation.auto import RandAugment as OfBatch

        shear = math.degrees(math.atan(0.3 * m / 30)) / (180 * m / 30)
        policy = [
            ("auto_contrast", 0, 1), ("equalize", 0, 1), ("invert", 0, 1), ("rotate", -30.0, 30.0),
            ("posterize", 4.0, 8.0), ("solarize", 0.0, 1.0), ("solarize_add", 0.0, 0.43), ("color", 0.1, 1.9),
            ("contrast", 0.1, 1.9), ("brightness", 0.1, 1.9), ("sharpness", 0.1, 1.9), ("shear_x", -shear, shear),
            ("shear_y", -shear, shear), ("translate_x", -0.1, 0.1), ("translate_y", -0.1, 0.1),
        ]  # fmt: skip
        self.n = n
        self.choices = nn.ModuleList(OfBatch(1, m, policy=[[operation]]) for operation in policy)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        drawn = torch.randint(len(self.choices), (self.n, len(images))).to(images.device)
        for choice in drawn:
            changed = torch.empty_like(images)
            for number, operation in enumerate(self.choices):
                rows = (choice == number).nonzero().flatten()
                if len(rows):
                    changed[rows] = operation(images[rows])
            images = changed
        return images
