"""Sparsifiers: one proximal step toward a sparse code, in the place of an MLP (paper 2.4, A.2).

    sparsify = ISTA(dim=384)  # or SPARSIFIERS.create("ista", dim=384)
    z = sparsify(z)  # (..., d)

In the paper tokens are columns and ISTA(Z | D) = ReLU(Z − η Dᵀ(DZ − Z) − ηλ1). Here tokens are rows: DZ becomes
z Dᵀ, and DᵀZ becomes z D.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..objective.signal import orthonormal_columns
from .linear import linear
from .registry import SPARSIFIERS, OutputProjection, Sparsifier, is_offloaded


class _Gram(torch.autograd.Function):
    """DᵀD whose gradient D(G + Gᵀ) takes one matrix product, where autograd would take two."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor) -> Tensor:
        return matrix.mT @ matrix

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (matrix,) = ctx.saved_tensors
        return matrix @ (grads[0] + grads[0].mT)


class DictionarySparsifier(Sparsifier):
    """A sparsifier against a complete dictionary D (d, d), with the weight λ = `sparsity` of the ℓ1 norm.

    `orthonormal` reparametrizes D to orthonormal columns.
    """

    def __init__(self, dim: int, *, sparsity: float = 0.1, orthonormal: bool = False) -> None:
        super().__init__()
        self.dim, self.sparsity, self.orthonormal = dim, sparsity, orthonormal
        self.dictionary = nn.Parameter(torch.empty(dim, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.dictionary)

    def atoms(self) -> Tensor:
        """Return D, with orthonormal columns if `orthonormal` is set."""
        return orthonormal_columns(self.dictionary) if self.orthonormal else self.dictionary

    def reconstruction_error(self, x: Tensor, codes: Tensor) -> Tensor:
        """Compute x − Dz of codes z for tokens x, both (..., d)."""
        return x - F.linear(codes, self.atoms().to(codes.dtype))

    def lasso(self, x: Tensor, codes: Tensor, residual: Tensor | None = None) -> Tensor:
        """Compute ½‖x − Dz‖² + λ‖z‖₁ of codes z for tokens x, both (..., d) → (..., 1): what the step lowers (2.4).

        `residual` is x − Dz, if it is known.
        """
        residual = self.reconstruction_error(x, codes) if residual is None else residual
        return residual.square().sum(-1, keepdim=True) / 2 + self.sparsity * codes.abs().sum(-1, keepdim=True)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, sparsity={self.sparsity}"


@SPARSIFIERS.register("ista")
class ISTA(DictionarySparsifier):
    """One step of the iterative shrinkage-thresholding algorithm for the non-negative LASSO, or several.

    ISTA(z | D) = ReLU(z + η(zD − zDᵀD) − ηλ)   (paper 2.4; z (..., d), D (d, d))

    It is the first of the steps A_{j+1} = ReLU(A_j + η(z − A_jDᵀ)D − ηλ) from A_0 = z, which lower
    ½‖z − ADᵀ‖² + λ‖A‖₁ over A ≥ 0 if η ≤ 1/‖D‖². The paper takes one; with `steps` > 1 the layer takes more, with
    the same D.

    Before the threshold the step is affine in z: z + zN with N = η(D − DᵀD). It is computed as one product with
    M = I + N and the threshold as its bias. M costs d³ once per training step; at inference it is cached until the
    dictionary changes. For few tokens the products with D and then Dᵀ are cheaper than building M.

    `step_size` is η. The other keyword arguments are those of `DictionarySparsifier`: sparsity=0.1, orthonormal=False.
    """

    def __init__(self, dim: int, *, step_size: float = 0.1, steps: int = 1, **settings: Any) -> None:
        super().__init__(dim, **settings)
        self.step_size, self.steps = step_size, steps
        # Key, diagonal of D in its own memory, copy of it, M.
        self._cached: tuple[tuple[object, ...], Tensor, Tensor, Tensor] | None = None

    def forward(self, z: Tensor) -> Tensor:
        # Tokens in one axis: the product of tokens in several is a view, and the gradient of a threshold that is
        # applied to a view in place takes two more passes over the tokens.
        x = z.reshape(-1, z.shape[-1])
        codes = self.threshold(self.step(x))
        if self.steps > 1:
            atoms = self.atoms()
            for _ in range(self.steps - 1):
                residual = F.linear(codes, atoms) - x
                codes = self.threshold(codes - self.step_size * (residual @ atoms) + self.shift)
        return codes.view(z.shape)

    @property
    def shift(self) -> float:
        """Constant −ηλ that is added to every entry before `threshold`; it enters the product as its bias."""
        return -self.step_size * self.sparsity

    def threshold(self, step: Tensor) -> Tensor:
        """Apply the second half of the proximal map of ηλ‖·‖₁ on the non-negative orthant; `shift` is the first."""
        return step.relu_()  # the step's product does not need its own value in the backward pass

    def step(self, z: Tensor) -> Tensor:
        """Compute the gradient step on ½‖z − Dz‖² before the threshold, plus `shift`."""
        trains = torch.is_grad_enabled() and self.dictionary.requires_grad
        if trains or torch.compiler.is_compiling():
            # Forward and backward take 6 products with all tokens in the plain form; the fused form takes 3 with
            # all tokens and 2 of d × d × d.
            atoms = self.atoms()
            few = not torch.compiler.is_exporting() and 3 * z.shape[:-1].numel() < 2 * self.dim
            if few:
                return z - self.step_size * ((F.linear(z, atoms) - z) @ atoms) + self.shift
            fused = self._fuse(atoms)
        else:
            fused = self._fused()
        return linear(z, fused.mT, fused.new_full((self.dim,), self.shift))

    def _fuse(self, atoms: Tensor) -> Tensor:
        """Compute M = I + η(D − DᵀD), so that the step is zM; in full precision even if D is in half precision."""
        with torch.autocast("cpu" if atoms.is_meta else atoms.device.type, enabled=False):
            work = atoms.float() if atoms.dtype in (torch.bfloat16, torch.float16) else atoms
            eye = torch.eye(self.dim, dtype=work.dtype, device=work.device)
            gram: Tensor = _Gram.apply(work)
            return (eye + self.step_size * (work - gram)).to(atoms.dtype)

    def step_matrix(self) -> Tensor:
        """Compute M = I + η(D − DᵀD) (d, d): the step before the threshold is zM, plus `shift`."""
        return self._fuse(self.atoms())

    def scale_step(self, factor: float) -> None:
        """Multiply the step size η by a factor, and adapt the cached M = I + η(D − DᵀD) to it."""
        self.step_size *= factor
        if self._cached is not None and factor != 1:
            *known, fused = self._cached
            eye = torch.eye(self.dim, dtype=fused.dtype, device=fused.device)
            self._cached = (*known, torch.lerp(eye, fused, factor))  # type: ignore[assignment]

    def _fused(self) -> Tensor:
        """Return the cached M; rebuild it if the value, memory, dtype or device of the dictionary has changed."""
        d = self.dictionary
        # A tensor of inference mode has no version counter. A weight that is offloaded, or computed in each forward
        # pass (by LoRA), is not kept.
        if d.is_inference() or is_offloaded(self) or not isinstance(d, nn.Parameter):
            return self._fuse(self.atoms())
        key = (d._version, d.data_ptr(), d.dtype, d.device)
        if self._cached is None or self._cached[0] != key or _differ(*self._cached[1:3]):
            # Autograd must be able to use M later. Holding a part of D keeps its address from being reused by another
            # dictionary, which would have the same key.
            with torch.inference_mode(False), torch.no_grad():
                diagonal = d.detach().diagonal()
                fused = self._fuse(self.atoms()).mT.contiguous().mT  # `linear` reads the rows of Mᵀ
                self._cached = (key, diagonal, diagonal.clone(), fused)
        return self._cached[3]

    def train(self, mode: bool = True) -> ISTA:
        """Set the mode and drop the cached product."""
        self._cached = None
        return super().train(mode)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, step_size={self.step_size}, steps={self.steps}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached": None}


def _differ(diagonal: Tensor, before: Tensor) -> bool:
    """Return whether D was changed through `.data`, as merging LoRA does, which its version does not show."""
    if diagonal.is_meta or (diagonal.is_cuda and torch.cuda.is_current_stream_capturing()):  # values are not known
        return False
    return not torch.equal(diagonal, before)


@SPARSIFIERS.register("ista-soft")
class SoftISTA(ISTA):
    """ISTA for the LASSO without the sign constraint: two-sided soft thresholding (paper, appendix C).

    z ↦ S_{ηλ}(z + η(zD − zDᵀD)),  S_t(x) = sgn(x) max(|x| − t, 0). The paper's ablation takes λ = 10.
    """

    shift = 0.0  # both signs shrink alike

    def threshold(self, step: Tensor) -> Tensor:
        return F.softshrink(step, self.step_size * self.sparsity)


@SPARSIFIERS.register("prox")
class ProximalStep(DictionarySparsifier):
    """One step of proximal majorization-minimization on λ‖Z‖₁ − R(Z) (paper, end of appendix A.2).

    z ↦ ReLU((1 + 4/(9(1 + α))) zD − 4λ/(9α)),  D orthogonal in the derivation, no skip.
    α = d/(nε²), of which the paper leaves only ε open; `alpha=None` takes it from the number n of real tokens of each
    sample. A number as `alpha` is a constant in its place, for causal models, to whose tokens n would reveal how many
    follow.
    """

    def __init__(self, dim: int, *, alpha: float | None = 1.0, eps: float = 0.5, **settings: Any) -> None:
        super().__init__(dim, **settings)
        self.alpha, self.eps = alpha, eps
        self.counts_tokens = alpha is None

    def forward(self, z: Tensor, count: Tensor | None = None) -> Tensor:
        alpha: float | Tensor | None = self.alpha
        if alpha is None:
            alpha = self.dim / ((z.shape[-2] if count is None else count) * self.eps**2)
        growth = 1 + 4 / (9 * (1 + alpha))
        threshold = 4 * self.sparsity / (9 * alpha)
        if isinstance(growth, Tensor):
            return F.relu((growth * (z @ self.atoms()) - threshold).to(z.dtype))
        return F.relu(z @ (growth * self.atoms()) - threshold)


@SPARSIFIERS.register("odl")
class OvercompleteDictionary(Sparsifier):
    """Two ISTA steps from zero against an overcomplete dictionary, then synthesis: the block of CRATE-alpha.

    A₁ = ReLU(η zD − ηλ),  A₂ = ReLU(A₁ − η(A₁Dᵀ − z)D − ηλ),  z ↦ A₂D'ᵀ   (z (..., d), D and D' (d, m·d))

    D is the analysis dictionary and D' the synthesis dictionary, and m = `expansion`; the layer adds the skip.
    """

    residual = True

    def __init__(self, dim: int, *, expansion: int = 4, step_size: float = 0.1, sparsity: float = 0.1) -> None:
        super().__init__()
        self.step_size, self.sparsity = step_size, sparsity
        self.dictionary = nn.Parameter(torch.empty(dim, expansion * dim))
        self.synthesis = nn.Parameter(torch.empty(dim, expansion * dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.dictionary)
        nn.init.kaiming_uniform_(self.synthesis)

    def forward(self, z: Tensor) -> Tensor:
        return self.codes(z) @ self.synthesis.mT

    def codes(self, z: Tensor) -> Tensor:
        """Compute the sparse code A₂ (..., m·d) of tokens (..., d)."""
        eta, threshold = self.step_size, self.step_size * self.sparsity
        first = F.relu(eta * (z @ self.dictionary) - threshold)
        residual = first @ self.dictionary.mT - z
        return F.relu(first - eta * (residual @ self.dictionary) - threshold)


@SPARSIFIERS.register("mlp")
class MLP(Sparsifier):
    """The MLP of the black-box transformer, GELU(zW₁ + b₁)W₂ + b₂ of hidden width m·d; the layer adds the skip.

    m is `expansion`. GELU is x Φ(x), or GPT-2's ½x(1 + tanh(√(2/π)(x + 0.044715x³))) with `activation="gelu-tanh"`.
    """

    residual = True

    def __init__(self, dim: int, *, expansion: int = 4, activation: str = "gelu", dropout: float = 0.0) -> None:
        super().__init__()
        self.approximate = "tanh" if activation == "gelu-tanh" else "none"
        self.expand = nn.Linear(dim, expansion * dim)
        self.contract = OutputProjection(expansion * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, z: Tensor) -> Tensor:
        return self.dropout(self.contract(F.gelu(self.expand(z), approximate=self.approximate)))


@SPARSIFIERS.register("none")
class Identity(Sparsifier):
    """No sparsification, the paper's ablation without ISTA: Z^{ℓ+1} = Z^{ℓ+½}."""

    uses_norm = False

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, z: Tensor) -> Tensor:
        return z
