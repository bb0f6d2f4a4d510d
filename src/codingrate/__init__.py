"""White-box transformers via sparse rate reduction.

`codingrate.objective` measures, `codingrate.operators` compress and sparsify, `codingrate.models` stack them. `train`
trains a model by a recipe, and `Run` opens a trained one to evaluate, predict and look inside.

Names load what they need on first use, so that importing the package takes almost no time; `__init__.pyi` lists them.
"""

from __future__ import annotations

from . import _auto
from ._lazy import names_of_stub

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = names_of_stub(__name__, __file__)

_auto.register_when_imported()
