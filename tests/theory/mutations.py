"""Errors in the code, by the names that claims give in their docstrings, and a function that applies one.

A mutation is a target (module or class, and the name of a function there) and a wrapper that takes the right function
and returns a wrong one. A function is replaced in every module of the package that holds it, because claims import by
name; a method is replaced in its class.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from codingrate import objective
from codingrate.objective import rates
from codingrate.operators import MSSA, DictionarySparsifier, SubspaceAttention, TiedMSSA, inverse
from codingrate.operators.sparsify import ISTA, ProximalStep
from codingrate.theory import ItoDiffusion, MixtureSizes, concentration, denoising, diffusion, projection, unrolled
from codingrate.theory.claims import operators

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


class Mutation(NamedTuple):
    """A wrong function in the place of a right one."""

    owner: Any
    name: str
    wrap: Wrapper


def times(factor: float) -> Wrapper:
    """Multiply the result."""
    return lambda right: lambda *args, **options: factor * right(*args, **options)


def attention(factor: float) -> Wrapper:
    """Multiply the update of an attention operator, which returns it with its weights."""

    def wrap(right):
        def wrong(self, *args, **options):
            update, weights = right(self, *args, **options)
            return factor * update, weights

        return wrong

    return wrap


def only(method: str, wrong: Callable[..., Any]) -> Wrapper:
    """Replace the gradient of R^c for one method: wrong(right, z, bases, eps, options)."""

    def wrap(right):
        def gradient(z, bases, eps=0.5, how="exact", **options):
            if how != method:
                return right(z, bases, eps, how, **options)
            return wrong(right, z, bases, eps, options)

        return gradient

    return wrap


def fails_as_one_over_n(right):
    """The good event fails with probability 4/n, decided by the first entry of the noise."""

    def wrong(tokens):
        sizes = tokens.sizes
        normal = float(tokens.noise[0, 0]) * math.sqrt(sizes.d) / sizes.sigma
        return (math.inf if (1 + math.erf(normal / math.sqrt(2))) / 2 < 4 / sizes.n else 0.0, 0.0, 0.0)

    return wrong


def half_shrinkage(right):
    def wrong(tokens, eta):
        beta = tokens.sizes.beta
        return right(tokens, eta) + eta / (1 + 1 / beta) / 2 * tokens.clean

    return wrong


def plus_in_the_decoder(right):
    def wrong(self, codes, adjoint=False):
        y = codes @ (self.dictionary if adjoint else self.dictionary.mT)
        return y + self.attention(y)

    return wrong


def no_projection(right, z, bases, eps, options):
    beta = bases.shape[-1] / (len(z) * eps**2)
    return right(z, bases, eps, "attention", **options) - (not options.get("identity_projection")) * beta * (
        ((z @ bases) @ bases.mT).sum(0) - z
    )


def scaled(part: str, factor: Callable[[MixtureSizes], float]) -> Wrapper:
    """Multiply the clean tokens or the noise of a draw by a factor of its sizes."""

    def wrap(right):
        def wrong(sizes, *args, **options):
            tokens = right(sizes, *args, **options)
            return replace(tokens, **{part: factor(sizes) * getattr(tokens, part)})

        return wrong

    return wrap


def noise_terms(change: Callable[[Any, Any], Any]) -> Wrapper:
    """Replace Ξ_k by a function of the tokens' codes of the noise (n, p) and of Ξ_k."""

    def wrap(right):
        def wrong(tokens, k):
            block, rest = right(tokens, k)
            return block, change(tokens.noise @ tokens.bases[k], rest)

        return wrong

    return wrap


def uniform_weights(right):
    def wrong(self, *args, **options):
        update, weights = right(self, *args, **options)
        return update, weights if weights is None else torch.full_like(weights, 1 / weights.shape[-1])

    return wrong


def large_inverses(right):
    def wrong(w, scale):
        kernel = torch.eye(w.shape[-2], dtype=w.dtype) + scale * w @ w.mT
        return scale * torch.cholesky_solve(w, torch.linalg.cholesky(kernel))

    return wrong


def unit_factor(right):
    def wrong(self, spec):
        right(self, replace(spec, scale=1.0) if type(self) is MSSA else spec)

    return wrong


def forward_drift(right):
    def wrong(self, z, t):
        return right(self, z, t) + 2 * self._field(self.drift, z, t)

    return wrong


def half_constant(right):
    def wrong(q, n, scale, s):
        reach = (s / scale - math.sqrt(q)) / (0.5 * math.sqrt(n)) - 1
        return math.exp(-n * reach**2) if reach > 0 else 1.0

    return wrong


def quarter_constant(right):
    def wrong(q, n, scale, s):
        if s > 3 * q * scale**2:
            return right(q, n, scale, s)
        reach = s / (3 / 4 * math.sqrt(n * q) * scale**2) - 1
        return min(1.0, 2 * math.exp(-n * reach**2)) if reach > 0 else 1.0

    return wrong


GRADIENT = (objective, "subspace_coding_rate_gradient")
MIXTURE = denoising.SubspaceMixture
MUTATIONS = {
    # the objective
    "R = 0": Mutation(objective, "coding_rate", times(0)),
    "R halved": Mutation(objective, "coding_rate", times(0.5)),
    "energy = 0": Mutation(objective, "energy", times(0)),
    "energy halved": Mutation(objective, "energy", times(0.5)),
    "score of the energy = 0": Mutation(objective, "sparse_rate_reduction_gradient", times(0)),
    "score of the energy without λ": Mutation(
        objective,
        "sparse_rate_reduction_gradient",
        lambda right: lambda z, bases, eps, weight: right(z, bases, eps, 0.0),
    ),
    "‖Z‖₀ = 0": Mutation(objective, "l0_norm", times(0)),
    "coherence 0": Mutation(objective, "equiangular_bases", lambda right: lambda frame, coherence: frame),
    "R^c = 0": Mutation(objective, "subspace_coding_rate", times(0)),
    "R^c halved": Mutation(objective, "subspace_coding_rate", times(0.5)),
    "R^c(Z | Π) = 0": Mutation(objective, "class_coding_rate", times(0)),
    "R^c(Z | Π) doubled": Mutation(objective, "class_coding_rate", times(2)),
    "∇R = 0": Mutation(objective, "coding_rate_gradient", times(0)),
    "∇R doubled": Mutation(objective, "coding_rate_gradient", times(2)),
    "∇R^c = 0": Mutation(*GRADIENT, times(0)),
    "∇R^c halved": Mutation(*GRADIENT, times(0.5)),
    "∇R^c with the wrong sign": Mutation(*GRADIENT, times(-1)),
    "∇R^c replaced by βZ": Mutation(
        *GRADIENT, lambda right: lambda z, bases, eps=0.5, *rest: bases.shape[-1] / (z.shape[-2] * eps**2) * z
    ),
    "∇²R = 0": Mutation(objective, "coding_rate_hvp", times(0)),
    "∇²R doubled": Mutation(objective, "coding_rate_hvp", times(2)),
    "9/4 replaced by 3/4": Mutation(objective, "coding_rate_lipschitz", times(1 / 3)),
    "ε² replaced by ε": Mutation(rates, "rate_scale", lambda right: lambda n, d, eps: right(n, d, eps**0.5)),
    "‖Z‖₁ replaced by ‖Z‖₂": Mutation(objective, "l1_norm", lambda right: torch.linalg.norm),
    # attention
    "MSSA = 0": Mutation(TiedMSSA, "forward", attention(0)),
    "MSSA with the wrong sign": Mutation(TiedMSSA, "forward", attention(-1)),
    "MSSA with W = 0": Mutation(MSSA, "forward", attention(0)),
    "MSSA with W of the wrong sign": Mutation(MSSA, "forward", attention(-1)),
    "the factor p^-½ of MSSA replaced by 1": Mutation(SubspaceAttention, "__init__", unit_factor),
    "attention weights uniform": Mutation(TiedMSSA, "forward", uniform_weights),
    "∇R^c by n × n inverses": Mutation(rates, "_rate_gradient", large_inverses),
    "MSSA without β": Mutation(TiedMSSA, "beta", lambda right: lambda *args: torch.ones_like(right(*args))),
    "MSSA with the wrong sign in the decoder": Mutation(inverse.TiedLayers, "decode", plus_in_the_decoder),
    "Neumann step = 0": Mutation(*GRADIENT, only("neumann", lambda right, z, bases, eps, _: 0 * z)),
    "Neumann step with the wrong sign": Mutation(
        *GRADIENT, only("neumann", lambda right, z, bases, eps, _: -right(z, bases, eps, "neumann"))
    ),
    "Neumann step without its second term": Mutation(
        *GRADIENT,
        only(
            "neumann",
            lambda right, z, bases, eps, _: bases.shape[-1] / (len(z) * eps**2) * ((z @ bases) @ bases.mT).sum(0),
        ),
    ),
    "MSSA's gradient = 0": Mutation(*GRADIENT, only("attention", lambda right, z, bases, eps, _: 0 * z)),
    "MSSA's gradient without Σ_k U_kU_k*": Mutation(*GRADIENT, only("attention", no_projection)),
    "membership 30 % too large": Mutation(operators, "membership", times(1.3)),
    "membership without the softmax, 1/K": Mutation(
        operators, "membership", lambda right: lambda codes, count, s: torch.full_like(codes[..., :1], 1 / count)
    ),
    # sparsification
    "ISTA = 0": Mutation(ISTA, "forward", times(0)),
    "ISTA = identity": Mutation(ISTA, "forward", lambda right: lambda self, z: z),
    "ISTA without its threshold": Mutation(ISTA, "shift", lambda right: property(lambda self: 0.0)),
    "D replaced by D*": Mutation(DictionarySparsifier, "atoms", lambda right: lambda self: right(self).mT),
    "proximal layer = 0": Mutation(ProximalStep, "forward", times(0)),
    "4/9 replaced by 4/3 in the proximal layer": Mutation(
        unrolled,
        "proximal_layer",
        lambda right: (
            lambda z, dictionary, sparsity, alpha: torch.relu(
                (1 + 4 / (3 * (1 + alpha))) * z @ dictionary - 4 * sparsity / (3 * alpha)
            )
        ),
    ),
    # the mixture
    "log q = 0": Mutation(MIXTURE, "log_density", times(0)),
    "log q × 0.9": Mutation(MIXTURE, "log_density", times(0.9)),
    "affinity halved": Mutation(MIXTURE, "_affinity", times(0.5)),
    "score = 0": Mutation(MIXTURE, "score", times(0)),
    "score halved": Mutation(MIXTURE, "score", times(0.5)),
    "score with the wrong sign": Mutation(MIXTURE, "score", times(-1)),
    "score × σ": Mutation(MIXTURE, "score", lambda right: lambda self, z, sigma: sigma * right(self, z, sigma)),
    "denoiser = 0": Mutation(MIXTURE, "denoise", times(0)),
    "denoiser = identity": Mutation(MIXTURE, "denoise", lambda right: lambda self, z, sigma: z),
    "Wiener factor 1": Mutation(MIXTURE, "_wiener", lambda right: lambda self, sigma: torch.ones_like(self.variances)),
    "attention form = 0": Mutation(denoising, "attention_denoise", times(0)),
    "attention form at σ√2": Mutation(
        denoising, "attention_denoise", lambda right: lambda z, bases, sigma: right(z, bases, sigma * 2**0.5)
    ),
    "nearest projection = 0": Mutation(denoising, "project_nearest", times(0)),
    # the structured ODEs
    "κ halved in the grid": Mutation(
        diffusion, "geometric_times", lambda right: lambda first, kappa, count: right(first, kappa / 2, count)
    ),
    "structured solution = Z": Mutation(diffusion, "structured_solution", lambda right: lambda z, *args: z),
    "structured solution = 0": Mutation(diffusion, "structured_solution", times(0)),
    "β halved in the structured solution": Mutation(
        diffusion, "structured_solution", lambda right: lambda z, bases, t, eps: right(z, bases, t, eps * 2**0.5)
    ),
    # general diffusions
    "∇·Ψ = 0": Mutation(ItoDiffusion, "divergence", times(0)),
    "∇·Ψ doubled": Mutation(ItoDiffusion, "divergence", times(2)),
    "reversed drift = 0": Mutation(ItoDiffusion, "reverse_drift", times(0)),
    "reversed drift with b of the wrong sign": Mutation(ItoDiffusion, "reverse_drift", forward_drift),
    "flow drift = 0": Mutation(ItoDiffusion, "flow_drift", times(0)),
    # the lemmas of the theorem on projection
    "(β⁻¹I + A*A)⁻¹ = 0": Mutation(projection, "block_inverse", times(0)),
    "(β⁻¹I + A*A)⁻¹ doubled": Mutation(projection, "block_inverse", times(2)),
    "(β⁻¹I + A*A)⁻¹ without β⁻¹": Mutation(
        projection, "block_inverse", lambda right: lambda codes, beta: right(codes, math.inf)
    ),
    "Ξ_k = 0": Mutation(projection, "perturbation", noise_terms(lambda noise, rest: 0 * rest)),
    "Ξ_k doubled": Mutation(projection, "perturbation", noise_terms(lambda noise, rest: 2 * rest)),
    "Ξ_k without its cross terms": Mutation(
        projection, "perturbation", noise_terms(lambda noise, rest: noise @ noise.mT)
    ),
    "tail of ‖M‖ = 0": Mutation(concentration, "gaussian_tail", times(0)),
    "tail of ‖M‖ with C₂ = ½": Mutation(concentration, "gaussian_tail", half_constant),
    "tail of ‖M‖ without x": Mutation(
        concentration, "gaussian_tail", lambda right: lambda q, n, scale, s: right(q, n, scale**2, s)
    ),
    "tail of ‖M*M − qx²I‖ = 0": Mutation(concentration, "covariance_tail", times(0)),
    "tail of ‖M*M − qx²I‖ with C₃ = ¼": Mutation(concentration, "covariance_tail", quarter_constant),
    "tail of ‖Δ‖ = 0": Mutation(concentration, "noise_tail", times(0)),
    "tail of ‖A_k‖ = 0": Mutation(concentration, "codes_tail", times(0)),
    "tail of ‖A_k*A_k − I‖ = 0": Mutation(concentration, "gram_tail", times(0)),
    "noise without 1/√d": Mutation(projection, "draw_tokens", scaled("noise", lambda sizes: math.sqrt(sizes.d))),
    "codes without 1/√p": Mutation(projection, "draw_tokens", scaled("clean", lambda sizes: math.sqrt(sizes.p))),
    "assumptions always satisfied": Mutation(
        projection, "broken_assumptions", lambda right: lambda sizes, gram=1.0: []
    ),
    "β = 0": Mutation(MixtureSizes, "beta", lambda right: property(lambda self: 0.0)),
    "β without ε²": Mutation(MixtureSizes, "beta", lambda right: property(lambda self: self.p / self.n)),
    # the theorem on projection
    "P(Δ) = 0": Mutation(projection, "projected_noise", times(0)),
    "P(Δ) = Δ": Mutation(projection, "projected_noise", lambda right: lambda tokens: tokens.noise),
    "shrinkage halved": Mutation(projection, "main_term", half_shrinkage),
    "good event always": Mutation(projection, "event_constants", lambda right: lambda tokens: (0.0, 0.0, 0.0)),
    "good event fails as 1/n": Mutation(projection, "event_constants", fails_as_one_over_n),
    "C₁ = ¼": Mutation(projection, "deviation", times(0.25)),
    "C₁ = 0": Mutation(projection, "deviation", times(0)),
    "C₁ = 4": Mutation(projection, "deviation", times(4)),
    "the remark's ε² doubled": Mutation(projection, "optimal_eps", times(2**0.5)),
    "the remark's ε² without K": Mutation(
        projection, "optimal_eps", lambda right: lambda count, *sizes: right(count, *sizes) * count**0.5
    ),
    "the remark's bound without its last term": Mutation(
        projection,
        "remark_bound",
        lambda right: lambda m: right(m) - m.n / m.d * m.K**2 * (m.sigma + math.sqrt(m.n / m.d)) * m.eps**2,
    ),
}


def apply(mutation: Mutation, monkeypatch: Any) -> None:
    """Put the wrong function in the place of the right one, everywhere."""
    right = getattr(mutation.owner, mutation.name)
    wrong = mutation.wrap(right)
    if isinstance(mutation.owner, type):
        monkeypatch.setattr(mutation.owner, mutation.name, wrong)
        return
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "codingrate":
            for attribute, value in list(vars(module).items()):
                if value is right:
                    monkeypatch.setattr(module, attribute, wrong)
