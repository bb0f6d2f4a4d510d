"""Size of a model: its parameters, and the floating-point operations of a forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from .autoencoder import CrateForMaskedAutoencoding, kept_patches
from .base import CrateModel, CratePreTrainedModel
from .layers import DecoderLayer, EncoderLayer
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
    """Count parameters and operations of a preset without allocating it."""
    with torch.device("meta"):
        model = create_model(name)
    config, flops = model.config, forward_flops(model)
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


def forward_flops(model: CratePreTrainedModel) -> int:
    """Count the operations of one inference pass over one image or one text of full length.

    Only matrix products are counted, a multiply-add as two. ISTA counts one product per token, because I + N is
    computed once and cached. Causal attention counts the full square, as the usual counters do.
    """
    config = model.config
    if config.modality == "text":
        tokens = config.max_tokens
        return _layers(model, tokens) + tokens * _maps(model)
    patches, front = config.num_patches, int(config.class_token)
    embed = patches * 2 * config.patch_dim * config.hidden_size
    if not isinstance(model, CrateForMaskedAutoencoding):
        layers, tokens = cast(CrateModel, model.base_model).layers, patches + front
        last = cast(EncoderLayer, layers[-1]).flops(tokens, config.pooled_queries)
        return embed + _layers(layers[:-1], tokens) + last + _maps(model)
    encoded = kept_patches(patches, config.mask_ratio) if config.mask_space == "drop" else patches
    predict = patches * 2 * config.hidden_size * config.patch_dim
    enter = (encoded + front) * _maps(model.decoder_embed)
    encoder = _layers(model.crate, encoded + front)
    return embed + encoder + enter + _layers(model.decoder_layers, patches + front) + predict


def _layers(module: nn.Module, tokens: int) -> int:
    return sum(m.flops(tokens) for m in module.modules() if isinstance(m, (EncoderLayer, DecoderLayer)))


def _maps(module: nn.Module) -> int:
    """Count the operations per token of the linear maps outside the body."""
    outside = (m for name, m in module.named_modules() if not name.startswith("crate."))
    return sum(2 * m.weight.numel() for m in outside if isinstance(m, nn.Linear))
