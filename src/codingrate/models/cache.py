"""Caches for generation: those of transformers, with layers that hold one tensor instead of two.

In MSSA query, key and value are one projection w = U_kᵀz, so that later tokens need only w. The model that first uses
an empty `DynamicCache` or `StaticCache`, created by `generate` or by the caller, replaces its layers by such layers
(`use_projection_layers`). Everything generation does with a cache (reorder, crop, repeat, reset) acts on one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer

from ..errors import CrateError
from ..operators import attention_mask


class _OneTensor:
    """Mixin for a cache layer whose values are its keys, w (batch, K, n, p)."""

    keys: Tensor
    is_initialized: bool
    lazy_initialization: Callable[[Tensor, Tensor], None]
    store: Callable[[Tensor], None]

    @property
    def values(self) -> Tensor:
        """The keys; there is no second tensor."""
        return self.keys

    @values.setter
    def values(self, value: Tensor | None) -> None:
        """Ignore the value: the layers of transformers set keys and values in turn."""

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.is_initialized:
            self.keys = self.keys.index_select(0, indices.to(self.keys.device))

    reorder_cache = batch_select_indices

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.is_initialized:
            self.keys = self.keys.repeat_interleave(repeats, dim=0)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store w of the new tokens; return all of w as key and value."""
        if value_states is not key_states:
            raise CrateError("this cache holds one tensor per layer, for attention 'mssa'; use a new cache per model")
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.store(key_states)
        return self.keys, self.keys


class DynamicProjectionLayer(_OneTensor, DynamicLayer):  # type: ignore[misc]
    """w of all tokens so far, growing with every step."""

    def store(self, w: Tensor) -> None:
        """Append w of the new tokens."""
        self.keys = torch.cat([self.keys, w], dim=-2)


class StaticProjectionLayer(_OneTensor, StaticLayer):  # type: ignore[misc]
    """w of a fixed number of tokens, allocated at once and written in place, so that a step can be compiled."""

    cumulative_length: Tensor  # type: ignore[assignment]

    def store(self, w: Tensor) -> None:
        """Write w of the new tokens to their positions."""
        positions = torch.arange(w.shape[-2], device=self.keys.device) + self.cumulative_length
        self.cumulative_length.add_(w.shape[-2])  # in place: a compiled step knows it by its address
        self.keys.index_copy_(2, positions, w)


def use_projection_layers(cache: Cache) -> None:
    """Replace the layers of an empty cache by layers that hold one tensor; quantized layers stay and hold two."""
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = DynamicProjectionLayer
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and not layer.is_initialized:
            cache.layers[index] = DynamicProjectionLayer()
        elif type(layer) is StaticLayer and not layer.is_initialized:
            cache.layers[index] = StaticProjectionLayer(layer.max_cache_len)


def cached_length(cache: Cache | None) -> int | Tensor:
    """Return the number of tokens in a cache; for a static cache a copy of its counter, which a compiled step reads."""
    length: int | Tensor = 0 if cache is None else cache.get_seq_length()
    return length.clone() if isinstance(length, Tensor) else length


def cached_attention_mask(
    cache: Cache, past_length: int | Tensor, mask: Tensor | None, tokens: int, device: torch.device
) -> Tensor | None:
    """Return which tokens each new token may attend to, (batch or 1, 1, new, all); None if the operator needs no mask.

    `mask` (batch, past_length + new) is True for real tokens. A static cache has memory for more tokens than there
    are; no token attends to that part.
    """
    if mask is None and isinstance(past_length, int) and past_length == 0:
        return None
    length = cache.get_max_length() if cache.is_compileable else int(past_length) + tokens
    if mask is not None:
        mask = F.pad(mask, (0, length - mask.shape[-1]))
    pairs = attention_mask(tokens, length, True, mask, device, past_length)
    return pairs if pairs is None or pairs.ndim == 4 else pairs[None, None]


def packed_attention_mask(position_ids: Tensor) -> Tensor | None:
    """Return the causal mask (batch, 1, n, n) of sequences packed in one row; None if no row holds several.

    A sequence begins where `position_ids` (batch, n) do not go on by one, as in transformers' causal models.
    """
    begins = position_ids.diff(dim=-1) != 1
    if not torch.compiler.is_compiling() and not bool(begins.any()):
        return None
    sequence = F.pad(begins.cumsum(-1), (1, 0))
    return (sequence[:, None, :, None] == sequence[:, None, None, :]).tril()


@dataclass(frozen=True)
class LayerCache:
    """The part of a cache that belongs to one layer, as an attention operator reads it (`operators.KeyValueCache`)."""

    cache: Cache
    index: int
    past_length: int | Tensor

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return self.cache.update(key, value, self.index)


def cache_bytes(cache: Cache) -> int:
    """Return the bytes of keys and values in a cache, each tensor counted once."""
    layers: list[Any] = [layer for layer in cache.layers if layer.is_initialized]  # type: ignore[union-attr]
    tensors = {tensor.data_ptr(): tensor.nbytes for layer in layers for tensor in (layer.keys, layer.values)}
    return sum(tensors.values())
