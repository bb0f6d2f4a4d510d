"""Change one part of a trained model and see what follows: heads and atoms off, λ and η scaled, an early exit."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pandas as pd
import torch
from torch import Tensor, nn

from ...errors import CrateError, shown, unknown_name
from ...models.base import CratePreTrainedModel, eval_mode
from ...models.layers import EncoderLayer
from ...operators import DictionarySparsifier
from ...operators.sparsify import ISTA
from .tracing import ForwardTrace, trace

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
        if unknown := [name for name in values if name not in known]:
            raise unknown_name("key of an intervention", unknown[0], known)
        return cls(**values)

    def first_layer(self, depth: int) -> int:
        """Return the first layer of a model of some depth that gives other tokens than before, or is not computed."""
        layers = [layer for layer, _ in (*self.heads, *self.atoms)]
        scaled = [1] if self.sparsity != 1 or self.step_size != 1 else []
        return min([*layers, *scaled, (self.layers or depth) + 1])

    def to_dict(self) -> dict[str, Any]:
        """Return the changes as plain values, without those that change nothing."""
        changes = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        default = dataclasses.asdict(Intervention())
        return json.loads(json.dumps({name: value for name, value in changes.items() if value != default[name]}))


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

    Building it takes no more than a copy of a part of the module tree, so that it can be done for every question.
    """
    changed = _shared_copy(model)
    layers = _layers(changed)
    _check(intervention, changed, layers)
    for number, layer in enumerate(layers, 1):
        off = [head for at, head in intervention.heads if at == number]
        if off:
            layer.attention.head_mask = head_mask(layer, off)
        removed = [atom for at, atom in intervention.atoms if at == number]
        if removed:
            layer.sparsifier.register_forward_hook(partial(_remove, removed))
        if intervention.sparsity != 1 or intervention.step_size != 1:
            sparsifier: Any = layer.sparsifier
            sparsifier.sparsity *= intervention.sparsity
            if isinstance(sparsifier, ISTA):
                sparsifier.scale_step(intervention.step_size)
    changed.config.sparsity *= intervention.sparsity
    changed.config.step_size *= intervention.step_size
    if intervention.layers is not None:
        _set_layers(changed, layers[: intervention.layers])
    return changed


def head_mask(layer: EncoderLayer, off: Iterable[int]) -> Tensor:
    """Return factors (K, 1, 1) that switch heads off, numbered from 1."""
    attention: Any = layer.attention
    mask = layer.attention_norm.weight.new_ones(attention.num_heads, 1, 1)
    mask[[head - 1 for head in off]] = 0
    return mask


def _remove(atoms: list[int], module: nn.Module, inputs: Any, code: Tensor) -> Tensor:
    """Set entries of a code to zero, numbered from 1; with `atoms` bound it is a forward hook."""
    return code.index_fill(-1, torch.tensor(atoms, device=code.device) - 1, 0.0)


def _body(model: CratePreTrainedModel) -> Any:
    return getattr(model, "crate", model)


def _layers(model: CratePreTrainedModel) -> list[EncoderLayer]:
    layers = getattr(_body(model), "layers", None)
    if layers is None or getattr(model, "decoder_layers", None) is not None:
        name = type(model).__name__
        raise CrateError(f"a {name} has no single stack of layers to intervene in; use a classifier or a text model")
    return list(layers)


def _set_layers(model: CratePreTrainedModel, layers: Iterable[EncoderLayer]) -> None:
    """Give a copied model other layers."""
    _body(model).layers = nn.ModuleList(layers)
    model.config.num_hidden_layers = len(_body(model).layers)


def _shared_copy(model: CratePreTrainedModel) -> CratePreTrainedModel:
    """Copy a model and its config, but neither parameters and buffers nor linear maps and norms."""
    maps = (module for module in model.modules() if isinstance(module, (nn.Linear, nn.LayerNorm)))
    return copy.deepcopy(model, {id(part): part for part in (*maps, *model.parameters(), *model.buffers())})


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


def _continue_from(model: CratePreTrainedModel, layers: Iterable[EncoderLayer], tokens: Tensor) -> None:
    """Let a copied model start with the first of `layers`, from its input `tokens`, whatever the model reads."""
    _body(model).embedding.forward = lambda *_, **__: tokens
    _set_layers(model, layers)


def retrace(
    model: CratePreTrainedModel,
    intervention: Intervention,
    passed: ForwardTrace,
    inputs: Tensor | Mapping[str, Any],
) -> ForwardTrace:
    """Return the trace of a model with an intervention, given the trace of the model itself on the same inputs.

    Layers before the first changed one give the tokens that they gave, so only the others are computed; with momentum,
    where a layer reads more than the tokens before it, all are.
    """
    changed = intervene(model, intervention)
    first = 0 if model.config.momentum else intervention.first_layer(len(_layers(model))) - 1
    _continue_from(changed, _layers(changed)[first:], passed.tokens[first])
    rest = trace(changed, inputs)
    joined: Any = {
        name: (*getattr(passed, name)[:first], *getattr(rest, name))
        for name in ("tokens", "compressed", "bases", "dictionaries", "layers")
    }
    return dataclasses.replace(rest, encoder_depth=first + rest.encoder_depth, **joined)


def rank_heads(
    model: CratePreTrainedModel,
    target: int | None = None,
    position: int = -1,
    progress: Callable[[int, int], object] | None = None,
    **inputs: Tensor,
) -> pd.DataFrame:
    """Rank the heads of a model by how much the probability of an answer drops when each is switched off alone.

    `inputs` are those of the model for a single sample: `pixel_values` of a classifier, `input_ids` of a text model,
    whose answer is the token that it predicts at `position`, by default the last: the next token of a causal model.
    `target` is the class or token. Default: the most probable one. The heads of a layer are computed in one batch,
    from the tokens that the layer reads. `progress` is called with the number of layers done and their total. The
    table has a row for each head, the most important first: `layer` and `head` (from 1), `before`, `after` and
    `drop` (before − after).
    """
    if any(len(value) != 1 for value in inputs.values()):
        raise CrateError("rank_heads reads one sample; pass inputs with a batch of one")
    changed, count = _shared_copy(model), model.config.num_attention_heads
    layers = _layers(changed)
    repeated = {name: value.expand(count, *value.shape[1:]) for name, value in inputs.items()}
    off: list[Tensor] = []

    def probabilities(logits: Tensor | None) -> Tensor:
        """Return the distribution of the answer, (batch, answers)."""
        logits = cast(Tensor, logits)
        return (logits[:, position] if logits.ndim == 3 else logits).double().softmax(-1)

    with eval_mode(changed), torch.inference_mode():
        passed = trace(changed, inputs)
        before = probabilities(passed.logits)[0]
        answer = int(before.argmax()) if target is None else target
        for number, layer in enumerate(layers):
            first = 0 if model.config.momentum else number
            tokens = passed.tokens[first]
            _continue_from(changed, layers[first:], tokens.expand(count, *tokens.shape[1:]))
            attention: Any = layer.attention
            attention.head_mask = 1 - torch.eye(count, dtype=tokens.dtype, device=tokens.device)[..., None, None]
            off.append(probabilities(changed(**repeated).logits)[:, answer])
            attention.head_mask = None
            if progress is not None:
                progress(number + 1, len(layers))
    after = torch.stack(off).flatten()  # of the heads of the first layer, then of the second, …
    heads = pd.MultiIndex.from_product([range(1, len(layers) + 1), range(1, count + 1)], names=["layer", "head"])
    table = heads.to_frame(index=False).assign(before=float(before[answer]), after=after.tolist())
    table["drop"] = table["before"] - table["after"]
    return table.sort_values("drop", ascending=False, kind="stable", ignore_index=True)
