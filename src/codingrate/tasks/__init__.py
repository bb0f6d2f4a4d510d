"""Tasks: one file per kind of learning. A recipe names its task; `open_task` builds it."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
