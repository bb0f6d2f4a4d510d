"""Load saved models, convert released ones, and carry the body of one model over to another."""

from __future__ import annotations

import logging
import math
import re
import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor
from transformers import GenerationConfig

from .._files import atomic_folder, is_hub_id
from .._state import seeded
from ..errors import CrateError
from .base import CrateModel, CratePreTrainedModel
from .checkpoint_file import Report, copy_finite, join_names, read_folder, read_json, read_settings
from .classifier import CrateForImageClassification
from .config import CrateConfig
from .presets import build_config, model_class
from .released import load_released
from .twin_names import PLANS
from .twins import COMPANIONS, SETTINGS, download, is_twin, read_twin

_NOT_INHERITED = {"architectures", "transformers_version", "dtype", "problem_type"}
_SAVED = re.compile(
    r".*\.safetensors(\.index\.json)?|(config|preprocessor_config|generation_config)\.json"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|(merges|vocab)\.txt|chat_template\.jinja|README\.md"
)
"""Files that saving a model writes, and that a later save may replace."""
_PRECISIONS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def load_model(source: str | Path) -> CratePreTrainedModel:
    """Load a model in eval mode from a released checkpoint file, a folder that `save_pretrained` wrote, or a hub id.

    A ViT, ViTMAE, BERT, RoBERTa or GPT-2 of transformers becomes its black-box twin, as in `from_transformers`.
    Nothing in a file is ever run: a config that names code raises an error, and weights are read from safetensors.
    """
    path = Path(source)
    if path.is_file():
        return load_released(path)
    folder = path if path.is_dir() else download(str(source), COMPANIONS)
    try:
        return _load_folder(folder)
    except CrateError as error:
        raise CrateError(f"{source}: {error}") from error


def _load_folder(folder: Path) -> CratePreTrainedModel:
    """Load a saved model without transformers' `from_pretrained`, which may run code and fills in missing weights."""
    if not (folder / "config.json").is_file():
        raise CrateError("holds no saved model; give a folder that save_pretrained wrote")
    files = {name: read_settings(folder / name) for name in SETTINGS if (folder / name).is_file()}
    settings = files["config.json"]
    if is_twin(settings):
        return read_twin(folder, logging.getLogger("codingrate").warning)
    names = settings.get("architectures")
    architecture = names[0] if isinstance(names, list) and names else names
    if settings.get("model_type") != CrateConfig.model_type or architecture not in _architectures():
        raise CrateError(
            f"holds a {settings.get('model_type')} model ({architecture}), not one of this package "
            f"or of {', '.join(PLANS)}"
        )
    try:
        with torch.device("meta"):
            model = model_class(architecture)(CrateConfig.from_dict(settings))
    except StrictDataclassError as error:
        raise CrateError(f"config.json: {error}") from error
    load_weights(model, read_folder(folder), cast("torch.dtype | None", model.config.dtype))
    model.config.dtype = model.dtype
    model.config.name_or_path = str(folder)
    model.preprocessing = files.get("preprocessor_config.json")
    if model.can_generate() and (folder / "generation_config.json").is_file():
        model.generation_config = _read_generation_config(folder / "generation_config.json", model.config.vocab_size)
    return model.eval()


def _read_generation_config(file: Path, vocab_size: int) -> GenerationConfig:
    """Read settings of `generate`, which transformers would check, if at all, when a text is generated."""
    settings = read_json(file)
    for name, value in settings.items():
        numbers = value if isinstance(value, list) else [value]
        if name.endswith("_token_id"):
            valid = all(number is None or (type(number) is int and 0 <= number < vocab_size) for number in numbers)
        else:
            valid = name in ("transformers_version", "cache_implementation") or value is None
            valid |= all(isinstance(number, (bool, int, float)) and abs(number) < math.inf for number in numbers)
        if not valid:
            raise CrateError(f"{file.name}: {name} is {value!r:.60}; expected a number, or ids below {vocab_size}")
    try:
        return GenerationConfig.from_dict(settings)
    except Exception as error:  # a setting out of range may raise anything
        raise CrateError(f"{file.name}: {error}; save the model again") from error


def _architectures() -> list[str]:
    """Return the names of the model classes that a folder may hold."""
    from .. import models

    return [name for name in models.__all__ if name.startswith("CrateFor") or name in ("CrateModel", "CrateTextModel")]


def load_weights(model: CratePreTrainedModel, tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> None:
    """Make stored tensors the weights of a model, in `dtype` if given; its own weights may be on the meta device.

    A missing, unexpected, misshapen or non-finite tensor raises an error that names it, and so does one that is not
    floating point in the place of one that is. Of tied weights one is enough.
    """
    own = model.state_dict(keep_vars=True)
    stored = {id(own[name]): tensor for name, tensor in tensors.items() if name in own}
    if unexpected := sorted(set(tensors) - set(own)):
        raise CrateError(f"the weights hold {join_names(unexpected)}, which the model of config.json does not have")
    if missing := sorted(name for name, weight in own.items() if id(weight) not in stored):
        raise CrateError(f"the weights lack {join_names(missing)}; the saved model is incomplete")
    values = {name: _checked(name, stored[id(weight)], weight, dtype) for name, weight in own.items()}
    model.load_state_dict(values, assign=True)
    model.tie_weights()


def _checked(name: str, tensor: Tensor, weight: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Copy a stored tensor to `dtype`; raise an error if it cannot take the place of `weight`."""
    if tensor.shape != weight.shape:
        raise CrateError(f"{name} has shape {tuple(tensor.shape)}; config.json says {tuple(weight.shape)}")
    if tensor.is_floating_point() != weight.is_floating_point():
        raise CrateError(f"{name} is {tensor.dtype}; the model needs {weight.dtype}")
    if dtype is None or not weight.is_floating_point():
        dtype = tensor.dtype if tensor.dtype in _PRECISIONS else weight.dtype
    return copy_finite(name, tensor, dtype)


def untrained_like(model: CratePreTrainedModel, seed: int = 0) -> CratePreTrainedModel:
    """Return a model of the same class and config with random weights, on the same device in eval mode."""
    with seeded(seed):
        other = cast(Any, type(model))(type(model.config).from_dict(model.config.to_dict()))
    other.preprocessing = model.preprocessing
    return cast(CratePreTrainedModel, other.eval().to(model.device))


def convert(
    source: str | PathLike[str],
    directory: str | PathLike[str],
    *,
    overwrite: bool = False,
    report: Report | None = None,
    **known: Any,
) -> CratePreTrainedModel:
    """Write a released checkpoint or a model of transformers as a folder for `from_pretrained`, and return the model.

    `source` is a file for `load_released`, to which `known` is passed, or a folder or hub id for `from_transformers`.
    Tokenizer and image processor of a model of transformers are kept. The folder is written as a whole. A folder that
    is not empty raises an error; with `overwrite` it is replaced if it holds a saved model and nothing else.
    """
    directory = Path(directory).expanduser()
    check_destination(directory, overwrite)  # before the long part
    path = Path(source).expanduser()
    folder = path if path.is_dir() else None
    if path.is_file() or (folder is None and not is_hub_id(str(source))):
        model = load_released(path, **known, report=report)
    else:
        if passed := [name for name, value in known.items() if value is not None]:
            raise CrateError(f"{source}: its config.json says everything; leave out {join_names(passed)}")
        folder = folder or download(str(source), COMPANIONS)
        try:
            model = read_twin(folder, report or logging.getLogger("codingrate").warning)
        except CrateError as error:
            raise CrateError(f"{source}: {error}") from error
    with atomic_folder(directory.resolve()) as draft:
        try:
            model.save_pretrained(draft)
        except SafetensorError as error:  # its own form of an OSError, such as a full disk
            raise OSError(" ".join(str(error).split())) from error
        _copy_companions(folder, draft)
        check_destination(directory, overwrite)  # it may have been filled in the meantime
    return model


def _copy_companions(folder: Path | None, draft: Path) -> None:
    """Copy the tokenizer of a model, unless it names code to run."""
    files = [] if folder is None else [folder / name for name in COMPANIONS if (folder / name).is_file()]
    for file in files:
        if file.name in SETTINGS:
            read_settings(file)
        shutil.copyfile(file, draft / file.name)


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
    if model.config.image_sides == source_model.config.image_sides:
        model.preprocessing = source_model.preprocessing
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
