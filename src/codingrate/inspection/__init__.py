"""Inspection: what a forward pass went through, and how each layer measures up to the objective."""

from .across import across_training, read_metrics
from .attention_maps import attention_maps
from .layerwise import layerwise
from .maskcut import Cut, maskcut
from .projections import projections
from .segment import Segment, segment
from .trace import ForwardTrace, trace

__all__ = [
    "Cut",
    "ForwardTrace",
    "Segment",
    "across_training",
    "attention_maps",
    "layerwise",
    "maskcut",
    "projections",
    "read_metrics",
    "segment",
    "trace",
]
