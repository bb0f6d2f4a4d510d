"""Models once more, from the paper's pseudocode: plain functions of a state dict, float64, loops over heads."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def part(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) :]: value for key, value in weights.items() if key.startswith(prefix)}


def layer_norm(x: Tensor, weights: dict[str, Tensor], eps: float) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps) * weights["weight"] + weights["bias"]


def linear(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    out = x @ weights["weight"].T
    return out + weights["bias"] if "bias" in weights else out


def softmax(scores: Tensor) -> Tensor:
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def mssa(x: Tensor, weights: dict[str, Tensor], config) -> Tensor:
    p = config.hidden_size // config.num_attention_heads
    n = x.shape[1]
    heads = []
    for k in range(config.num_attention_heads):
        w = x @ weights["project.weight"][k * p : (k + 1) * p].T
        dots = w @ w.transpose(-1, -2) * p**-0.5
        if config.causal:
            later = torch.tensor([[s > t for s in range(n)] for t in range(n)])
            dots = torch.where(later, torch.full_like(dots, -math.inf), dots)
        heads.append(softmax(dots) @ w)
    return linear(torch.cat(heads, -1), part(weights, "output."))


def ista(x: Tensor, dictionary: Tensor, config) -> Tensor:
    update = config.step_size * ((x @ dictionary.T - x) @ dictionary)
    return torch.clamp(x - update - config.step_size * config.sparsity, min=0)


def step(start: Tensor, update: Tensor, weights: dict[str, Tensor], config) -> Tensor:
    """From the start of the skip to (1 − s) start + s update, or to start + update."""
    if config.step == "sum":
        return update
    s = 1 / (1 + torch.exp(-weights["step.logit"])) if config.learn_step else config.step_share
    return (1 - s) * start + s * update - start


def encoder_layer(x: Tensor, weights: dict[str, Tensor], config) -> tuple[Tensor, Tensor]:
    """Z^{ℓ+1} and Z^{ℓ+½}."""
    normed = layer_norm(x, part(weights, "attention_norm."), config.layer_norm_eps)
    skip = {"normalized": normed, "residual": x}[config.skip]
    half = skip + step(skip, mssa(normed, part(weights, "attention."), config), weights, config)
    normed = layer_norm(half, part(weights, "sparsifier_norm."), config.layer_norm_eps)
    return ista(normed, weights["sparsifier.dictionary"], config), half


def decoder_layer(x: Tensor, weights: dict[str, Tensor], config) -> tuple[Tensor, Tensor]:
    half = layer_norm(x, part(weights, "synthesis_norm."), config.layer_norm_eps) @ weights["synthesis.dictionary"].T
    normed = layer_norm(half, part(weights, "attention_norm."), config.layer_norm_eps)
    skip = {"normalized": normed, "residual": half}[config.skip]
    return skip - step(skip, mssa(normed, part(weights, "attention."), config), weights, config), half


def layers(x: Tensor, weights: dict[str, Tensor], config, prefix: str, layer=encoder_layer) -> Tensor:
    for i in range(config.num_hidden_layers):
        x, _ = layer(x, part(weights, f"{prefix}.{i}."), config)
    return x


def patches(image: Tensor, side: int) -> Tensor:
    """(batch, channels, H, W) to (batch, N, side²·channels): pixel by pixel, the channel fastest."""
    rows = []
    for top in range(0, image.shape[2], side):
        for left in range(0, image.shape[3], side):
            values = [image[:, :, top + i, left + j] for i in range(side) for j in range(side)]
            rows.append(torch.cat(values, dim=1))
    return torch.stack(rows, dim=1)


def classifier(image: Tensor, weights: dict[str, Tensor], config) -> Tensor:
    embedding, eps = part(weights, "crate.embedding."), config.layer_norm_eps
    x = patches(image, config.patch_size)
    x = layer_norm(x, part(embedding, "patch_norm."), eps)
    x = layer_norm(linear(x, part(embedding, "project.")), part(embedding, "token_norm."), eps)
    x = torch.cat([embedding["class_token"].repeat(len(x), 1, 1), x], dim=1)
    x = x + embedding["positions.weight"]
    x = layers(x, weights, config, "crate.layers")
    x = x.mean(1) if config.pooling == "mean" else x[:, 0]
    return linear(layer_norm(x, part(weights, "head_norm."), config.head_norm_eps), part(weights, "head."))


def paper_autoencoder(image: Tensor, mask: Tensor, weights: dict[str, Tensor], config) -> tuple[Tensor, Tensor]:
    """Reconstruction and loss: mask token among the pixels, positions taken off again, error over the image."""
    target = patches(image, config.patch_size)
    positions = weights["crate.embedding.positions.weight"]
    x = torch.where(mask[..., None], weights["mask_token"], target)
    x = linear(x, part(weights, "crate.embedding.project.")) + positions
    x = layers(x, weights, config, "crate.layers")
    x = layers(x, weights, config, "decoder_layers", decoder_layer)
    out = linear(x - positions, part(weights, "predict."))
    return out, ((out - target) ** 2).mean()


def released_autoencoder(image: Tensor, mask: Tensor, weights: dict[str, Tensor], config) -> tuple[Tensor, Tensor]:
    """Reconstruction and loss: mask token among the tokens, class token, norms, error over what was removed."""
    target = patches(image, config.patch_size)
    x = linear(target, part(weights, "crate.embedding.project."))
    x = torch.where(mask[..., None], weights["mask_token"], x)
    x = torch.cat([weights["crate.embedding.class_token"].repeat(len(x), 1, 1), x], dim=1)
    x = x + weights["crate.embedding.positions.weight"]
    x = layer_norm(layers(x, weights, config, "crate.layers"), part(weights, "crate.norm."), 1e-6)
    x = layers(x, weights, config, "decoder_layers", decoder_layer)
    x = layer_norm(x, part(weights, "decoder_norm."), 1e-6)
    out = linear(x, part(weights, "predict."))[:, 1:]
    if config.normalize_pixels:
        count = target.shape[-1]
        centered = target - target.sum(-1, keepdim=True) / count
        variance = (centered**2).sum(-1, keepdim=True) / (count - 1)
        target = centered / torch.sqrt(variance + 1e-6)
    errors = [((out[b, t] - target[b, t]) ** 2).mean() for b, t in mask.nonzero().tolist()]
    return out, sum(errors) / len(errors)


def masked_lm(ids: Tensor, weights: dict[str, Tensor], config) -> Tensor:
    embedding = part(weights, "crate.embedding.")
    x = torch.stack([torch.stack([embedding["words.weight"][i] for i in row]) for row in ids.tolist()])
    x = x + embedding["positions.weight"][: ids.shape[1]] + embedding["types.weight"][0]
    x = layer_norm(x, part(embedding, "norm."), config.head_norm_eps)
    x = linear(layers(x, weights, config, "crate.layers"), part(weights, "transform.dense."))
    x = layer_norm(x * 0.5 * (1 + torch.erf(x / math.sqrt(2))), part(weights, "transform.norm."), config.head_norm_eps)
    return x @ embedding["words.weight"].T + weights["head.bias"]


def causal_lm(ids: Tensor, weights: dict[str, Tensor], config) -> Tensor:
    x = weights["crate.embedding.words.weight"][ids] + weights["crate.embedding.positions.weight"][: ids.shape[1]]
    x = layers(x, weights, config, "crate.layers")
    return layer_norm(x, part(weights, "crate.norm."), config.head_norm_eps) @ weights["crate.embedding.words.weight"].T
