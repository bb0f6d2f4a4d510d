"""Descriptions of cropping and augmentation: the sections `augment` and `views` of a recipe.

Annotations are not postponed here, because pydantic reads them.
"""

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from ..errors import CrateError, one_line_errors
from ..models.processing import IMAGENET_MEAN, IMAGENET_STD


def _ordered(interval: tuple[float, float]) -> tuple[float, float]:
    if interval[0] > interval[1]:
        raise PydanticCustomError("interval", "the lower bound must not exceed the upper bound")
    return interval


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("number", "Input should be a number")
    return value


CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
NUMBER = BeforeValidator(_no_boolean)
"""Refuses true and false, which pydantic would read as 1 and 0."""
Probability = Annotated[float, Field(ge=0, le=1), NUMBER]
Ratio = Annotated[float, Field(gt=0, le=1000), NUMBER]
Strength = Annotated[float, Field(ge=0, le=100), NUMBER]
Side = Annotated[int, Field(gt=0, le=2**14), NUMBER]
Share = Annotated[float, Field(gt=0, le=1), NUMBER]
ShareRange = Annotated[tuple[Share, Share], AfterValidator(_ordered)]
RatioRange = Annotated[tuple[Ratio, Ratio], AfterValidator(_ordered)]
PerView = tuple[Probability, Probability, Probability]


@one_line_errors("augment")
@dataclass(frozen=True, config=CONFIG)
class Augment:
    """Cropping, done per image by the loader's workers, and augmentation, done per batch on the device."""

    image_size: Side = 224
    """Side of the square input of the model, in pixels."""
    channels: Annotated[Literal[1, 3], NUMBER] = 3
    """3 for RGB (gray images are repeated), 1 for gray (colors become luminance)."""
    crop: Literal["random-resized", "center", "resize", "pad"] = "random-resized"
    """Training crop: a random box, resized; `center` as in evaluation; `resize` the whole image to a square; `pad` the
    whole image resized, padded with black and cropped at random (as usual for CIFAR)."""
    crop_scale: ShareRange = (0.08, 1.0)
    """Share of the image's area that a random resized crop covers."""
    crop_ratio: RatioRange = (3 / 4, 4 / 3)
    """Aspect ratio (width over height) of a random resized crop, uniform on a log scale."""
    crop_padding: Annotated[int, Field(ge=0, le=2**14), NUMBER] = 4
    """Pixels that `pad` adds on each side."""
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bicubic"
    """Interpolation when resizing; always antialiased when the image shrinks."""
    evaluation: Literal["center", "resize"] | None = None
    """Evaluation crop. Default: `center` if `crop` is `random-resized` or `center`, else `resize`."""
    evaluation_ratio: Annotated[float, Field(ge=1, le=100), NUMBER] = 256 / 224
    """Length of the short side before the center crop, divided by `image_size`."""
    flip: Probability = 0.5
    """Probability of a horizontal flip."""
    affine_degrees: Annotated[float, Field(ge=0, le=360), NUMBER] = 0.0
    """Largest rotation in either direction, in degrees."""
    affine_translate: Probability = 0.0
    """Largest translation, as a share of the side."""
    affine_scale: Annotated[float, Field(ge=0, lt=1), NUMBER] = 0.0
    """Largest change of scale: the factor lies between one minus and one plus this value."""
    rand_augment: tuple[Annotated[int, Field(ge=1, le=100)], Annotated[float, Field(gt=0, lt=30)]] | None = None
    """RandAugment: number of operations n, drawn for each image, and their magnitude m out of 30."""
    jitter: tuple[Strength, Strength, Strength, Annotated[float, Field(ge=0, le=0.5)]] | None = None
    """Color jitter: brightness, contrast, saturation, hue."""
    jitter_probability: Probability = 0.8
    """Probability that an image's colors are jittered, if `jitter` is given."""
    grayscale: Probability = 0.0
    """Probability of a conversion to gray."""
    blur: Probability = 0.0
    """Probability of a Gaussian blur of 0.1 to 2 pixels standard deviation, with a kernel of a tenth of the side."""
    solarize: Probability = 0.0
    """Probability that pixels above one half are inverted."""
    erase: Probability = 0.0
    """Probability that a rectangle is replaced by the mean."""
    mean: tuple[Annotated[float, Field(ge=-1000, le=1000)], ...] | None = None
    """Mean per channel of pixels in [0, 1]. Default: ImageNet's for RGB, 0.5 for gray."""
    std: tuple[Annotated[float, Field(gt=1e-6, le=1000), NUMBER], ...] | None = None
    """Standard deviation per channel. Default: ImageNet's for RGB, 0.5 for gray."""

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != self.channels:
                raise CrateError(f"augment.{name} needs one value per channel ({self.channels}, got {len(values)})")
        for name in ("rand_augment", "jitter", "grayscale"):
            if self.channels != 3 and getattr(self, name):
                raise CrateError(f"augment.{name} needs color images; set augment.channels=3 or remove it")

    @property
    def normalization(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation in use."""
        gray = (0.5,) * self.channels
        mean = self.mean or (IMAGENET_MEAN if self.channels == 3 else gray)
        return mean, self.std or (IMAGENET_STD if self.channels == 3 else gray)

    @property
    def evaluation_crop(self) -> Literal["center", "resize"]:
        """Evaluation crop in use."""
        return self.evaluation or ("center" if self.crop in ("random-resized", "center") else "resize")


@one_line_errors("views")
@dataclass(frozen=True, config=CONFIG)
class Views:
    """Crops of one image that student and teacher compare: two global views and several local ones (DINO).

    Size, flip, jitter, grayscale and normalization are those of `augment`; only what differs between views is here.
    """

    global_scale: ShareRange = (0.4, 1.0)
    """Share of the image's area that a global view covers; DINO recommends 0.14 to 1 without local views."""
    local_count: Annotated[int, Field(ge=0, le=1000), NUMBER] = 8
    """Number of local views; 0 for none."""
    local_size: Side = 96
    """Side of a local view, in pixels; that of a global view is `augment.image_size`."""
    local_scale: ShareRange = (0.05, 0.4)
    """Share of the image's area that a local view covers."""
    blur: PerView = (1.0, 0.1, 0.5)
    """Probability of a Gaussian blur for the first global view, the second, and a local one."""
    solarize: PerView = (0.0, 0.2, 0.0)
    """Probability that pixels above one half are inverted, for the same three kinds of view."""


def view_augments(augment: Augment, views: Views) -> tuple[Augment, Augment, Augment]:
    """Return `augment` with the settings of the first global view, the second, and a local one."""
    if views.local_count and views.local_size > augment.image_size:
        raise CrateError(
            f"views.local_size {views.local_size} is larger than augment.image_size {augment.image_size}; lower it"
        )

    def view(number: int, size: int, scale: tuple[float, float]) -> Augment:
        own: dict[str, Any] = {"blur": views.blur[number], "solarize": views.solarize[number]}
        return dataclasses.replace(augment, image_size=size, crop="random-resized", crop_scale=scale, **own)

    whole = augment.image_size, views.global_scale
    return view(0, *whole), view(1, *whole), view(2, views.local_size, views.local_scale)
