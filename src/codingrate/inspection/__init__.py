"""Inspection: trace a forward pass, measure every layer against the objective, find objects, and write a report."""

from __future__ import annotations

from .._lazy import names_of_stub

__getattr__, __dir__, __all__ = names_of_stub(__name__, __file__)
