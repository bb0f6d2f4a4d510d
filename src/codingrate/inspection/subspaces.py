"""How far apart the learned subspaces U_1 … U_K of a layer lie, and the atoms of its dictionary D (paper 4.2)."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from .. import objective
from ..models.base import CrateModel, CratePreTrainedModel
from ..models.layers import EncoderLayer
from ..operators import orthogonality_gap
from .trace import bases_of, dictionary_of

if TYPE_CHECKING:
    import pandas as pd

DIRECTIONS = 4
"""Columns of each U_k that are drawn, as in the paper's figure."""
SEED = 0


def gram(bases: Tensor) -> Tensor:
    """[U_1 … U_K]ᵀ[U_1 … U_K] of bases (K, d, p), columns scaled to length one: cosines (K·p, K·p) (paper 4.2).

    Block (k, l) is U_kᵀU_l. A column of zeros stays one.
    """
    columns = _working(bases).transpose(0, 1).flatten(1)  # (d, K·p)
    unit = torch.nn.functional.normalize(columns, dim=0)
    return unit.mT @ unit


def random_directions(bases: Tensor, count: int = DIRECTIONS, seed: int = SEED) -> Tensor:
    """`count` columns of each U_k at random, (K, d, count), the same for the same seed; all where p is no more."""
    K, _, p = bases.shape
    if p <= count:
        return bases
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.stack([torch.randperm(p, generator=draw)[:count].sort().values for _ in range(K)])
    return torch.stack([basis[:, columns] for basis, columns in zip(bases, chosen.to(bases.device), strict=True)])


def principal_cosines(bases: Tensor) -> Tensor:
    """cos θ_1 ≥ … ≥ cos θ_m between every two subspaces, (K(K − 1)/2, m) with m = min(p, d), pairs in order k < l.

    θ are the principal angles: cos θ are the singular values of Q_kᵀQ_l, Q_k an orthonormal basis of U_k's columns.
    They do not change with the basis of a subspace, as the entries of `gram` do. A direction that a U_k of lower rank
    lacks counts as orthogonal to all others.
    """
    frames = _frames(_working(bases))  # (K, d, m)
    joined = frames.transpose(0, 1).flatten(1)
    return torch.linalg.svdvals(_across(joined.mT @ joined, len(frames))).clamp(max=1)


def random_mean_cosine(d: int) -> float:
    """E|⟨u, v⟩| = Γ(d/2) / (√π Γ((d + 1)/2)) of independent uniform unit vectors of R^d, exact; ≈ √(2/(πd))."""
    return math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2)) / math.sqrt(math.pi)


@torch.no_grad()
def subspace_coherence(model: CratePreTrainedModel) -> pd.DataFrame:
    """How coherent the subspaces and the dictionary of each encoder layer are, a row per layer.

    - `across_mean`, `across_max`: |entries| of `gram` between columns of different heads; `within_mean`, `within_max`
      between two columns of one head.
    - `cosine_max`, `cosine_mean`: the largest and the mean of the `principal_cosines` of two heads, averaged over pairs
      of heads; `angle_min`: the smallest principal angle of all, in degrees.
    - `dictionary_mean`, `dictionary_max`: |⟨d_i, d_j⟩|, i ≠ j, of D's columns scaled to length one, the largest being
      D's mutual coherence; `dictionary_gap`: ‖DᵀD − I‖_F/√m for its m columns as they are.
    - `random`: mean |cosine| of independent random directions (exact); `random_cosine_max`, `random_cosine_mean`: the
      principal cosines of K random subspaces of the same sizes, one draw of a fixed seed. Subspaces of p > d/2 meet,
      and even random ones of p = d/3 come within 20° of each other, so that no angle says anything without these.

    Not a number where a layer has no subspaces (`mhsa`), no dictionary (`mlp`), or a single head or column.
    """
    import pandas as pd

    rows = []
    for number, layer in enumerate(_layers(model), 1):
        bases, dictionary = bases_of(layer), dictionary_of(layer)
        row = {"layer": float(number), **_of_bases(bases), **_of_dictionary(dictionary)}
        row["random"] = random_mean_cosine(model.config.hidden_size)
        rows.append({**row, **_at_random(bases)})
    return pd.DataFrame(rows).astype({"layer": int})


def layer_bases(model: CratePreTrainedModel) -> list[Tensor | None]:
    """The bases of every encoder layer."""
    return [bases_of(layer) for layer in _layers(model)]


def _layers(model: CratePreTrainedModel) -> list[EncoderLayer]:
    return [cast(EncoderLayer, layer) for layer in cast(CrateModel, model.base_model).layers]


def _of_bases(bases: Tensor | None) -> dict[str, float]:
    names = ("across_mean", "across_max", "within_mean", "within_max", "cosine_max", "cosine_mean", "angle_min")
    if bases is None:
        return dict.fromkeys(names, math.nan)
    size, K = gram(bases).abs(), len(bases)
    across, within, cosines = _across(size, K), _within(size, K), principal_cosines(bases)
    angle = math.degrees(math.acos(_max(cosines))) if cosines.numel() else math.nan
    values = (*_mean_max(across), *_mean_max(within), *_cosines(cosines), angle)
    return dict(zip(names, values, strict=True))


def _of_dictionary(dictionary: Tensor | None) -> dict[str, float]:
    names = ("dictionary_mean", "dictionary_max", "dictionary_gap")
    if dictionary is None:
        return dict.fromkeys(names, math.nan)
    gap = float(orthogonality_gap(dictionary)) / math.sqrt(dictionary.shape[1])
    others = _within(gram(dictionary[None]).abs(), 1)
    return dict(zip(names, (*_mean_max(others), gap), strict=True))


def _at_random(bases: Tensor | None) -> dict[str, float]:
    names = ("random_cosine_max", "random_cosine_mean")
    values = (math.nan, math.nan) if bases is None else _random_cosines(*bases.shape)
    return dict(zip(names, values, strict=True))


@cache  # every layer of a model has the same sizes
def _random_cosines(K: int, d: int, p: int) -> tuple[float, float]:  # noqa: N803 - the paper's letter
    drawn = objective.random_bases(K, d, min(p, d), "incoherent", torch.Generator().manual_seed(SEED))
    return _cosines(principal_cosines(drawn))


def _cosines(cosines: Tensor) -> tuple[float, float]:
    """Mean over pairs of the largest and of the mean principal cosine."""
    return float(cosines[:, 0].mean()), float(cosines.mean())


def _blocks(square: Tensor, K: int) -> Tensor:  # noqa: N803 - the paper's letter
    """The K × K blocks (K, K, m, m) of a matrix (K·m, K·m)."""
    return square.unflatten(1, (K, -1)).unflatten(0, (K, -1)).transpose(1, 2)


def _across(square: Tensor, K: int) -> Tensor:  # noqa: N803 - the paper's letter
    """Blocks (k, l), k < l, of a symmetric matrix, (K(K − 1)/2, m, m)."""
    first, second = torch.triu_indices(K, K, 1)
    return _blocks(square, K)[first, second]


def _within(square: Tensor, K: int) -> Tensor:  # noqa: N803 - the paper's letter
    """Entries above the diagonal of the blocks (k, k), (K, m(m − 1)/2)."""
    diagonal = _blocks(square, K).diagonal(dim1=0, dim2=1)  # (m, m, K)
    first, second = torch.triu_indices(len(diagonal), len(diagonal), 1)
    return diagonal[first, second].mT


def _mean_max(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), _max(values)


def _max(values: Tensor) -> float:
    return float(values.max()) if values.numel() else math.nan


def _working(bases: Tensor) -> Tensor:
    return bases.float() if bases.dtype in (torch.float16, torch.bfloat16) else bases


def _frames(bases: Tensor) -> Tensor:
    """Orthonormal bases of the columns' spans, (K, d, min(p, d)), with zeros for what the rank lacks."""
    frames, upper = torch.linalg.qr(bases)
    rounding = max(bases.shape[1:]) * torch.finfo(bases.dtype).eps
    pivots = upper.diagonal(dim1=-2, dim2=-1).abs()
    if bool((pivots > rounding * torch.linalg.matrix_norm(upper)[:, None]).all()):
        return frames
    left, sigma, _ = torch.linalg.svd(upper, full_matrices=False)
    return frames @ left * (sigma > rounding * sigma[:, :1])[:, None]
