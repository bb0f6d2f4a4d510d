"""Load saved models, convert released ones, and carry the body of one model over to another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor

from .._files import atomic_folder
from ..errors import CrateError
from .base import CrateModel, CratePreTrainedModel
from .checkpoint_file import join_names
from .classifier import CrateForImageClassification
from .config import CrateConfig
from .presets import build_config
from .released import load_released

_NOT_INHERITED = {"architectures", "transformers_version", "dtype", "problem_type"}
_SAVED = re.compile(
    r".*\.safetensors(\.index\.json)?|(config|preprocessor_config|generation_config)\.json"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|merges\.txt|chat_template\.jinja|README\.md"
)
"""Files that saving a model writes, and that a later save may replace."""


def load_model(source: str | Path) -> CratePreTrainedModel:
    """Load a model in eval mode from a released checkpoint file, a folder that `save_pretrained` wrote, or a hub id."""
    from transformers import AutoConfig
    from transformers.utils import logging

    from .. import models

    path = Path(source)
    if path.is_file():
        return load_released(path)
    if path.is_dir() and not (path / "config.json").is_file():
        raise CrateError(f"{path}: holds no saved model; give a folder that save_pretrained wrote")
    try:
        config = AutoConfig.from_pretrained(str(source))
    except (OSError, ValueError) as error:
        if path.is_dir():
            raise CrateError(f"{path / 'config.json'}: the file cannot be read; save the model again") from error
        raise CrateError(f"{source}: is no checkpoint file, saved model or reachable hub id") from error
    name = (config.architectures or [None])[0]
    if config.model_type != CrateConfig.model_type or name not in models.__all__:
        raise CrateError(f"{source}: holds a {config.model_type} model ({name}), not one of this package")
    with ExitStack() as stack:
        if path.is_dir() and logging.is_progress_bar_enabled():  # a download deserves a bar, a local file does not
            logging.disable_progress_bar()
            stack.callback(logging.enable_progress_bar)
        return getattr(models, name).from_pretrained(str(source))


def convert(
    path: str | PathLike[str], directory: str | PathLike[str], *, overwrite: bool = False, **known: Any
) -> CratePreTrainedModel:
    """Write a released checkpoint or a foreign folder as a folder for `from_pretrained`, and return the model.

    `known` is passed to `load_released`. The folder is written as a whole. A folder that is not empty raises an error;
    with `overwrite` it is replaced if it holds a saved model and nothing else.
    """
    directory = Path(directory).expanduser()
    check_destination(directory, overwrite)  # before the long part
    model = load_released(path, **known)
    with atomic_folder(directory.resolve()) as draft:
        try:
            model.save_pretrained(draft)
        except SafetensorError as error:  # its own form of an OSError, such as a full disk
            raise OSError(" ".join(str(error).split())) from error
        check_destination(directory, overwrite)  # it may have been filled in the meantime
    return model


def check_destination(directory: Path, overwrite: bool) -> None:
    """Raise an error for a folder that is not empty or, with `overwrite`, holds more than a saved model."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise CrateError(f"{directory}: is a file; give a folder")
    if directory.resolve() == Path.cwd():  # the caller would be left in a folder that no longer exists
        raise CrateError(f"{directory}: is the current folder; give another folder")
    entries = sorted(entry.name for entry in directory.iterdir())
    if entries and not overwrite:
        raise CrateError(f"{directory}: is not empty; give another folder or overwrite=True")
    if others := [name for name in entries if not _SAVED.fullmatch(name)]:
        raise CrateError(f"{directory}: holds more than a saved model ({join_names(others)}); give another folder")


def transfer_body(
    source_model: CratePreTrainedModel, config_overrides: Mapping[str, Any]
) -> CrateForImageClassification:
    """Build a classifier with the body of `source_model` and a new head.

    Its config is that of `source_model` with `config_overrides`; positions are resized to the new image size.
    """
    if source_model.config.modality != "vision":
        raise CrateError(f"the source model is a {source_model.config.modality} model; give a vision model")
    model = CrateForImageClassification(inherited_config(source_model, config_overrides))
    source_body = cast(CrateModel, source_model.base_model)
    weights = source_body.state_dict()
    if source_body.embedding.positions is not None:
        weights["embedding.positions.weight"] = source_body.embedding.positions.for_grid(model.config.grid).detach()
    load_body(model.crate, weights)
    return model


def inherited_config(source_model: CratePreTrainedModel, fields: Mapping[str, Any]) -> CrateConfig:
    """Return the config of `source_model` with other values of some fields, for another head on its body."""
    known = set(type(source_model.config).field_names()) - _NOT_INHERITED
    inherited = {key: value for key, value in source_model.config.to_dict().items() if key in known}
    return cast(CrateConfig, build_config({**inherited, **fields}))


@torch.no_grad()
def load_body(body: CrateModel, weights: Mapping[str, Tensor]) -> None:
    """Copy the weights of another body into `body`; raise an error if they do not fit."""
    own = body.state_dict()
    fixed = "channels, patch size" if body.config.modality == "vision" else "vocabulary, positions"
    for key, tensor in own.items():
        if key not in weights:
            raise CrateError(f"the body of the source model has no {key}; leave its config fields unchanged")
        if weights[key].shape != tensor.shape:
            shapes = f"{tuple(weights[key].shape)} in the source model and {tuple(tensor.shape)} here"
            raise CrateError(f"{key} has shape {shapes}; {fixed} and width cannot change")
    body.load_state_dict({key: weights[key] for key in own})
