"""What generation keeps of earlier tokens: transformers' own caches, with layers that hold one tensor in place of two.

In MSSA query, key and value are one projection w = U_kᵀz, so that w is all that later tokens need. An empty
`DynamicCache` or `StaticCache`, made by `generate` or by the caller, is given such layers by the model that first
uses it (`adopt`); what generation does with a cache (reorder, crop, repeat, reset) then acts on the one tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer

from ..errors import CrateError
from ..operators import attention_mask


class _OneTensor:
    """The half of a cache layer that knows its values to be its keys, w (batch, K, n, p)."""

    keys: Tensor
    is_initialized: bool

    @property
    def values(self) -> Tensor:
        """The keys: there is no second tensor."""
        return self.keys

    @values.setter
    def values(self, value: Tensor | None) -> None:
        """Nothing: transformers' layers set both in turn."""

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Rows by the beams that go on."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Rows by their indices."""
        if self.is_initialized:
            self.keys = self.keys.index_select(0, indices.to(self.keys.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row so many times."""
        if self.is_initialized:
            self.keys = self.keys.repeat_interleave(repeats, dim=0)

    def expect_one(self, key: Tensor, value: Tensor) -> None:
        """Refuse a model whose values are not its keys."""
        if value is not key:
            raise CrateError("this cache holds one tensor per layer, for attention 'mssa'; give another model its own")


class DynamicProjectionLayer(_OneTensor, DynamicLayer):  # type: ignore[misc]
    """w of all tokens so far, growing with every step."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append w of the new tokens, and hand out w of all as key and value."""
        self.expect_one(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = torch.cat([self.keys, key_states], dim=-2)
        return self.keys, self.keys


class StaticProjectionLayer(_OneTensor, StaticLayer):  # type: ignore[misc]
    """w of a fixed number of tokens, allocated at once and written in place, so that a step can be compiled."""

    cumulative_length: Tensor  # type: ignore[assignment]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write w of the new tokens in its place, and hand out all of the memory as key and value."""
        self.expect_one(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = key_states.shape[-2]
        place = torch.arange(new, device=self.keys.device) + self.cumulative_length
        self.cumulative_length.add_(new)  # in place: a compiled step knows it by its address
        self.keys.index_copy_(2, place, key_states)
        return self.keys, self.keys


def adopt(cache: Cache) -> None:
    """Give an empty cache layers that hold one tensor; other kinds of layers (quantized) keep two and serve as well."""
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = DynamicProjectionLayer
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and not layer.is_initialized:
            cache.layers[index] = DynamicProjectionLayer()
        elif type(layer) is StaticLayer and not layer.is_initialized:
            cache.layers[index] = StaticProjectionLayer(layer.max_cache_len)


def cached_length(cache: Cache | None) -> int | Tensor:
    """Tokens in a cache; of a static one a tensor, which a compiled step can read, and a copy, as it counts on."""
    past_length: int | Tensor = 0 if cache is None else cache.get_seq_length()
    return past_length.clone() if isinstance(past_length, Tensor) else past_length


def cached_attention_mask(
    cache: Cache, past_length: int | Tensor, mask: Tensor | None, tokens: int, device: torch.device
) -> Tensor | None:
    """Which tokens each of the new ones may see, (batch or 1, 1, new, all); None: the attention knows by itself.

    `mask` (batch, past_length + new) is True where a token is real. A static cache has room for more tokens than there
    are; nothing sees that far ahead.
    """
    if mask is None and isinstance(past_length, int) and past_length == 0:
        return None
    length = cache.get_max_length() if cache.is_compileable else int(past_length) + tokens
    if mask is not None:
        mask = F.pad(mask, (0, length - mask.shape[-1]))
    pairs = attention_mask(tokens, length, True, mask, device, past_length)
    return pairs if pairs is None or pairs.ndim == 4 else pairs[None, None]


@dataclass(frozen=True)
class LayerCache:
    """One layer's part of a cache, as an attention operator meets it (`operators.KeyValueCache`)."""

    cache: Cache
    index: int
    past_length: int | Tensor

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep keys and values (batch, K, n, p) of the new tokens, and hand out those of all tokens."""
        keys, values = self.cache.update(key, value, self.index)
        return keys, values


def cache_bytes(cache: Cache) -> int:
    """Bytes of keys and values in a cache, each tensor counted once."""
    layers: list[Any] = [layer for layer in cache.layers if layer.is_initialized]  # type: ignore[union-attr]
    tensors = {tensor.data_ptr(): tensor.nbytes for layer in layers for tensor in (layer.keys, layer.values)}
    return sum(tensors.values())
