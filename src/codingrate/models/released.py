"""Released checkpoints of CRATE, CRATE-MAE and CRATE-alpha as models of this package.

A file holds tensors and nothing else. Width d, depth L, patch side P, patches N and classes can be read off
their shapes; the number of subspaces K, the step η and the weight λ cannot. Those are taken from the
published sizes unless given, and every such assumption is reported.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CrateError
from .base import CratePreTrainedModel
from .checkpoint_file import check_destination, listed, note_casts, plain_numbers, read_tensors, write_folder
from .embedding import PositionTable
from .foreign import load_foreign
from .presets import build_config
from .released_families import ALPHA, CLASSIFIER, DEMO, EMBEDDING, Family, detect, released_names

Report = Callable[[str], None]
Shapes = Mapping[str, tuple[int, ...]]

_HEADS = {192: 3, 384: 6, 576: 12, 768: 12, 1024: 16}
"""Subspaces K of the published sizes, by width d."""
_STEP_SIZE = 0.1
"""Step η of every released model."""


def load_released(
    path: str | PathLike[str],
    *,
    heads: int | None = None,
    sparsity: float | None = None,
    step_size: float | None = None,
    image_size: int | tuple[int, int] | None = None,
    report: Report | None = None,
) -> CratePreTrainedModel:
    """A released CRATE, CRATE-MAE or CRATE-alpha checkpoint as a model in float32, in evaluation mode.

    `path` is a PyTorch file or a safetensors file. `heads` (K), `sparsity` (λ) and `step_size` (η) are in no
    such file; left out, they are those of the published model of that width. `image_size` is needed only
    where the positions are not a square grid. Each assumption is one call of `report`, by default a line of the
    logger `codingrate`, which prints to standard error. The skip is the released one, Z + MSSA(LN(Z)), and not
    the paper's LN(Z) + MSSA(LN(Z)).

    A folder in which transformers saved a GPT-2 or RoBERTa (config.json and weights) becomes the black-box twin with
    the same logits; it says everything itself, and takes none of the keywords.
    """
    say = logging.getLogger("codingrate").warning if report is None else report
    path = Path(path).expanduser()
    try:
        if path.is_dir():
            known = {"heads": heads, "sparsity": sparsity, "step_size": step_size, "image_size": image_size}
            if given := [name for name, value in known.items() if value is not None]:
                raise CrateError(f"is a folder, whose config.json says everything; leave out {listed(given)}")
            return load_foreign(path, say)
        tensors = read_tensors(path)
        layout = read_layout(
            {key: tuple(tensor.shape) for key, tensor in tensors.items()},
            heads=heads,
            sparsity=sparsity,
            step_size=step_size,
            image_size=image_size,
            report=say,
        )
        _check_keys(layout, tensors, say)
        return _build(layout, tensors, say)
    except CrateError as error:
        raise CrateError(" ".join(f"{path}: {error}".split())) from error


def convert(
    path: str | PathLike[str], directory: str | PathLike[str], *, overwrite: bool = False, **known: Any
) -> CratePreTrainedModel:
    """Write a released checkpoint or a foreign folder as one that `from_pretrained` opens, and hand back the model.

    `known` goes to `load_released`. The folder appears complete or not at all; one with something in it is
    refused, and with `overwrite` replaced if it holds a saved model and nothing else.
    """
    directory = Path(directory).expanduser()
    check_destination(directory, overwrite)  # before the long part
    model = load_released(path, **known)
    write_folder(directory, model.save_pretrained, overwrite)
    return model


@dataclass(frozen=True)
class Layout:
    """A file seen as a model: the config fields, and the file's key of each of our parameters."""

    family: Family
    fields: Mapping[str, Any]
    names: Mapping[str, str]


def read_layout(
    shapes: Shapes,
    *,
    heads: int | None = None,
    sparsity: float | None = None,
    step_size: float | None = None,
    image_size: int | tuple[int, int] | None = None,
    report: Report,
) -> Layout:
    """Family, config and names from the shapes of a state dict and what the caller knows beyond them."""
    family = detect(shapes)

    def shape(key: str, *axes: int) -> tuple[int, ...]:
        if key not in shapes:
            raise CrateError(f"{family.title} without {key}; the file is incomplete")
        if len(shapes[key]) not in axes or 0 in shapes[key]:
            raise CrateError(f"{key} has shape {shapes[key]}; expected {axes[0]} axes, none empty")
        return shapes[key]

    d = shape("cls_token", 3)[-1]
    layers = _depth(family, family.layers, shapes)
    decoder_layers = _depth(family, family.decoder, shapes) if family.decoder else 0
    projection = f"{family.modules[EMBEDDING + 'project']}.weight"
    patch = _patch_side(projection, shape(projection, 2, 4))
    subspaces = f"{family.layers.format(0)}0.fn.qkv.weight"
    inner, width = shape(subspaces, 2)  # K·p, d
    if width != d:
        raise CrateError(f"{subspaces} has shape {shapes[subspaces]}; expected {(d, d)}")
    identity = inner == d and not any(".to_out." in key for key in shapes)  # K = 1 and p = d: no output map
    K = _heads(heads, family, d, inner, identity, report)

    fields: dict[str, Any] = {
        **family.fields,
        "hidden_size": d,
        "num_hidden_layers": layers,
        "num_attention_heads": K,
        "head_dim": None if inner == d else inner // K,
        "sparsity": _number("sparsity", sparsity, family.sparsity, report),
        "step_size": _number("step_size", step_size, _STEP_SIZE, report),
        "patch_size": patch,
        "image_size": _image_size(image_size, family.positions, shape(family.positions, 3)[1] - 1, patch),
    }
    if family.decoder and decoder_layers != layers:
        fields["decoder_layers"] = decoder_layers
    if "head" in family.modules:
        fields["num_labels"] = shape(f"{family.modules['head']}.weight", 2)[0]
    if family is ALPHA:
        fields["expansion"] = max(shape(f"{family.layers.format(0)}1.fn.D", 2)[1] // d, 1)
    if patch == 8 and family in (CLASSIFIER, DEMO):
        fields["interpolate_offset"] = 0.1  # the released patch-8 code resizes its positions with this
    bias = bool(fields.get("output_bias", True))
    return Layout(family, fields, released_names(family, layers, decoder_layers, bias, identity))


def _depth(family: Family, layers: str, keys: Iterable[str]) -> int:
    """Layers in a row from index 0; one that is left out is missed."""
    pattern = re.compile(re.escape(layers).replace(r"\{\}", "([0-9]{1,9})"))
    indices = {int(match[1]) for key in keys if (match := pattern.match(key))}
    depth = next(i for i in count() if i not in indices)
    if len(indices) != depth or not depth:
        raise CrateError(f"{family.title} without {layers.format(depth)}*; the file is incomplete")
    return depth


def _patch_side(key: str, shape: tuple[int, ...]) -> int:
    """P of a projection (d, 3P²) or a convolution (d, 3, P, P)."""
    side = math.isqrt(math.prod(shape[1:]) // 3)
    if side and shape[1:] in ((3 * side**2,), (3, side, side)):
        return side
    raise CrateError(f"{key} has shape {shape}, which is no projection of square patches with three channels")


def _heads(heads: int | None, family: Family, d: int, inner: int, identity: bool, report: Report) -> int:
    if heads is None and identity:
        return 1  # only a single head over the whole width goes without output map
    if heads is None:
        heads = family.heads.get(d, _HEADS.get(d))
        if heads is None:
            raise CrateError(f"heads is not in the file, and {d} is no published width; pass heads=…")
        report(f"heads is not in the file: took {heads}; pass heads=… to change")
    if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1:
        raise CrateError(f"heads is {heads!r}; expected a whole number of at least 1")
    if inner % heads:
        divisors = ", ".join(str(k) for k in range(1, min(inner, 32) + 1) if inner % k == 0)
        raise CrateError(f"heads {heads} does not divide the width {inner}; take one of {divisors}")
    if identity and heads != 1:
        raise CrateError(f"heads is {heads}, but a file without output map (to_out) has a single head; pass heads=1")
    return heads


def _number(name: str, given: float | None, default: float, report: Report) -> float:
    if given is None:
        report(f"{name} is not in the file: took {default:g}; pass {name}=… to change")
        return default
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < math.inf:
        raise CrateError(f"{name} is {given!r}; expected a finite number of at least 0")
    return float(given)


def _image_size(given: int | tuple[int, int] | None, key: str, patches: int, patch: int) -> int | tuple[int, int]:
    """The image a table of N patch positions is made for: square unless the caller knows better."""
    if given is None:
        rows = math.isqrt(max(patches, 0))
        if rows < 1 or rows**2 != patches:
            raise CrateError(f"{key} is for {patches} patches, no square grid; pass image_size=(height, width)")
        return rows * patch
    sides = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
    if len(sides) != 2 or any(not isinstance(side, int) or side < 1 or side % patch for side in sides):
        raise CrateError(f"image_size is {given!r}; expected one or two multiples of the patch side {patch}")
    if (made := sides[0] * sides[1] // patch**2) != patches:
        raise CrateError(f"image_size {given!r} makes {made} patches, but {key} is for {patches}")
    return sides[0] if sides[0] == sides[1] else sides


def _check_keys(layout: Layout, keys: Iterable[str], report: Report) -> None:
    """Every tensor of the model is in the file; what else is there is known to be unused."""
    keys, wanted, family = set(keys), set(layout.names.values()), layout.family
    if missing := sorted(wanted - keys):
        raise CrateError(f"{family.title} without {listed(missing)}; the file is incomplete")
    unused = sorted(key for key in keys - wanted if re.fullmatch(family.unused, key))
    if unexpected := sorted(keys - wanted - set(unused)):
        raise CrateError(f"{family.title} with tensors it has no place for: {listed(unexpected)}")
    if unused:
        report(f"not used by the model, left out: {listed(unused, 4)}")


def _build(layout: Layout, tensors: Mapping[str, Tensor], report: Report) -> CratePreTrainedModel:
    """The model with the file's values, made without drawing random ones first."""
    config = build_config(layout.fields)
    with torch.device("meta"):
        model = layout.family.model(config)
    values = {}
    for ours, empty in model.state_dict().items():
        if ours in layout.names:
            theirs = layout.names[ours]
            values[ours] = _value(ours, theirs, tensors[theirs], empty.shape, config.patch_size)
        else:  # the output map of a single head, which the file leaves out
            values[ours] = torch.eye(*empty.shape) if empty.ndim == 2 else torch.zeros(empty.shape)
    model.load_state_dict(values, strict=True, assign=True)  # a frozen table stays frozen
    note_casts((tensors[theirs] for theirs in layout.names.values()), report)
    if config.positions == "sinusoidal":
        _compare_positions(layout.family, model.get_submodule(f"{EMBEDDING}positions"), tensors, report)
    return model.eval()


def _value(ours: str, theirs: str, tensor: Tensor, shape: torch.Size, patch: int) -> Tensor:
    """A released tensor as our parameter: float32, contiguous, memory of its own, in our shape.

    Tokens and positions lose their leading axes of one. A convolution (d, 3, P, P) becomes the projection of
    patches flattened by row, column, channel.
    """
    stored = tuple(shape)
    if ours.endswith(("class_token", "mask_token")):
        stored = (1, 1, *stored)
    elif ours.endswith("positions.weight"):
        stored = (1, *stored)
    elif ours == f"{EMBEDDING}project.weight" and tensor.ndim == 4:
        stored = (stored[0], 3, patch, patch)
    if tuple(tensor.shape) != stored:
        raise CrateError(f"{theirs} has shape {tuple(tensor.shape)}; expected {stored}")
    value = plain_numbers(theirs, tensor)
    return (value.permute(0, 2, 3, 1) if value.ndim == 4 else value).reshape(shape)


def _compare_positions(
    family: Family, positions: torch.nn.Module, tensors: Mapping[str, Tensor], report: Report
) -> None:
    """CRATE-MAE stores its frozen table twice, and both should be the formula: say where a file departs."""
    assert isinstance(positions, PositionTable)
    first, second = tensors.get("pos_embed"), tensors.get("decoder_pos_embed")
    if first is not None and second is not None and not torch.equal(first, second):
        report(f"pos_embed and decoder_pos_embed differ: took {family.positions}, the one the forward pass adds")
    if not torch.allclose(positions.weight, positions.formula(), atol=1e-2):  # bfloat16 rounds by 4e-3
        report("positions are not the sine-cosine table: taken from the file as they are")
