"""Operators by name: their specifications, their contracts, and one registry for each kind of operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor, nn

from ..errors import unknown_name

Module = TypeVar("Module", bound=nn.Module)
Spec = TypeVar("Spec")


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Settings of an attention operator; an operator ignores those it has no use for."""

    dim: int
    """Token width d."""
    heads: int
    """Number of subspaces K."""
    head_dim: int
    """Dimension p of each subspace."""
    causal: bool = False
    """Whether token t attends to tokens 1..t only."""
    scale: float | None = None
    """Factor inside the softmax. Default: p^-½, or 1 for `mssa-tied`."""
    eps: float = 0.5
    """Coding precision ε of β = p/(nε²), used by `mssa-tied`."""
    projection_bias: bool = False
    """Bias of the query, key and value projection (`mhsa`, `tssa`); a subspace has none."""
    output_bias: bool = True
    """Bias of the trainable output map W."""
    max_tokens: int = 0
    """Rows of the position-wise bias of causal `tssa`; 0 for no bias."""
    orthonormal: bool = False
    """Whether to reparametrize [U_1 … U_K] to orthonormal columns."""
    dropout: float = 0.0
    """Dropout on the attention weights and on the output, as in the paper's pseudocode."""


@dataclass(frozen=True, kw_only=True)
class SparsifierSpec:
    """Settings of a sparsifier; a sparsifier ignores those it has no use for."""

    dim: int
    """Token width d."""
    step_size: float = 0.1
    """Step η of the proximal gradient step."""
    sparsity: float = 0.1
    """Weight λ of the ℓ1 norm."""
    alpha: float = 1.0
    """Constant α of the majorization-minimization step (`prox`)."""
    expansion: int = 4
    """Width of the hidden layer (`mlp`) or of the dictionary (`odl`), in units of d."""
    orthonormal: bool = False
    """Whether to reparametrize the dictionary D to orthonormal columns."""
    activation: str = "gelu"
    """Activation of `mlp`: `gelu`, or `gelu-tanh` for its approximation by a tanh."""
    dropout: float = 0.0
    """Dropout on the output (`mlp`)."""


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


class Sparsifier(nn.Module):
    """Contract of the second half of a layer: `forward` maps tokens (..., d) to tokens (..., d), each token alike."""

    residual: bool = False
    """Whether the layer adds a skip around the operator: an MLP needs one, ISTA contains its own."""
    uses_norm: bool = True
    """Whether the operator acts on normalized tokens."""


class OutputProjection(nn.Linear):
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


ATTENTION: Registry[AttentionSpec, Attention] = Registry("attention")
SPARSIFIERS: Registry[SparsifierSpec, Sparsifier] = Registry("sparsifier")
