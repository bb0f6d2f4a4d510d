"""Inspection: what a forward pass went through, how each layer measures up to the objective, and what can be seen."""

from .across import across_training, read_metrics
from .attention_maps import attention_maps
from .heads import HeadCatalogue, head_catalogue
from .layerwise import layerwise
from .lens import candidates, lens
from .maskcut import Cut, maskcut
from .panel import Panel
from .projections import projections
from .segment import Segment, segment
from .subspaces import principal_cosines, subspace_coherence
from .token_attention import token_attention
from .tokens import pca_colors, token_heat
from .trace import ForwardTrace, trace
from .units import Units, units

__all__ = [
    "Cut",
    "ForwardTrace",
    "HeadCatalogue",
    "Panel",
    "Segment",
    "Units",
    "across_training",
    "attention_maps",
    "candidates",
    "head_catalogue",
    "layerwise",
    "lens",
    "maskcut",
    "pca_colors",
    "principal_cosines",
    "projections",
    "read_metrics",
    "segment",
    "subspace_coherence",
    "token_attention",
    "token_heat",
    "trace",
    "units",
]
