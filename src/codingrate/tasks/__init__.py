"""Tasks: one file per kind of learning. A recipe names its task; `open_task` builds it."""

from __future__ import annotations

from .._lazy import names_of_stub

__getattr__, __dir__, __all__ = names_of_stub(__name__, __file__)
