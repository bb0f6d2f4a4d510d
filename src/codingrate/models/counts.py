"""Size of a model: its parameters, and the floating-point operations of a forward pass."""

from __future__ import annotations

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
    frozen: int
    """Number of parameters that are not trained (sinusoidal position tables)."""
    flops: int
    unit: str
    """Unit of `flops`: per image, or per token of a full-length text."""


def count_model(name: str) -> ModelCount:
    """Count parameters and operations of a preset without allocating it.

    All layers but the last cost the same, so that models of one and of two layers give the operations of any depth.
    """
    with torch.device("meta"):
        model = create_model(name)
        one, two = (forward_flops(create_model(name, num_hidden_layers=layers)) for layers in (1, 2))
    config = model.config
    flops = one + (config.num_hidden_layers - 1) * (two - one)
    text = config.modality == "text"
    return ModelCount(
        name=name,
        width=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        parameters=model.num_parameters(),
        frozen=model.num_parameters() - model.num_parameters(only_trainable=True),
        flops=flops // config.max_tokens if text else flops,
        unit="token" if text else "image",
    )


@torch.no_grad()
def forward_flops(model: CratePreTrainedModel) -> int:
    """Count the operations of one inference pass of a model on the meta device, over one image or full-length text.

    Only matrix products are counted, a multiply-add as two. ISTA counts one product per token, because I + N is
    computed once, in a first pass, and cached. Causal attention counts the full square, as the usual counters do.
    """
    config = model.eval().config
    if config.modality == "text":
        inputs = {"input_ids": torch.zeros(1, config.max_tokens, dtype=torch.long, device="meta")}
    else:
        inputs = {"pixel_values": torch.empty(1, config.num_channels, *config.image_sides, device="meta")}
    model(**inputs)
    with FlopCounterMode(display=False) as counter:
        model(**inputs)
    return int(counter.get_total_flops())
