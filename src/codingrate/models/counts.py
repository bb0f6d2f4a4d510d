"""Size of a model: its parameters, and the floating-point operations of a forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from .base import CratePreTrainedModel
from .presets import create_model


@dataclass(frozen=True)
class ModelCount:
    """Size of one preset, a row of `crate models`."""

    name: str
    width: int
    layers: int
    heads: int
    parameters: int
    frozen: int  # number of parameters that are not trained (sinusoidal position tables)
    flops: int
    unit: str  # unit of `flops`: per image, or per token of a full-length text


def count_model(name: str) -> ModelCount:
    """Count parameters and operations of a preset without allocating it.

    All layers but the last cost the same, so that models of one and of two layers give the operations of any depth.
    """
    with torch.device("meta"):
        model = create_model(name)
        one, two = (forward_flops(create_model(name, num_hidden_layers=layers)) for layers in (1, 2))
    config, parameters = model.config, model.num_parameters()
    flops = one + (config.num_hidden_layers - 1) * (two - one)
    cost = (flops // config.max_tokens, "token") if config.modality == "text" else (flops, "image")
    sizes = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    return ModelCount(name, *sizes, parameters, parameters - model.num_parameters(only_trainable=True), *cost)


@torch.no_grad()
def forward_flops(model: CratePreTrainedModel) -> int:
    """Count the operations of one inference pass of a model on the meta device, over one image or full-length text.

    ISTA counts one product per token, because I + N is computed once, in a first pass, and cached. Causal attention
    counts the full square, as the usual counters do.
    """
    config = model.eval().config
    if config.modality == "text":
        inputs = {"input_ids": torch.zeros(1, config.max_tokens, dtype=torch.long, device="meta")}
    else:
        inputs = {"pixel_values": torch.empty(1, config.num_channels, *config.image_sides, device="meta")}
    return count_flops(lambda: model(**inputs))


def count_flops(run: Callable[[], object]) -> int:
    """Count the operations of the second of two calls; only matrix products are counted, a multiply-add as two."""
    run()
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())
