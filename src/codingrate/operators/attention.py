"""Attention as compression: one gradient step on the coding rate R^c of the tokens (paper 2.3).

In the paper tokens are columns and `SSA(Z | U_k) = (U_kᵀZ) softmax((U_kᵀZ)ᵀ(U_kᵀZ))`. Here tokens are rows:
W_k = Z U_k (n, p) and `SSA(Z | U_k) = softmax(W_k W_kᵀ) W_k`, softmax over each row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .orthogonality import orthonormal_columns
from .output import OutputProjection
from .registry import ATTENTION, Attention, AttentionSpec, KeyValueCache


def attention_mask(
    num_queries: int,
    tokens: int,
    causal: bool,
    mask: Tensor | None,
    device: torch.device,
    past_length: int | Tensor = 0,
) -> Tensor | None:
    """Return which tokens (last axis) each query (second to last) may attend to, or None if all attend to all.

    The first query is the token after `past_length` others. A token always attends to itself, so that no row of the
    softmax is empty, not even for padding. A mask that already has four axes is returned unchanged.
    """
    if mask is not None and mask.ndim == 4:
        return mask
    if mask is None and (
        not causal or (num_queries == 1 and isinstance(past_length, int) and past_length + 1 == tokens)
    ):
        return None
    place = torch.arange(tokens, device=device)
    own = (torch.arange(num_queries, device=device) + past_length)[:, None]
    pairs = place <= own if causal else torch.ones(num_queries, tokens, dtype=torch.bool, device=device)
    if mask is not None:
        pairs = pairs & mask[:, None, None, :]  # (batch, 1, num_queries, tokens)
    return pairs | (place == own)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    mask: Tensor | None,
    scale: float,
    dropout: float,
    return_attention: bool,
    past_length: int | Tensor = 0,
) -> tuple[Tensor, Tensor | None]:
    """Compute softmax(scale · query keyᵀ) value per head, (batch, heads, queries, p), after `past_length` tokens.

    Without `return_attention` the (tokens, tokens) matrix is never held in memory.
    """
    plain = causal and mask is None and not return_attention and isinstance(past_length, int) and past_length == 0
    pairs = None if plain else attention_mask(query.shape[-2], key.shape[-2], causal, mask, query.device, past_length)
    if not return_attention:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=pairs, dropout_p=dropout, is_causal=plain, scale=scale
        )
        return out, None
    scores = (query @ key.mT) * scale
    if pairs is not None:
        scores = scores.masked_fill(~pairs, float("-inf"))
    attention = scores.softmax(dim=-1)
    return F.dropout(attention, dropout) @ value, attention


class _MultiHead(Attention):
    """What every attention shares: splitting tokens into heads and joining them again."""

    projections = 1
    """Maps of d × K·p from the tokens to the heads; one leads back."""
    cache_tensors = 1

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec
        self.scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale
        self.inner = spec.heads * spec.head_dim

    def split(self, x: Tensor) -> Tensor:
        """(batch, tokens, heads · head_dim) to (batch, heads, tokens, head_dim)."""
        return x.unflatten(-1, (self.spec.heads, self.spec.head_dim)).transpose(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """The inverse of `split`."""
        return x.transpose(1, 2).flatten(-2)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        return_attention: bool,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of all heads, joined: (batch, tokens, heads · head_dim); keys and values of the past come first."""
        past_length: int | Tensor = 0
        if cache is not None:
            past_length = cache.past_length
            key, value = cache.update(key, value)
        out, attention = attend(
            query,
            key,
            value,
            causal=self.spec.causal,
            mask=mask,
            scale=self.scale,
            dropout=self.spec.dropout if self.training else 0.0,
            return_attention=return_attention,
            past_length=past_length,
        )
        return self.join(out), attention

    def flops(self, tokens: int, num_queries: int | None = None) -> int:
        """The maps to the heads and from them; then scores and values of all pairs, causal or not."""
        num_queries = tokens if num_queries is None else num_queries
        maps = 2 * self.spec.dim * self.inner * (self.projections * tokens + num_queries)
        return maps + 4 * num_queries * tokens * self.inner

    def extra_repr(self) -> str:
        return f"heads={self.spec.heads}, head_dim={self.spec.head_dim}, causal={self.spec.causal}"


class SubspaceAttention(_MultiHead):
    """Subspace self-attention of all heads: query, key and value are one projection onto U_1 … U_K."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.project = nn.Linear(spec.dim, self.inner, bias=False)  # rows k·p … (k+1)·p − 1 are U_kᵀ

    def subspaces(self) -> Tensor:
        """[U_1 … U_K]ᵀ as it acts, (K·p, d): orthonormal rows when the spec asks for them."""
        return orthonormal_columns(self.project.weight.mT).mT if self.spec.orthonormal else self.project.weight

    @property
    def bases(self) -> Tensor:
        """U_1 … U_K as the objective takes them, (K, d, p)."""
        return self.subspaces().unflatten(0, (self.spec.heads, self.spec.head_dim)).mT

    def codes(self, z: Tensor) -> Tensor:
        """W_k = Z U_k of every head: (batch, n, d) to (batch, K, n, p)."""
        return self.split(F.linear(z, self.subspaces()))

    def compress(
        self,
        z: Tensor,
        mask: Tensor | None,
        return_attention: bool,
        num_queries: int | None = None,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """[SSA(Z | U_1) … SSA(Z | U_K)], (batch, n, K·p)."""
        w = self.codes(z)
        return self.attend(w[:, :, :num_queries], w, w, mask, return_attention, cache)


@ATTENTION.register("mssa")
class MSSA(SubspaceAttention):
    """Multi-head subspace self-attention with a trainable output map, the paper's default.

    MSSA(Z | U_[K], W) = [SSA(Z | U_1) … SSA(Z | U_K)] Wᵀ + b   (paper, end of 2.3; z (batch, n, d))

    W (d, K·p) stands for β[U_1 … U_K], which trains faster. The factor p^-½ in the softmax is in the
    paper's pseudocode and not in its equations; the bias b is in the pseudocode and the released code only
    (`output_bias`).
    """

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.output = OutputProjection(self.inner, spec.dim, bias=spec.output_bias)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(
        self,
        z: Tensor,
        mask: Tensor | None = None,
        return_attention: bool = False,
        num_queries: int | None = None,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens (batch, n, d) to their update (batch, n, d)."""
        out, attention = self.compress(z, mask, return_attention, num_queries, cache)
        return self.dropout(self.output(out)), attention


@ATTENTION.register("mssa-tied")
class TiedMSSA(SubspaceAttention):
    """Multi-head subspace self-attention as the equations stand, output map β[U_1 … U_K].

    MSSA(Z | U_[K]) = β Σ_k SSA(Z | U_k) U_kᵀ,  β = p/(nε²)   (paper 2.3; z (batch, n, d))

    The softmax has no factor. n counts the real tokens of each sample; in the causal form token t has seen t
    tokens, so that β_t = p/(tε²) and the length of what follows cannot leak back.
    """

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.scale = 1.0 if spec.scale is None else spec.scale
        self.dropout = nn.Dropout(spec.dropout)

    def forward(
        self,
        z: Tensor,
        mask: Tensor | None = None,
        return_attention: bool = False,
        num_queries: int | None = None,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens (batch, n, d) to their update (batch, n, d)."""
        beta = self.beta(z, mask, 0 if cache is None else cache.past_length)
        out, attention = self.compress(z, mask, return_attention, num_queries, cache)
        update = F.linear(out, self.subspaces().mT)
        return self.dropout(update * beta[:, :num_queries]), attention

    def beta(self, z: Tensor, mask: Tensor | None, past_length: int | Tensor = 0) -> Tensor:
        """β = p/(nε²), (batch or 1, n or 1, 1); the tokens follow `past_length` others."""
        work = torch.promote_types(z.dtype, torch.float32)  # half precision cannot count tokens
        n = z.shape[-2]
        if mask is not None and mask.ndim == 4:
            count = mask[:, 0].sum(-1).to(work)
        elif mask is not None:
            real = mask.to(work)
            count = real.cumsum(-1)[:, -n:] if self.spec.causal else real.sum(-1, keepdim=True)
        elif self.spec.causal:
            count = (torch.arange(1, n + 1, device=z.device) + past_length).to(work)[None]
        else:
            count = z.new_full((1, 1), n, dtype=work)
        return (self.spec.head_dim / (count.clamp(min=1.0) * self.spec.eps**2)).to(z.dtype)[..., None]


@ATTENTION.register("mhsa")
class MHSA(_MultiHead):
    """Multi-head self-attention of the black-box transformer: three projections and an output map with bias.

    MHSA(Z) = [softmax(Q_k K_kᵀ/√p) V_k]_k W_Oᵀ + b   (z (batch, n, d))
    """

    projections = 3
    cache_tensors = 2

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.project = nn.Linear(spec.dim, 3 * self.inner, bias=spec.projection_bias)
        self.output = OutputProjection(self.inner, spec.dim, bias=spec.output_bias)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(
        self,
        z: Tensor,
        mask: Tensor | None = None,
        return_attention: bool = False,
        num_queries: int | None = None,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens (batch, n, d) to their update (batch, n, d)."""
        query, key, value = (self.split(x) for x in self.project(z).chunk(3, dim=-1))
        out, attention = self.attend(query[:, :, :num_queries], key, value, mask, return_attention, cache)
        return self.dropout(self.output(out)), attention
