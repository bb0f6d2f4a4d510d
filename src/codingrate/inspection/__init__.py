"""Inspection: what a forward pass went through, and how each layer measures up to the objective."""

from .across import across_training, read_metrics
from .layerwise import layerwise
from .trace import ForwardTrace, trace

__all__ = ["ForwardTrace", "across_training", "layerwise", "read_metrics", "trace"]
