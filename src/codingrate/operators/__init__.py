"""Operators: attention that compresses tokens, sparsifiers that sparsify them, each chosen by name."""

from .attention import MHSA, MSSA, SubspaceAttention, TiedMSSA, visible_pairs
from .orthogonality import orthogonality_gap, orthonormal_columns
from .output import OutputMap
from .registry import (
    ATTENTION,
    SPARSIFIERS,
    Attention,
    AttentionSpec,
    Past,
    Registry,
    Sparsifier,
    SparsifierSpec,
)
from .sparsify import (
    ISTA,
    MLP,
    DictionarySparsifier,
    Keep,
    OvercompleteDictionary,
    ProximalStep,
    SoftISTA,
)
from .tssa import TSSA

__all__ = [
    "ATTENTION",
    "ISTA",
    "MHSA",
    "MLP",
    "MSSA",
    "SPARSIFIERS",
    "TSSA",
    "Attention",
    "AttentionSpec",
    "DictionarySparsifier",
    "Keep",
    "OutputMap",
    "OvercompleteDictionary",
    "Past",
    "ProximalStep",
    "Registry",
    "SoftISTA",
    "Sparsifier",
    "SparsifierSpec",
    "SubspaceAttention",
    "TiedMSSA",
    "orthogonality_gap",
    "orthonormal_columns",
    "visible_pairs",
]
