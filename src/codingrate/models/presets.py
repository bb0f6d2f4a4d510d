"""Models by name: every model of the paper, CRATE-alpha, and the black-box twins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .._files import is_hub_id
from ..errors import CrateError, unknown_name
from .pretrained import pretrained_folder, pretrained_names

if TYPE_CHECKING:
    from .base import CratePreTrainedModel


@dataclass(frozen=True)
class Preset:
    """The name of a model class, its config fields, and the source that describes it."""

    model: str
    fields: Mapping[str, Any] = field(repr=False)
    source: str = ""


BLACK_BOX: Mapping[str, Any] = MappingProxyType({"attention": "mhsa", "sparsifier": "mlp", "skip": "residual"})
"""Config fields of a black-box twin."""
RELEASED_MAE: Mapping[str, Any] = MappingProxyType({
    "class_token": True, "positions": "sinusoidal", "mask_space": "embedding", "subtract_positions": False,
    "loss_on": "masked", "final_norm": True, "head_norm_eps": 1e-6, "sparsity": 0.5, "skip": "residual",
})  # fmt: skip
"""Config fields in which the released CRATE-MAE differs from the paper."""
ALPHA: Mapping[str, Any] = MappingProxyType({
    "sparsifier": "odl", "skip": "residual", "output_bias": False, "patch_norm": False, "layer_norm_eps": 1e-6,
})  # fmt: skip
"""Config fields of CRATE-alpha."""

_SIZES = {  # name: (width d, layers L, heads K)
    "tiny": (384, 12, 6), "small": (576, 12, 12), "base": (768, 12, 12), "large": (1024, 24, 16),
}  # fmt: skip
_BERT_SIZES = {"medium": (512, 8, 8), "base": (768, 12, 12), "large": (1024, 24, 16)}
_GPT_SIZES = {"small": (512, 12, 8), "base": (768, 12, 12), "large": (1280, 36, 20)}
_VIT_SIZES = {**_SIZES, "tiny": (192, 12, 3), "small": (384, 12, 6)}
_MAE = {"class_token": False, "patch_norm": False, "pooling": "mean", "initializer": "xavier"}
_BERT = {
    "modality": "text", "positions": "sinusoidal", "max_position_embeddings": 514, "type_vocab_size": 1,
    "embedding_norm": True, "prediction_transform": True, "vocab_size": 50265, "pad_token_id": 1,
    "initializer": "normal",
}  # fmt: skip
_GPT = {
    "modality": "text", "positions": "sinusoidal", "max_position_embeddings": 1024, "vocab_size": 50304,
    "causal": True, "final_norm": True, "initializer": "normal", "scaled_output_init": True,
    "bos_token_id": 50256, "eos_token_id": 50256,
}  # fmt: skip
_BERT_TWIN = {
    **_BERT, **BLACK_BOX, "positions": "learned", "projection_bias": True, "norm": "post",
    "max_position_embeddings": 512,
    "type_vocab_size": 2, "vocab_size": 30522, "pad_token_id": 0, "layer_norm_eps": 1e-12, "head_norm_eps": 1e-12,
}  # fmt: skip
"""Config fields of the published BERT: LayerNorm last, its own vocabulary."""
_VIT = {**BLACK_BOX, "patch_norm": False, "num_labels": 1000, "layer_norm_eps": 1e-6, "head_norm_eps": 1e-6}


def _presets() -> dict[str, Preset]:
    presets: dict[str, Preset] = {}

    def add(name: str, model: str, source: str, shape: tuple[int, int, int], **fields: Any) -> None:
        sizes = dict(zip(("hidden_size", "num_hidden_layers", "num_attention_heads"), shape, strict=True))
        presets[name] = Preset(model, MappingProxyType({**sizes, **fields}), source)

    image, autoencoder = "CrateForImageClassification", "CrateForMaskedAutoencoding"
    for size, shape in _SIZES.items():
        add(f"crate-{size}-patch16-224", image, "paper 4.1.1", shape, num_labels=1000)
    for size in ("tiny", "small", "base"):
        name, source = f"crate-{size}-patch8-224-in21k", "paper, appendix C (ImageNet-21K)"
        add(name, image, source, _VIT_SIZES[size], patch_size=8, num_labels=21842)
    for size in ("small", "base", "large"):
        width, _, heads = _SIZES[size]
        add(f"crate-mae-{size}", autoencoder, "paper 4.1.2", (width, 12, heads), **_MAE)
    for size, patch in (("small", 16), ("base", 8)):
        source = "paper 4.1.3 (body; features, no classes)"
        add(f"crate-dino-{size}-patch{patch}", image, source, _SIZES[size], patch_size=patch, num_labels=0)
    for size, shape in _BERT_SIZES.items():
        add(f"crate-bert-{size}", "CrateForMaskedLM", "paper 4.1.4", shape, **_BERT)
    for size, shape in _GPT_SIZES.items():
        add(f"crate-gpt-{size}", "CrateForCausalLM", "paper 4.1.4", shape, **_GPT)
    for size, patch in (("base", 16), ("base", 8), ("large", 14), ("large", 8)):
        name = f"crate-alpha-{size}-patch{patch}"
        add(name, image, "CRATE-alpha release", _SIZES[size], patch_size=patch, **ALPHA, num_labels=1000)

    twin = "black-box twin"
    # The paper counts ViT-B without bias in the projections, and all others with it; so does it with the MAE.
    for size, shape in _VIT_SIZES.items():
        add(f"vit-{size}-patch16-224", image, twin, shape, **_VIT, projection_bias=size != "base")
    for size in ("tiny", "small", "base"):
        fields = {**_VIT, "patch_size": 8, "num_labels": 21843, "projection_bias": True}
        add(f"vit-{size}-patch8-224-in21k", image, twin, _VIT_SIZES[size], **fields)
    for size, patch in (("small", 16), ("small", 8), ("base", 8)):
        fields = {**_VIT, "patch_size": patch, "num_labels": 0, "projection_bias": True}
        add(f"vit-dino-{size}-patch{patch}", image, f"{twin} (DINO; features, no classes)", _VIT_SIZES[size], **fields)
    mae = {**_MAE, **RELEASED_MAE, **BLACK_BOX, "mask_space": "drop", "layer_norm_eps": 1e-6}
    mae |= {"decoder_type": "forward", "decoder_layers": 8}
    narrow = {"decoder_width": 512, "decoder_heads": 16, "projection_bias": True}
    for size, decoder in (("small", narrow), ("base", {}), ("large", {})):
        add(f"vit-mae-{size}", autoencoder, twin, _VIT_SIZES[size], **mae, **decoder)
    for size, shape in _BERT_SIZES.items():
        add(f"bert-{size}", "CrateForMaskedLM", twin, shape, **_BERT_TWIN)
    for size, shape in _GPT_SIZES.items():
        fields = {**_GPT, **BLACK_BOX, "positions": "learned", "projection_bias": True, "vocab_size": 50257}
        add(f"gpt2-{size}", "CrateForCausalLM", twin, shape, **fields)
    return presets


PRESETS: Mapping[str, Preset] = MappingProxyType(_presets())


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the presets that match a shell pattern such as `crate-*`, sorted."""
    return sorted(name for name in PRESETS if fnmatchcase(name, pattern))


def preset(name: str) -> Preset:
    """Return a preset; the error for an unknown name suggests the nearest known one."""
    if name not in PRESETS:
        if Path(name).exists():
            raise CrateError(f"{name!r} is a path, not a model's name; codingrate.load({name!r}) loads its weights")
        raise unknown_name("model", name, PRESETS)
    return PRESETS[name]


def model_class(name: str) -> type[CratePreTrainedModel]:
    """Return a model class of this package by its name; only its own module is imported."""
    from .. import models

    return getattr(models, name)


def create_model(name: str, pretrained: bool = False, **overrides: Any) -> CratePreTrainedModel:
    """Create the model `name` with random weights; keywords override config fields.

    `create_model("crate-tiny-patch16-224", sparsifier="none", image_size=96, num_labels=10)`

    With `pretrained` the weights are those that ship with the package (`pretrained_names`) or those of a hub id.
    """
    if pretrained:
        return _load_pretrained(name, overrides)
    entry = preset(name)
    vocabulary = overrides.get("vocab_size")
    fields = {  # special ids of the preset do not exist in a smaller vocabulary
        key: value
        for key, value in entry.fields.items()
        if not (key.endswith("_token_id") and isinstance(vocabulary, int) and value >= vocabulary)
    }
    return model_class(entry.model)(build_config({**fields, **overrides}))


def _load_pretrained(name: str, overrides: Mapping[str, Any]) -> CratePreTrainedModel:
    from .loading import load_model

    if overrides:
        raise CrateError(
            f"pretrained=True: the weights of {name!r} fit their own config only; leave out {next(iter(overrides))}"
        )
    folder = pretrained_folder(name)
    if folder is None and not is_hub_id(name):
        raise unknown_name("pretrained model", name, pretrained_names())
    return load_model(name if folder is None else folder / "model" / "last").float()


def build_config(fields: Mapping[str, Any]) -> Any:
    """Build a config from fields; an unknown field or a value of the wrong type raises an error of one line."""
    from huggingface_hub.errors import StrictDataclassError

    from .config import CrateConfig, CrateImageConfig, CrateTextConfig

    kind = CrateTextConfig if fields.get("modality") == "text" else CrateImageConfig
    known = {*CrateImageConfig.field_names(), *CrateTextConfig.field_names(), "num_labels"}
    for key in fields:
        if key not in known:
            raise unknown_name("config field", key, sorted(known))
    own = {*kind.field_names(), "num_labels"}  # a task names the model that does not fit, not its fields
    try:
        return CrateConfig(**{key: value for key, value in fields.items() if key in own})
    except StrictDataclassError as error:
        raise CrateError(" ".join(str(error).split())) from error
