"""The image processor that goes with a vision model, in transformers' own format."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import CrateConfig

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def image_processor(config: CrateConfig) -> Any:
    """Evaluation transform of the paper: resize the short side to 256/224 of the model's, crop the centre,
    normalise by ImageNet's mean and deviation (by ½ and ½ for other than three channels).
    """
    from transformers import ViTImageProcessorPil

    height, width = config.image_sides
    rgb = config.num_channels == 3
    return ViTImageProcessorPil(
        size={"shortest_edge": round(max(height, width) * 256 / 224)},
        crop_size={"height": height, "width": width},
        do_center_crop=True,
        do_convert_rgb=rgb,
        image_mean=list(IMAGENET_MEAN) if rgb else [0.5] * config.num_channels,
        image_std=list(IMAGENET_STD) if rgb else [0.5] * config.num_channels,
    )


def save_image_processor(config: CrateConfig, directory: str | PathLike[str]) -> None:
    """Write preprocessor_config.json beside a model, so that pipelines find it."""
    image_processor(config).save_pretrained(directory)
