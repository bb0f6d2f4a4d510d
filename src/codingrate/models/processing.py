"""The image processor that goes with a vision model, in the format of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def image_processor(
    image_size: int | tuple[int, int],
    channels: int = 3,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    interpolation: str | None = None,
    crop: Literal["center", "resize"] = "center",
    ratio: float = 256 / 224,
) -> Any:
    """Return the evaluation transform of a model as an image processor, which pipelines apply.

    Args:
        image_size: Height and width of the images the model reads, or one number for both.
        channels: Number of channels.
        mean, std: Mean and standard deviation of each channel. Default: ImageNet's for three channels, ½ otherwise.
        interpolation: Name of a PIL resampling filter, such as "bicubic". Default: "bilinear".
        crop: "center" resizes the short side to `ratio` times the image size and crops the center (the paper's
            transform); "resize" resizes the whole image to the image size.
        ratio: Short side before the center crop, in units of the image size.
    """
    from PIL.Image import Resampling
    from transformers import ViTImageProcessorPil

    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    sides = {"height": height, "width": width}
    rgb = channels == 3
    half = [0.5] * channels
    return ViTImageProcessorPil(
        size={"shortest_edge": round(max(height, width) * ratio)} if crop == "center" else sides,
        crop_size=sides,
        do_center_crop=crop == "center",
        do_convert_rgb=rgb,
        image_mean=list(mean or (IMAGENET_MEAN if rgb else half)),
        image_std=list(std or (IMAGENET_STD if rgb else half)),
        resample=Resampling[(interpolation or "bilinear").upper()],
    )


def stored_settings(source: Any, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read preprocessor_config.json from a folder or from the hub; None if there is no such file.

    `options` are keywords of `from_pretrained`, of which those that say where a file is found are used.
    """
    from transformers.utils.hub import cached_file

    from .checkpoint_file import read_settings

    places = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
    known = {name: options[name] for name in places if name in options}
    try:
        file = cached_file(source, "preprocessor_config.json", **known)
    except OSError:
        return None
    return None if file is None else read_settings(Path(file))
