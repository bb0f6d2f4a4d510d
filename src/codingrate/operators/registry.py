"""Operators by name: one registry for attention, one for sparsifiers, and what each is built from."""

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
    """What an attention operator is built from; an operator ignores what it has no use for."""

    dim: int
    """Token width d."""
    heads: int
    """Number of subspaces K."""
    head_dim: int
    """Dimension p of each subspace."""
    causal: bool = False
    """Token t sees tokens 1..t only."""
    scale: float | None = None
    """Factor inside the softmax; None is the operator's own (p^-½, or 1 for `mssa-tied`)."""
    eps: float = 0.5
    """Coding precision ε of β = p/(nε²), used by `mssa-tied`."""
    projection_bias: bool = False
    """Bias of the query, key and value projection (`mhsa`, `tssa`); a subspace has none."""
    output_bias: bool = True
    """Bias of the trainable output map W."""
    max_tokens: int = 0
    """Rows of the position-wise bias of causal `tssa`; 0 leaves the bias out."""
    orthonormal: bool = False
    """Reparametrise [U_1 … U_K] to orthonormal columns."""
    dropout: float = 0.0
    """Dropout on the attention weights and on the output, as in the paper's pseudocode."""


@dataclass(frozen=True, kw_only=True)
class SparsifierSpec:
    """What a sparsifier is built from; a sparsifier ignores what it has no use for."""

    dim: int
    """Token width d."""
    step_size: float = 0.1
    """Step η of the proximal gradient step."""
    sparsity: float = 0.1
    """Weight λ of the ℓ1 norm."""
    alpha: float = 1.0
    """Constant α of the majorisation-minimisation step (`prox`)."""
    expansion: int = 4
    """Width of the hidden layer (`mlp`) or of the dictionary (`odl`), in units of d."""
    orthonormal: bool = False
    """Reparametrise the dictionary D to orthonormal columns."""
    activation: str = "gelu"
    """Activation of `mlp`: `gelu`, or `gelu-tanh`, its approximation by a tanh."""
    dropout: float = 0.0
    """Dropout on the output (`mlp`)."""


class KeyValueCache(Protocol):
    """What a causal operator has kept of earlier tokens of the same sequences."""

    @property
    def past_length(self) -> int | Tensor:
        """Tokens kept so far, before `update` adds the new ones; a tensor where memory is allocated ahead."""

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep keys and values (batch, K, n, p) of the new tokens, and hand out those of all tokens."""


class Attention(nn.Module):
    """Contract of the first half of a layer, the one that mixes tokens.

    `forward(z, mask, return_attention)` maps tokens z (batch, n, d) to an update (batch, n, d), and hands out the
    attention (batch, K, n, n), rows summing to one, when `return_attention` is true. `mask` (batch, n) is True
    where a token is real; padding is never attended to. With `num_queries` only that many tokens from the front are
    updated, (batch, num_queries, d): a classifier reads nothing of its last layer but the class token.

    With `cache` the n tokens continue a sequence, and attention is (batch, K, n, all tokens). The mask then counts
    all tokens, (batch, tokens), or tells which of them each new one sees, (batch or 1, 1, n, tokens).
    """

    cache_tensors: int = 0
    """Number of tensors cached per layer: 1 if keys equal values, 2 otherwise, 0 if caching is not supported."""

    def forward(
        self,
        z: Tensor,
        mask: Tensor | None = None,
        return_attention: bool = False,
        num_queries: int | None = None,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The update of every token, and the attention that made it."""
        raise NotImplementedError  # abstract

    def flops(self, tokens: int, num_queries: int | None = None) -> int:
        """Operations of the matrix products for one sequence; a multiply-add counts two."""
        raise NotImplementedError  # abstract


class Sparsifier(nn.Module):
    """Contract of the second half of a layer, the one that treats every token alike."""

    residual: bool = False
    """Whether the layer adds a skip around the operator: an MLP needs one, ISTA has its own."""
    uses_norm: bool = True
    """Whether the operator acts on normalised tokens."""

    def forward(self, z: Tensor) -> Tensor:
        """Tokens (..., d) to tokens (..., d)."""
        raise NotImplementedError  # abstract

    def flops(self, tokens: int) -> int:
        """Operations of the matrix products for so many tokens in inference; a multiply-add counts two."""
        raise NotImplementedError  # abstract


class Registry(Generic[Spec, Module]):
    """Names to operators, for one kind of operator."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Callable[[Spec], Module]] = {}

    def register(self, name: str) -> Callable[[type[Module]], type[Module]]:
        """Class decorator that enters an operator under `name`."""

        def enter(cls: type[Module]) -> type[Module]:
            self._entries[name] = cls
            return cls

        return enter

    def names(self) -> list[str]:
        """Every known name, sorted."""
        return sorted(self._entries)

    def check(self, name: str) -> None:
        """Refuse an unknown name, offering the nearest known one."""
        if name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)

    def create(self, name: str, spec: Spec) -> Module:
        """Build the operator called `name`."""
        self.check(name)
        return self._entries[name](spec)


ATTENTION: Registry[AttentionSpec, Attention] = Registry("attention")
SPARSIFIERS: Registry[SparsifierSpec, Sparsifier] = Registry("sparsifier")
