"""Inspection: what a forward pass went through, and how each layer measures up to the objective."""

from .layerwise import layerwise
from .trace import ForwardTrace, trace

__all__ = ["ForwardTrace", "layerwise", "trace"]
