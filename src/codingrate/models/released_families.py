"""The families of released checkpoints: how to tell them apart, and their name for each of our parameters.

Foreign names live here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import CrateError
from .autoencoder import CrateForMaskedAutoencoding
from .base import CratePreTrainedModel
from .checkpoint_file import listed
from .classifier import CrateForImageClassification
from .presets import RELEASED_MAE

EMBEDDING = "crate.embedding."
_PAIR = ("weight", "bias")


@dataclass(frozen=True)
class Family:
    """One kind of released file: the model it becomes, and the file's name for each of our parameters."""

    title: str
    model: type[CratePreTrainedModel]
    modules: Mapping[str, str]
    """Our modules with weight and bias, outside the layers."""
    positions: str
    """The table that is added in the forward pass."""
    layers: str
    """A layer of the encoder; `{}` is its index."""
    dictionaries: Mapping[str, str] = field(default_factory=lambda: {"dictionary": "weight"})
    """Our sparsifier's parameters, and theirs."""
    mask_token: bool = False
    decoder: str | None = None
    """A layer of the decoder; the order of the two halves is swapped there."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    heads: Mapping[int, int] = field(default_factory=dict)
    """K by width d where it is not the published one."""
    sparsity: float = 0.1
    unused: str = ""
    """What the released forward pass never reads, as a regular expression."""


_HEAD = {"head_norm": "mlp_head.0", "head": "mlp_head.1"}
_STEM = {
    f"{EMBEDDING}{ours}": f"to_patch_embedding.{i}" for i, ours in enumerate(("patch_norm", "project", "token_norm"), 1)
}
_CLASSIFIER: dict[str, Any] = {
    "model": CrateForImageClassification, "modules": {**_STEM, **_HEAD}, "positions": "pos_embedding",
    "layers": "transformer.layers.{}.", "fields": {"skip": "residual"},
}  # fmt: skip
_CONVOLUTION = {f"{EMBEDDING}project": "patch_embed.proj", "crate.norm": "norm"}
_MAE_FIELDS = {**RELEASED_MAE, "patch_norm": False, "initializer": "xavier"}

CLASSIFIER = Family("CRATE classifier", **_CLASSIFIER)
DEMO = Family(
    "CRATE feature extractor of the patch-8 demo",
    **_CLASSIFIER,
    heads={768: 6},
    unused=r"head\.(weight|bias)",
)  # its forward pass ends at the d-dimensional mlp_head; the 21K classifier beside it is never applied
ALPHA = Family(
    "CRATE-alpha classifier",
    CrateForImageClassification,
    modules={f"{EMBEDDING}project": "conv1", **_HEAD},
    positions="pos_embedding",
    layers="transformer.layers.{}.",
    dictionaries={"dictionary": "D", "synthesis": "D1"},
    fields={
        "skip": "residual",
        "sparsifier": "odl",
        "output_bias": False,
        "patch_norm": False,
        "layer_norm_eps": 1e-6,
    },
)
MAE = Family(
    "CRATE-MAE autoencoder",
    CrateForMaskedAutoencoding,
    modules={**_CONVOLUTION, "decoder_norm": "decoder_norm", "predict": "decoder_pred"},
    positions="decoder_pos_embed",  # the encoder adds this one too
    layers="blocks.{}.layers.0.",
    mask_token=True,
    decoder="decoder_blocks.{}.layers.0.",
    fields=_MAE_FIELDS,
    sparsity=RELEASED_MAE["sparsity"],
    unused=r"pos_embed|decoder_embed\.(weight|bias)",
)
MAE_CLASSIFIER = Family(
    "CRATE-MAE classifier",  # class token, LayerNorm, head: the LayerNorm is the body's last one
    CrateForImageClassification,
    modules={**_CONVOLUTION, "head": "head"},
    positions="pos_embed",
    layers="blocks.{}.layers.0.",
    fields={**_MAE_FIELDS, "head_norm": False},
    sparsity=RELEASED_MAE["sparsity"],
    unused=r"mask_token|decoder_.*",
)

_OTHERS = {  # a key that gives the family away: what it looks like
    r"transformer\.h\.\d+\.attn\.temp$": "a ToST language model",
    r"attn\.temp$|cls_attn_blocks\.": "a ToST vision model",
    r"transformer\.resblocks\.": "a CLIP or CLIPA tower",
    r"encoderblock_\d+": "CRATE-alpha under its JAX names (take the PyTorch file)",
    r"\.attention\.project\.weight$": "a model saved by this package (open its folder by from_pretrained)",
    r"^roberta\.|embeddings\.word_embeddings": "RoBERTa or BERT (give RoBERTa's folder, with its config.json)",
    r"(^|\.)h\.\d+\.attn\.c_attn": "GPT-2 (give its folder, with its config.json)",
    r"head\.last_layer": "a DINO vision transformer",
    r"decoder_blocks\.\d+\.attn\.qkv": "a masked autoencoder with a black-box vision transformer",
    r"blocks\.\d+\.attn\.(qkv|proj)": "a black-box vision transformer (DINO, MAE or timm)",
    r"to_qkv|\.1\.(fn\.)?net\.\d": "a black-box vision transformer (vit-pytorch)",
}


def detect(names: Iterable[str]) -> Family:
    """The family a state dict belongs to, by its keys; another model's is refused by what it looks like."""
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
        f"is not a released CRATE, CRATE-MAE or CRATE-alpha checkpoint; its keys begin with {listed(names)}"
    )


def released_names(family: Family, layers: int, decoder_layers: int, bias: bool, identity: bool) -> dict[str, str]:
    """Our parameters and the file's key of each."""
    names = {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in family.modules.items() for kind in _PAIR}
    names |= {f"{EMBEDDING}class_token": "cls_token", f"{EMBEDDING}positions.weight": family.positions}
    if family.mask_token:
        names["mask_token"] = "mask_token"

    def norm(ours: str, theirs: str) -> dict[str, str]:
        return {f"{ours}.{kind}": f"{theirs}norm.{kind}" for kind in _PAIR}

    def attention(ours: str, theirs: str) -> dict[str, str]:
        half = norm(f"{ours}attention_norm", theirs)
        half[f"{ours}attention.project.weight"] = f"{theirs}fn.qkv.weight"
        for kind in () if identity else _PAIR if bias else _PAIR[:1]:
            half[f"{ours}attention.output.{kind}"] = f"{theirs}fn.to_out.0.{kind}"
        return half

    for i in range(layers):
        ours, theirs = f"crate.layers.{i}.", family.layers.format(i)
        names |= attention(ours, f"{theirs}0.") | norm(f"{ours}sparsifier_norm", f"{theirs}1.")
        names |= {f"{ours}sparsifier.{own}": f"{theirs}1.fn.{their}" for own, their in family.dictionaries.items()}
    for i in range(decoder_layers):
        ours, theirs = f"decoder_layers.{i}.", str(family.decoder).format(i)
        names |= norm(f"{ours}synthesis_norm", f"{theirs}0.") | attention(ours, f"{theirs}1.")
        names[f"{ours}synthesis.dictionary"] = f"{theirs}0.fn.weight"
    return names
