"""Token-statistics self-attention: compression by second moments, linear in the number of tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import CrateError
from .attention import SubspaceAttention
from .output import OutputProjection
from .registry import ATTENTION, AttentionSpec, KeyValueCache


@ATTENTION.register("tssa")
class TSSA(SubspaceAttention):
    """Token-statistics self-attention (ToST), from a variational form of the same coding rate.

    With W_k = Z U_k (n, p) for head k, tokens t and directions j:
    s_kt = τ_k Σ_j W_k[t,j]² / Σ_t' W_k[t',j]²,   Π = softmax of s over the heads,
    m_kj = Σ_t Π_kt W_k[t,j]² / (Σ_t Π_kt + 1e-8),
    TSSA(Z)_t = −[Π_kt W_k[t,j] / (1 + m_kj)]_k Wᵀ + b.

    In the causal form each sum over tokens runs up to t, and a learned bias per head and position
    (`max_tokens` rows) is added to each normalised square. There is no n × n matrix: asked for weights it
    hands out the memberships Π as a diagonal, (batch, K, n, n), rows summing to Π_kt and not to one. Positions
    are those among the real tokens.
    """

    cache_tensors = 0

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.project = nn.Linear(spec.dim, self.inner, bias=spec.projection_bias)
        self.temperature = nn.Parameter(torch.ones(spec.heads, 1))
        positions = spec.max_tokens if spec.causal else 0
        self.position_bias = nn.Parameter(torch.zeros(spec.heads, positions, 1)) if positions else None
        self.output = OutputProjection(self.inner, spec.dim, bias=spec.output_bias)
        self.dropout = nn.Dropout(spec.dropout)

    def codes(self, z: Tensor) -> Tensor:
        """W_k = Z U_k + b_k of every head: (batch, n, d) to (batch, K, n, p)."""
        return self.split(nn.functional.linear(z, self.subspaces(), self.project.bias))

    def forward(
        self,
        z: Tensor,
        mask: Tensor | None = None,
        return_attention: bool = False,
        num_queries: int | None = None,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens (batch, n, d) to their update (batch, n, d)."""
        if cache is not None:
            raise CrateError("attention 'tssa' keeps nothing of earlier tokens; take use_cache=False")
        w = self.codes(z)
        real = torch.ones_like(w[:, :1, :, :1]) if mask is None else mask[:, None, :, None].to(w.dtype)
        square = w.square() * real  # (batch, K, n, p); padding counts for nothing
        share = square / self._total(square).clamp(min=1e-12)
        if self.position_bias is not None:
            share = share + self._bias(self.position_bias, w.shape[-2], mask)
        membership = (share.sum(-1) * self.temperature).softmax(dim=1)[..., None] * real  # (batch, K, n, 1)
        moment = self._total(membership * square) / (self._total(membership) + 1e-8)
        out = -membership * w / (1 + moment)
        out = self.output(self.join(out[:, :, :num_queries]))
        return self.dropout(out), torch.diag_embed(membership[..., 0])[:, :, :num_queries] if return_attention else None

    def flops(self, tokens: int, num_queries: int | None = None) -> int:
        """The two maps only: statistics are sums, not products of matrices."""
        return 2 * self.spec.dim * self.inner * (tokens + (tokens if num_queries is None else num_queries))

    def _bias(self, table: Tensor, tokens: int, mask: Tensor | None) -> Tensor:
        """Rows of the bias, (K, n, 1), or (batch, K, n, 1) where padding may stand in front."""
        if mask is None:
            return table[:, :tokens]
        return table[:, (mask.cumsum(-1) - 1).clamp(min=0)].transpose(0, 1)

    def _total(self, x: Tensor) -> Tensor:
        """The sum over tokens: all of them, or those up to each one in the causal form."""
        return x.cumsum(dim=-2) if self.spec.causal else x.sum(dim=-2, keepdim=True)
