"""Inputs shared by all evaluations: device and precision of a model, token ids, context length, and their checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import Augment, TokenFile
from ..errors import CrateError
from ..models.base import CratePreTrainedModel


def move_to_device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Move the model to `device`, if one is given, and return the device the model is on."""
    try:
        if device is not None:
            model.to(torch.device(device))
    except (AssertionError, RuntimeError) as error:  # an unknown name, or a device this build of torch lacks
        raise CrateError(f"cannot use device {str(device)!r}: {str(error).splitlines()[0]}") from error
    parameter = next(model.parameters(), None)
    return torch.device(device or "cpu") if parameter is None else parameter.device


def check_image_input(model: nn.Module, augment: Augment) -> None:
    """Raise an error if the model's config, where it has one, does not fit the crops of `augment`."""
    config = getattr(model, "config", None)
    channels, patch = getattr(config, "num_channels", None), getattr(config, "patch_size", None)
    if channels is not None and channels != augment.channels:
        raise CrateError(f"augment.channels is {augment.channels}, but the model reads num_channels={channels}")
    if isinstance(patch, int) and augment.image_size % patch:  # another image size than in training is allowed
        raise CrateError(f"augment.image_size {augment.image_size} is not divisible by the model's patch_size {patch}")


def image_paths(dataset: Any, column: str) -> list[str]:
    """Return the path of each image of a dataset, "" for images without one, and do not read the images."""
    flat = dataset.select_columns([column]).flatten()
    if f"{column}.path" not in flat.column_names:
        return [""] * len(dataset)
    return [path or "" for path in flat[f"{column}.path"]]


def check_positive(**sizes: int | None) -> None:
    """Raise an error for the first size below 1; None means that the size was not given."""
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise CrateError(f"{name} is {value}; it must be positive")


def check_model_type(model: nn.Module, expected: type[CratePreTrainedModel], function: str) -> None:
    """Raise an error if one of this package's models is not an `expected`; other models are not checked."""
    if isinstance(model, CratePreTrainedModel) and not isinstance(model, expected):
        raise CrateError(f"{function} needs a {expected.__name__}, not a {type(model).__name__}")


def token_ids(tokens: TokenFile | NDArray[Any]) -> NDArray[Any]:
    """Return the ids (n,); those of a token file are memory-mapped."""
    ids = tokens.array() if isinstance(tokens, TokenFile) else np.asarray(tokens)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise CrateError(f"tokens must be integer ids of shape (n,), not {ids.dtype} of shape {ids.shape}")
    return ids


def check_token_ids(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the ids unchanged; raise an error if one of them is outside the model's vocabulary."""
    vocab_size = getattr(getattr(model, "config", None), "vocab_size", None)
    if vocab_size is not None and int(ids.max()) >= vocab_size:
        raise CrateError(
            f"token id {int(ids.max())} is outside the model's vocabulary of {vocab_size}; "
            "use the tokenizer the model was trained with"
        )
    return ids


def context_length(model: nn.Module, block: int | None) -> int:
    """Return how many tokens to feed the model at a time: `block`, or by default the model's maximum."""
    config: Any = getattr(model, "config", None)
    maximum: Any = getattr(config, "max_tokens", None) or getattr(config, "max_position_embeddings", None)
    if block is None and maximum is None:
        raise CrateError("the model's config does not state a maximum context length; give block")
    if block is not None and (block < 2 or (maximum is not None and block > maximum)):
        limit = "" if maximum is None else f" and at most {maximum}, the model's context length"
        raise CrateError(f"block is {block}; it must be at least 2{limit}")
    return int(maximum if block is None else block)
