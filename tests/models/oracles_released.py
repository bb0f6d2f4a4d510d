"""Forward passes of the released models, straight from their formulas: float64, loops over heads, softmax.

Each function reads a state dict under the released names. Tokens are rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

State = dict[str, Tensor]


def layer_norm(x: Tensor, state: State, key: str, eps: float) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    variance = (centered**2).mean(-1, keepdim=True)
    return centered / torch.sqrt(variance + eps) * state[f"{key}.weight"] + state[f"{key}.bias"]


def linear(x: Tensor, state: State, key: str) -> Tensor:
    return x @ state[f"{key}.weight"].T + state[f"{key}.bias"]


def mssa(a: Tensor, state: State, key: str, heads: int) -> Tensor:
    """[H_1 .. H_K] Wᵀ + b with H_k = softmax(S_k S_kᵀ/√p) S_k; without W the heads as they are."""
    qkv = state[f"{key}.qkv.weight"]
    p = qkv.shape[0] // heads
    parts = []
    for k in range(heads):
        s = a @ qkv[k * p : (k + 1) * p].T
        scores = torch.exp(s @ s.transpose(-1, -2) / math.sqrt(p))
        parts.append(scores / scores.sum(-1, keepdim=True) @ s)
    out = torch.cat(parts, dim=-1)
    if f"{key}.to_out.0.weight" in state:
        out = out @ state[f"{key}.to_out.0.weight"].T
    return out + state.get(f"{key}.to_out.0.bias", torch.zeros(()))


def ista_layer(z: Tensor, state: State, key: str, heads: int, eta: float, lam: float) -> Tensor:
    z = z + mssa(layer_norm(z, state, f"{key}.0.norm", 1e-5), state, f"{key}.0.fn", heads)
    y, d = layer_norm(z, state, f"{key}.1.norm", 1e-5), state[f"{key}.1.fn.weight"]
    return (y + eta * (y @ d - y @ d.T @ d) - eta * lam).clamp(min=0)


def alpha_layer(z: Tensor, state: State, key: str, heads: int, eta: float, lam: float) -> Tensor:
    z = z + mssa(layer_norm(z, state, f"{key}.0.norm", 1e-6), state, f"{key}.0.fn", heads)
    y, d = layer_norm(z, state, f"{key}.1.norm", 1e-6), state[f"{key}.1.fn.D"]
    first = (eta * y @ d - eta * lam).clamp(min=0)
    second = (first - eta * (first @ d.T - y) @ d - eta * lam).clamp(min=0)
    return z + second @ state[f"{key}.1.fn.D1"].T


def decoder_layer(z: Tensor, state: State, key: str, heads: int) -> Tensor:
    y = layer_norm(z, state, f"{key}.0.norm", 1e-5) @ state[f"{key}.0.fn.weight"].T
    return y - mssa(layer_norm(y, state, f"{key}.1.norm", 1e-5), state, f"{key}.1.fn", heads)


def flat_patches(pixels: Tensor, side: int) -> Tensor:
    """Row-major patches, each flattened by pixel row, pixel column, channel."""
    rows, columns = pixels.shape[2] // side, pixels.shape[3] // side
    cut = [
        pixels[:, :, a * side : (a + 1) * side, b * side : (b + 1) * side].permute(0, 2, 3, 1).flatten(1)
        for a in range(rows)
        for b in range(columns)
    ]
    return torch.stack(cut, dim=1)


def convolved(pixels: Tensor, state: State, key: str) -> Tensor:
    weight = state[f"{key}.weight"]
    out = torch.nn.functional.conv2d(pixels, weight, state[f"{key}.bias"], stride=weight.shape[-1])
    return out.flatten(2).transpose(1, 2)


def cubic(x: float, a: float = -0.75) -> float:
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def resizing(own: int, target: int, scale: float) -> Tensor:
    """The matrix (target, own) of bicubic resizing along one axis, edges repeated."""
    matrix = torch.zeros(target, own, dtype=torch.float64)
    for i in range(target):
        source = (i + 0.5) / scale - 0.5
        for tap in range(math.floor(source) - 1, math.floor(source) + 3):
            matrix[i, min(max(tap, 0), own - 1)] += cubic(source - tap)
    return matrix


def resized(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """A table (1, N+1, d) for another grid: scale (target + 0.1)/√N per axis, class row kept."""
    own = math.isqrt(table.shape[1] - 1)
    vertical, horizontal = (resizing(own, side, (side + 0.1) / own) for side in grid)
    patches = table[0, 1:].reshape(own, own, -1)
    patches = torch.einsum("ai,bj,ijd->abd", vertical, horizontal, patches).flatten(0, 1)
    return torch.cat([table[0, :1], patches])[None]


def double(state: State) -> State:
    return {key: value.double() for key, value in state.items()}


def with_class(tokens: Tensor, state: State) -> Tensor:
    return torch.cat([state["cls_token"].expand(len(tokens), -1, -1), tokens], dim=1)


def classify(state: State, pixels: Tensor, *, side: int, depth: int, heads: int, lam: float = 0.1) -> Tensor:
    """The classifier and every patch-8 variant, demo included."""
    state, pixels = double(state), pixels.double()
    x = layer_norm(flat_patches(pixels, side), state, "to_patch_embedding.1", 1e-5)
    x = layer_norm(linear(x, state, "to_patch_embedding.2"), state, "to_patch_embedding.3", 1e-5)
    z, table = with_class(x, state), state["pos_embedding"]
    if z.shape[1] != table.shape[1]:
        table = resized(table, (pixels.shape[2] // side, pixels.shape[3] // side))
    z = z + table
    for i in range(depth):
        z = ista_layer(z, state, f"transformer.layers.{i}", heads, 0.1, lam)
    return linear(layer_norm(z[:, 0], state, "mlp_head.0", 1e-5), state, "mlp_head.1")


def classify_alpha(state: State, pixels: Tensor, *, depth: int, heads: int) -> Tensor:
    state, pixels = double(state), pixels.double()
    z = with_class(convolved(pixels, state, "conv1"), state) + state["pos_embedding"]
    for i in range(depth):
        z = alpha_layer(z, state, f"transformer.layers.{i}", heads, 0.1, 0.1)
    return linear(layer_norm(z[:, 0], state, "mlp_head.0", 1e-5), state, "mlp_head.1")


def reconstruct(
    state: State, pixels: Tensor, mask: Tensor, *, depth: int, decoder: int, heads: int, lam: float
) -> Tensor:
    state, pixels = double(state), pixels.double()
    tokens = convolved(pixels, state, "patch_embed.proj")
    keep = (~mask).double()[..., None]
    tokens = tokens * keep + state["mask_token"] * (1 - keep)
    z = with_class(tokens, state) + state["decoder_pos_embed"]
    for i in range(depth):
        z = ista_layer(z, state, f"blocks.{i}.layers.0", heads, 0.1, lam)
    z = layer_norm(z, state, "norm", 1e-6)
    for i in range(decoder):
        z = decoder_layer(z, state, f"decoder_blocks.{i}.layers.0", heads)
    return linear(layer_norm(z, state, "decoder_norm", 1e-6), state, "decoder_pred")[:, 1:]


def classify_mae(state: State, pixels: Tensor, *, depth: int, heads: int, lam: float) -> Tensor:
    state, pixels = double(state), pixels.double()
    z = with_class(convolved(pixels, state, "patch_embed.proj"), state) + state["pos_embed"]
    for i in range(depth):
        z = ista_layer(z, state, f"blocks.{i}.layers.0", heads, 0.1, lam)
    return linear(layer_norm(z[:, 0], state, "norm", 1e-6), state, "head")
