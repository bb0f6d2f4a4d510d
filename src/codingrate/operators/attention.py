"""Attention as compression: one gradient step on the coding rate R^c of the tokens (paper 2.3).

    attention = MSSA(dim=384, num_heads=6)  # or ATTENTION.create("mssa", dim=384, num_heads=6)
    z = z + attention(z)  # (batch, n, d)

In the paper tokens are columns and `SSA(Z | U_k) = (U_kᵀZ) softmax((U_kᵀZ)ᵀ(U_kᵀZ))`. Here tokens are rows:
W_k = Z U_k (n, p) and `SSA(Z | U_k) = softmax(W_k W_kᵀ) W_k`, softmax over each row.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import CrateError
from ..objective.signal import orthonormal_columns
from .linear import apply_linear
from .registry import ATTENTION, Attention, KeyValueCache, OutputProjection, is_offloaded

LONGEST_PRODUCT = 256
"""Number of tokens up to which attention in half precision trains by products of matrices on a CPU."""

LARGEST_SUMS = 2**24
"""Number of entries of the p × p sums over earlier tokens that causal `rate-gradient` holds at once."""


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
    softmax is empty, not even for padding. A mask that already has four axes, of Booleans or of numbers to add to the
    scores, is returned unchanged.
    """
    if mask is not None and mask.ndim == 4:
        return mask
    last = isinstance(past_length, int) and num_queries == 1 and past_length + 1 == tokens
    if mask is None and (not causal or last):
        return None
    keys = torch.arange(tokens, device=device)
    queries = (torch.arange(num_queries, device=device) + past_length)[:, None]
    pairs = keys <= queries if causal else torch.ones(num_queries, tokens, dtype=torch.bool, device=device)
    if mask is not None:
        pairs = pairs & mask[:, None, None, :]  # (batch, 1, queries, tokens)
    return pairs | (keys == queries)


def count_tokens(z: Tensor, mask: Tensor | None, causal: bool = False, past_length: int | Tensor = 0) -> Tensor:
    """Count the real tokens n that each of the tokens z (batch, n, d) sees, at least 1, (batch or 1, n or 1, 1).

    In the causal form token t sees those up to t, after `past_length` others. The mask is that of an attention.
    """
    work = torch.promote_types(z.dtype, torch.float32)  # half precision cannot count tokens
    n = z.shape[-2]
    if mask is not None and mask.ndim == 4:
        visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        count = visible[:, 0].sum(-1).to(work)
    elif mask is not None:
        real = mask.to(work)
        count = real.cumsum(-1)[:, -n:] if causal else real.sum(-1, keepdim=True)
    elif causal:
        count = (torch.arange(1, n + 1, device=z.device) + past_length).to(work)[None]
    else:
        count = z.new_full((1, 1), n, dtype=work)
    return count.clamp(min=1.0)[..., None]


def rotate(x: Tensor, start: int | Tensor = 0) -> Tensor:
    """Rotate queries or keys (…, n, p) by their positions start, start + 1, … (rotary positions, Su et al. 2021).

    R_t turns the pair (x_i, x_{i+p/2}) by the angle t·10000^{-2i/p}. Then ⟨R_t w, R_s v⟩ = ⟨w, R_{s−t} v⟩: a score
    depends on positions only through their distance, so that padding on the left changes nothing.
    """
    n, half = x.shape[-2], x.shape[-1] // 2
    work = torch.promote_types(x.dtype, torch.float32)  # half precision cannot count tokens
    speed = 1e4 ** (-torch.arange(half, device=x.device, dtype=work) / half)
    angle = (torch.arange(n, device=x.device) + start)[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.split(half, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _is_slow_when_fused(query: Tensor, key: Tensor) -> bool:
    """Return whether torch's fused attention trains more slowly than products of matrices."""
    half = query.dtype in (torch.bfloat16, torch.float16)
    return half and query.device.type == "cpu" and query.requires_grad and key.shape[-2] <= LONGEST_PRODUCT


class _MultiHead(Attention):
    """Softmax attention of K = `num_heads` heads between a projection of tokens of width d = `dim` and a map back.

    `head_dim` is the dimension p of each head, by default d/K. With `causal` token t attends to tokens 1 … t only.
    `scale` is the factor inside the softmax, by default p^-½. With `rotary` queries and keys are rotated by their
    positions. `dropout` acts on the attention weights and on the output, as in the paper's pseudocode.
    """

    cache_tensors = 1
    output: OutputProjection

    def __init__(
        self,
        dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        causal: bool = False,
        scale: float | None = None,
        rotary: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if head_dim is None and dim % num_heads:
            raise CrateError(f"num_heads must divide dim (got {num_heads} and {dim}); or set head_dim")
        self.dim, self.num_heads, self.head_dim = dim, num_heads, head_dim or dim // num_heads
        self.inner = self.num_heads * self.head_dim
        self.causal, self.rotary = causal, rotary
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.dropout = nn.Dropout(dropout)
        self.head_mask: Tensor | None = None
        """Factors of the heads, (K, 1, 1) or (batch, K, 1, 1), of an intervention that switches some of them off."""

    def split(self, x: Tensor) -> Tensor:
        """Split (batch, tokens, K·p) into heads (batch, K, tokens, p)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """Join heads (batch, K, tokens, p) to (batch, tokens, K·p)."""
        return x.transpose(1, 2).flatten(-2)

    def project_heads(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project tokens (batch, n, d) to queries, keys and values, each (batch, K, n, p)."""
        raise NotImplementedError  # abstract

    def combine_heads(self, out: Tensor, z: Tensor, mask: Tensor | None, past_length: int | Tensor) -> Tensor:
        """Map the joined heads (batch, queries, K·p) to the update (batch, queries, d) of the tokens z."""
        return self.output(out)

    def forward(
        self,
        z: Tensor,
        mask: Tensor | None = None,
        return_attention: bool = False,
        num_queries: int | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Compute the update (batch, n, d) of tokens (batch, n, d), and the attention on request."""
        query, key, value = self.project_heads(z)
        past: int | Tensor = 0
        if cache is not None:
            if not self.cache_tensors:
                raise CrateError(f"attention {self.name!r} does not support caching; pass use_cache=False")
            past = cache.past_length
            key, value = cache.update(key, value)
        query = query[:, :, :num_queries]
        if self.rotary:  # the cache holds keys that are not rotated, which for MSSA are the values too
            query, key = rotate(query, past), rotate(key)
        out, attention = self.attend(query, key, value, mask, return_attention, past)
        if self.head_mask is not None:
            out = out * self.head_mask
        update: Tensor = self.dropout(self.combine_heads(self.join(out), z, mask, past))
        return update if attention is None else (update, attention)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, return_attention: bool, past: int | Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Compute softmax(scale · query keyᵀ) value.

        The (tokens, tokens) matrix is held only for `return_attention`, and for the backward pass of short sequences
        in half precision on a CPU, where torch's fused kernel is several times slower than the products.
        """
        causal, dropout = self.causal, self.dropout.p if self.training else 0.0
        fused = not return_attention and not _is_slow_when_fused(query, key)
        is_causal = fused and causal and mask is None and isinstance(past, int) and past == 0
        pairs = None if is_causal else attention_mask(query.shape[-2], key.shape[-2], causal, mask, query.device, past)
        if fused:
            out = F.scaled_dot_product_attention(
                query, key, value, attn_mask=pairs, dropout_p=dropout, is_causal=is_causal, scale=self.scale
            )
            return out, None
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        scores = (query @ key.mT) * self.scale
        if pairs is not None:
            scores = scores.masked_fill(~pairs, float("-inf")) if pairs.dtype == torch.bool else scores + pairs
        attention = scores.softmax(dim=-1)
        return F.dropout(attention, dropout) @ value, attention if return_attention else None

    def refuse_pairs(self, mask: Tensor | None) -> None:
        """Raise an error for a mask of pairs of tokens, which an operator that weighs no pairs cannot apply."""
        if mask is not None and mask.ndim == 4:
            raise CrateError(
                f"attention {self.name!r} has no mask of pairs of tokens; pass one sequence per row and a 2-D mask"
            )

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_heads={self.num_heads}, head_dim={self.head_dim}, causal={self.causal}"


class SubspaceAttention(_MultiHead):
    """Subspace self-attention: query, key and value are one projection onto the subspaces U_1 … U_K.

    `orthonormal` reparametrizes [U_1 … U_K] to orthonormal columns, or with "per-head" each U_k by itself
    (U_k*U_k = I, p ≤ d). With `metric` the scores of head k are W_k M_k W_kᵀ with a learned M_k (p, p), which starts at
    the identity. The score of two tokens then need not be symmetric, nor largest for a token with itself. This departs
    from the paper.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        orthonormal: bool | Literal["per-head"] = False,
        metric: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(dim, num_heads, head_dim, **settings)
        self.orthonormal = orthonormal
        self.project = nn.Linear(dim, self.inner, bias=False)  # rows k·p … (k+1)·p − 1 are U_kᵀ
        self.metric = nn.Parameter(self.initial_metric()) if metric else None  # M_1 … M_K

    def initial_metric(self) -> Tensor:
        """Return the metrics that training starts from, one identity for each head, (K, p, p)."""
        return torch.eye(self.head_dim).repeat(self.num_heads, 1, 1)

    def subspaces(self) -> Tensor:
        """Return [U_1 … U_K]ᵀ (K·p, d), with orthonormal rows if `orthonormal` is set, all together or per head."""
        return self._affine()[0]

    def _affine(self) -> tuple[Tensor, Tensor | None]:
        """Return the matrix [U_1 … U_K]ᵀ and the bias of the projection.

        If the module is wrapped by an adapter (LoRA), quantized or offloaded, its weight is not the matrix that it
        applies; the matrix is then read off what the module returns for the unit vectors.
        """
        matrix, bias = self.project.weight, self.project.bias
        if type(self.project) is not nn.Linear or is_offloaded(self.project):
            tensors = (*self.project.parameters(), *self.project.buffers())
            like = next((t for t in tensors if t.is_floating_point() and not t.is_meta), torch.empty(0))
            units = torch.eye(self.dim + 1, self.dim, dtype=like.dtype, device=like.device)
            images = self.project(units)  # the last row is the image of zero
            matrix, bias = (images[:-1] - images[-1]).mT, images[-1]
        if self.orthonormal == "per-head":
            heads = matrix.unflatten(0, (self.num_heads, self.head_dim))  # U_1ᵀ … U_Kᵀ
            return orthonormal_columns(heads.mT).mT.flatten(0, 1), bias
        return orthonormal_columns(matrix.mT).mT if self.orthonormal else matrix, bias

    @property
    def bases(self) -> Tensor:
        """U_1 … U_K in the form that the objective expects, (K, d, p)."""
        return self.subspaces().unflatten(0, (self.num_heads, self.head_dim)).mT

    def codes(self, z: Tensor) -> Tensor:
        """Compute W_k = Z U_k (+ b_k) of every head: (batch, n, d) to (batch, K, n, p)."""
        return self.split(F.linear(z, *self._affine()) if self.orthonormal else apply_linear(self.project, z))

    def project_heads(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w = self.codes(z)
        return w if self.metric is None else w @ self.metric, w, w


@ATTENTION.register("mssa")
class MSSA(SubspaceAttention):
    """Multi-head subspace self-attention with a trainable output map, the paper's default.

    MSSA(Z | U_[K], W) = [SSA(Z | U_1) … SSA(Z | U_K)] Wᵀ + b   (paper, end of 2.3; z (batch, n, d))

    W (d, K·p) stands for β[U_1 … U_K], which trains faster. The factor p^-½ in the softmax is in the
    paper's pseudocode and not in its equations; the bias b is in the pseudocode and the released code only
    (`output_bias`). All other keyword arguments are those of `SubspaceAttention` and of softmax attention:

        MSSA(dim, num_heads, head_dim=None, *, output_bias=True, orthonormal=False, metric=False,
             causal=False, scale=None, rotary=False, dropout=0.0)
    """

    def __init__(
        self, dim: int, num_heads: int, head_dim: int | None = None, *, output_bias: bool = True, **settings: Any
    ) -> None:
        super().__init__(dim, num_heads, head_dim, **settings)
        self.output = OutputProjection(self.inner, dim, bias=output_bias)


class RateStep(SubspaceAttention):
    """Subspace attention whose step is measured by β = p/(nε²), with the coding precision ε = `eps`."""

    def __init__(
        self, dim: int, num_heads: int, head_dim: int | None = None, *, eps: float = 0.5, **settings: Any
    ) -> None:
        super().__init__(dim, num_heads, head_dim, **settings)
        self.eps = eps

    def beta(self, z: Tensor, mask: Tensor | None, past_length: int | Tensor = 0) -> Tensor:
        """Compute β = p/(nε²), (batch or 1, n or 1, 1), of tokens that follow `past_length` others."""
        count = count_tokens(z, mask, self.causal, past_length)
        return (self.head_dim / (count * self.eps**2)).to(z.dtype)


@ATTENTION.register("mssa-tied")
class TiedMSSA(RateStep):
    """Multi-head subspace self-attention as in the equations, with the output map β[U_1 … U_K].

    MSSA(Z | U_[K]) = β Σ_k SSA(Z | U_k) U_kᵀ,  β = p/(nε²)   (paper 2.3; z (batch, n, d))

    The softmax has no factor. n counts the real tokens of each sample. In the causal form token t attends to t
    tokens, so that β_t = p/(tε²) and no token depends on the length of what follows it.

    This is CRATE-C of Hu et al. (arXiv 2411.17182), who ask whether the form of the network descends on R^c. They start
    from the released code, where the factor is 1 in the place of β, and p^-½ in the softmax: ε = √(p/n) and
    `scale` p^-½ give this. So it is in the two forms below, each of which changes one thing.
    """

    def __init__(
        self, dim: int, num_heads: int, head_dim: int | None = None, *, scale: float | None = None, **settings: Any
    ) -> None:
        super().__init__(dim, num_heads, head_dim, scale=1.0 if scale is None else scale, **settings)

    def combine_heads(self, out: Tensor, z: Tensor, mask: Tensor | None, past_length: int | Tensor) -> Tensor:
        return F.linear(out, self.output_matrix()) * self.beta(z, mask, past_length)[:, : out.shape[1]]

    def output_matrix(self) -> Tensor:
        """Return the matrix (d, K·p) of the output map, without β."""
        return self.subspaces().mT


@ATTENTION.register("mssa-negative")
class NegativeMSSA(TiedMSSA):
    """`mssa-tied` with a negative sign, the form CRATE-N of Hu et al. (arXiv 2411.17182).

    −MSSA(Z | U_[K]) = −β Σ_k SSA(Z | U_k) U_kᵀ   (z (batch, n, d))

    They find that the layer Z + MSSA(Z) keeps only the second-order term of an expansion of R^c, and so climbs it.
    """

    def output_matrix(self) -> Tensor:
        return -super().output_matrix()


@ATTENTION.register("mssa-transposed")
class TransposedMSSA(TiedMSSA):
    """`mssa-tied` with [U_1 … U_K]ᵀ as the output map, the form CRATE-T of Hu et al. (arXiv 2411.17182).

    β [SSA(Z | U_1) … SSA(Z | U_K)] [U_1 … U_K]   (z (batch, n, d), [U_1 … U_K] (d, d), so that K·p = d)

    The code of Hyper-SET, which has CRATE-T, applies its projection z Wᵀ with W = [U_1 … U_K]ᵀ a second time: out Wᵀ.
    """

    def __init__(self, dim: int, num_heads: int, head_dim: int | None = None, **settings: Any) -> None:
        super().__init__(dim, num_heads, head_dim, **settings)
        if self.inner != dim:
            raise CrateError(f"attention 'mssa-transposed' needs K·p = d, not {num_heads} · {self.head_dim} and {dim}")

    def output_matrix(self) -> Tensor:
        return self.subspaces()


@ATTENTION.register("mhsa")
class MHSA(_MultiHead):
    """Multi-head self-attention of the black-box transformer: three projections and an output map with bias.

    MHSA(Z) = [softmax(Q_k K_kᵀ/√p) V_k]_k W_Oᵀ + b   (z (batch, n, d))

    `projection_bias` adds a bias to queries, keys and values, and `output_bias` is b.
    """

    cache_tensors = 2

    def __init__(
        self,
        dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        projection_bias: bool = False,
        output_bias: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(dim, num_heads, head_dim, **settings)
        self.project = nn.Linear(dim, 3 * self.inner, bias=projection_bias)
        self.output = OutputProjection(self.inner, dim, bias=output_bias)

    @property
    def bases(self) -> Tensor:
        """Value matrices V_1 … V_K (K, d, p), which take the place of U where a black box is measured."""
        values = self.project.weight.chunk(3)[2]
        return values.unflatten(0, (self.num_heads, self.head_dim)).mT

    def project_heads(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (self.split(x) for x in apply_linear(self.project, z).chunk(3, dim=-1))
        return query, key, value


@ATTENTION.register("tssa")
class TSSA(SubspaceAttention):
    """Token-statistics self-attention (ToST): compression by second moments, linear in the number of tokens.

    It follows from a variational form of the same coding rate. With W_k = Z U_k + b_k (n, p) for head k, tokens t and
    directions j:
    s_kt = τ_k Σ_j W_k[t,j]² / Σ_t' W_k[t',j]²,   Π = softmax of s over the heads,
    m_kj = Σ_t Π_kt W_k[t,j]² / (Σ_t Π_kt + 1e-8),
    TSSA(Z)_t = −[Π_kt W_k[t,j] / (1 + m_kj)]_k Wᵀ + b.

    In the causal form each sum over tokens runs up to t, and a learned bias per head and position (`max_tokens` rows)
    is added to each normalized square; positions count real tokens. There is no n × n matrix: the attention it returns
    is diagonal, (batch, K, n, n), and holds the memberships Π, so that its rows sum to Π_kt and not to one.
    """

    cache_tensors = 0
    weighs_pairs = False

    def __init__(
        self,
        dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        projection_bias: bool = False,
        output_bias: bool = True,
        max_tokens: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__(dim, num_heads, head_dim, **settings)
        self.project = nn.Linear(dim, self.inner, bias=projection_bias)
        self.temperature = nn.Parameter(torch.empty(num_heads, 1))
        positions = max_tokens if self.causal else 0
        self.position_bias = nn.Parameter(torch.empty(num_heads, positions, 1)) if positions else None
        self.output = OutputProjection(self.inner, dim, bias=output_bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.temperature)
        if self.position_bias is not None:
            nn.init.zeros_(self.position_bias)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, return_attention: bool, past: int | Tensor
    ) -> tuple[Tensor, Tensor | None]:
        self.refuse_pairs(mask)
        num_queries = query.shape[-2]
        w = value.to(torch.promote_types(value.dtype, torch.float32))  # half precision holds neither 1e-12 nor the sums
        real = torch.ones_like(w[:, :1, :, :1]) if mask is None else mask[:, None, :, None].to(w.dtype)
        square = w.square() * real  # (batch, K, n, p); padding counts for nothing
        share = square / self._sum_tokens(square).clamp(min=1e-12)
        if self.position_bias is not None and mask is None:
            share = share + self.position_bias[:, : w.shape[-2]]
        elif self.position_bias is not None and mask is not None:  # padding may come first
            share = share + self.position_bias[:, (mask.cumsum(-1) - 1).clamp(min=0)].transpose(0, 1)
        membership = (share.sum(-1) * self.temperature).softmax(dim=1)[..., None] * real  # (batch, K, n, 1)
        moment = self._sum_tokens(membership * square) / (self._sum_tokens(membership) + 1e-8)
        out = (-membership * w / (1 + moment)).to(value.dtype)
        membership = membership.to(value.dtype)
        attention = torch.diag_embed(membership[..., 0])[:, :, :num_queries] if return_attention else None
        return out[:, :, :num_queries], attention

    def _sum_tokens(self, x: Tensor) -> Tensor:
        """Sum over all tokens or, in the causal form, over those up to each one."""
        return x.cumsum(dim=-2) if self.causal else x.sum(dim=-2, keepdim=True)


@ATTENTION.register("rate-gradient")
class RateGradient(RateStep):
    """The exact gradient step on R^c, of which MSSA is the approximation, without attention between pairs of tokens.

    With unit tokens x_t = z_t/‖z_t‖, W_k = xU_k (n, p), G_k = W_kᵀW_k and β = p/(nε²) (paper 2.3, eq. rate-gradient):
    update_t = −s‖z_t‖ Σ_k [W_k (I + βG_k)⁻¹]_t U_kᵀ = −(s/β)‖z_t‖ ∇R^c(x | U_[K])_t   (z (batch, n, d)).

    The paper's tokens have unit length and those of a LayerNorm √d, hence x and ‖z_t‖. The step s > 0 is learned, its
    logarithm from 0: at s = 1 a direction of energy σ² in W_k is multiplied by βσ²/(1 + βσ²) ≥ 0, which is the longest
    step that reverses no direction of orthonormal bases, be its energy ever so small.

    The paper calls the exact gradient highly expensive because of its inverses. By W(I + βWᵀW)⁻¹ = (I + βWWᵀ)⁻¹W they
    are p × p, and the step takes O(np² + p³) per head; `crate bench rate` times it. `order` replaces (I + βG)⁻¹ by its
    Neumann series Σ_j (−βG)^j up to this power, which converges if β‖W_k‖² < 1 only; 1 is the paper's approximation.
    In the causal form token t has n = t and the sums over the tokens up to t, a p × p factor each. Padding is left out.
    The attention that it returns is diagonal, (batch, K, n, n), and holds the leverage scores β w_tᵀ(I + βG_k)⁻¹w_t.
    """

    cache_tensors = 0
    weighs_pairs = False

    def __init__(
        self, dim: int, num_heads: int, head_dim: int | None = None, *, order: int | None = None, **settings: Any
    ) -> None:
        super().__init__(dim, num_heads, head_dim, **settings)
        self.order = order
        self.log_step = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.log_step)

    def forward(
        self,
        z: Tensor,
        mask: Tensor | None = None,
        return_attention: bool = False,
        num_queries: int | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        work = torch.promote_types(z.dtype, torch.float32)  # there is no factorization in half precision
        with torch.autocast("cpu" if z.is_meta else z.device.type, enabled=False):
            result = super().forward(z.to(work), mask, return_attention, num_queries, cache)
        return result.to(z.dtype) if isinstance(result, Tensor) else (result[0].to(z.dtype), result[1].to(z.dtype))

    def project_heads(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w = self.split(F.linear(F.normalize(z, dim=-1), self.subspaces().to(z.dtype)))
        return w, w, w

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, return_attention: bool, past: int | Tensor
    ) -> tuple[Tensor, Tensor | None]:
        self.refuse_pairs(mask)
        w = value if mask is None else value * mask[:, None, :, None].to(value.dtype)
        rows = w[:, :, : query.shape[-2]]
        beta = self.beta(w[:, 0], mask)[:, None, : rows.shape[-2]]  # (batch or 1, 1, n or 1, 1)
        out = self._solve_causal(rows, beta) if self.causal else self.solve(rows, w.mT @ w, beta)
        if not return_attention:
            return out, None
        leverage = torch.diag_embed((beta * rows * out).sum(-1))  # (batch, K, queries, queries)
        return out, F.pad(leverage, (0, value.shape[-2] - rows.shape[-2]))

    def combine_heads(self, out: Tensor, z: Tensor, mask: Tensor | None, past_length: int | Tensor) -> Tensor:
        length = torch.linalg.vector_norm(z[:, : out.shape[1]], dim=-1, keepdim=True)
        return F.linear(out, self.subspaces().mT.to(out.dtype)) * length * -self.log_step.to(out.dtype).exp()

    def solve(self, rows: Tensor, gram: Tensor, beta: Tensor) -> Tensor:
        """Compute rows (I + βG)⁻¹ or its Neumann series, rows (..., m, p), gram (..., p, p)."""
        if self.order is not None:
            out = rows
            for _ in range(self.order):
                out = rows - beta * (out @ gram)
            return out
        gram = beta * gram
        # Where βG is so large that rounding would lose the 1, the least multiple of I that it keeps takes its place.
        rounding = gram.shape[-1] * torch.finfo(gram.dtype).eps
        shift = (rounding * gram.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)).clamp(min=1.0)
        factor = torch.linalg.cholesky_ex(gram + torch.diag_embed(shift.expand(gram.shape[:-1])))[0]
        if rows.shape[-2] == 1:
            return torch.cholesky_solve(rows.mT, factor).mT
        return rows @ torch.cholesky_inverse(factor)  # products are faster than a solve with many columns

    def _solve_causal(self, w: Tensor, beta: Tensor) -> Tensor:
        """Compute w_t (I + β_t Σ_{s≤t} w_s w_sᵀ)⁻¹ of codes (batch, K, n, p), β (batch or 1, 1, n, 1).

        The p × p sums of so many tokens are held at once as `LARGEST_SUMS` allows; the backward pass computes those of
        each part of the tokens again.
        """
        size = max(1, LARGEST_SUMS // (w.shape[0] * w.shape[1] * w.shape[-1] ** 2))
        if torch.compiler.is_exporting():  # the parts would fix the size of the batch
            size = w.shape[2]
        total = w.new_zeros(*w.shape[:2], 1, w.shape[-1], w.shape[-1])

        def part(w: Tensor, beta: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
            sums = total + (w[..., :, None] * w[..., None, :]).cumsum(dim=2)
            return self.solve(w[..., None, :], sums, beta[..., None])[..., 0, :], sums[:, :, -1:]

        outs = []
        for tokens, factors in zip(w.split(size, dim=2), beta.split(size, dim=2), strict=True):
            if size < w.shape[2] and torch.is_grad_enabled():
                out, total = checkpoint(part, tokens, factors, total, use_reentrant=False, preserve_rng_state=False)
            else:
                out, total = part(tokens, factors, total)
            outs.append(out)
        return torch.cat(outs, dim=2)
