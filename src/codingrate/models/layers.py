"""The two layers of the paper: f^ℓ compresses and sparsifies, g^ℓ undoes both in reverse order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import objective
from ..errors import CrateError
from ..objective.signal import orthogonality_gap
from ..operators import (
    ATTENTION,
    SPARSIFIERS,
    Attention,
    DictionarySparsifier,
    KeyValueCache,
    SubspaceAttention,
    count_tokens,
)
from .config import CrateConfig


class Layer(nn.Module):
    """A layer that supports `gradient_checkpointing_enable` of transformers.

    transformers has a base class for this, but importing its module would import every Auto class.
    """

    gradient_checkpointing = False
    _gradient_checkpointing_func: Any = None

    def __call__(self, *args: Any) -> Any:
        """Run the forward pass; with checkpointing it is computed again in the backward pass."""
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(super().__call__, *args)
        return super().__call__(*args)

    @contextmanager
    def recomputing(self, norm: nn.Module, source: Tensor, output: Tensor) -> Iterator[None]:
        """Keep `source` for the backward pass in place of `output` = norm(source), which is then computed again.

        The norm keeps its input anyway, so one tensor of two is saved at the price of one more norm; the gradients are
        the same bit for bit. Compiled layers choose for themselves what they keep, and checkpointed ones keep nothing.
        """
        checkpointed = self.gradient_checkpointing and self.training
        differentiated = torch.is_grad_enabled() and output.requires_grad
        if torch.compiler.is_compiling() or checkpointed or not differentiated or output is source:  # no norm before it
            yield
            return
        address, size, dtype = output.data_ptr(), output.numel(), output.dtype  # the closures must not keep `output`
        outer_pack, outer_unpack = _active_hooks()

        def pack(tensor: Tensor) -> Any:
            same = tensor.data_ptr() == address and tensor.numel() == size and tensor.dtype == dtype
            return _Recomputed(tensor.shape) if same and tensor.is_contiguous() else outer_pack(tensor)

        def unpack(kept: Any) -> Tensor:
            if not isinstance(kept, _Recomputed):
                return outer_unpack(kept)
            with torch.no_grad():
                again: Tensor = norm(source)
            return again.reshape(kept.shape)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield


@dataclass(frozen=True)
class _Recomputed:
    """The shape of a saved tensor that the backward pass computes again."""

    shape: torch.Size


def _active_hooks() -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
    """Return the hooks on saved tensors that are in force, such as those of `save_on_cpu`; new ones replace them."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)(False)
    return top or ((lambda tensor: tensor), (lambda kept: kept))


def drop_path(update: Tensor, rate: float) -> Tensor:
    """Leave the update (batch, n, d) of some samples out, each with probability `rate`, and scale the others up.

    This is stochastic depth (Huang et al. 2016): the expectation is the update itself.
    """
    keep = torch.rand(len(update), 1, 1, device=update.device) >= rate
    return update * keep.to(update.dtype) / (1 - rate)


class Step(nn.Module):
    """The step from the start S of the skip along the output A of attention, both (batch, n, d).

    It is A itself, so that the layer computes S + A, or with `step="derived"` s(A − S), so that it computes
    (1 − s)S + sA: Z^{ℓ+½} = (1 − βκ)Z^ℓ + βκ MSSA(Z^ℓ) of the paper (2.3, eq. gd-mcr-parts) with s = βκ. The share s is
    `step_share` or, if the layer learns it, the sigmoid of a scalar that starts there.
    """

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        self.derived, self.share = config.step == "derived", float(config.step_share)
        self.initial = math.log(self.share / (1 - self.share))  # the scalar whose sigmoid is `step_share`
        self.logit = nn.Parameter(torch.full((1,), self.initial)) if config.learn_step else None

    def forward(self, start: Tensor, update: Tensor) -> Tensor:
        if not self.derived:
            return update
        return (self.share if self.logit is None else self.logit.sigmoid()) * (update - start)


class EncoderLayer(Layer):
    """f^ℓ: Z^{ℓ+½} = LN(Z^ℓ) + MSSA(LN(Z^ℓ)),  Z^{ℓ+1} = ISTA(LN(Z^{ℓ+½}))   (paper 2.5, pseudocode).

    With `skip="residual"` the skip starts from Z^ℓ itself, as in the released code. With `step="derived"` the first
    half is (1 − s)LN(Z^ℓ) + s MSSA(LN(Z^ℓ)), the gradient step that the paper derives. A sparsifier that declares
    itself residual (`mlp`, `odl`) gets a skip of the same kind. With `norm="post"`, BERT's order, the norms come last:
    Z^{ℓ+½} = LN(Z^ℓ + MSSA(Z^ℓ)),  Z^{ℓ+1} = LN(Z^{ℓ+½} + MLP(Z^{ℓ+½})). With `drop_path` a residual branch is left out
    for some samples in training. With `momentum`, for layers after the first, the layer reads Z^ℓ + μ(Z^ℓ − Z^{ℓ−1}) in
    the place of Z^ℓ, with a learned μ that starts at 0.
    """

    def __init__(self, config: CrateConfig, drop_path: float = 0.0, momentum: bool = False) -> None:
        super().__init__()
        self.momentum = nn.Parameter(torch.zeros(1)) if momentum else None
        d, eps = config.hidden_size, config.layer_norm_eps
        self.drop_path = drop_path
        self.normalized_skip = config.skip == "normalized"
        self.norm_first = config.norm == "pre"
        self.attention_norm = nn.LayerNorm(d, eps=eps)
        self.attention = ATTENTION.create(config.attention, **config.attention_settings)
        self.step = Step(config)
        self.sparsifier = SPARSIFIERS.create(config.sparsifier, **config.sparsifier_settings)
        self.sparsifier_norm = nn.LayerNorm(d, eps=eps) if self.sparsifier.uses_norm else nn.Identity()
        # Kept here, because adapters wrap the sparsifier.
        self.sparsifier_skip, self.counts_tokens = self.sparsifier.residual, self.sparsifier.counts_tokens
        self.objective_kind, self.objective_eps = config.objective, config.coding_precision
        self.objective_sparsity = config.sparsity

    def forward(
        self,
        z: Tensor,
        mask: Tensor | None = None,
        return_attention: bool = False,
        num_queries: int | None = None,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Map Z^ℓ (batch, n, d) to Z^{ℓ+1}, Z^{ℓ+½} and the attention on request.

        With `num_queries` only so many tokens from the front are computed; with `cache` the tokens continue a sequence.
        """
        y = self.attention_input(z)
        with self.recomputing(self.attention_norm, z, y):
            result = self.attention(y, mask, return_attention, num_queries, cache)
        update, attention = result if return_attention else (result, None)
        start = (y if self.normalized_skip else z)[:, :num_queries]
        compressed = start + self.kept(self.step(start, update))
        if not self.norm_first:
            compressed = self.attention_norm(compressed)
        x = self.sparsifier_norm(compressed) if self.norm_first else compressed
        with self.recomputing(self.sparsifier_norm, compressed, x):
            counts = (count_tokens(z, mask)[:, :num_queries],) if self.counts_tokens else ()
            sparse = self.sparsifier(x, *counts)
        if self.sparsifier_skip:
            sparse = self.kept(sparse) + (x if self.normalized_skip else compressed)
        return sparse if self.norm_first else self.sparsifier_norm(sparse), compressed, attention

    def extrapolated(self, z: Tensor, previous: Tensor | None) -> Tensor:
        """Return the tokens that the layer reads, from Z^ℓ and Z^{ℓ−1} (batch, n, d): Z^ℓ + μ(Z^ℓ − Z^{ℓ−1})."""
        return z if self.momentum is None or previous is None else z + self.momentum * (z - previous)

    def skip_input(self, z: Tensor) -> Tensor:
        """Return the start of the skip around attention for tokens Z^ℓ: LN(Z^ℓ) or Z^ℓ."""
        return self.attention_input(z) if self.normalized_skip else z

    def objective(self, z: Tensor, compressed: Tensor, sparse: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the layer's own objective () from Z^ℓ, Z^{ℓ+½} and Z^{ℓ+1} (batch, n, d), to be minimized.

        `compression` is the mean over samples of R^c(Z^{ℓ+½} | U^ℓ) / R^c(Z^ℓ | U^ℓ), of unit tokens on orthonormal
        bases, where Z^ℓ stands for the start of the skip: below 1 if attention compresses. `layer` is the mean of this
        and of f(Z^{ℓ+1})/f(Z^{ℓ+½}) for ISTA's objective f(Z) = ½‖X − ZDᵀ‖² + λ‖Z‖₁ with X = LN(Z^{ℓ+½}), where it has
        one. `sparse-rate-reduction` is −[ΔR − λ‖Z‖₁]/n of Z^{ℓ+1}, as it is.
        """
        kind, eps = self.objective_kind, self.objective_eps
        mask = mask if mask is not None and mask.ndim == 2 else None
        bases, work = cast(Any, self.attention).bases, torch.promote_types(z.dtype, torch.float32)
        if kind == "sparse-rate-reduction":
            return (
                objective.energy(sparse.to(work), bases.to(work), eps, self.objective_sparsity) / z.shape[-2]
            ).mean()
        after, before = (
            objective.normalized_compression(x, bases, eps, mask) for x in (compressed, self.skip_input(z))
        )
        ratio = (after / before.clamp(min=torch.finfo(before.dtype).tiny)).mean()
        if kind == "compression" or not isinstance(self.sparsifier, DictionarySparsifier):
            return ratio
        x, real = self.sparsifier_norm(compressed).to(work), 1.0 if mask is None else mask[..., None].to(work)
        start, end = ((self.sparsifier.lasso(x, code) * real).sum((-2, -1)) for code in (x, sparse.to(work)))
        return (ratio + (end / start).mean()) / 2

    def kept(self, update: Tensor) -> Tensor:
        """Apply stochastic depth to the update of a residual branch, in training only."""
        return drop_path(update, self.drop_path) if self.training and self.drop_path else update

    def attention_input(self, z: Tensor) -> Tensor:
        """Return the input of the attention for tokens Z^ℓ."""
        return self.attention_norm(z) if self.norm_first else z


class Synthesis(nn.Module):
    """Y = Z Eᵀ of tokens (..., d) with a synthesis dictionary E (d, d), which undoes the sparsification."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dictionary = nn.Parameter(torch.empty(dim, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw E as the encoder draws D."""
        nn.init.kaiming_uniform_(self.dictionary)

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(z, self.dictionary)


class DecoderLayer(Layer):
    """g^ℓ: Z^{ℓ+½} = LN(Z^ℓ)Eᵀ,  Z^{ℓ+1} = LN(Z^{ℓ+½}) − MSSA(LN(Z^{ℓ+½}))   (paper 3.3, pseudocode).

    The MSSA has its own bases V and a negative sign: it expands what the encoder compressed. With `skip="residual"`
    the skip starts from Z^{ℓ+½} itself, as in the released code; there is never a skip around E. With `step="derived"`
    the last half is (1 + s)Y − s MSSA(Y) for Y = LN(Z^{ℓ+½}), which undoes (1 − s)Z + s MSSA(Z) to second order in s.
    """

    def __init__(self, config: CrateConfig) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.layer_norm_eps
        self.normalized_skip = config.skip == "normalized"
        self.synthesis_norm = nn.LayerNorm(d, eps=eps)
        self.attention_norm = nn.LayerNorm(d, eps=eps)
        self.create_operators(config)

    def create_operators(self, config: CrateConfig) -> None:
        """Create E and the attention with the bases V."""
        self.synthesis = Synthesis(config.hidden_size)
        self.attention = ATTENTION.create(config.attention, **config.attention_settings)
        self.step = Step(config)

    @property
    def dictionary(self) -> Tensor:
        """E (d, d)."""
        return self.synthesis.dictionary

    def forward(
        self, z: Tensor, mask: Tensor | None = None, return_attention: bool = False, *_: None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Map Z^ℓ (batch, n, d) to Z^{ℓ+1}, Z^{ℓ+½} and the attention on request; all tokens, without a cache."""
        x = self.synthesis_norm(z)
        with self.recomputing(self.synthesis_norm, z, x):
            synthesized = self.synthesis(x)
        y = self.attention_input(synthesized)
        with self.recomputing(self.attention_norm, synthesized, y):
            result = self.attention(y, mask, return_attention)
        update, attention = result if return_attention else (result, None)
        start = y if self.normalized_skip else synthesized
        return start - self.step(start, update), synthesized, attention

    def attention_input(self, z: Tensor) -> Tensor:
        """Return the input of the attention for tokens Z^{ℓ+½}."""
        return self.attention_norm(z)


class TiedDecoderLayer(DecoderLayer):
    """g^ℓ with V^ℓ = U^{L−ℓ} and E^ℓ = D^{L−ℓ} of the encoder layer that it undoes; only its LayerNorms are its own.

    The attention is that of the encoder layer with all that belongs to it: the output map W and the share s of a
    derived step. The paper's remark (3.3) suggests E^ℓ = (D^ℓ)*. But a code Z^{ℓ+1} with Z^{ℓ+½} = DZ^{ℓ+1}, as the
    paper has it, is undone by D itself, with the index of V^ℓ: claims `adjoint-preset` and `mirrored-index` measure it.
    """

    def __init__(self, config: CrateConfig, encoder: EncoderLayer) -> None:
        super().__init__(config)
        self._encoder = (encoder,)  # a tuple, so that its weights are stored and counted once, in the encoder

    def create_operators(self, config: CrateConfig) -> None:
        pass

    @property
    def attention(self) -> Attention:  # type: ignore[override]
        return self._encoder[0].attention

    @property
    def step(self) -> Step:  # type: ignore[override]
        return self._encoder[0].step

    @property
    def dictionary(self) -> Tensor:
        """D^{L−ℓ} (d, d)."""
        sparsifier = self._encoder[0].sparsifier
        if not isinstance(sparsifier, DictionarySparsifier):  # wrapped by an adapter, or quantized
            raise CrateError("a tied decoder needs the dictionary of its encoder; merge the adapter, do not quantize")
        return sparsifier.atoms()

    def synthesis(self, z: Tensor) -> Tensor:  # type: ignore[override]
        """Compute Y = ZDᵀ of tokens (..., d)."""
        return F.linear(z, self.dictionary)


def orthogonality_gaps(layer: nn.Module) -> dict[str, Tensor]:
    """Return the deviations of one layer from orthonormal bases and an orthogonal dictionary."""
    if any(hasattr(getattr(layer, name, None), "base_layer") for name in ("sparsifier", "synthesis")):
        raise CrateError("the dictionary has an adapter, whose part in it cannot be read; merge the adapter first")
    gaps: dict[str, Tensor] = {}
    if isinstance(layer, TiedDecoderLayer):  # its weights are those of an encoder layer, which are counted there
        return gaps
    if isinstance(layer.attention, SubspaceAttention):
        gaps["within"] = orthogonality_gap(layer.attention.bases)
        gaps["across"] = orthogonality_gap(layer.attention.subspaces().mT)
    if isinstance(layer, DecoderLayer):
        gaps["dictionary"] = orthogonality_gap(layer.dictionary)
    elif isinstance(layer, EncoderLayer) and isinstance(layer.sparsifier, DictionarySparsifier):
        gaps["dictionary"] = orthogonality_gap(layer.sparsifier.atoms())
    return gaps
