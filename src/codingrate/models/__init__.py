"""Models: configuration, embeddings, layers f^ℓ and g^ℓ, task models, presets, loading and importing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from .autoencoder import CrateForMaskedAutoencoding
    from .base import CrateModel, CratePreTrainedModel, eval_mode
    from .classifier import CrateForImageClassification
    from .config import CrateConfig
    from .distillation import CrateForSelfDistillation
    from .language import CrateForCausalLM, CrateForMaskedLM, CrateForSequenceClassification
    from .loading import load_model, transfer_body
    from .presets import build_config, create_model, list_models
    from .released import load_released

__all__ = [
    "CrateConfig", "CrateForCausalLM", "CrateForImageClassification", "CrateForMaskedAutoencoding", "CrateForMaskedLM",
    "CrateForSelfDistillation", "CrateForSequenceClassification", "CrateModel", "CratePreTrainedModel", "build_config",
    "create_model", "eval_mode", "list_models", "load_model", "load_released", "transfer_body",
]  # fmt: skip

_HOMES = {
    "autoencoder": ("CrateForMaskedAutoencoding",),
    "base": ("CrateModel", "CratePreTrainedModel", "eval_mode"),
    "classifier": ("CrateForImageClassification",),
    "config": ("CrateConfig",),
    "distillation": ("CrateForSelfDistillation",),
    "language": ("CrateForCausalLM", "CrateForMaskedLM", "CrateForSequenceClassification"),
    "loading": ("load_model", "transfer_body"),
    "presets": ("build_config", "create_model", "list_models"),
    "released": ("load_released",),
}
__getattr__, __dir__ = _lazy.attach(__name__, {name: home for home, names in _HOMES.items() for name in names})
