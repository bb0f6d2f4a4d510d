"""Coherence of the learned subspaces U_1 … U_K of a layer, and of the atoms of its dictionary D (paper 4.2)."""

from __future__ import annotations

import math
from functools import cache

import pandas as pd
import torch
from torch import Tensor

from ... import objective
from ...errors import CrateError
from ...models.base import CratePreTrainedModel
from ...operators import orthogonality_gap
from .tracing import bases_of, dictionary_of, encoder_layers

DIRECTIONS = 4  # number of columns of each U_k that are drawn, as in the paper's figure
SEED = 0
_COLUMNS = (
    "across_mean", "across_max", "within_mean", "within_max", "cosine_max", "cosine_mean", "angle_min",
    "dictionary_mean", "dictionary_max", "dictionary_gap", "random", "random_cosine_max", "random_cosine_mean",
)  # fmt: skip


def gram(bases: Tensor) -> Tensor:
    """Compute [U_1 … U_K]ᵀ[U_1 … U_K] of bases (K, d, p) with columns of length one: cosines (K·p, K·p) (paper 4.2).

    Block (k, l) is U_kᵀU_l. A column of zeros stays zero.
    """
    columns = bases.to(torch.promote_types(bases.dtype, torch.float32)).transpose(0, 1).flatten(1)  # (d, K·p)
    unit = torch.nn.functional.normalize(columns, dim=0)
    return unit.mT @ unit


def random_directions(bases: Tensor, count: int = DIRECTIONS, seed: int = SEED) -> Tensor:
    """Select `count` random columns of each U_k, (K, d, count), determined by the seed; all if p ≤ `count`."""
    p = bases.shape[-1]
    if p <= count:
        return bases
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([basis[:, torch.randperm(p, generator=generator)[:count].sort().values] for basis in bases])


def principal_cosines(bases: Tensor) -> Tensor:
    """Compute cos θ_1 ≥ … ≥ cos θ_m between any two subspaces, (K(K − 1)/2, m), m = min(p, d), pairs ordered k < l.

    θ are the principal angles: cos θ are the singular values of Q_kᵀQ_l, where Q_k is an orthonormal basis of the
    columns of U_k. Unlike the entries of `gram`, they do not depend on the basis of a subspace. If U_k has lower rank,
    each missing direction counts as orthogonal to all others.
    """
    frames = _orthonormal_frames(bases.to(torch.promote_types(bases.dtype, torch.float32)))  # (K, d, m)
    joined = frames.transpose(0, 1).flatten(1)
    blocks = (joined.mT @ joined).unflatten(1, (len(frames), -1)).unflatten(0, (len(frames), -1)).transpose(1, 2)
    first, second = torch.triu_indices(len(frames), len(frames), 1)
    return torch.linalg.svdvals(blocks[first, second]).clamp(max=1)


def random_mean_cosine(d: int) -> float:
    """Return E|⟨u, v⟩| = Γ(d/2) / (√π Γ((d + 1)/2)) ≈ √(2/(πd)) of independent uniform unit vectors of R^d."""
    return math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2)) / math.sqrt(math.pi)


def random_cosine_error(d: int, pairs: int) -> float:
    """Return the standard error of the mean |⟨u, v⟩| over pairs of random directions: √((1/d − E|⟨u, v⟩|²)/pairs)."""
    return math.sqrt(max(1 / d - random_mean_cosine(d) ** 2, 0) / max(pairs, 1))


@torch.no_grad()
def subspace_coherence(model: CratePreTrainedModel) -> pd.DataFrame:
    """Measure the coherence of the subspaces and of the dictionary of each encoder layer, with a row per layer.

    - `across_mean`, `across_max`: |entries| of `gram` between columns of different heads; `within_mean`, `within_max`:
      between two columns of one head.
    - `cosine_max`, `cosine_mean`: the largest and the mean of the `principal_cosines` of two heads, averaged over pairs
      of heads; `angle_min`: the smallest of all principal angles, in degrees.
    - `dictionary_mean`, `dictionary_max`: |⟨d_i, d_j⟩|, i ≠ j, of the columns of D scaled to length one; the largest is
      the mutual coherence of D. `dictionary_gap`: ‖DᵀD − I‖_F/√m for its m columns without scaling.
    - `random`: the exact mean |cosine| of independent random directions; `random_cosine_max`, `random_cosine_mean`: the
      principal cosines of K random subspaces of the same sizes, drawn once with a fixed seed. Subspaces with p > d/2
      intersect, and even random ones with p = d/3 come within 20° of each other, so angles need this reference.

    Entries are NaN if a layer has no subspaces (`mhsa`), no dictionary (`mlp`), or a single head or column.
    """
    rows = []
    for number, layer in enumerate(encoder_layers(model), 1):
        row: dict[str, float] = {"layer": number, "random": random_mean_cosine(model.config.hidden_size)}
        bases, dictionary = bases_of(layer), dictionary_of(layer)
        if not all(bool(weight.isfinite().all()) for weight in (bases, dictionary) if weight is not None):
            raise CrateError(f"the weights of layer {number} hold NaN or infinity; the model has diverged")
        if bases is not None:
            cosines, (across, within) = principal_cosines(bases), _cosines_of_columns(bases)
            row |= {**_mean_and_max("across", across), **_mean_and_max("within", within)}
            row["cosine_max"], row["cosine_mean"] = _mean_cosines(cosines)
            random = random_principal_cosines(*bases.shape)
            row["random_cosine_max"], row["random_cosine_mean"] = _mean_cosines(random)
            row["angle_min"] = math.degrees(math.acos(cosines.max())) if cosines.numel() else math.nan
        if dictionary is not None:
            row |= _mean_and_max("dictionary", _cosines_of_columns(dictionary[None])[1])
            row["dictionary_gap"] = float(orthogonality_gap(dictionary)) / math.sqrt(dictionary.shape[1])
        rows.append(row)
    return pd.DataFrame(rows, columns=["layer", *_COLUMNS])


@cache  # every layer of a model has the same sizes
def random_principal_cosines(K: int, d: int, p: int) -> Tensor:  # noqa: N803 - the paper's letter
    """Return the `principal_cosines` of K random subspaces, drawn with a fixed seed."""
    bases = objective.random_bases(K, d, min(p, d), "incoherent", torch.Generator().manual_seed(SEED))
    return principal_cosines(bases)


def random_principal_error(K: int, d: int, p: int) -> float:  # noqa: N803 - the paper's letter
    """Return the standard error of the largest principal cosine of random subspaces, averaged over pairs of them."""
    largest = random_principal_cosines(K, d, p)[:, 0].double()
    return float(largest.std(correction=0)) / math.sqrt(len(largest))


def _mean_cosines(cosines: Tensor) -> tuple[float, float]:
    """Return the means over pairs of the largest and of the mean principal cosine."""
    return float(cosines[:, 0].mean()), float(cosines.mean())


def _cosines_of_columns(bases: Tensor) -> tuple[Tensor, Tensor]:
    """Return the |cosine| of any two columns of different heads, and of any two columns of one head."""
    K, _, p = bases.shape
    first, second = torch.triu_indices(K * p, K * p, 1, device=bases.device)
    cosines, same = gram(bases).abs()[first, second], first // p == second // p
    return cosines[~same], cosines[same]


def _mean_and_max(name: str, values: Tensor) -> dict[str, float]:
    largest = float(values.max()) if values.numel() else math.nan
    return {f"{name}_mean": float(values.mean()), f"{name}_max": largest}


def _orthonormal_frames(bases: Tensor) -> Tensor:
    """Return orthonormal bases of the column spans, (K, d, min(p, d)), padded with zeros where the rank is lower."""
    frames, upper = torch.linalg.qr(bases)
    rounding = max(bases.shape[1:]) * torch.finfo(bases.dtype).eps
    pivots = upper.diagonal(dim1=-2, dim2=-1).abs()
    if bool((pivots > rounding * torch.linalg.matrix_norm(upper)[:, None]).all()):
        return frames
    left, sigma, _ = torch.linalg.svd(upper, full_matrices=False)
    return frames @ left * (sigma > rounding * sigma[:, :1])[:, None]
