"""Embeddings of images and text (f^pre, paper 4.1), and position tables that fit any image size."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import CrateError
from .config import CrateConfig


def patchify(pixels: Tensor, patch: int) -> Tensor:
    """Cut images (batch, channels, height, width) into patches (batch, N, P·P·channels).

    Patches are in row-major order, and so are the pixels of a patch, with the channel last.
    """
    batch, channels, height, width = pixels.shape
    blocks = pixels.reshape(batch, channels, height // patch, patch, width // patch, patch)
    return blocks.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def unpatchify(patches: Tensor, patch: int, grid: tuple[int, int]) -> Tensor:
    """Invert `patchify` for a grid of (rows, columns)."""
    blocks = patches.unflatten(2, (patch, patch, -1)).unflatten(1, grid)  # (batch, rows, cols, P, P, channels)
    return blocks.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


def sinusoids(length: int, dim: int) -> Tensor:
    """Compute sines and cosines of a sequence, (length, d): column 2i is sin(t/10000^{2i/d}), 2i + 1 its cosine."""
    angle = torch.arange(length)[:, None] * torch.exp(torch.arange(0, dim, 2) * (-math.log(1e4) / dim))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def grid_sinusoids(rows: int, columns: int, dim: int) -> Tensor:
    """Compute sines and cosines of a grid, (rows · columns, d).

    e(a, b) = [sin bω | cos bω | sin aω | cos aω] for row a and column b, ω_i = 10000^{-4i/d}.
    """
    omega = 1e4 ** (-torch.arange(dim // 4, dtype=torch.float64) * 4 / dim)
    a = (torch.arange(rows)[:, None] * omega)[:, None].expand(rows, columns, -1)
    b = (torch.arange(columns)[:, None] * omega)[None].expand(rows, columns, -1)
    return torch.cat([b.sin(), b.cos(), a.sin(), a.cos()], dim=-1).flatten(0, 1).float()


class PositionTable(nn.Module):
    """E_pos: a row of width d for every position; a parameter if learned, a buffer if sinusoidal."""

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        self.config = config
        vision = config.modality == "vision"
        rows = config.num_patches + config.class_token if vision else config.max_position_embeddings
        kind = nn.Parameter if config.positions == "learned" else nn.Buffer
        self.weight = kind(torch.empty(rows, config.hidden_size))

    def forward(self, tokens: Tensor, where: tuple[int, int] | Tensor | None = None, sign: int = 1) -> Tensor:
        """Add the rows of a grid of patches, of positions (batch, n), or the first n rows to tokens (batch, n, d).

        With `sign` −1 they are subtracted.
        """
        if isinstance(where, tuple):
            rows = self.for_grid(where)
        else:
            rows = self.weight[: tokens.shape[1]] if where is None else F.embedding(where, self.weight)
        return torch.add(tokens, rows, alpha=sign)

    def formula(self) -> Tensor:
        """Compute the sinusoidal table; the row of a class token is zero."""
        config = self.config
        if config.modality == "text":
            return config.position_scale * sinusoids(config.max_position_embeddings, config.hidden_size)
        rows, columns = config.grid
        patches = config.position_scale * grid_sinusoids(rows, columns, config.hidden_size)
        return F.pad(patches, (0, 0, 1, 0)) if config.class_token else patches

    def for_grid(self, grid: tuple[int, int]) -> Tensor:
        """Return the table for a grid of (rows, columns) patches, resized bicubically if the grid differs."""
        if grid == self.config.grid:
            return self.weight
        front = int(self.config.class_token)
        patches = self.weight[front:].unflatten(0, self.config.grid).permute(2, 0, 1)[None]
        target: dict[str, Any] = {"size": grid}
        if offset := self.config.interpolate_offset:  # the released code then passes a scale and not a size
            target = {"scale_factor": [(new + offset) / own for new, own in zip(grid, self.config.grid, strict=True)]}
        resized = F.interpolate(patches.float(), mode="bicubic", align_corners=False, **target)
        return torch.cat([self.weight[:front], resized[0].flatten(1).mT.to(self.weight.dtype)])


class ConvolutionStem(nn.Module):
    """Images to one row of features per patch: log₂ P times convolution, maximum over 2 × 2 pixels, ReLU.

    The numbers of channels are d/P, 2d/P, …, d/2. The features of a patch also depend on pixels of its neighbors.
    """

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        widths = [config.hidden_size // 2**i for i in range(config.patch_size.bit_length() - 1, 0, -1)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, kernel_size=3, padding=1)
            for before, after in zip([config.num_channels, *widths], widths, strict=False)
        )
        self.width = widths[-1] if widths else config.num_channels

    def forward(self, pixels: Tensor) -> Tensor:
        """Map images (batch, channels, height, width) to features (batch, N, d/2) of their patches."""
        features = pixels.contiguous(memory_format=torch.channels_last)
        for convolution in self.convolutions:
            features = F.max_pool2d(convolution(features), 2).relu()
        return features.flatten(2).mT


class PatchEmbedding(nn.Module):
    """Images to tokens: [z_cls, W_pre X] + E_pos, with LayerNorm before and after W_pre if `patch_norm` is set.

    X are the pixels of the patches or, with `stem="convolution"`, features of the patches.
    """

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        self.config = config
        d, eps = config.hidden_size, config.layer_norm_eps
        self.stem = ConvolutionStem(config) if config.stem == "convolution" else None
        width = config.patch_dim if self.stem is None else self.stem.width
        self.patch_norm = nn.LayerNorm(width, eps=eps) if config.patch_norm else nn.Identity()
        self.project = nn.Linear(width, d)
        self.token_norm = nn.LayerNorm(d, eps=eps) if config.patch_norm else nn.Identity()
        self.class_token = nn.Parameter(torch.empty(d)) if config.class_token else None
        self.positions = PositionTable(config) if config.positions != "none" else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        pixels: Tensor,
        grid: tuple[int, int] | None = None,
        mask: Tensor | None = None,
        mask_token: Tensor | None = None,
    ) -> Tensor:
        """Map images (batch, channels, height, width), or their patches and `grid`, to tokens (batch, n, d).

        `mask_token` replaces the patches for which `mask` (batch, N) is True, before or after W_pre by `mask_space`.
        """
        patches, grid = self.patches(pixels) if grid is None else (pixels, grid)
        if mask is not None and mask_token is not None and self.config.mask_space == "pixel":
            patches = torch.where(mask[..., None], mask_token.to(patches.dtype), patches)
        tokens = self.token_norm(self.project(self.patch_norm(patches)))
        if mask is not None and mask_token is not None and self.config.mask_space == "embedding":
            tokens = torch.where(mask[..., None], mask_token.to(tokens.dtype), tokens)
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.expand(tokens.shape[0], 1, -1), tokens], dim=1)
        tokens = self.dropout(tokens if self.positions is None else self.positions(tokens, grid))
        return self.drop_patches(tokens) if self.training and self.config.patch_dropout else tokens

    def drop_patches(self, tokens: Tensor) -> Tensor:
        """Keep a random share 1 − `patch_dropout` of the patches of every image, and the class token."""
        front = int(self.config.class_token)
        count = tokens.shape[1] - front
        kept = max(1, round(count * (1 - self.config.patch_dropout)))
        drawn = torch.rand(len(tokens), count, device=tokens.device).argsort(dim=1)[:, :kept].sort(dim=1).values
        rows = F.pad(drawn + front, (front, 0))  # row 0 is the class token
        return tokens.gather(1, rows[..., None].expand(-1, -1, tokens.shape[-1]))

    def patches(self, pixels: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return patches (batch, N, P²·channels), or their features, in the model's dtype, and their grid.

        Images that do not fit are refused.
        """
        patch = self.config.patch_size
        if pixels.ndim != 4 or pixels.shape[1] != self.config.num_channels:
            expected = f"(batch, {self.config.num_channels}, height, width)"
            raise CrateError(f"pixel_values has shape {tuple(pixels.shape)}; expected {expected}")
        if not pixels.is_floating_point():
            raise CrateError(f"pixel_values is {pixels.dtype}; expected floating point, normalized")
        height, width = pixels.shape[-2:]
        if height % patch or width % patch or not height or not width:
            raise CrateError(f"image of {height} × {width} pixels is not divisible by patch_size {patch}; resize it")
        dtype = next((parameter.dtype for parameter in self.parameters()), pixels.dtype)
        pixels = pixels.to(dtype)
        patches = patchify(pixels, patch) if self.stem is None else self.stem(pixels)
        return patches, (height // patch, width // patch)


def _look_up(name: str, table: nn.Module, *arguments: Any) -> Tensor:
    """Read rows of a table; an id that it does not have is an error of one line, except on a GPU, which would wait."""
    try:
        rows: Tensor = table(*arguments)
    except IndexError as error:
        count = len(table.weight) if isinstance(table.weight, Tensor) else 0
        raise CrateError(f"{name} holds an id that the table of {count} rows does not have") from error
    return rows


class TextEmbedding(nn.Module):
    """Token ids to tokens: f^embed(X) + E_pos (paper 4.1.4), with RoBERTa's token types and LayerNorm by config."""

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        self.config = config
        d = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, d)
        self.positions = PositionTable(config) if config.positions not in ("none", "rotary") else None
        self.types = nn.Embedding(config.type_vocab_size, d) if config.type_vocab_size else None
        self.norm = nn.LayerNorm(d, eps=config.head_norm_eps) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_length: int | Tensor = 0,
    ) -> Tensor:
        """Map ids (batch, n), or embeddings (batch, n, d) in their place, to tokens (batch, n, d).

        `position_ids` are rows of the table; by default they are counted from `past_length`, the number of tokens
        before these.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise CrateError("pass either input_ids or inputs_embeds")
        if input_ids is not None and (input_ids.ndim != 2 or input_ids.dtype not in (torch.int64, torch.int32)):
            kind = f"{input_ids.dtype} of shape {tuple(input_ids.shape)}"
            raise CrateError(f"input_ids is {kind}; expected ids (batch, n)")
        tokens = _look_up("input_ids", self.words, input_ids) if inputs_embeds is None else inputs_embeds
        length = tokens.shape[1]
        if position_ids is None and isinstance(past_length, int) and past_length + length > self.config.max_tokens:
            offset = self.config.position_offset
            raise CrateError(
                f"sequence of {past_length + length} tokens is longer than max_position_embeddings "
                f"{self.config.max_position_embeddings}{f' less position_offset {offset}' * bool(offset)}; shorten it"
            )
        if self.positions is not None:
            if position_ids is None:
                position_ids = self.count_positions(input_ids, attention_mask, tokens, past_length)
            tokens = _look_up("position_ids", self.positions, tokens, position_ids)
        if self.types is not None:
            types = tokens.new_zeros(tokens.shape[:2], dtype=torch.long) if token_type_ids is None else token_type_ids
            tokens = tokens + _look_up("token_type_ids", self.types, types)
        return self.dropout(self.norm(tokens))

    def count_positions(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, tokens: Tensor, past_length: int | Tensor
    ) -> Tensor | None:
        """Return the positions (batch or 1, n) of tokens (batch, n, d) in the table, or None for the first n rows.

        A causal model counts from the first real token, so that padding on the left changes nothing. With an offset
        padding is recognized by its id, as in RoBERTa.
        """
        offset, padding = self.config.position_offset, self.config.pad_token_id
        if offset and input_ids is not None and padding is not None:
            real = (input_ids != padding).long()
            return real.cumsum(-1) * real + offset - 1
        if self.config.causal and attention_mask is not None and attention_mask.ndim == 2:
            return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        if isinstance(past_length, int) and past_length + offset == 0:
            return None
        return (torch.arange(tokens.shape[1], device=tokens.device) + past_length + offset)[None]
