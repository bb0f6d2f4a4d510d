"""Load released checkpoints of CRATE, CRATE-MAE and CRATE-alpha.

A file holds only tensors. Width d, depth L, patch side P, number of patches N and classes follow from their shapes;
the number of subspaces K, the step η and the weight λ do not. Unless given, they are those of the published models,
and every such assumption is reported. The released code's names for parameters occur only in this file.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..errors import CrateError
from . import presets
from .base import CratePreTrainedModel
from .checkpoint_file import ImportPlan, Report, build_imported, join_names, prefixed, read_tensors, to_float32
from .embedding import PositionTable

EMBEDDING = "embedding."
_HEADS = {192: 3, 384: 6, 576: 12, 768: 12, 1024: 16}  # number of subspaces K of the published sizes, by width d
_STEP_SIZE = 0.1  # step η of every released model
_ISTA = {"sparsifier_norm.*": "norm.*", "sparsifier.dictionary": "fn.weight"}
_POSITIONS = f"{EMBEDDING}positions.weight"


class Family(NamedTuple):
    """One kind of released file: the name of our model class, and the names in the file of our parameters."""

    title: str
    model: str
    modules: Mapping[str, str]  # modules with weight and bias outside the layers, as ours: theirs
    tables: Mapping[str, str]  # mask token, and the positions that the forward pass adds, as ours: theirs
    layers: str  # prefix of an encoder layer; `{}` is its index
    sparsifier: Mapping[str, str] = _ISTA  # parameters of the second half of a layer, as ours: theirs
    decoder: str | None = None  # prefix of a decoder layer, whose two halves are in reverse order
    fields: Mapping[str, Any] = {"skip": "residual"}
    heads: Mapping[int, int] = _HEADS  # number of subspaces K by width d
    sparsity: float = 0.1
    unused: str = ""  # regular expression of keys that the released forward pass never reads


_HEAD = {"head_norm": "mlp_head.0", "head": "mlp_head.1"}
_STEM = {
    f"{EMBEDDING}{ours}": f"to_patch_embedding.{i}" for i, ours in enumerate(("patch_norm", "project", "token_norm"), 1)
}
_MAE_STEM = {f"{EMBEDDING}project": "patch_embed.proj", "norm": "norm"}
_MAE_FIELDS = {**presets.RELEASED_MAE, "patch_norm": False, "initializer": "xavier"}

CLASSIFIER = Family(
    "CRATE classifier", "CrateForImageClassification", modules={**_STEM, **_HEAD},
    tables={_POSITIONS: "pos_embedding"}, layers="transformer.layers.{}.",
)  # fmt: skip
DEMO = CLASSIFIER._replace(  # its forward pass ends at mlp_head and never applies its classifier of 21K classes
    title="CRATE feature extractor of the patch-8 demo", heads={**_HEADS, 768: 6}, unused=r"head\.(weight|bias)"
)
ALPHA = CLASSIFIER._replace(
    title="CRATE-alpha classifier", modules={f"{EMBEDDING}project": "conv1", **_HEAD}, fields=presets.ALPHA,
    sparsifier={**_ISTA, "sparsifier.dictionary": "fn.D", "sparsifier.synthesis": "fn.D1"},
)  # fmt: skip
MAE_CLASSIFIER = Family(  # its LayerNorm before the head is the final norm of the body
    "CRATE-MAE classifier", "CrateForImageClassification", modules={**_MAE_STEM, "head": "head"},
    tables={_POSITIONS: "pos_embed"}, layers="blocks.{}.layers.0.", fields={**_MAE_FIELDS, "head_norm": False},
    unused=r"mask_token|decoder_.*", sparsity=presets.RELEASED_MAE["sparsity"],
)  # fmt: skip
MAE = MAE_CLASSIFIER._replace(  # its encoder adds decoder_pos_embed too
    title="CRATE-MAE autoencoder", model="CrateForMaskedAutoencoding", fields=_MAE_FIELDS,
    modules={**_MAE_STEM, "decoder_norm": "decoder_norm", "predict": "decoder_pred"},
    tables={_POSITIONS: "decoder_pos_embed", "mask_token": "mask_token"}, decoder="decoder_blocks.{}.layers.0.",
    unused=r"pos_embed|decoder_embed\.(weight|bias)",
)  # fmt: skip

_OTHERS = {  # regular expression of a telltale key: description of the model
    r"transformer\.h\.\d+\.attn\.temp$": "a ToST language model",
    r"attn\.temp$|cls_attn_blocks\.": "a ToST vision model",
    r"transformer\.resblocks\.": "a CLIP or CLIPA tower",
    r"encoderblock_\d+": "CRATE-alpha under its JAX names (use the PyTorch file)",
    r"\.attention\.project\.weight$": "a model saved by this package (open its folder by from_pretrained)",
    r"^roberta\.|embeddings\.word_embeddings": "RoBERTa or BERT (give its folder to from_transformers)",
    r"(^|\.)h\.\d+\.attn\.c_attn": "GPT-2 (give its folder to from_transformers)",
    r"head\.last_layer": "a DINO vision transformer",
    r"decoder_blocks\.\d+\.attn\.qkv": "a masked autoencoder with a black-box vision transformer",
    r"blocks\.\d+\.attn\.(qkv|proj)": "a black-box vision transformer (DINO, MAE or timm)",
    r"to_qkv|\.1\.(fn\.)?net\.\d": "a black-box vision transformer (vit-pytorch)",
}
_FAMILIES: tuple[tuple[Family, tuple[str, ...]], ...] = (
    (MAE_CLASSIFIER, (r"^blocks\.\d+\.layers\.0\.", r"^head\.")),
    (MAE, (r"^blocks\.\d+\.layers\.0\.",)),
    (ALPHA, (r"^transformer\.layers\.\d+\.1\.fn\.D1?$",)),
    (DEMO, (r"^transformer\.layers\.\d+\.1\.fn\.weight$", r"^head\.")),
    (CLASSIFIER, (r"^transformer\.layers\.\d+\.1\.fn\.weight$",)),
)
"""Regular expressions of keys that only this family and those before it have."""


def detect(names: Iterable[str]) -> Family:
    """Return the family of a state dict by its keys; the error for another model says what it looks like."""
    names = list(names)
    expected = "a released CRATE, CRATE-MAE or CRATE-alpha checkpoint"
    for pattern, other in _OTHERS.items():
        if any(re.search(pattern, name) for name in names):
            raise CrateError(f"looks like {other}, not {expected}")
    for family, patterns in _FAMILIES:
        if all(any(re.search(pattern, name) for name in names) for pattern in patterns):
            return family
    raise CrateError(f"is not {expected}; its keys begin with {join_names(names)}")


def released_names(family: Family, identity: bool) -> dict[str, str]:
    """Return the keys of a released file for our parameters; `identity`: it leaves out output maps."""
    output = {"attention.output.*": "" if identity else "fn.to_out.0.*"}
    attention = {"attention_norm.*": "norm.*", "attention.project.weight": "fn.qkv.weight", **output}
    synthesis = {"synthesis_norm.*": "norm.*", "synthesis.dictionary": "fn.weight"}
    return {
        f"{EMBEDDING}class_token": "cls_token",
        **family.tables,
        **{f"{ours}.*": f"{theirs}.*" for ours, theirs in family.modules.items()},
        **prefixed("layers.{}.", f"{family.layers}0.", attention),
        **prefixed("layers.{}.", f"{family.layers}1.", family.sparsifier),
        **prefixed("decoder_layers.{}.", f"{family.decoder}0.", synthesis),
        **prefixed("decoder_layers.{}.", f"{family.decoder}1.", attention),
    }


def load_released(
    path: str | PathLike[str],
    *,
    heads: int | None = None,
    sparsity: float | None = None,
    step_size: float | None = None,
    image_size: int | tuple[int, int] | None = None,
    report: Report | None = None,
) -> CratePreTrainedModel:
    """Load a released CRATE, CRATE-MAE or CRATE-alpha checkpoint as a model in float32 and eval mode.

    The skip is that of the released code, Z + MSSA(LN(Z)), and not the paper's LN(Z) + MSSA(LN(Z)). Models of
    transformers are loaded by `from_transformers`.

    Args:
        path: PyTorch file or safetensors file.
        heads: Number of subspaces K. Default: that of the published model of the same width.
        sparsity: Weight λ of the ℓ1 norm. Default: that of the published model.
        step_size: Step η of ISTA. Default: that of the published model.
        image_size: Image size; needed only if the positions are not a square grid.
        report: Function called with one line per assumption. Default: a warning of the logger `codingrate`.
    """
    report = logging.getLogger("codingrate").warning if report is None else report
    path = Path(path).expanduser()
    known = {"heads": heads, "sparsity": sparsity, "step_size": step_size, "image_size": image_size}
    try:
        if path.is_dir():
            raise CrateError("is a folder; give the file, or load a model of transformers by from_transformers")
        tensors = read_tensors(path)
        shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
        plan = plan_released(shapes, known, report)
        model = build_imported(plan, tensors, report)
        if unused := sorted(key for key in tensors if re.fullmatch(plan.unused, key)):
            report(f"not used by the model, left out: {join_names(unused, 4)}")
        if model.config.positions == "sinusoidal":
            _compare_positions(plan, model, tensors, report)
        return model
    except CrateError as error:
        raise CrateError(" ".join(f"{path}: {error}".split())) from error


def plan_released(shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, Any], report: Report) -> ImportPlan:
    """Plan the import of a released file from the shapes of its state dict and the keywords of `load_released`."""
    family = detect(shapes)

    def shape(key: str, *axes: int) -> tuple[int, ...]:
        if key not in shapes:
            raise CrateError(f"{family.title} without {key}; the checkpoint is incomplete")
        if len(shapes[key]) not in axes or 0 in shapes[key]:
            raise CrateError(f"{key} has shape {shapes[key]}; expected {axes[0]} axes, none empty")
        return shapes[key]

    d = shape("cls_token", 3)[-1]
    layers = _depth(family, family.layers, shapes)
    decoder_layers = _depth(family, family.decoder, shapes) if family.decoder else 0
    projection = f"{family.modules[EMBEDDING + 'project']}.weight"
    flat = shape(projection, 2, 4)[1:]  # 3P², or of a convolution 3, P, P
    patch = math.isqrt(math.prod(flat) // 3)
    if not patch or flat not in ((3 * patch**2,), (3, patch, patch)):
        raise CrateError(
            f"{projection} has shape {shapes[projection]}, which is no projection of square patches with three channels"
        )
    subspaces = f"{family.layers.format(0)}0.fn.qkv.weight"
    inner, width = shape(subspaces, 2)  # K·p, d
    if width != d:
        raise CrateError(f"{subspaces} has shape {shapes[subspaces]}; expected {(d, d)}")
    identity = inner == d and not any(".to_out." in key for key in shapes)  # a single head of width d has no output map
    K = _heads(known.get("heads"), family, d, inner, identity, report)

    positions = family.tables[_POSITIONS]
    fields: dict[str, Any] = {
        **family.fields, "hidden_size": d, "num_hidden_layers": layers, "num_attention_heads": K, "patch_size": patch,
        "head_dim": None if inner == d else inner // K,
        "image_size": _image_size(known.get("image_size"), positions, shape(positions, 3)[1] - 1, patch),
    }  # fmt: skip
    for name, published in (("sparsity", family.sparsity), ("step_size", _STEP_SIZE)):
        fields[name] = published if known.get(name) is None else known[name]
        if known.get(name) is None:
            report(f"{name} is not in the file: took {published:g}; pass {name}=… to change")
    if family.decoder and decoder_layers != layers:
        fields["decoder_layers"] = decoder_layers
    if "head" in family.modules:
        fields["num_labels"] = shape(f"{family.modules['head']}.weight", 2)[0]
    if family is ALPHA:
        fields["expansion"] = max(shape(f"{family.layers.format(0)}1.fn.D", 2)[1] // d, 1)
    if patch == 8 and family in (CLASSIFIER, DEMO):
        fields["interpolate_offset"] = 0.1  # the released patch-8 code resizes its positions with this
    return ImportPlan(family.title, family.model, fields, released_names(family, identity), family.unused)


def _depth(family: Family, layers: str, keys: Iterable[str]) -> int:
    """Return the number of layers; raise an error if their indices are not 0, 1, 2, …"""
    pattern = re.compile(re.escape(layers).replace(r"\{\}", "([0-9]{1,9})"))
    indices = {int(match[1]) for key in keys if (match := pattern.match(key))}
    depth = next(i for i in count() if i not in indices)
    if len(indices) != depth or not depth:
        raise CrateError(f"{family.title} without {layers.format(depth)}*; the checkpoint is incomplete")
    return depth


def _heads(heads: int | None, family: Family, d: int, inner: int, identity: bool, report: Report) -> int:
    if heads is None and identity:
        return 1  # only a single head over the whole width has no output map
    if heads is None:
        heads = family.heads.get(d)
        if heads is None:
            raise CrateError(f"heads is not in the file, and {d} is no published width; pass heads=…")
        report(f"heads is not in the file: took {heads}; pass heads=… to change")
    if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1:
        raise CrateError(f"heads is {heads!r}; expected a whole number of at least 1")
    if inner % heads:
        divisors = ", ".join(str(k) for k in range(1, min(inner, 32) + 1) if inner % k == 0)
        raise CrateError(f"heads {heads} does not divide the width {inner}; use one of {divisors}")
    if identity and heads != 1:
        raise CrateError(f"heads is {heads}, but a file without output map (to_out) has a single head; pass heads=1")
    return heads


def _image_size(size: int | tuple[int, int] | None, key: str, patches: int, patch: int) -> int | tuple[int, int]:
    """Return the image size of a table of N patch positions: square unless the caller passes another one."""
    if size is None:
        rows = math.isqrt(max(patches, 0))
        if rows < 1 or rows**2 != patches:
            raise CrateError(f"{key} is for {patches} patches, no square grid; pass image_size=(height, width)")
        return rows * patch
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(sides) != 2 or any(not isinstance(side, int) or side < 1 or side % patch for side in sides):
        raise CrateError(f"image_size is {size!r}; expected one or two multiples of the patch side {patch}")
    if (cut := sides[0] * sides[1] // patch**2) != patches:
        raise CrateError(f"image_size {size!r} gives {cut} patches, but {key} is for {patches}")
    return sides[0] if sides[0] == sides[1] else sides


def _compare_positions(
    plan: ImportPlan, model: CratePreTrainedModel, tensors: Mapping[str, Tensor], report: Report
) -> None:
    """Report if the position tables of CRATE-MAE, stored twice, differ from each other or from the formula."""
    tables = [to_float32(key, tensors[key]) for key in ("pos_embed", "decoder_pos_embed") if key in tensors]
    if len(tables) == 2 and not torch.equal(*tables):
        report(f"pos_embed and decoder_pos_embed differ: took {plan.names[_POSITIONS]}, the one the forward pass adds")
    positions = cast(PositionTable, model.get_submodule(f"crate.{EMBEDDING}positions"))
    if not torch.allclose(positions.weight, positions.formula(), atol=1e-2):  # bfloat16 rounds by 4e-3
        report("positions are not the sinusoidal table: taken from the file unchanged")
