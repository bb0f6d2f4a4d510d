"""Every family with every attention, beside a ViT and a GPT-2 of transformers as controls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, ViTConfig, ViTForImageClassification

from codingrate.models import CrateForSelfDistillation, CrateModel

from .. import toys

ATTENTION = ("mssa", "mssa-tied", "tssa", "rate-gradient", "mhsa")
CACHED = ("mssa", "mssa-tied", "mhsa")
FAMILIES = (*toys.TASKS, "text-body", "self-distillation")
VISION = ("body", "image-classification", "masked-autoencoding", "self-distillation")
TEXT = ("masked-lm", "sequence-classification", "causal-lm", "text-body")
CONTROLS = {"vit": "image-classification", "gpt2": "causal-lm"}  # model of transformers: the family that it resembles


def cases(*families: str, attention: tuple[str, ...] = ATTENTION, controls: bool = True, costly: bool = False) -> Any:
    """Parametrize a test by family and attention, and by the controls of these families.

    Of a `costly` test only a cover runs quickly: every family with the first attention, every other attention with one
    family of images or of texts in turn, and the controls. The other pairs are slow tests.
    """
    both = [next((name for name in families if name in kind), None) for kind in (VISION, TEXT)]
    pairs = []
    for family in families:
        for index, name in enumerate(attention):
            quick = not costly or index == 0 or family == both[index % 2]
            pairs.append(pytest.param(family, name, id=f"{family}-{name}", marks=() if quick else pytest.mark.slow))
    for name, family in CONTROLS.items():
        if controls and family in families:
            pairs.append(pytest.param(name, "control", id=f"{name}-control"))
    return pytest.mark.parametrize(("family", "attention"), pairs)


def build(family: str, attention: str, **fields: Any) -> Any:
    """Build a tiny model in eval mode; fields are those of our config and have the same names in the controls."""
    torch.manual_seed(7)
    if family == "vit":
        sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 24}
        config = {**sizes, "image_size": (21, 14), "patch_size": 7, "num_labels": 5, "initializer_range": 0.5, **fields}
        return ViTForImageClassification(ViTConfig(**config)).eval()
    if family == "gpt2":
        sizes = {"n_embd": 14, "n_layer": 2, "n_head": 2, "n_positions": 13, "vocab_size": 29, "initializer_range": 0.5}
        dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
        return GPT2LMHeadModel(GPT2Config(**{**sizes, **dropout, **ids, **fields})).eval()
    fields["attention"] = attention
    if family == "text-body":
        return CrateModel(toys.causal(**fields)).eval()
    if family == "self-distillation":
        head = {"projection_hidden": 11, "projection_bottleneck": 5, "prototypes": 17}
        return CrateForSelfDistillation(toys.vision(**head, **fields)).eval()
    return toys.build(family, **fields).eval()


def inputs(family: str, batch: int = toys.BATCH) -> dict[str, Tensor]:
    """Return what a model of the family reads, with labels if it takes any; rows repeat beyond three."""
    torch.manual_seed(11)
    name = {"text-body": "causal-lm", "self-distillation": "body"}.get(family, CONTROLS.get(family, family))
    rows = torch.arange(batch) % toys.BATCH
    given = {key: value[rows] for key, value in toys.inputs(name).items()}
    if family == "text-body":
        del given["labels"]
    return given


def output(model: Any, given: dict[str, Any]) -> Tensor:
    """Return logits, reconstruction or tokens."""
    return toys.main_output(model(**given))


def loss(model: Any, family: str, given: dict[str, Any]) -> Tensor:
    """Return a loss that trains the model, also for a body and for self-distillation."""
    if family == "self-distillation":
        views = given["pixel_values"]
        return model(views=[torch.stack([views, views.flip(-1)])]).loss
    result = model(**given)
    return result.last_hidden_state.square().mean() if family.endswith("body") else result.loss
