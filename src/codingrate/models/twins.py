"""Black-box baselines from transformers: ViT, ViTMAE, BERT, RoBERTa and GPT-2 as twins with equal outputs.

A twin has the operators `mhsa` and `mlp`, so that everything that inspects, probes or evaluates a model of this package
does so with a published baseline too. `twin_names.py` holds the names of transformers' parameters and settings.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..errors import CrateError, unknown_name
from .base import CratePreTrainedModel
from .checkpoint_file import Report, build_imported, read_folder, read_json, read_settings
from .twin_names import PLANS

SETTINGS = ("config.json", "generation_config.json", "preprocessor_config.json", "tokenizer_config.json")
"""Files of settings that may name code, which is never run."""
COMPANIONS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
)  # fmt: skip
"""Files beside the weights that say how texts are read."""


def from_transformers(
    source: PreTrainedModel | str | PathLike[str], *, report: Report | None = None
) -> CratePreTrainedModel:
    """Convert a ViT, ViTMAE, BERT, RoBERTa or GPT-2 of transformers to the black-box twin with equal outputs.

    Logits and hidden states are those of the original. The published weights of the ViT, DINO, MAE, BERT, RoBERTa and
    GPT-2 that the paper compares with exist in this form. A body without a head becomes a model without classes (ViT),
    a body (BERT, RoBERTa) or, because its head is tied, a language model (GPT-2). A setting that a twin cannot have
    raises an error with the name that it has in config.json.

    Args:
        source: A model, a folder that its `save_pretrained` wrote, or the id of such a model on the hub.
        report: Function called with one line per assumption. Default: a warning of the logger `codingrate`.

    Returns:
        A model of this package in float32 and eval mode.
    """
    report = logging.getLogger("codingrate").warning if report is None else report
    if isinstance(source, PreTrainedModel):
        if isinstance(source, CratePreTrainedModel):
            raise CrateError(f"{type(source).__name__} is a model of this package already; use it as it is")
        with tempfile.TemporaryDirectory() as folder:  # the names of files are those that are published
            source.save_pretrained(folder)
            model = read_twin(Path(folder), report)
        model.config.name_or_path = source.config.name_or_path
        return model
    path = Path(source).expanduser()
    try:
        return read_twin(path if path.is_dir() else download(str(source)), report)
    except CrateError as error:
        message = str(error) if str(error).startswith(f"{source}: ") else f"{source}: {error}"
        raise CrateError(" ".join(message.split())) from error


def download(source: str, companions: Sequence[str] = ()) -> Path:
    """Download settings and weights of a model on the hub, or find them in the cache; return the folder.

    PyTorch's format is fetched only if there are no safetensors.
    """
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(source, allow_patterns=[*SETTINGS, *companions, "model*.safetensors", "model*.json"])
        )
        if not any(folder.glob("model*.safetensors")):
            folder = Path(snapshot_download(source, allow_patterns=[*SETTINGS, *companions, "pytorch_model.bin"]))
    except Exception as error:  # no valid id, no network, no such model: the advice is the same
        raise CrateError(f"{source}: is no checkpoint file, saved model or reachable hub id") from error
    return folder


def is_twin(settings: dict[str, Any]) -> bool:
    """Return whether a config.json is of a model that has a twin."""
    return isinstance(kind := settings.get("model_type"), str) and kind in PLANS


def read_twin(folder: Path, report: Report) -> CratePreTrainedModel:
    """Read the twin of the model in a folder (config.json and weights)."""
    config = _read_config(folder)
    tensors = read_folder(folder, "pytorch_model.bin")
    if config.model_type == "bert":  # the first files name the parameters of LayerNorm as TensorFlow does
        old = {"gamma": "weight", "beta": "bias"}
        tensors = {
            f"{stem}.{old.get(name, name)}": tensor
            for (stem, _, name), tensor in ((key.rpartition("."), tensor) for key, tensor in tensors.items())
        }
    model = build_imported(PLANS[config.model_type](config, tensors, report), tensors, report)
    model.config.name_or_path = str(folder)
    processor = folder / "preprocessor_config.json"
    model.preprocessing = read_settings(processor) if processor.is_file() else None
    return model


def _read_config(folder: Path) -> Any:
    """Read config.json, with the defaults of the config class of transformers."""
    file = folder / "config.json"
    settings = read_json(file) if file.is_file() else {}
    kind = settings.get("model_type")
    if kind is None or kind == "crate":
        raise CrateError("holds no model of transformers; a model of this package is loaded by codingrate.load")
    if "auto_map" in settings:
        raise CrateError("config.json names code to run (auto_map); remove the entry to load the weights without it")
    if not is_twin(settings):
        raise unknown_name("model_type", str(kind), PLANS)
    from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[kind].from_dict(settings)
    except Exception as error:  # a setting of the wrong type may raise anything
        raise CrateError(f"config.json: {error}") from error
