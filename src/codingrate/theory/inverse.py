"""Decoder and encoder as inverses: g^ℓ with the weights of f^ℓ, on tokens of the signal model (paper 3.3).

In rows f(Z) = ISTA(Z + MSSA(Z | U) | D) and g(Y) = YEᵀ − MSSA(YEᵀ | V), here without LayerNorm and with V = U. Let D be
orthogonal and contain the bases, so that a token uses p of its d atoms. The error g(f(Z)) − Z then has three parts:

- Attention is undone to second order in its step β, since (I − S)(I + S)Z = Z + S(Z) − S(Z + S(Z)).
- An ISTA step of η = 1 solves the LASSO, ReLU(ZD − λ) in rows; YDᵀ undoes it up to λ for every active atom.
- Noise outside a token's subspace is not restored: below λ it is removed, and at λ = 0 its negative half is.

So the error does not vanish with the noise σ; it falls to a floor set by λ and β². We depart from the paper twice.
Its remark sets E = D*, but its own Z^{ℓ+½} = D Z^{ℓ+1} requires E = D; D* gives unrelated tokens. And ISTA inverts
non-negative codes only: of the signed codes of the signal model it keeps half the energy, its two-sided form all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from codingrate.errors import CrateError
from codingrate.objective import orthonormal_columns, sample_tokens
from codingrate.operators import ATTENTION, SPARSIFIERS


@dataclass(frozen=True)
class TiedLayers:
    """A layer f and its mirror g with shared weights, without LayerNorm."""

    bases: Tensor  # U = V, (K, d, p)
    dictionary: Tensor  # D (d, d)
    step: float  # β of the attention, independent of the number of tokens
    sparsity: float = 0.0  # λ of ISTA
    ista_step: float = 1.0  # η of ISTA; 1 solves the LASSO of an orthogonal dictionary in one step
    sparsifier: str = "ista"  # name of the sparsifier: `ista`, or `ista-soft` for codes of both signs

    def attention(self, z: Tensor) -> Tensor:
        """Compute MSSA(Z | U) = β Σ_k SSA(Z | U_k)U_kᵀ of tokens (batch, n, d)."""
        K, d, p = self.bases.shape
        eps = math.sqrt(p / (z.shape[-2] * self.step)) if self.step else math.inf
        weights = {"project.weight": self.bases.mT.flatten(0, 1)}
        return ATTENTION.apply("mssa-tied", weights, z, dim=d, num_heads=K, head_dim=p, eps=eps)

    def encode(self, z: Tensor) -> Tensor:
        """Apply f: tokens (batch, n, d) to sparse codes (batch, n, d)."""
        SPARSIFIERS.check(self.sparsifier)
        if self.sparsifier not in ("ista", "ista-soft"):
            raise CrateError(f"sparsifier {self.sparsifier!r} has no mirror; use 'ista' or 'ista-soft'")
        settings = {"dim": z.shape[-1], "step_size": self.ista_step, "sparsity": self.sparsity}
        return SPARSIFIERS.apply(self.sparsifier, {"dictionary": self.dictionary}, z + self.attention(z), **settings)

    def decode(self, codes: Tensor, adjoint: bool = False) -> Tensor:
        """Apply g: codes to tokens with E = D or, if `adjoint`, with the E = D* of the paper's remark."""
        y = codes @ (self.dictionary if adjoint else self.dictionary.mT)
        return y - self.attention(y)


def inversion_error(
    bases: Tensor,
    n: int,
    sigma: float,
    step: float,
    sparsity: float = 0.0,
    *,
    ista_step: float = 1.0,
    sparsifier: str = "ista",
    signed: bool = False,
    adjoint: bool = False,
    generator: torch.Generator | None = None,
) -> float:
    """Compute ‖g(f(Z)) − Z‖/‖Z‖ of n tokens z_i = U_{s_i}|α_i| + σw_i for bases (K, d, p) orthonormal together.

    |α| in place of α gives codes that a non-negative ISTA can represent; `signed` keeps α. D is U_1 … U_K, completed
    to an orthogonal matrix. A generator in the same state draws the same α and w for every σ.
    """
    if step < 0:
        raise CrateError(f"step must not be negative, got {step}")
    sample = sample_tokens(bases, n, 1.0, generator)
    codes = sample.codes if signed else sample.codes.abs()
    clean = (bases[sample.labels] @ codes.unsqueeze(-1)).squeeze(-1)
    z = (clean + sigma * (sample.tokens - sample.clean))[None]
    layers = TiedLayers(bases, completed(bases, generator), step, sparsity, ista_step, sparsifier)
    return float(torch.linalg.norm(layers.decode(layers.encode(z), adjoint) - z) / torch.linalg.norm(z))


def completed(bases: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return an orthogonal D (d, d) whose first K·p columns are bases (K, d, p) that are orthonormal together."""
    K, d, p = bases.shape
    if K * p > d:
        raise CrateError(f"{K} bases of dimension {p} cannot be columns of an orthogonal matrix in {d} dimensions")
    rest = torch.randn(d, d - K * p, generator=generator, dtype=torch.float64, device=bases.device)
    return orthonormal_columns(torch.cat([bases.transpose(0, 1).flatten(1), rest.to(bases.dtype)], dim=1))
