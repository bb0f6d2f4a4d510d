"""Operators: attention that compresses tokens and sparsifiers that sparsify them, each chosen by name."""

from ..objective.signal import orthogonality_gap, orthonormal_columns
from .attention import (
    MHSA,
    MSSA,
    TSSA,
    NegativeMSSA,
    RateGradient,
    SubspaceAttention,
    TiedMSSA,
    TransposedMSSA,
    attention_mask,
    count_tokens,
)
from .registry import (
    ATTENTION,
    SPARSIFIERS,
    Attention,
    KeyValueCache,
    OutputProjection,
    Registry,
    Sparsifier,
)
from .sparsify import ISTA, MLP, DictionarySparsifier, Identity, OvercompleteDictionary, ProximalStep, SoftISTA

__all__ = [
    "ATTENTION", "ISTA", "MHSA", "MLP", "MSSA", "SPARSIFIERS", "TSSA", "Attention", "DictionarySparsifier", "Identity",
    "KeyValueCache", "NegativeMSSA", "OutputProjection", "OvercompleteDictionary", "ProximalStep", "RateGradient",
    "Registry", "SoftISTA", "Sparsifier", "SubspaceAttention", "TiedMSSA", "TransposedMSSA", "attention_mask",
    "count_tokens", "orthogonality_gap", "orthonormal_columns",
]  # fmt: skip
