"""Measure one layer's steps against the objective, beside the controls that each measurement has to beat.

All rates come from the codes of tokens on orthonormal bases Q_k of the layer's subspaces, U_k = Q_k R_k. The codes of
raw tokens on raw bases are those times R_k (p, p), and those of unit tokens are those divided by the norms of the
tokens, so that the printed and the normalized form of a measure share one product with the bases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ... import objective
from ...models.layers import EncoderLayer
from ...objective.normalized import normalized_rate
from ...objective.rates import projected_rate_and_gradient
from ...objective.sparsity import smaller_product
from ...operators import ISTA, MHSA, SubspaceAttention

THRESHOLDS = (1.0, 0.5, 0.1)  # the τ of the appendix: entries of a black box are never zero, but they can be small


@dataclass(frozen=True)
class LayerStep:
    """The tokens of one encoder layer around its two steps, without padding, each (batch, n, d)."""

    layer: EncoderLayer
    inputs: Tensor
    """Input of the attention."""
    start: Tensor
    """Start of the skip around attention: LN(Z^ℓ) or Z^ℓ."""
    after: Tensor
    """Z^{ℓ+½}."""
    sparse: Tensor
    """Z^{ℓ+1}."""
    eps: float = 0.5
    seed: int = 0
    """Seed of the controls that are drawn at random."""

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor]:
        """Orthonormal bases Q (K, d, p) and R (K, p, p) with U_k = Q_k R_k; for a black box U_k is its value matrix."""
        bases: Tensor = cast(Any, self.layer.attention).bases.detach()
        q, r = torch.linalg.qr(bases.to(torch.promote_types(bases.dtype, torch.float32)))
        return q, r

    def codes(self, z: Tensor) -> Tensor:
        """Project tokens (batch, n, d) onto the orthonormal bases, (batch, K, n, p)."""
        return objective.project(z, self.factors[0])

    @cached_property
    def start_codes(self) -> Tensor:
        """Codes of the start of the skip."""
        return self.codes(self.start)

    @cached_property
    def after_codes(self) -> Tensor:
        """Codes of Z^{ℓ+½}."""
        return self.codes(self.after)

    @cached_property
    def sparse_codes(self) -> Tensor:
        """Codes of Z^{ℓ+1}."""
        return self.codes(self.sparse)

    def printed(self, codes: Tensor) -> Tensor:
        """Compute R^c (batch,) of raw tokens on the raw bases, from codes on the orthonormal ones."""
        return self.rate(self.raw_codes(codes))

    def raw_codes(self, codes: Tensor) -> Tensor:
        """Compute the codes on the raw bases from those on the orthonormal ones, (batch, K, n, p)."""
        by_head = codes.transpose(0, 1)  # one product for each head, not for each head and sample
        return (by_head.flatten(1, 2) @ self.factors[1].to(codes.dtype)).view(by_head.shape).transpose(0, 1)

    def normalized(self, codes: Tensor, z: Tensor) -> Tensor:
        """Compute R^c (batch,) of unit tokens on the orthonormal bases, from codes of z on them."""
        return self.rate(codes / norms(z).unsqueeze(-3))

    def rate(self, codes: Tensor) -> Tensor:
        """Compute Σ_k R of codes (batch, K, n, p) → (batch,)."""
        return objective.projected_coding_rate(codes, self.eps).sum(-1)

    @cached_property
    def start_rates(self) -> tuple[Tensor, Tensor]:
        """R (batch, K) of the codes of unit tokens at the start of the skip, and its gradient (batch, K, n, p)."""
        return projected_rate_and_gradient(self.start_codes / self.lengths.unsqueeze(-3), self.eps)

    @cached_property
    def after_normalized(self) -> Tensor:
        """R^c (batch,) of unit tokens on orthonormal bases after attention."""
        return self.normalized(self.after_codes, self.after)

    @cached_property
    def reduction(self) -> Tensor:
        """ΔR (batch,) of Z^{ℓ+1}, as printed."""
        return self.objective_tokens[0] - self.printed(self.sparse_codes)

    @cached_property
    def rate_normalized(self) -> Tensor:
        """R (batch,) of unit tokens of Z^{ℓ+1}."""
        return normalized_rate(self.sparse, self.eps, self.sparse_gram)

    @cached_property
    def update(self) -> Tensor:
        """Change of the tokens by attention, (batch, n, d)."""
        return self.after - self.start

    @cached_property
    def lengths(self) -> Tensor:
        """Norm of each token at the start, (batch, n, 1)."""
        return norms(self.start)

    @cached_property
    def descent_velocity(self) -> Tensor:
        """−∇R^c at the unit tokens of the start on orthonormal bases, (batch, n, d)."""
        gradient = self.start_rates[1]
        return -torch.einsum("bknp,kdp->bnd", gradient, self.factors[0].to(gradient.dtype))

    @cached_property
    def tangential_velocity(self) -> Tensor:
        """The part of −∇R^c that turns the tokens, (batch, n, d): the steepest descent over their directions."""
        return objective.tangential(self.descent_velocity, self.start)

    @property
    def descent(self) -> Tensor:
        """An update (batch, n, d) along the steepest descent, for tokens of their own length."""
        return self.tangential_velocity * self.lengths

    def alignment(self, update: Tensor, whole: bool = False) -> Tensor:
        """Compute the cosine (batch,) of an update (batch, n or 1, d) with −∇R^c, both without their part along tokens.

        An update moves a unit token by its tangential part divided by the norm of the token. `whole` keeps the parts
        along the tokens, which change only their lengths.
        """
        goal = self.descent_velocity if whole else self.tangential_velocity
        dot = (update * goal).sum(-1, keepdim=True) / self.lengths  # goal is tangential, so the update need not be
        square = update.square().sum(-1, keepdim=True)
        along = 0.0 if whole else ((update * self.start).sum(-1, keepdim=True) / self.lengths).square()
        length = ((square - along).clamp(min=0) / self.lengths.square()).sum((-2, -1)).sqrt()
        size = length * matrix_norm(goal)[..., 0, 0]
        return dot.sum((-2, -1)) / size.clamp(min=torch.finfo(size.dtype).tiny)

    def after_update(self, update: Tensor, codes: Tensor | None = None) -> Tensor:
        """Compute the normalized R^c (batch,) after an update (batch, n or 1, d) scaled to the size of the layer's.

        `codes` are those of the update, if they are known.
        """
        size = matrix_norm(update) * (self.start.shape[-2] / update.shape[-2]) ** 0.5
        factor = matrix_norm(self.update) / size.clamp(min=torch.finfo(update.dtype).tiny)
        codes = self.codes(update) if codes is None else codes
        moved = torch.addcmul(self.start_codes, factor.unsqueeze(-3), codes)
        return self.normalized(moved, torch.addcmul(self.start, factor, update))

    @cached_property
    def sparse_gram(self) -> Tensor:
        """The smaller Gram matrix of Z^{ℓ+1}, (batch, n, n) or (batch, d, d)."""
        return smaller_product(self.sparse)

    @cached_property
    def objective_tokens(self) -> tuple[Tensor, Tensor]:
        """R and effective rank (batch,) of Z^{ℓ+1}."""
        return objective.rate_and_rank(self.sparse, self.eps, self.sparse_gram)

    @cached_property
    def shares_below(self) -> dict[float, Tensor]:
        """Share of small entries of Z^{ℓ+1} by threshold, each (batch,)."""
        return dict(zip(THRESHOLDS, objective.fraction_below(self.sparse, THRESHOLDS).unbind(-1), strict=True))

    def measures(self) -> dict[str, Callable[[], Tensor]]:
        """Return the measures of the layer by name, each a function that returns (batch,)."""
        weight = float(getattr(self.layer.sparsifier, "sparsity", 0.1))  # λ of the paper for a black box
        measures: dict[str, Callable[[], Tensor]] = {
            "compression": lambda: self.printed(self.after_codes),
            "before": lambda: self.printed(self.start_codes),
            "rate": lambda: self.objective_tokens[0],
            "reduction": lambda: self.reduction,
            "objective": lambda: self.reduction - weight * objective.l1_norm(self.sparse),
            "compression_normalized": lambda: self.after_normalized,
            "before_normalized": lambda: self.start_rates[0].sum(-1),
            "rate_normalized": lambda: self.rate_normalized,
            "reduction_normalized": lambda: self.rate_normalized - self.normalized(self.sparse_codes, self.sparse),
            "change": lambda: self.after_normalized - self.start_rates[0].sum(-1),
            "token_norm": lambda: norms(self.after)[..., 0].mean(-1),
            "alignment": lambda: self.alignment(self.update),
            "alignment_whole": lambda: self.alignment(self.update, whole=True),
            "effective_rank": lambda: self.objective_tokens[1],
            "blocks": self._blocks,
            "nonzero": lambda: objective.l0_fraction(self.sparse),
            "hoyer": lambda: objective.hoyer_sparsity(self.sparse).mean(-1),
            **{f"below_{tau:g}": partial(lambda tau: self.shares_below[tau], tau) for tau in THRESHOLDS},
        }
        if isinstance(self.layer.sparsifier, ISTA):
            measures["lasso"] = lambda: self.lasso(self.sparse)
        return measures

    def _blocks(self) -> Tensor:
        """Compute Σ_k R of the k-th of K blocks of d/K coordinates; NaN if K does not divide d."""
        heads = len(self.factors[0])
        if self.after.shape[-1] % heads:
            return self.after.new_full((len(self.after),), torch.nan)
        return self.rate(self.after.unflatten(-1, (heads, -1)).transpose(-3, -2))

    # ISTA lowers f(Z) = ½‖X − ZDᵀ‖² + λ‖Z‖₁ over Z ≥ 0, from the feasible point X₊ = ReLU(X), X = LN(Z^{ℓ+½}).

    @property
    def ista(self) -> ISTA:
        """The sparsifier, where it is ISTA."""
        return cast(ISTA, self.layer.sparsifier)

    @cached_property
    def lasso_input(self) -> Tensor:
        """X, the input of ISTA (batch, n, d)."""
        return cast(Tensor, self.layer.sparsifier_norm(self.after))

    @cached_property
    def lasso_start(self) -> Tensor:
        """The feasible point from which ISTA starts, ReLU(X); for two-sided thresholds X."""
        return F.relu(self.lasso_input) if type(self.layer.sparsifier) is ISTA else self.lasso_input

    @cached_property
    def lasso_residual(self) -> Tensor:
        """X − X₊Dᵀ, (batch, n, d)."""
        return self.ista.reconstruction_error(self.lasso_input, self.lasso_start)

    @cached_property
    def lasso_first(self) -> Tensor:
        """f(X₊), (batch,)."""
        return self.ista.lasso(self.lasso_input, self.lasso_start, self.lasso_residual).sum((-2, -1))

    @torch.no_grad()
    def lasso(self, codes: Tensor) -> Tensor:
        """Compute f(codes)/f(X₊) (batch,): below 1 if the step lowers its objective."""
        return self.ista.lasso(self.lasso_input, codes).sum((-2, -1)) / self.lasso_first

    @torch.no_grad()
    def _lasso_alignment(self) -> Tensor:
        """Compute the cosine (batch,) of ISTA's step from X₊ with −∇f(X₊)."""
        z = self.lasso_start
        descent = self.lasso_residual @ self.ista.atoms() - self.ista.sparsity * z.sign()
        return cosine(self.sparse - z, descent)

    @torch.no_grad()
    def controls(self) -> dict[str, Tensor]:
        """Return what each control gives in the place of the layer's own step, by column, each (batch,)."""
        columns = {}
        for name, control in CONTROLS.items():
            update = control(self)
            if update is not None:
                rolled = permuted(self.after_codes - self.start_codes) if name == "permuted" else None
                columns[f"compression_{name}"] = after = self.after_update(update, rolled)
                columns[f"gap_{name}"] = self.after_normalized - after
                columns[f"alignment_{name}"] = self.alignment(update)
        columns["compression_steepest"] = self.after_update(self.descent)
        other = random_subspaces(self)
        after, sparse = (self.normalized(objective.project(z, other), z) for z in (self.after, self.sparse))
        columns |= {"compression_subspaces": after, "reduction_subspaces": self.rate_normalized - sparse}
        if isinstance(self.layer.sparsifier, ISTA):
            own, columns["lasso_alignment"] = self.lasso(self.sparse), self._lasso_alignment()
            for name, code in LASSO_CONTROLS.items():
                columns[f"lasso_{name}"] = after = self.lasso(code(self))
                columns[f"lasso_gap_{name}"] = own - after
        return columns


@torch.no_grad()
def uniform_attention(step: LayerStep) -> Tensor | None:
    """Return the layer's update if tokens attended to all tokens alike; None if it has no attention weights."""
    attention = step.layer.attention
    if not (isinstance(attention, (SubspaceAttention, MHSA)) and attention.weighs_pairs):
        return None
    # The mean of the codes is the code of the mean, unless a wrapper of the projection rounds its input.
    affine = type(attention.project) is nn.Linear and not attention.causal
    inputs = step.inputs.mean(-2, keepdim=True) if affine else step.inputs
    _, _, value = attention.project_heads(inputs)
    if attention.causal:
        count = torch.arange(1, value.shape[-2] + 1, device=value.device, dtype=value.dtype)[:, None]
        mean = value.cumsum(-2) / count
    else:
        mean = value.mean(-2, keepdim=True)  # one update for all tokens
    return attention.combine_heads(attention.join(mean), step.inputs[:, : mean.shape[-2]], None, 0)


def random_vector(step: LayerStep) -> Tensor:
    """Return one random direction for all tokens, (batch, 1, d)."""
    vector = torch.randn(1, 1, step.start.shape[-1], generator=generator(step.seed))
    return vector.to(step.start).expand(len(step.start), 1, -1)  # the same in every batch and process


def permuted(z: Tensor) -> Tensor:
    """Move every row of the tokens (..., n, d) to another place."""
    return z.roll(max(1, z.shape[-2] // 2), dims=-2)


CONTROLS: dict[str, Callable[[LayerStep], Tensor | None]] = {
    "uniform": uniform_attention,
    "random": random_vector,
    "permuted": lambda step: permuted(step.update),  # the layer's own updates, each given to another token
    "mean": lambda step: step.start.mean(-2, keepdim=True),  # the mean of the tokens, for all of them
}
"""Updates that have nothing to do with the gradient of R^c, each scaled to the size of the layer's own."""


def random_subspaces(step: LayerStep) -> Tensor:
    """Return orthonormal bases of random subspaces of the same number and dimension, (K, d, p)."""
    return _random_frames(*step.factors[0].shape, step.seed).to(step.factors[0])


@lru_cache(maxsize=32)  # all batches have the same
def _random_frames(heads: int, d: int, p: int, seed: int) -> Tensor:
    return objective.random_bases(heads, d, p, "incoherent", generator(seed))


@torch.no_grad()
def permuted_dictionary(step: LayerStep) -> Tensor:
    """Return the codes of ISTA with the atoms of D in another order, which belong to other entries of the code."""
    atoms = step.ista.atoms()
    order = torch.randperm(atoms.shape[1], generator=generator(step.seed)).to(atoms.device)
    return cast(Tensor, functional_call(step.ista, {"dictionary": atoms[:, order]}, step.lasso_input))


def threshold_only(step: LayerStep) -> Tensor:
    """Return X after the threshold ηλ alone, without the dictionary."""
    return F.relu(step.lasso_start - step.ista.step_size * step.ista.sparsity)


LASSO_CONTROLS: dict[str, Callable[[LayerStep], Tensor]] = {
    "permuted": permuted_dictionary, "threshold": threshold_only,
}  # fmt: skip
"""Codes that ISTA's own have to beat at its objective."""


def generator(seed: int) -> torch.Generator:
    """Return a generator of random numbers on the CPU."""
    return torch.Generator().manual_seed(seed)


def norms(z: Tensor) -> Tensor:
    """Return the norm of each token (batch, n, 1), at least the smallest positive number."""
    return torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)


def matrix_norm(z: Tensor) -> Tensor:
    """Return the Frobenius norm of each sample, (batch, 1, 1)."""
    return torch.linalg.vector_norm(z, dim=(-2, -1), keepdim=True)


def cosine(one: Tensor, other: Tensor) -> Tensor:
    """Return the cosine between two tensors (batch, n, d) of each sample, (batch,); 0 if one of them is zero."""
    one, other = one.flatten(1), other.flatten(1).to(one.dtype)
    return F.cosine_similarity(one, other, dim=-1, eps=torch.finfo(one.dtype).tiny ** 0.5)
