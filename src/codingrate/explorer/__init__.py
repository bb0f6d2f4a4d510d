"""Explorer: open models in the browser, look at every layer, change a part and see what follows."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
