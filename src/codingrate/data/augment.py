"""What is done to images before the model sees them: one typed description for training and evaluation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from ..errors import CrateError, unknown_name
from ..models.processing import IMAGENET_MEAN, IMAGENET_STD

Crop = Literal["random-resized", "center", "resize", "pad"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]

CROPS = ("random-resized", "center", "resize", "pad")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")

_PROBABILITIES = ("flip", "jitter_probability", "grayscale", "blur", "solarize", "erase")


@dataclass(frozen=True)
class Augment:
    """Cropping (per image, in the loader) and everything after it (per batch, on the device)."""

    image_size: int = 224
    """Side of the square the model sees, in pixels."""
    channels: int = 3
    """3 for RGB (grey images are repeated), 1 for grey (colour is averaged by luminance)."""
    crop: Crop = "random-resized"
    """Training crop: a random part resized; `center` as in evaluation; `resize` the whole image, squeezed;
    `pad` the whole image resized, padded with black, and cropped at a random place (CIFAR style)."""
    crop_scale: tuple[float, float] = (0.08, 1.0)
    """Share of the image's area a random resized crop covers."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Width over height of a random resized crop, drawn evenly on a log scale."""
    crop_padding: int = 4
    """Pixels added on each side by `pad`."""
    interpolation: Interpolation = "bicubic"
    """How resizing reads between pixels; always with antialiasing when it shrinks."""
    evaluation: Literal["center", "resize"] | None = None
    """Evaluation crop; None is `center` for `random-resized` and `center`, and `resize` for the others."""
    evaluation_ratio: float = 256 / 224
    """Short side before the centre crop, over `image_size`."""
    flip: float = 0.5
    """Probability of a mirror image."""
    affine_degrees: float = 0.0
    """Rotation, drawn between minus and plus this."""
    affine_translate: float = 0.0
    """Shift, at most this share of the side."""
    affine_scale: float = 0.0
    """Zoom, between one minus and one plus this."""
    rand_augment: tuple[int, float] | None = None
    """RandAugment: how many operations n, drawn for each image, and their magnitude m out of 30."""
    jitter: tuple[float, float, float, float] | None = None
    """Colour jitter: brightness, contrast, saturation, hue."""
    jitter_probability: float = 0.8
    """Probability that an image's colours are jittered, when `jitter` is given."""
    grayscale: float = 0.0
    """Probability of losing all colour."""
    blur: float = 0.0
    """Probability of a Gaussian blur, deviation 0.1 to 2 pixels, kernel a tenth of the side."""
    solarize: float = 0.0
    """Probability that pixels above one half are inverted."""
    erase: float = 0.0
    """Probability that a rectangle is replaced by the mean."""
    mean: tuple[float, ...] | None = None
    """Subtracted, per channel, of pixels in [0, 1]; None is ImageNet's for RGB and ½ for grey."""
    std: tuple[float, ...] | None = None
    """Divided by, likewise."""

    def __post_init__(self) -> None:
        for field in fields(self):  # a recipe file knows lists only
            if isinstance(getattr(self, field.name), list):
                object.__setattr__(self, field.name, tuple(getattr(self, field.name)))
        if self.channels not in (1, 3):
            raise CrateError(f"augment.channels must be 1 or 3, not {self.channels}")
        if self.image_size < 1 or self.crop_padding < 0:
            raise CrateError("augment.image_size must be positive and augment.crop_padding not negative")
        for name, value, known in (("crop", self.crop, CROPS), ("interpolation", self.interpolation, INTERPOLATIONS)):
            if value not in known:
                raise unknown_name(f"augment.{name}", value, known)
        if self.evaluation not in (None, "center", "resize"):
            raise unknown_name("augment.evaluation", self.evaluation, ("center", "resize"))
        for name in _PROBABILITIES:
            if not 0 <= getattr(self, name) <= 1:
                raise CrateError(f"augment.{name} is a probability in [0, 1], not {getattr(self, name)}")
        self._check_ranges()
        self._check_colour()

    def _check_ranges(self) -> None:
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            raise CrateError(f"augment.crop_scale must be 0 < low ≤ high ≤ 1, not {self.crop_scale}")
        if not 0 < self.crop_ratio[0] <= self.crop_ratio[1]:
            raise CrateError(f"augment.crop_ratio must be 0 < low ≤ high, not {self.crop_ratio}")
        if self.evaluation_ratio < 1:
            raise CrateError(f"augment.evaluation_ratio must be at least 1, not {self.evaluation_ratio}")
        if self.affine_degrees < 0 or not 0 <= self.affine_translate <= 1 or not 0 <= self.affine_scale < 1:
            raise CrateError("augment.affine_degrees must be ≥ 0, affine_translate in [0, 1], affine_scale in [0, 1)")
        if self.rand_augment and (self.rand_augment[0] < 1 or not 0 < self.rand_augment[1] < 30):
            raise CrateError(f"augment.rand_augment is n ≥ 1 and 0 < m < 30, not {self.rand_augment}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != self.channels:
                raise CrateError(f"augment.{name} needs {self.channels} values, one per channel, not {len(values)}")
        if min(self.normalization[1]) <= 0:
            raise CrateError(f"augment.std must be positive, not {self.std}")

    def _check_colour(self) -> None:
        if self.jitter is not None and (len(self.jitter) != 4 or min(self.jitter) < 0 or self.jitter[3] > 0.5):
            raise CrateError(
                f"augment.jitter is brightness, contrast, saturation ≥ 0, hue in [0, ½], not {self.jitter}"
            )
        for name in ("rand_augment", "jitter", "grayscale"):
            if self.channels != 3 and getattr(self, name):
                raise CrateError(f"augment.{name} works on colour images; set augment.channels=3 or leave it out")

    @property
    def normalization(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation in use."""
        grey = (0.5,) * self.channels
        mean = self.mean or (IMAGENET_MEAN if self.channels == 3 else grey)
        return mean, self.std or (IMAGENET_STD if self.channels == 3 else grey)

    @property
    def evaluation_crop(self) -> Literal["center", "resize"]:
        """Evaluation crop in use."""
        return self.evaluation or ("center" if self.crop in ("random-resized", "center") else "resize")
