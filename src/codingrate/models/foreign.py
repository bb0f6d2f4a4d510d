"""GPT-2 and RoBERTa from folders that transformers saved, as black-box twins with the same logits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor

from ..errors import CrateError, unknown_name
from .base import CratePreTrainedModel
from .checkpoint_file import listed, note_casts, plain_numbers, read_tensors
from .foreign_families import PLANS, Report, Source
from .presets import build_config


def load_foreign(folder: Path, report: Report) -> CratePreTrainedModel:
    """The GPT-2 or RoBERTa in a folder (config.json and weights) as a twin in float32, in evaluation mode."""
    config = _read_config(folder)
    tensors = _read_weights(folder)
    plan = PLANS[config.model_type](config, tensors, report)
    wanted = {key for source in plan.sources.values() for key in source.keys}
    if missing := sorted(wanted - set(tensors)):
        raise CrateError(f"{config.model_type} without {listed(missing)}; the folder is incomplete")
    if strays := sorted(key for key in set(tensors) - wanted if not re.fullmatch(plan.unused, key)):
        raise CrateError(f"{config.model_type} with tensors it has no place for: {listed(strays)}")
    ours = build_config(plan.fields)
    with torch.device("meta"):
        model = plan.model(ours)
    values = {name: _value(source, tensors) for name, source in plan.sources.items()}
    for name, empty in model.state_dict().items():
        if values[name].shape != empty.shape:
            keys, shape = listed(list(plan.sources[name].keys)), tuple(values[name].shape)
            raise CrateError(f"{keys} gives {shape}, but config.json asks for {tuple(empty.shape)}")
    model.load_state_dict(values, strict=True, assign=True)
    model.tie_weights()
    note_casts((tensors[key] for key in wanted), report)
    return model.eval()


def _read_config(folder: Path) -> Any:
    """config.json with the defaults of transformers' own class."""
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = settings.get("model_type")
    except FileNotFoundError:
        kind = "crate"
    except (OSError, ValueError, AttributeError) as error:
        raise CrateError(f"config.json cannot be read ({error})") from error
    if kind == "crate":
        raise CrateError("is a folder; give the file, or open a saved model by from_pretrained")
    if kind not in PLANS:
        raise unknown_name("model_type", kind, PLANS)
    from transformers import GPT2Config, PreTrainedConfig, RobertaConfig

    defaults: dict[str, type[PreTrainedConfig]] = {"gpt2": GPT2Config, "roberta": RobertaConfig}
    try:
        return defaults[kind].from_dict(settings)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise CrateError(f"config.json: {error}") from error


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the folder, in one file or in shards."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        names = ("model.safetensors", "pytorch_model.bin")
        file = next((folder / name for name in names if (folder / name).is_file()), None)
        if file is None:
            raise CrateError(f"holds no weights; expected {' or '.join(names)}")
        return read_tensors(file)
    try:
        shards = sorted({Path(name).name for name in json.loads(index.read_text())["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CrateError(f"{index.name} cannot be read ({error})") from error
    return {key: tensor for shard in shards for key, tensor in read_tensors(folder / shard).items()}


def _value(source: Source, tensors: Mapping[str, Tensor]) -> Tensor:
    parts = [plain_numbers(key, tensors[key]) for key in source.keys]
    value = parts[0] if len(parts) == 1 else torch.cat(parts)
    return value.mT.contiguous() if source.transposed and value.ndim == 2 else value
