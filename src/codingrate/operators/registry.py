"""Operators by name: their specifications, their contracts, and one registry for each kind of operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..errors import unknown_name
from .linear import Linear

Module = TypeVar("Module", bound=nn.Module)
Spec = TypeVar("Spec")


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Settings of an attention operator; an operator ignores those it has no use for."""

    dim: int  # token width d
    heads: int  # number of subspaces K
    head_dim: int  # dimension p of each subspace
    causal: bool = False  # whether token t attends to tokens 1..t only
    scale: float | None = None  # factor inside the softmax; default: p^-½, or 1 for `mssa-tied`
    eps: float = 0.5  # coding precision ε of β = p/(nε²), used by `mssa-tied` and `rate-gradient`
    projection_bias: bool = False  # bias of the query, key and value projection (`mhsa`, `tssa`); a subspace has none
    output_bias: bool = True  # bias of the trainable output map W
    max_tokens: int = 0  # rows of the position-wise bias of causal `tssa`; 0 for no bias
    orthonormal: bool | Literal["per-head"] = False
    """Whether to reparametrize [U_1 … U_K] to orthonormal columns, or each U_k by itself (U_k*U_k = I, p ≤ d)."""
    rotary: bool = False  # whether queries and keys are rotated by their positions (not `tssa`, `rate-gradient`)
    order: int | None = None  # highest power of the Neumann series of `rate-gradient`; None for the exact inverse
    metric: bool = False  # whether each subspace has a learned metric for the scores (`mssa` and its variants)
    dropout: float = 0.0  # dropout on the attention weights and on the output, as in the paper's pseudocode


@dataclass(frozen=True, kw_only=True)
class SparsifierSpec:
    """Settings of a sparsifier; a sparsifier ignores those it has no use for."""

    dim: int  # token width d
    step_size: float = 0.1  # step η of the proximal gradient step
    sparsity: float = 0.1  # weight λ of the ℓ1 norm
    steps: int = 1  # number of proximal gradient steps with the one dictionary (`ista`, `ista-soft`)
    alpha: float | None = 1.0  # α of the majorization-minimization step (`prox`); None for d/(nε²)
    eps: float = 0.5  # coding precision ε of α = d/(nε²), used by `prox` with alpha=None
    expansion: int = 4  # width of the hidden layer (`mlp`) or of the dictionary (`odl`), in units of d
    orthonormal: bool = False  # whether to reparametrize the dictionary D to orthonormal columns
    activation: str = "gelu"  # activation of `mlp`: `gelu`, or `gelu-tanh` for its approximation by a tanh
    dropout: float = 0.0  # dropout on the output (`mlp`)


class KeyValueCache(Protocol):
    """Keys and values of earlier tokens of the same sequences, as one attention operator reads them."""

    @property
    def past_length(self) -> int | Tensor:
        """Number of tokens before those of the next `update`; a tensor if memory is allocated ahead."""

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (batch, K, n, p) of new tokens; return those of all tokens."""


class Attention(nn.Module):
    """Contract of the first half of a layer, which mixes tokens.

    `forward(z, mask=None, return_attention=False, num_queries=None, cache=None)` maps tokens z (batch, n, d) to an
    update (batch, n, d). It also returns the attention (batch, K, n, n), whose rows sum to one, if `return_attention`
    is true, and None otherwise. `mask` (batch, n) is True for real tokens; padding is never attended to. With
    `num_queries` only so many tokens from the front are updated, (batch, num_queries, d): a classifier reads only the
    class token of its last layer.

    With `cache` the n tokens continue a sequence, and attention is (batch, K, n, all tokens). The mask then covers
    all tokens, (batch, tokens), or states which of them each new token attends to, (batch or 1, 1, n, tokens).
    """

    cache_tensors: int = 0
    """Number of tensors cached per layer: 1 if keys equal values, 2 otherwise, 0 if caching is not supported."""
    weighs_pairs: bool = True
    """Whether the attention that is returned has a weight for every pair of tokens; otherwise it is diagonal."""
    name: str = ""
    """Name under which the operator is registered."""


class Sparsifier(nn.Module):
    """Contract of the second half of a layer: `forward` maps tokens (..., d) to tokens (..., d), each token alike.

    An operator that `counts_tokens` takes a second argument: the number n of real tokens of each sample, which
    broadcasts with (..., 1). Default: the length of the second to last axis.
    """

    residual: bool = False
    """Whether the layer adds a skip around the operator: an MLP needs one, ISTA contains its own."""
    uses_norm: bool = True
    """Whether the operator acts on normalized tokens."""
    counts_tokens: bool = False
    """Whether the operator depends on the number of tokens."""


def is_offloaded(module: nn.Module) -> bool:
    """Return whether accelerate loads the weights of a module for the time of its forward pass only."""
    return bool(getattr(getattr(module, "_hf_hook", None), "offload", False))


class OutputProjection(Linear):
    """The linear map that ends a branch of a layer; a class of its own, so that it can be initialized differently."""


class Registry(Generic[Spec, Module]):
    """A table of operators of one kind, by name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Callable[[Spec], Module]] = {}

    def register(self, name: str) -> Callable[[type[Module]], type[Module]]:
        """Return a class decorator that registers an operator as `name`."""

        def enter(cls: type[Module]) -> type[Module]:
            self._entries[name] = cls
            cls.name = name  # type: ignore[attr-defined]
            return cls

        return enter

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        return sorted(self._entries)

    def check(self, name: str) -> None:
        """Raise an error for an unknown name that suggests the nearest known one."""
        if name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)

    def create(self, name: str, spec: Spec) -> Module:
        """Build the operator registered as `name`."""
        self.check(name)
        return self._entries[name](spec)

    def apply(self, name: str, spec: Spec, weights: Mapping[str, Tensor], *inputs: Any) -> Any:
        """Return the output of the operator registered as `name` with these weights, for tokens and what follows."""
        with torch.device("meta"):
            operator = self.create(name, spec)
        return functional_call(operator, dict(weights), inputs)


ATTENTION: Registry[AttentionSpec, Attention] = Registry("attention")
SPARSIFIERS: Registry[SparsifierSpec, Sparsifier] = Registry("sparsifier")
