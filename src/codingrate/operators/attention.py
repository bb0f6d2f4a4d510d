"""Attention as compression: one gradient step on the coding rate R^c of the tokens (paper 2.3).

In the paper tokens are columns and `SSA(Z | U_k) = (U_kᵀZ) softmax((U_kᵀZ)ᵀ(U_kᵀZ))`. Here tokens are rows:
W_k = Z U_k (n, p) and `SSA(Z | U_k) = softmax(W_k W_kᵀ) W_k`, softmax over each row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .orthogonality import orthonormal_columns
from .output import OutputMap
from .registry import ATTENTION, Attention, AttentionSpec, Past


def visible_pairs(
    queries: int, tokens: int, causal: bool, mask: Tensor | None, device: torch.device, seen: int | Tensor = 0
) -> Tensor | None:
    """Which of the tokens (last axis) each query (second to last) may see, or None when all see all.

    The first query is the token after `seen` others. A token always sees itself, so that no row of the softmax is
    empty, not even for padding. A mask that is such a table already is handed out as it is.
    """
    if mask is not None and mask.ndim == 4:
        return mask
    if mask is None and (not causal or (queries == 1 and isinstance(seen, int) and seen + 1 == tokens)):
        return None
    place = torch.arange(tokens, device=device)
    own = (torch.arange(queries, device=device) + seen)[:, None]
    pairs = place <= own if causal else torch.ones(queries, tokens, dtype=torch.bool, device=device)
    if mask is not None:
        pairs = pairs & mask[:, None, None, :]  # (batch, 1, queries, tokens)
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
    weights: bool,
    seen: int | Tensor = 0,
) -> tuple[Tensor, Tensor | None]:
    """softmax(scale · query keyᵀ) value per head, (batch, heads, queries, head_dim); queries follow `seen` tokens.

    Without `weights` no (tokens, tokens) matrix is ever held; with them the softmax is written out.
    """
    plain = causal and mask is None and not weights and isinstance(seen, int) and seen == 0
    pairs = None if plain else visible_pairs(query.shape[-2], key.shape[-2], causal, mask, query.device, seen)
    if not weights:
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
    kept_tensors = 1

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
        weights: bool,
        past: Past | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of all heads, joined: (batch, tokens, heads · head_dim); keys and values of the past come first."""
        seen: int | Tensor = 0
        if past is not None:
            seen = past.seen
            key, value = past.update(key, value)
        out, attention = attend(
            query,
            key,
            value,
            causal=self.spec.causal,
            mask=mask,
            scale=self.scale,
            dropout=self.spec.dropout if self.training else 0.0,
            weights=weights,
            seen=seen,
        )
        return self.join(out), attention

    def flops(self, tokens: int, queries: int | None = None) -> int:
        """The maps to the heads and from them; then scores and values of all pairs, causal or not."""
        queries = tokens if queries is None else queries
        maps = 2 * self.spec.dim * self.inner * (self.projections * tokens + queries)
        return maps + 4 * queries * tokens * self.inner

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
        self, z: Tensor, mask: Tensor | None, weights: bool, queries: int | None = None, past: Past | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """[SSA(Z | U_1) … SSA(Z | U_K)], (batch, n, K·p)."""
        w = self.codes(z)
        return self.attend(w[:, :, :queries], w, w, mask, weights, past)


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
        self.output = OutputMap(self.inner, spec.dim, bias=spec.output_bias)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(
        self,
        z: Tensor,
        mask: Tensor | None = None,
        weights: bool = False,
        queries: int | None = None,
        past: Past | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens (batch, n, d) to their update (batch, n, d)."""
        out, attention = self.compress(z, mask, weights, queries, past)
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
        weights: bool = False,
        queries: int | None = None,
        past: Past | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens (batch, n, d) to their update (batch, n, d)."""
        beta = self.beta(z, mask, 0 if past is None else past.seen)
        out, attention = self.compress(z, mask, weights, queries, past)
        update = F.linear(out, self.subspaces().mT)
        return self.dropout(update * beta[:, :queries]), attention

    def beta(self, z: Tensor, mask: Tensor | None, seen: int | Tensor = 0) -> Tensor:
        """β = p/(nε²), (batch or 1, n or 1, 1); the tokens follow `seen` others."""
        work = torch.promote_types(z.dtype, torch.float32)  # half precision cannot count tokens
        n = z.shape[-2]
        if mask is not None and mask.ndim == 4:
            count = mask[:, 0].sum(-1).to(work)
        elif mask is not None:
            real = mask.to(work)
            count = real.cumsum(-1)[:, -n:] if self.spec.causal else real.sum(-1, keepdim=True)
        elif self.spec.causal:
            count = (torch.arange(1, n + 1, device=z.device) + seen).to(work)[None]
        else:
            count = z.new_full((1, 1), n, dtype=work)
        return (self.spec.head_dim / (count.clamp(min=1.0) * self.spec.eps**2)).to(z.dtype)[..., None]


@ATTENTION.register("mhsa")
class MHSA(_MultiHead):
    """Multi-head self-attention of the black-box transformer: three projections and an output map with bias.

    MHSA(Z) = [softmax(Q_k K_kᵀ/√p) V_k]_k W_Oᵀ + b   (z (batch, n, d))
    """

    projections = 3
    kept_tensors = 2

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.project = nn.Linear(spec.dim, 3 * self.inner, bias=spec.projection_bias)
        self.output = OutputMap(self.inner, spec.dim, bias=spec.output_bias)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(
        self,
        z: Tensor,
        mask: Tensor | None = None,
        weights: bool = False,
        queries: int | None = None,
        past: Past | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens (batch, n, d) to their update (batch, n, d)."""
        query, key, value = (self.split(x) for x in self.project(z).chunk(3, dim=-1))
        out, attention = self.attend(query[:, :, :queries], key, value, mask, weights, past)
        return self.dropout(self.output(out)), attention
