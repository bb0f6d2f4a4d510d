from .autoencoder import CrateForMaskedAutoencoding
from .base import CrateModel, CratePreTrainedModel, CrateTextModel, eval_mode
from .classifier import CrateForImageClassification
from .config import CrateConfig, CrateImageConfig, CrateTextConfig
from .distillation import CrateForSelfDistillation
from .language import CrateForCausalLM, CrateForMaskedLM, CrateForSequenceClassification
from .loading import load_model, transfer_body
from .presets import build_config, create_model, list_models
from .pretrained import pretrained_folder, pretrained_names
from .quantization import quantize
from .released import load_released
from .twins import from_transformers

__all__ = [
    "CrateConfig", "CrateForCausalLM", "CrateForImageClassification", "CrateForMaskedAutoencoding", "CrateForMaskedLM",
    "CrateForSelfDistillation", "CrateForSequenceClassification", "CrateImageConfig", "CrateModel",
    "CratePreTrainedModel", "CrateTextConfig", "CrateTextModel", "build_config", "create_model", "eval_mode",
    "from_transformers", "list_models", "load_model", "load_released", "pretrained_folder", "pretrained_names",
    "quantize", "transfer_body",
]  # fmt: skip
