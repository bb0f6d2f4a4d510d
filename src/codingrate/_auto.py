"""Registration with transformers' Auto classes, done when they are first imported.

Importing transformers takes longer than importing torch's basics; a user of the objective or of `crate --help`
should not wait for it. So `import codingrate` defers the registration to the import of the Auto classes.
"""

from __future__ import annotations

from types import ModuleType

from ._lazy import AfterImport

_AUTO = "transformers.models.auto"


def register_when_imported() -> None:
    """Register config and models with the Auto classes, now if they are loaded, else as soon as they are."""
    AfterImport(
        {
            f"{_AUTO}.configuration_auto": _register_config,
            f"{_AUTO}.modeling_auto": _register_models,
            f"{_AUTO}.image_processing_auto": _register_processor,
        }
    )


def _register_config(auto: ModuleType) -> None:
    from .models.config import CrateConfig

    auto.AutoConfig.register(CrateConfig.model_type, CrateConfig, exist_ok=True)


def _register_models(auto: ModuleType) -> None:
    from . import models

    image, text = models.CrateImageConfig, models.CrateTextConfig
    for auto_name, config, model in (
        ("AutoModel", image, models.CrateModel),
        ("AutoModel", text, models.CrateTextModel),
        # of two the one that was saved, and the first where nothing was
        ("AutoModelForPreTraining", image, (models.CrateForMaskedAutoencoding, models.CrateForSelfDistillation)),
        ("AutoModelForImageClassification", image, models.CrateForImageClassification),
        ("AutoModelForMaskedLM", text, models.CrateForMaskedLM),
        ("AutoModelForSequenceClassification", text, models.CrateForSequenceClassification),
        ("AutoModelForCausalLM", text, models.CrateForCausalLM),
    ):
        getattr(auto, auto_name).register(config, model, exist_ok=True)
    # By this name transformers' Trainer knows a model whose labels it has to shift (label smoothing).
    auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[models.CrateConfig.model_type] = models.CrateForCausalLM.__name__


def _register_processor(auto: ModuleType) -> None:
    from transformers import ViTImageProcessorPil

    from .models.config import CrateImageConfig

    processors = {"pil": ViTImageProcessorPil}
    auto.AutoImageProcessor.register(CrateImageConfig, image_processor_classes=processors, exist_ok=True)
