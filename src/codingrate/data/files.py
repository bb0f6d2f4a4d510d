"""Single image files, seen as evaluation sees them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import CrateError
from .augment import Augment
from .crops import crop_for_evaluation
from .decode import UnreadableImageError, decode_image


def read_image(path: str | Path, augment: Augment) -> Tensor:
    """The evaluation crop of an image file as uint8 (channels, side, side)."""
    file = Path(path)
    if not file.is_file():
        raise CrateError(f"{file}: no such image file")
    try:
        image = decode_image({"bytes": file.read_bytes(), "path": str(file)}, augment.channels)
    except UnreadableImageError as error:
        raise CrateError(
            f"{file}: is not an image that can be read; give a JPEG, PNG or another common format"
        ) from error
    pixels = torch.from_numpy(np.array(crop_for_evaluation(image, augment)))
    return pixels.unsqueeze(0) if augment.channels == 1 else pixels.permute(2, 0, 1)
