"""Checkpoints of sharded (FSDP) training read without shards, and the other way round.

A checkpoint of sharded training has the parts of weights and optimizer state that each process wrote, in the format of
torch.distributed.checkpoint, and the whole weights as model.safetensors. Any other checkpoint has whole weights and
optimizer.pt. The same kind is read by transformers' Trainer, for any number of processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.optim import Optimizer
from transformers.trainer import FSDP_MODEL_NAME, OPTIMIZER_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

SHARDS_OF_OPTIMIZER = "optimizer_0"
"""Folder of the optimizer state in a checkpoint of sharded training, as accelerate names it."""
WHOLE = StateDictOptions(full_state_dict=True, strict=False)


def has_shards(checkpoint: str | Path) -> bool:
    """Return whether a checkpoint comes from sharded training."""
    return any(Path(checkpoint).glob(f"{FSDP_MODEL_NAME}_*"))


def load_whole_model(model: nn.Module, checkpoint: str | Path) -> None:
    """Load the whole weights of a checkpoint into a model, which may be sharded."""
    weights: Any = load_file(Path(checkpoint) / SAFE_WEIGHTS_NAME)
    set_model_state_dict(model, weights, options=WHOLE)


def load_sharded_optimizer(model: nn.Module, optimizer: Optimizer, checkpoint: str | Path) -> None:
    """Load the parts of an optimizer state into an optimizer that is not sharded."""
    state: dict[str, Any] = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    load(state, storage_reader=FileSystemReader(Path(checkpoint) / SHARDS_OF_OPTIMIZER))
    set_optimizer_state_dict(model, optimizer, state["optimizer"])


def load_whole_optimizer(model: nn.Module, optimizer: Optimizer, checkpoint: str | Path) -> None:
    """Load a whole optimizer state, whose parameters have numbers, into a sharded optimizer, where they have names."""
    state = torch.load(Path(checkpoint) / OPTIMIZER_NAME, map_location="cpu", weights_only=True)
    present: Any = get_optimizer_state_dict(model, optimizer)["param_groups"]
    names = [group["params"] for group in present]
    groups = [{**group, "params": part} for group, part in zip(state["param_groups"], names, strict=True)]
    numbered = dict(enumerate(name for part in names for name in part))
    values = {numbered[number]: value for number, value in state["state"].items()}
    set_optimizer_state_dict(model, optimizer, {"state": values, "param_groups": groups}, options=WHOLE)
