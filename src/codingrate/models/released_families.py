"""The families of released checkpoints: how to recognize them, and their name for each of our parameters.

The names of the released code for parameters occur only in this file and in `released`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import CrateError
from .autoencoder import CrateForMaskedAutoencoding
from .base import CratePreTrainedModel
from .checkpoint_file import Source, join_names
from .classifier import CrateForImageClassification
from .presets import RELEASED_MAE

EMBEDDING = "crate.embedding."
_PAIR = ("weight", "bias")


@dataclass(frozen=True)
class Family:
    """One kind of released file: our model class, and the names in the file of our parameters."""

    title: str
    model: type[CratePreTrainedModel]
    modules: Mapping[str, str]
    """Modules with weight and bias outside the layers, as ours: theirs."""
    positions: str
    """Position table that the forward pass adds."""
    layers: str
    """Prefix of an encoder layer; `{}` is its index."""
    dictionaries: Mapping[str, str] = field(default_factory=lambda: {"dictionary": "weight"})
    """Parameters of the sparsifier, as ours: theirs."""
    mask_token: bool = False
    decoder: str | None = None
    """Prefix of a decoder layer, whose two halves are in reverse order."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    heads: Mapping[int, int] = field(default_factory=dict)
    """Number of subspaces K by width d, where it is not the published one."""
    sparsity: float = 0.1
    unused: str = ""
    """Regular expression of keys that the released forward pass never reads."""


_HEAD = {"head_norm": "mlp_head.0", "head": "mlp_head.1"}
_STEM = {
    f"{EMBEDDING}{ours}": f"to_patch_embedding.{i}" for i, ours in enumerate(("patch_norm", "project", "token_norm"), 1)
}
_CLASSIFIER: dict[str, Any] = {
    "model": CrateForImageClassification, "modules": {**_STEM, **_HEAD}, "positions": "pos_embedding",
    "layers": "transformer.layers.{}.", "fields": {"skip": "residual"},
}  # fmt: skip
_ALPHA_FIELDS = {
    "skip": "residual", "sparsifier": "odl", "output_bias": False, "patch_norm": False, "layer_norm_eps": 1e-6,
}  # fmt: skip
_MAE: dict[str, Any] = {"layers": "blocks.{}.layers.0.", "sparsity": RELEASED_MAE["sparsity"]}
_MAE_FIELDS = {**RELEASED_MAE, "patch_norm": False, "initializer": "xavier"}
_CONVOLUTION = {f"{EMBEDDING}project": "patch_embed.proj", "crate.norm": "norm"}

CLASSIFIER = Family("CRATE classifier", **_CLASSIFIER)
DEMO = Family(
    "CRATE feature extractor of the patch-8 demo", **_CLASSIFIER, heads={768: 6}, unused=r"head\.(weight|bias)"
)  # its forward pass ends at the d-dimensional mlp_head and never applies its classifier of 21K classes
ALPHA = Family(
    "CRATE-alpha classifier",
    **{**_CLASSIFIER, "modules": {f"{EMBEDDING}project": "conv1", **_HEAD}, "fields": _ALPHA_FIELDS},
    dictionaries={"dictionary": "D", "synthesis": "D1"},
)
MAE = Family(
    "CRATE-MAE autoencoder",
    CrateForMaskedAutoencoding,
    modules={**_CONVOLUTION, "decoder_norm": "decoder_norm", "predict": "decoder_pred"},
    positions="decoder_pos_embed",  # the encoder adds this one too
    **_MAE,
    mask_token=True,
    decoder="decoder_blocks.{}.layers.0.",
    fields=_MAE_FIELDS,
    unused=r"pos_embed|decoder_embed\.(weight|bias)",
)
MAE_CLASSIFIER = Family(
    "CRATE-MAE classifier",  # its LayerNorm before the head is the final norm of the body
    CrateForImageClassification,
    modules={**_CONVOLUTION, "head": "head"},
    positions="pos_embed",
    **_MAE,
    fields={**_MAE_FIELDS, "head_norm": False},
    unused=r"mask_token|decoder_.*",
)

_OTHERS = {  # regular expression of a telltale key: description of the model
    r"transformer\.h\.\d+\.attn\.temp$": "a ToST language model",
    r"attn\.temp$|cls_attn_blocks\.": "a ToST vision model",
    r"transformer\.resblocks\.": "a CLIP or CLIPA tower",
    r"encoderblock_\d+": "CRATE-alpha under its JAX names (use the PyTorch file)",
    r"\.attention\.project\.weight$": "a model saved by this package (open its folder by from_pretrained)",
    r"^roberta\.|embeddings\.word_embeddings": "RoBERTa or BERT (give RoBERTa's folder, with its config.json)",
    r"(^|\.)h\.\d+\.attn\.c_attn": "GPT-2 (give its folder, with its config.json)",
    r"head\.last_layer": "a DINO vision transformer",
    r"decoder_blocks\.\d+\.attn\.qkv": "a masked autoencoder with a black-box vision transformer",
    r"blocks\.\d+\.attn\.(qkv|proj)": "a black-box vision transformer (DINO, MAE or timm)",
    r"to_qkv|\.1\.(fn\.)?net\.\d": "a black-box vision transformer (vit-pytorch)",
}


def detect(names: Iterable[str]) -> Family:
    """Return the family of a state dict by its keys; the error for another model says what it looks like."""
    names = list(names)

    def some(pattern: str) -> bool:
        return any(re.search(pattern, name) for name in names)

    for pattern, other in _OTHERS.items():
        if some(pattern):
            raise CrateError(f"looks like {other}, not a released CRATE, CRATE-MAE or CRATE-alpha checkpoint")
    if some(r"^blocks\.\d+\.layers\.0\."):
        return MAE_CLASSIFIER if some(r"^head\.") else MAE
    if some(r"^transformer\.layers\.\d+\.1\.fn\.D1?$"):
        return ALPHA
    if some(r"^transformer\.layers\.\d+\.1\.fn\.weight$"):
        return DEMO if some(r"^head\.") else CLASSIFIER
    raise CrateError(
        f"is not a released CRATE, CRATE-MAE or CRATE-alpha checkpoint; its keys begin with {join_names(names)}"
    )


def released_sources(family: Family, layers: int, decoder_layers: int, bias: bool, identity: bool) -> dict[str, Source]:
    """Return the source of each of our parameters in a released file.

    `bias` states whether output maps have a bias, `identity` whether the file leaves out output maps.
    """
    sources = {
        f"{EMBEDDING}class_token": Source(("cls_token",), leading=2),
        f"{EMBEDDING}positions.weight": Source((family.positions,), leading=1),
    }
    if family.mask_token:
        sources["mask_token"] = Source(("mask_token",), leading=2)

    def add(ours: str, theirs: str, kinds: tuple[str, ...] = _PAIR) -> None:
        sources.update({f"{ours}.{kind}": Source((f"{theirs}.{kind}",)) for kind in kinds})

    def add_attention(ours: str, theirs: str) -> None:
        add(f"{ours}attention_norm", f"{theirs}norm")
        add(f"{ours}attention.project", f"{theirs}fn.qkv", ("weight",))
        kinds = _PAIR if bias else ("weight",)
        if identity:
            sources.update({f"{ours}attention.output.{kind}": Source(()) for kind in kinds})
        else:
            add(f"{ours}attention.output", f"{theirs}fn.to_out.0", kinds)

    for ours, theirs in family.modules.items():
        add(ours, theirs)
    for i in range(layers):
        ours, theirs = f"crate.layers.{i}.", family.layers.format(i)
        add_attention(ours, f"{theirs}0.")
        add(f"{ours}sparsifier_norm", f"{theirs}1.norm")
        for own, their in family.dictionaries.items():
            sources[f"{ours}sparsifier.{own}"] = Source((f"{theirs}1.fn.{their}",))
    for i in range(decoder_layers):
        ours, theirs = f"decoder_layers.{i}.", str(family.decoder).format(i)
        add(f"{ours}synthesis_norm", f"{theirs}0.norm")
        sources[f"{ours}synthesis.dictionary"] = Source((f"{theirs}0.fn.weight",))
        add_attention(ours, f"{theirs}1.")
    return sources
