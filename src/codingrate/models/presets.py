"""Models by name: every model of the paper, CRATE-alpha, and the black-box twins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import CrateError, unknown_name

if TYPE_CHECKING:
    from .base import CratePreTrainedModel


@dataclass(frozen=True)
class Preset:
    """A model class by name, the config fields that make it, and where it comes from."""

    model: str
    fields: Mapping[str, Any] = field(repr=False)
    source: str = ""


_SIZES = {  # name: (width d, layers L, heads K)
    "tiny": (384, 12, 6),
    "small": (576, 12, 12),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
}
BLACK_BOX: Mapping[str, Any] = MappingProxyType({"attention": "mhsa", "sparsifier": "mlp", "skip": "residual"})
"""What makes a black-box twin of a model."""
_RELEASED_MAE = {
    "class_token": True,
    "positions": "sinusoidal",
    "mask_space": "embedding",
    "subtract_positions": False,
    "loss_on": "masked",
    "final_norm": True,
    "head_norm_eps": 1e-6,
    "sparsity": 0.5,
    "skip": "residual",
}
"""What the released CRATE-MAE has in place of the paper's form."""


def _body(width: int, layers: int, heads: int) -> dict[str, int]:
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}


def _presets() -> dict[str, Preset]:
    presets: dict[str, Preset] = {}

    def add(name: str, model: str, source: str, **fields: Any) -> None:
        presets[name] = Preset(model, MappingProxyType(fields), source)

    image, autoencoder = "CrateForImageClassification", "CrateForMaskedAutoencoding"
    for size, shape in _SIZES.items():
        add(f"crate-{size}-patch16-224", image, "paper 4.1.1", **_body(*shape), num_labels=1000)
    for size, width, heads in (("tiny", 192, 3), ("small", 384, 6), ("base", 768, 12)):
        add(
            f"crate-{size}-patch8-224-in21k", image, "paper, appendix C (ImageNet-21K)",
            **_body(width, 12, heads), patch_size=8, num_labels=21842,
        )  # fmt: skip
    mae = {"class_token": False, "patch_norm": False, "pooling": "mean", "initializer": "xavier"}
    for size in ("small", "base", "large"):
        width, _, heads = _SIZES[size]
        add(f"crate-mae-{size}", autoencoder, "paper 4.1.2", **_body(width, 12, heads), **mae)
    for size, patch in (("small", 16), ("base", 8)):
        add(f"crate-dino-{size}-patch{patch}", image, "paper 4.1.3 (body; features, no classes)",
            **_body(*_SIZES[size]), patch_size=patch, num_labels=0)  # fmt: skip
    bert = {
        "modality": "text", "positions": "sinusoidal", "max_position_embeddings": 514, "type_vocab_size": 1,
        "embedding_norm": True, "prediction_transform": True, "vocab_size": 50265, "pad_token_id": 1,
        "initializer": "normal",
    }  # fmt: skip
    for size, shape in {"medium": (512, 8, 8), "base": (768, 12, 12), "large": (1024, 24, 16)}.items():
        add(f"crate-bert-{size}", "CrateForMaskedLM", "paper 4.1.4", **_body(*shape), **bert)
    gpt = {
        "modality": "text", "positions": "sinusoidal", "max_position_embeddings": 1024, "vocab_size": 50304,
        "causal": True, "final_norm": True, "initializer": "normal", "scaled_output_init": True,
        "bos_token_id": 50256, "eos_token_id": 50256,
    }  # fmt: skip
    for size, shape in {"small": (512, 12, 8), "base": (768, 12, 12), "large": (1280, 36, 20)}.items():
        add(f"crate-gpt-{size}", "CrateForCausalLM", "paper 4.1.4", **_body(*shape), **gpt)
    alpha = {
        "sparsifier": "odl", "skip": "residual", "output_bias": False, "patch_norm": False, "layer_norm_eps": 1e-6,
        "num_labels": 1000,
    }  # fmt: skip
    for name, size, patch in (
        ("base-patch16", "base", 16), ("base-patch8", "base", 8),
        ("large-patch14", "large", 14), ("large-patch8", "large", 8),
    ):  # fmt: skip
        add(
            f"crate-alpha-{name}",
            image,
            "CRATE-alpha release",
            **_body(*_SIZES[size]),
            patch_size=patch,
            **alpha,
        )

    vit = {
        **BLACK_BOX,
        "patch_norm": False,
        "num_labels": 1000,
        "layer_norm_eps": 1e-6,
        "head_norm_eps": 1e-6,
    }
    # The paper's ViT-B count is the one without bias in the projections, its T and S counts are with it.
    for size, shape, bias in (
        ("tiny", (192, 12, 3), True), ("small", (384, 12, 6), True),
        ("base", (768, 12, 12), False), ("large", (1024, 24, 16), True),
    ):  # fmt: skip
        add(f"vit-{size}-patch16-224", image, "black-box twin", **_body(*shape), **vit, projection_bias=bias)
    add(
        "vit-mae-base", autoencoder, "black-box twin",
        **_body(768, 12, 12), **{**mae, **_RELEASED_MAE, **BLACK_BOX, "mask_space": "drop"},
        decoder_type="forward", decoder_layers=8, layer_norm_eps=1e-6,
    )  # fmt: skip
    add("bert-base", "CrateForMaskedLM", "black-box twin", **_body(768, 12, 12), **BLACK_BOX,
        **{**bert, "positions": "learned"}, projection_bias=True)  # fmt: skip
    add("gpt2-base", "CrateForCausalLM", "black-box twin", **_body(768, 12, 12), **BLACK_BOX,
        **{**gpt, "positions": "learned", "vocab_size": 50257}, projection_bias=True)  # fmt: skip
    return presets


PRESETS: Mapping[str, Preset] = MappingProxyType(_presets())
RELEASED_MAE: Mapping[str, Any] = MappingProxyType(_RELEASED_MAE)


def list_models(pattern: str = "*") -> list[str]:
    """Names of the presets that match a shell pattern such as `crate-*`, sorted."""
    return sorted(name for name in PRESETS if fnmatchcase(name, pattern))


def preset(name: str) -> Preset:
    """The preset called `name`; an unknown one is refused with the nearest known name."""
    if name not in PRESETS:
        raise unknown_name("model", name, PRESETS)
    return PRESETS[name]


def create_model(name: str, **overrides: Any) -> CratePreTrainedModel:
    """The model called `name` with random weights; keywords override config fields.

    `create_model("crate-tiny-patch16-224", sparsifier="none", image_size=96, num_labels=10)`
    """
    from .. import models

    entry = preset(name)
    words = overrides.get("vocab_size")
    fields = {  # a vocabulary of one's own has other special ids
        key: value
        for key, value in entry.fields.items()
        if not (key.endswith("_token_id") and isinstance(words, int) and value >= words)
    }
    config = build_config({**fields, **overrides})
    model: CratePreTrainedModel = getattr(models, entry.model)(config)
    return model


def build_config(fields: Mapping[str, Any]) -> Any:
    """A config from fields; an unknown field or a value of the wrong kind is refused in one line."""
    from huggingface_hub.errors import StrictDataclassError

    from .config import CrateConfig

    known = [*CrateConfig.field_names(), "num_labels"]
    for key in fields:
        if key not in known:
            raise unknown_name("config field", key, known)
    try:
        return CrateConfig(**fields)
    except StrictDataclassError as error:
        raise CrateError(" ".join(str(error).split())) from error
