"""Several crops of one image to learn from without labels: one typed description, a section of a recipe.

Annotations are not postponed here, as pydantic reads them.
"""

import dataclasses
from dataclasses import dataclass

from ..errors import CrateError
from .augment import Augment

_KINDS = ("global 1", "global 2", "local")


@dataclass(frozen=True)
class Views:
    """The crops of one image that student and teacher compare: two global ones and several local ones (DINO).

    Size, flip, jitter, greyscale and normalisation are those of `augment`; what differs from view to view is here.
    """

    global_scale: tuple[float, float] = (0.4, 1.0)
    """Share of the image's area that a global view covers; DINO advises 0.14 to 1 where there are no local ones."""
    local_count: int = 8
    """Number of local views; 0 leaves them out."""
    local_size: int = 96
    """Side of a local view, in pixels; that of a global view is `augment.image_size`."""
    local_scale: tuple[float, float] = (0.05, 0.4)
    """Share of the image's area that a local view covers."""
    blur: tuple[float, float, float] = (1.0, 0.1, 0.5)
    """Probability of a Gaussian blur of the first global view, the second, and a local one."""
    solarize: tuple[float, float, float] = (0.0, 0.2, 0.0)
    """Probability that pixels above one half are inverted, likewise."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # a recipe file knows lists only
            if isinstance(getattr(self, field.name), list):
                object.__setattr__(self, field.name, tuple(getattr(self, field.name)))
        if self.local_count < 0 or self.local_size < 1:
            raise CrateError(
                f"views.local_count must not be negative and views.local_size positive, "
                f"not {self.local_count} and {self.local_size}"
            )
        for name in ("global_scale", "local_scale"):
            scale = getattr(self, name)
            if len(scale) != 2 or not 0 < scale[0] <= scale[1] <= 1:
                raise CrateError(f"views.{name} must be 0 < low ≤ high ≤ 1, not {scale}")
        for name in ("blur", "solarize"):
            chances = getattr(self, name)
            if len(chances) != 3 or not all(0 <= chance <= 1 for chance in chances):
                raise CrateError(f"views.{name} is three probabilities, of {', '.join(_KINDS)}, not {chances}")


def view_augments(augment: Augment, views: Views) -> tuple[Augment, Augment, Augment]:
    """What is done to the first global view, the second, and a local one: `augment` with what `views` says of each."""
    if views.local_count and views.local_size > augment.image_size:
        raise CrateError(
            f"views.local_size {views.local_size} is larger than augment.image_size {augment.image_size}; "
            "a local view is the smaller one, lower it"
        )
    sizes = (augment.image_size, augment.image_size, views.local_size)
    scales = (views.global_scale, views.global_scale, views.local_scale)
    first, second, local = (
        dataclasses.replace(
            augment, image_size=size, crop="random-resized", crop_scale=scale, blur=blur, solarize=solarize
        )
        for size, scale, blur, solarize in zip(sizes, scales, views.blur, views.solarize, strict=True)
    )
    return first, second, local
