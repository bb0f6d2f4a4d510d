"""Change one part of a trained model and see what follows: heads and atoms off, λ and η scaled, an early exit."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from ...errors import CrateError, shown, unknown_name
from ...models.base import CratePreTrainedModel, eval_mode
from ...models.layers import EncoderLayer
from ...operators import DictionarySparsifier
from ...operators.sparsify import ISTA

Pair = tuple[int, int]


@dataclass(frozen=True)
class Intervention:
    """Changes of a trained model. Layers, heads and atoms are numbered from 1, as in reports."""

    heads: tuple[Pair, ...] = ()
    """Heads to switch off, as (layer, head): their part of the attention's output becomes zero."""
    atoms: tuple[Pair, ...] = ()
    """Atoms to remove, as (layer, atom): this entry of the sparse code becomes zero for every token."""
    sparsity: float = 1.0
    """Factor of λ, the sparsity weight, in every layer."""
    step_size: float = 1.0
    """Factor of η, the step size of ISTA, in every layer."""
    layers: int | None = None
    """Number of layers that are computed; the head then reads the tokens after this layer. Default: all."""

    def __post_init__(self) -> None:
        for name in ("heads", "atoms"):
            object.__setattr__(self, name, _pairs(name, getattr(self, name)))
        for name in ("sparsity", "step_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e6:
                raise CrateError(f"{name} is {shown(value)}; it must be a factor between 0 and a million")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Intervention:
        """Build an intervention from plain values, as `to_dict` returns and a JSON file holds them."""
        known = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(values, Mapping):
            raise CrateError(f"an intervention is a mapping with the keys {', '.join(known)}; not {shown(values)}")
        for name in values:
            if name not in known:
                raise unknown_name("key of an intervention", name, known)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the changes as plain values, without those that change nothing."""
        default = Intervention()
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.loads(json.dumps({n: value for n, value in values.items() if value != getattr(default, n)}))


def _pairs(name: str, values: Any) -> tuple[Pair, ...]:
    """Return pairs of positive integers, sorted and without repetitions."""
    try:
        pairs = {(layer, number) for layer, number in values}
    except (TypeError, ValueError):
        pairs = {(0, 0)}
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for pair in pairs for n in pair):
        raise CrateError(f"{name} is {shown(values)}; it must be a list of pairs (layer, number), numbered from 1")
    return tuple(sorted(pairs))


def intervene(model: CratePreTrainedModel, intervention: Intervention) -> CratePreTrainedModel:
    """Return a model that shares all weights with `model` and has the changes; `model` itself stays as it is.

    Building it takes no more than a copy of the module tree, so that it can be done for every question.
    """
    changed = _shared_copy(model)
    layers = _layers(changed)
    _check(intervention, model, layers)
    for number, layer in enumerate(layers, 1):
        off = [head for at, head in intervention.heads if at == number]
        if off:
            layer.attention.head_mask = head_mask(layer, off)
        removed = [atom for at, atom in intervention.atoms if at == number]
        if removed:
            layer.sparsifier.register_forward_hook(_Remove(removed))
        if intervention.sparsity != 1 or intervention.step_size != 1:
            sparsifier: Any = layer.sparsifier
            sparsity = sparsifier.spec.sparsity * intervention.sparsity
            step_size = sparsifier.spec.step_size * intervention.step_size
            sparsifier.spec = dataclasses.replace(sparsifier.spec, sparsity=sparsity, step_size=step_size)
            sparsifier._cached = None
    config, body = changed.config, _body(changed)
    config.sparsity, config.step_size = (
        config.sparsity * intervention.sparsity,
        config.step_size * intervention.step_size,
    )
    if intervention.layers is not None:
        body.layers = nn.ModuleList(layers[: intervention.layers])
        config.num_hidden_layers = intervention.layers
    return changed


def head_mask(layer: EncoderLayer, off: Iterable[int]) -> Tensor:
    """Return factors (K, 1, 1) that switch heads off, numbered from 1."""
    attention: Any = layer.attention
    weight = layer.attention_norm.weight
    mask = torch.ones(attention.spec.heads, 1, 1, dtype=weight.dtype, device=weight.device)
    mask[[head - 1 for head in off]] = 0
    return mask


class _Remove:
    """Sets entries of the code to zero, numbered from 1."""

    def __init__(self, atoms: list[int]) -> None:
        self.indices = [atom - 1 for atom in atoms]

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[..., self.indices] = 0
        return output


def _body(model: CratePreTrainedModel) -> Any:
    return getattr(model, "crate", model)


def _layers(model: CratePreTrainedModel) -> list[EncoderLayer]:
    layers = getattr(_body(model), "layers", None)
    if layers is None or getattr(model, "decoder_layers", None) is not None:
        name = type(model).__name__
        raise CrateError(f"a {name} has no single stack of layers to intervene in; use a classifier or a text model")
    return list(layers)


def _shared_copy(model: CratePreTrainedModel) -> CratePreTrainedModel:
    """Copy the modules of a model, not its parameters and buffers."""
    tensors = (*model.parameters(), *model.buffers())
    changed = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    for old, new in zip(model.modules(), changed.modules(), strict=True):
        if isinstance(old, ISTA) and isinstance(new, ISTA):
            new._cached = old._cached  # valid for the same dictionary
    return changed


def _check(intervention: Intervention, model: CratePreTrainedModel, layers: list[EncoderLayer]) -> None:
    """Refuse layers, heads and atoms that the model does not have."""
    depth, exit_after = len(layers), intervention.layers
    if exit_after is not None and (
        isinstance(exit_after, bool) or not isinstance(exit_after, int) or not 1 <= exit_after <= depth
    ):
        raise CrateError(f"layers is {shown(exit_after)}; the model has {depth}, so it must be from 1 to {depth}")
    sizes = {"heads": model.config.num_attention_heads, "atoms": model.config.hidden_size}
    for name, size in sizes.items():
        for layer, number in getattr(intervention, name):
            if layer > depth or number > size:
                raise CrateError(
                    f"{name}: ({layer}, {number}) is not there; the model has {depth} layers of {size} {name}"
                )
    white = all(isinstance(layer.sparsifier, DictionarySparsifier) for layer in layers)
    if not white and (intervention.atoms or intervention.sparsity != 1 or intervention.step_size != 1):
        raise CrateError(
            f"sparsifier {model.config.sparsifier!r} has no atoms, λ and η; only heads and layers can be changed"
        )


def rank_heads(model: CratePreTrainedModel, target: int | None = None, **inputs: Tensor) -> pd.DataFrame:
    """Rank the heads of a model by how much the probability of an answer drops when each is switched off alone.

    `inputs` are those of the model for a single sample: `pixel_values` of a classifier, `input_ids` of a text model,
    whose answer is the next token. `target` is the class or token. Default: the most probable one. All heads are
    computed in one batch. The table has a row for each head, the most important first: `layer` and `head` (from 1),
    `before`, `after` and `drop` (before − after).
    """
    layers = _layers(model)
    count = model.config.num_attention_heads
    if any(len(value) != 1 for value in inputs.values()):
        raise CrateError("rank_heads reads one sample; pass inputs with a batch of one")
    changed = _shared_copy(model)
    size = len(layers) * count + 1  # the last one is the model itself
    for number, layer in enumerate(_layers(changed)):
        mask = torch.ones(size, count, 1, 1, dtype=layer.attention_norm.weight.dtype, device=model.device)
        mask[torch.arange(count) + number * count, torch.arange(count)] = 0
        layer.attention.head_mask = mask
    with eval_mode(changed), torch.inference_mode():
        repeated = {name: value.expand(size, *value.shape[1:]) for name, value in inputs.items()}
        logits = changed(**repeated).logits
    logits = logits[:, -1] if logits.ndim == 3 else logits
    probability = logits.double().softmax(-1)
    answer = int(probability[-1].argmax()) if target is None else target
    values = probability[:, answer].tolist()
    rows = [
        {"layer": index // count + 1, "head": index % count + 1, "before": values[-1], "after": value}
        for index, value in enumerate(values[:-1])
    ]
    table = pd.DataFrame(rows)
    table["drop"] = table["before"] - table["after"]
    return table.sort_values("drop", ascending=False, kind="stable", ignore_index=True)
