"""Explorer: open models in the browser, look at every layer, change a part and see what follows."""

from __future__ import annotations

from .._lazy import names_of_stub

__getattr__, __dir__, __all__ = names_of_stub(__name__, __file__)
