"""State dicts laid out like the released ones: shapes by key, and random values for them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

Shapes = dict[str, tuple[int, ...]]


def pair(key: str, *weight: int) -> Shapes:
    return {f"{key}.weight": weight, f"{key}.bias": weight[:1]}


def attention(key: str, d: int, bias: bool = True, output: bool = True) -> Shapes:
    shapes: Shapes = {**pair(f"{key}.norm", d), f"{key}.fn.qkv.weight": (d, d)}
    if output:
        shapes |= pair(f"{key}.fn.to_out.0", d, d) if bias else {f"{key}.fn.to_out.0.weight": (d, d)}
    return shapes


def dictionary(key: str, d: int) -> Shapes:
    return {**pair(f"{key}.norm", d), f"{key}.fn.weight": (d, d)}


def head(d: int, classes: int) -> Shapes:
    return {**pair("mlp_head.0", d), **pair("mlp_head.1", classes, d)}


def classifier(*, d: int, depth: int, side: int, patches: int, classes: int, output: bool = True) -> Shapes:
    flat = 3 * side**2
    shapes: Shapes = {"pos_embedding": (1, patches + 1, d), "cls_token": (1, 1, d)}
    shapes |= pair("to_patch_embedding.1", flat)
    shapes |= pair("to_patch_embedding.2", d, flat) | pair("to_patch_embedding.3", d)
    for i in range(depth):
        layer = f"transformer.layers.{i}"
        shapes |= attention(f"{layer}.0", d, output=output) | dictionary(f"{layer}.1", d)
    return shapes | head(d, classes)


def demo(*, d: int, classes: int, **sizes: int) -> Shapes:
    return classifier(d=d, classes=d, **sizes) | pair("head", classes, d)


def alpha(*, d: int, depth: int, side: int, patches: int, classes: int) -> Shapes:
    shapes: Shapes = {"pos_embedding": (1, patches + 1, d), "cls_token": (1, 1, d)}
    shapes |= pair("conv1", d, 3, side, side)
    for i in range(depth):
        layer = f"transformer.layers.{i}"
        shapes |= attention(f"{layer}.0", d, bias=False) | pair(f"{layer}.1.norm", d)
        shapes |= {f"{layer}.1.fn.D": (d, 4 * d), f"{layer}.1.fn.D1": (d, 4 * d)}
    return shapes | head(d, classes)


def mae_encoder(*, d: int, depth: int, side: int, patches: int) -> Shapes:
    shapes: Shapes = {"cls_token": (1, 1, d), "pos_embed": (1, patches + 1, d)}
    shapes |= pair("patch_embed.proj", d, 3, side, side) | pair("norm", d)
    for i in range(depth):
        layer = f"blocks.{i}.layers.0"
        shapes |= attention(f"{layer}.0", d) | dictionary(f"{layer}.1", d)
    return shapes


def mae(*, d: int, depth: int, decoder: int, side: int, patches: int) -> Shapes:
    shapes = mae_encoder(d=d, depth=depth, side=side, patches=patches)
    shapes |= {"mask_token": (1, 1, d), "decoder_pos_embed": (1, patches + 1, d)}
    shapes |= pair("decoder_norm", d) | pair("decoder_embed", d, d) | pair("decoder_pred", 3 * side**2, d)
    for i in range(decoder):
        layer = f"decoder_blocks.{i}.layers.0"
        shapes |= dictionary(f"{layer}.0", d) | attention(f"{layer}.1", d)
    return shapes


def mae_classifier(*, classes: int, d: int, **sizes: int) -> Shapes:
    return mae_encoder(d=d, **sizes) | pair("head", classes, d)


def random_values(shapes: Shapes, seed: int = 0) -> dict[str, Tensor]:
    """Values of a size that keeps every layer's effect visible; norms near one."""
    generator = torch.Generator().manual_seed(seed)

    def value(key: str, shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            return 0.3 * noise + float(key.endswith("weight"))
        fan = shape[1] if len(shape) == 2 else shape[1] * shape[2] * shape[3] if len(shape) == 4 else 1
        return noise / fan**0.5

    return {key: value(key, shape) for key, shape in shapes.items()}


SMALL = {"d": 24, "depth": 3, "side": 4, "patches": 9, "classes": 7}


def small_classifier(**changes: int) -> dict[str, Tensor]:
    return random_values(classifier(**{**SMALL, **changes}))


def write(folder: Path, contents: object, name: str = "file.pth") -> Path:
    path = folder / name
    torch.save(contents, path)
    return path
