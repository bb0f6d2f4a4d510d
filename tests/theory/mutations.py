"""Errors in the code, by the names that claims give in their docstrings, and a function that applies one.

A mutation is the owner of a function (a module or class), the function's name, and a wrong function in its place, which
takes the right one as its first argument. A function is replaced in every module of the package that holds it, because
claims import by name; a method or property is replaced in its class.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from codingrate import objective
from codingrate.objective import rates
from codingrate.operators import MSSA, DictionarySparsifier, SubspaceAttention, TiedMSSA
from codingrate.operators.sparsify import ISTA, ProximalStep
from codingrate.theory import ItoDiffusion, concentration, denoising, diffusion, inverse, projection, unrolled
from codingrate.theory.claims import operators
from codingrate.theory.projection import MixtureSizes

Wrong = Callable[..., Any]
Mutation = tuple[Any, str, Wrong]


def times(factor: float) -> Wrong:
    """Multiply the result; of an attention operator the update, which it returns with its weights."""

    def wrong(right, *args, **options):
        result = right(*args, **options)
        return (factor * result[0], *result[1:]) if isinstance(result, tuple) else factor * result

    return wrong


def only(method: str, wrong: Wrong) -> Wrong:
    """Replace the gradient of R^c for one method: wrong(right, z, bases, eps, options)."""

    def gradient(right, z, bases, eps=0.5, how="exact", **options):
        return wrong(right, z, bases, eps, options) if how == method else right(z, bases, eps, how, **options)

    return gradient


def fails_as_one_over_n(right, tokens):
    """The good event fails with probability 4/n, decided by the first entry of the noise."""
    normal = float(tokens.noise[0, 0]) * math.sqrt(tokens.sizes.d) / tokens.sizes.sigma
    return (math.inf if (1 + math.erf(normal / math.sqrt(2))) / 2 < 4 / tokens.sizes.n else 0.0, 0.0, 0.0)


def plus_in_the_decoder(right, self, codes, adjoint=False):
    y = codes @ (self.dictionary if adjoint else self.dictionary.mT)
    return y + self.attention(y)


def scaled(part: str, factor: Callable[[MixtureSizes], float]) -> Wrong:
    """Multiply the clean tokens or the noise of a draw by a factor of its sizes."""

    def wrong(right, sizes, *args, **options):
        tokens = right(sizes, *args, **options)
        return replace(tokens, **{part: factor(sizes) * getattr(tokens, part)})

    return wrong


def noise_terms(change: Callable[[Any, Any], Any]) -> Wrong:
    """Replace Ξ_k by a function of the tokens' codes of the noise (n, p) and of Ξ_k."""

    def wrong(right, tokens, k):
        block, rest = right(tokens, k)
        return block, change(tokens.noise @ tokens.bases[k], rest)

    return wrong


def uniform_weights(right, self, *args, **options):
    result = right(self, *args, **options)
    return (result[0], torch.full_like(result[1], 1 / result[1].shape[-1])) if isinstance(result, tuple) else result


def large_inverses(right, w, scale, *gram):
    kernel = torch.eye(w.shape[-2], dtype=w.dtype) + scale * w @ w.mT
    return scale * torch.cholesky_solve(w, torch.linalg.cholesky(kernel))


def unit_factor(right, self, *sizes, **settings):
    right(self, *sizes, **{**settings, "scale": 1.0} if type(self) is MSSA else settings)


def no_projection(right, z, bases, eps, options):
    added = bases.shape[-1] / (len(z) * eps**2) * (((z @ bases) @ bases.mT).sum(0) - z)
    return right(z, bases, eps, "attention", **options) - (not options.get("identity_projection")) * added


def half_constant(right, q, n, scale, s):
    reach = (s / scale - math.sqrt(q)) / (0.5 * math.sqrt(n)) - 1
    return math.exp(-n * reach**2) if reach > 0 else 1.0


def quarter_constant(right, q, n, scale, s):
    reach = s / (3 / 4 * math.sqrt(n * q) * scale**2) - 1
    small = min(1.0, 2 * math.exp(-n * reach**2)) if reach > 0 else 1.0
    return right(q, n, scale, s) if s > 3 * q * scale**2 else small


GRADIENT = (objective, "subspace_coding_rate_gradient")
MIXTURE = denoising.SubspaceMixture
MUTATIONS: dict[str, Mutation] = {
    # the objective
    "R = 0": (objective, "coding_rate", times(0)),
    "R halved": (objective, "coding_rate", times(0.5)),
    "energy = 0": (objective, "energy", times(0)),
    "energy halved": (objective, "energy", times(0.5)),
    "score of the energy = 0": (objective, "sparse_rate_reduction_gradient", times(0)),
    "score of the energy without λ": (
        objective,
        "sparse_rate_reduction_gradient",
        lambda right, z, bases, eps, weight: right(z, bases, eps, 0.0),
    ),
    "‖Z‖₀ = 0": (objective, "l0_norm", times(0)),
    "coherence 0": (objective, "equiangular_bases", lambda right, frame, coherence: frame),
    "R^c = 0": (objective, "subspace_coding_rate", times(0)),
    "R^c halved": (objective, "subspace_coding_rate", times(0.5)),
    "R^c(Z | Π) = 0": (objective, "class_coding_rate", times(0)),
    "R^c(Z | Π) doubled": (objective, "class_coding_rate", times(2)),
    "∇R = 0": (objective, "coding_rate_gradient", times(0)),
    "∇R doubled": (objective, "coding_rate_gradient", times(2)),
    "∇R^c = 0": (*GRADIENT, times(0)),
    "∇R^c halved": (*GRADIENT, times(0.5)),
    "∇R^c with the wrong sign": (*GRADIENT, times(-1)),
    "∇R^c replaced by βZ": (
        *GRADIENT,
        lambda right, z, bases, eps=0.5, *rest: bases.shape[-1] / (z.shape[-2] * eps**2) * z,
    ),
    "∇²R = 0": (objective, "coding_rate_hvp", times(0)),
    "∇²R doubled": (objective, "coding_rate_hvp", times(2)),
    "9/4 replaced by 3/4": (objective, "coding_rate_lipschitz", times(1 / 3)),
    "ε² replaced by ε": (rates, "rate_scale", lambda right, n, d, eps: right(n, d, eps**0.5)),
    "‖Z‖₁ replaced by ‖Z‖₂": (objective, "l1_norm", lambda right, z: torch.linalg.norm(z)),
    # attention
    "MSSA = 0": (TiedMSSA, "forward", times(0)),
    "MSSA with the wrong sign": (TiedMSSA, "forward", times(-1)),
    "MSSA with W = 0": (MSSA, "forward", times(0)),
    "MSSA with W of the wrong sign": (MSSA, "forward", times(-1)),
    "the factor p^-½ of MSSA replaced by 1": (SubspaceAttention, "__init__", unit_factor),
    "attention weights uniform": (TiedMSSA, "forward", uniform_weights),
    "∇R^c by n × n inverses": (rates, "_rate_gradient", large_inverses),
    "MSSA without β": (TiedMSSA, "beta", lambda right, *args: torch.ones_like(right(*args))),
    "MSSA with the wrong sign in the decoder": (inverse.TiedLayers, "decode", plus_in_the_decoder),
    "Neumann step = 0": (*GRADIENT, only("neumann", lambda right, z, bases, eps, _: 0 * z)),
    "Neumann step with the wrong sign": (
        *GRADIENT,
        only("neumann", lambda right, z, bases, eps, _: -right(z, bases, eps, "neumann")),
    ),
    "Neumann step without its second term": (
        *GRADIENT,
        only(
            "neumann",
            lambda right, z, bases, eps, _: bases.shape[-1] / (len(z) * eps**2) * ((z @ bases) @ bases.mT).sum(0),
        ),
    ),
    "MSSA's gradient = 0": (*GRADIENT, only("attention", lambda right, z, bases, eps, _: 0 * z)),
    "MSSA's gradient without Σ_k U_kU_k*": (*GRADIENT, only("attention", no_projection)),
    "membership 30 % too large": (operators, "membership", times(1.3)),
    "membership without the softmax, 1/K": (
        operators,
        "membership",
        lambda right, codes, count, s: torch.full_like(codes[..., :1], 1 / count),
    ),
    # sparsification
    "ISTA = 0": (ISTA, "forward", times(0)),
    "ISTA = identity": (ISTA, "forward", lambda right, self, z: z),
    "ISTA without its threshold": (ISTA, "shift", lambda right, self: 0.0),
    "D replaced by D*": (DictionarySparsifier, "atoms", lambda right, self: right(self).mT),
    "proximal layer = 0": (ProximalStep, "forward", times(0)),
    "4/9 replaced by 4/3 in the proximal layer": (
        unrolled,
        "proximal_layer",
        lambda right, z, dictionary, sparsity, alpha: torch.relu(
            (1 + 4 / (3 * (1 + alpha))) * z @ dictionary - 4 * sparsity / (3 * alpha)
        ),
    ),
    # the mixture
    "log q = 0": (MIXTURE, "log_density", times(0)),
    "log q × 0.9": (MIXTURE, "log_density", times(0.9)),
    "affinity halved": (MIXTURE, "_affinity", times(0.5)),
    "score = 0": (MIXTURE, "score", times(0)),
    "score halved": (MIXTURE, "score", times(0.5)),
    "score with the wrong sign": (MIXTURE, "score", times(-1)),
    "score × σ": (MIXTURE, "score", lambda right, self, z, sigma: sigma * right(self, z, sigma)),
    "denoiser = 0": (MIXTURE, "denoise", times(0)),
    "denoiser = identity": (MIXTURE, "denoise", lambda right, self, z, sigma: z),
    "Wiener factor 1": (MIXTURE, "_wiener", lambda right, self, sigma: torch.ones_like(self.variances)),
    "attention form = 0": (denoising, "attention_denoise", times(0)),
    "attention form at σ√2": (
        denoising,
        "attention_denoise",
        lambda right, z, bases, sigma: right(z, bases, sigma * 2**0.5),
    ),
    "nearest projection = 0": (denoising, "project_nearest", times(0)),
    # the structured ODEs
    "κ halved in the grid": (
        diffusion,
        "geometric_times",
        lambda right, first, kappa, count: right(first, kappa / 2, count),
    ),
    "structured solution = Z": (diffusion, "structured_solution", lambda right, z, *args: z),
    "structured solution = 0": (diffusion, "structured_solution", times(0)),
    "β halved in the structured solution": (
        diffusion,
        "structured_solution",
        lambda right, z, bases, t, eps: right(z, bases, t, eps * 2**0.5),
    ),
    # general diffusions
    "∇·Ψ = 0": (ItoDiffusion, "divergence", times(0)),
    "∇·Ψ doubled": (ItoDiffusion, "divergence", times(2)),
    "reversed drift = 0": (ItoDiffusion, "reverse_drift", times(0)),
    "reversed drift with b of the wrong sign": (
        ItoDiffusion,
        "reverse_drift",
        lambda right, self, z, t: right(self, z, t) + 2 * self._field(self.drift, z, t),
    ),
    "flow drift = 0": (ItoDiffusion, "flow_drift", times(0)),
    # the lemmas of the theorem on projection
    "(β⁻¹I + A*A)⁻¹ = 0": (projection, "block_inverse", times(0)),
    "(β⁻¹I + A*A)⁻¹ doubled": (projection, "block_inverse", times(2)),
    "(β⁻¹I + A*A)⁻¹ without β⁻¹": (projection, "block_inverse", lambda right, codes, beta: right(codes, math.inf)),
    "Ξ_k = 0": (projection, "perturbation", noise_terms(lambda noise, rest: 0 * rest)),
    "Ξ_k doubled": (projection, "perturbation", noise_terms(lambda noise, rest: 2 * rest)),
    "Ξ_k without its cross terms": (projection, "perturbation", noise_terms(lambda noise, rest: noise @ noise.mT)),
    "tail of ‖M‖ = 0": (concentration, "gaussian_tail", times(0)),
    "tail of ‖M‖ with C₂ = ½": (concentration, "gaussian_tail", half_constant),
    "tail of ‖M‖ without x": (concentration, "gaussian_tail", lambda right, q, n, scale, s: right(q, n, scale**2, s)),
    "tail of ‖M*M − qx²I‖ = 0": (concentration, "covariance_tail", times(0)),
    "tail of ‖M*M − qx²I‖ with C₃ = ¼": (concentration, "covariance_tail", quarter_constant),
    "tail of ‖Δ‖ = 0": (concentration, "noise_tail", times(0)),
    "tail of ‖A_k‖ = 0": (concentration, "codes_tail", times(0)),
    "tail of ‖A_k*A_k − I‖ = 0": (concentration, "gram_tail", times(0)),
    "noise without 1/√d": (projection, "draw_tokens", scaled("noise", lambda sizes: math.sqrt(sizes.d))),
    "codes without 1/√p": (projection, "draw_tokens", scaled("clean", lambda sizes: math.sqrt(sizes.p))),
    "assumptions always satisfied": (projection, "broken_assumptions", lambda right, sizes, gram=1.0: []),
    "β = 0": (MixtureSizes, "beta", lambda right, self: 0.0),
    "β without ε²": (MixtureSizes, "beta", lambda right, self: self.p / self.n),
    # the theorem on projection
    "P(Δ) = 0": (projection, "projected_noise", times(0)),
    "P(Δ) = Δ": (projection, "projected_noise", lambda right, tokens: tokens.noise),
    "shrinkage halved": (
        projection,
        "main_term",
        lambda right, tokens, eta: right(tokens, eta) + eta / (1 + 1 / tokens.sizes.beta) / 2 * tokens.clean,
    ),
    "good event always": (projection, "event_constants", lambda right, tokens: (0.0, 0.0, 0.0)),
    "good event fails as 1/n": (projection, "event_constants", fails_as_one_over_n),
    "C₁ = ¼": (projection, "deviation", times(0.25)),
    "C₁ = 0": (projection, "deviation", times(0)),
    "C₁ = 4": (projection, "deviation", times(4)),
    "the remark's ε² doubled": (projection, "optimal_eps", times(2**0.5)),
    "the remark's ε² without K": (
        projection,
        "optimal_eps",
        lambda right, count, *sizes: right(count, *sizes) * count**0.5,
    ),
    "the remark's bound without its last term": (
        projection,
        "remark_bound",
        lambda right, m: right(m) - m.n / m.d * m.K**2 * (m.sigma + math.sqrt(m.n / m.d)) * m.eps**2,
    ),
}


def apply(mutation: Mutation, monkeypatch: Any) -> None:
    """Put the wrong function in the place of the right one, everywhere."""
    owner, name, wrong = mutation
    right = getattr(owner, name)

    def replaced(*args: Any, **options: Any) -> Any:
        return wrong(right.fget if isinstance(right, property) else right, *args, **options)

    if isinstance(owner, type):
        monkeypatch.setattr(owner, name, property(replaced) if isinstance(right, property) else replaced)
        return
    for place in [module for key, module in sys.modules.items() if key.split(".")[0] == "codingrate"]:
        for attribute in [key for key, value in vars(place).items() if value is right]:
            monkeypatch.setattr(place, attribute, replaced)
