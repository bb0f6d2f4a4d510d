"""Models: configuration, embeddings, layers f^ℓ and g^ℓ, task models, presets, released checkpoints."""

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
    "CrateConfig",
    "CrateForCausalLM",
    "CrateForImageClassification",
    "CrateForMaskedAutoencoding",
    "CrateForMaskedLM",
    "CrateForSelfDistillation",
    "CrateForSequenceClassification",
    "CrateModel",
    "CratePreTrainedModel",
    "build_config",
    "create_model",
    "eval_mode",
    "list_models",
    "load_model",
    "load_released",
    "transfer_body",
]

__getattr__, __dir__ = _lazy.attach(
    __name__,
    {
        "CrateConfig": "config",
        "CrateForCausalLM": "language",
        "CrateForImageClassification": "classifier",
        "CrateForMaskedAutoencoding": "autoencoder",
        "CrateForMaskedLM": "language",
        "CrateForSelfDistillation": "distillation",
        "CrateForSequenceClassification": "language",
        "CrateModel": "base",
        "CratePreTrainedModel": "base",
        "build_config": "presets",
        "create_model": "presets",
        "eval_mode": "base",
        "list_models": "presets",
        "load_model": "loading",
        "load_released": "released",
        "transfer_body": "loading",
    },
)
