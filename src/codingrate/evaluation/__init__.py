"""Evaluation beyond a task's own metrics: probes, baselines, COCO and VOC objects, ReaL labels, language models."""

from __future__ import annotations

from .._lazy import names_of_stub

__getattr__, __dir__, __all__ = names_of_stub(__name__, __file__)
