"""Models of every task small enough to check by hand, and inputs for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codingrate.models import (
    CrateConfig,
    CrateForCausalLM,
    CrateForImageClassification,
    CrateForMaskedAutoencoding,
    CrateForMaskedLM,
    CrateForSequenceClassification,
    CrateModel,
    presets,
)

BATCH, LENGTH = 3, 11


def vision(**fields: Any) -> CrateConfig:
    """3 × 2 patches of side 7, d = 3 · 5."""
    base = {
        "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3,
        "image_size": [21, 14], "patch_size": 7, "num_labels": 5,
    }  # fmt: skip
    return CrateConfig(**{**base, **fields})


def autoencoding(**fields: Any) -> CrateConfig:
    """The paper's form; d = 3 · 4 so that sinusoids fit as well."""
    base = {"hidden_size": 12, "class_token": False, "patch_norm": False, "pooling": "mean", "initializer": "xavier"}
    return vision(**{**base, **fields})


def released_autoencoding(**fields: Any) -> CrateConfig:
    return autoencoding(**{**presets.RELEASED_MAE, **fields})


def text(**fields: Any) -> CrateConfig:
    """29 words, 13 positions, d = 2 · 7, in the frame of the masked language model."""
    base = {
        "modality": "text", "hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 2,
        "vocab_size": 29, "max_position_embeddings": 13, "positions": "sinusoidal", "type_vocab_size": 2,
        "embedding_norm": True, "prediction_transform": True, "initializer": "normal", "initializer_range": 0.5,
        "num_labels": 3, "pad_token_id": 1,
    }  # fmt: skip
    return CrateConfig(**{**base, **fields})


def causal(**fields: Any) -> CrateConfig:
    base = {"causal": True, "final_norm": True, "embedding_norm": False, "prediction_transform": False}
    return text(**{**base, "type_vocab_size": 0, "pad_token_id": None, **fields})


TASKS = {
    "body": (CrateModel, vision),
    "image-classification": (CrateForImageClassification, vision),
    "masked-autoencoding": (CrateForMaskedAutoencoding, autoencoding),
    "masked-lm": (CrateForMaskedLM, text),
    "sequence-classification": (CrateForSequenceClassification, text),
    "causal-lm": (CrateForCausalLM, causal),
}


def build(task: str, **fields: Any) -> Any:
    model, config = TASKS[task]
    return model(config(**fields))


def pixels(batch: int = BATCH, dtype: torch.dtype = torch.float32, height: int = 21, width: int = 14) -> Tensor:
    return torch.randn(batch, 3, height, width, dtype=torch.float64).to(dtype)


def patch_mask() -> Tensor:
    """Of six patches four, four and four are removed, other ones in every image."""
    return torch.tensor([[1, 1, 0, 1, 0, 1], [0, 1, 1, 1, 1, 0], [1, 0, 1, 0, 1, 1]]).bool()


def inputs(task: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """What the task's model reads, labels included."""
    ids = torch.randint(2, 29, (BATCH, LENGTH))
    match task:
        case "body":
            return {"pixel_values": pixels(dtype=dtype)}
        case "image-classification":
            return {"pixel_values": pixels(dtype=dtype), "labels": torch.tensor([4, 0, 2])}
        case "masked-autoencoding":
            return {"pixel_values": pixels(dtype=dtype), "mask": patch_mask()}
        case "sequence-classification":
            return {"input_ids": ids, "labels": torch.tensor([2, 0, 1])}
        case _:
            return {"input_ids": ids, "labels": ids.clone()}


def main_output(output: Any) -> Tensor:
    """Logits, reconstruction or tokens."""
    for name in ("logits", "reconstruction", "last_hidden_state"):
        if name in output:
            return output[name]
    raise AssertionError(f"no output among {list(output)}")
