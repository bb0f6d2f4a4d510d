"""White-box transformers via sparse rate reduction.

`codingrate.objective` measures, `codingrate.operators` compress and sparsify, `codingrate.models` stack them.
Names below load what they need on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _auto, _lazy
from .errors import CrateError

if TYPE_CHECKING:
    from . import inspection, models, objective, operators
    from .models import (
        CrateConfig,
        CrateForCausalLM,
        CrateForImageClassification,
        CrateForMaskedAutoencoding,
        CrateForMaskedLM,
        CrateForSelfDistillation,
        CrateForSequenceClassification,
        CrateModel,
        create_model,
        list_models,
        load_released,
    )

__version__ = "0.1.0"

__all__ = [
    "CrateConfig",
    "CrateError",
    "CrateForCausalLM",
    "CrateForImageClassification",
    "CrateForMaskedAutoencoding",
    "CrateForMaskedLM",
    "CrateForSelfDistillation",
    "CrateForSequenceClassification",
    "CrateModel",
    "create_model",
    "inspection",
    "list_models",
    "load_released",
    "models",
    "objective",
    "operators",
]

_ROOMS = ("inspection", "models", "objective", "operators")
__getattr__, __dir__ = _lazy.attach(__name__, {name: name if name in _ROOMS else "models" for name in __all__})

_auto.register_when_imported()
