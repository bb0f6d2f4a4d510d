"""Single units of the sparse code: how often and how strongly each is active, and the texts that activate it most."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, cast

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...errors import CrateError
from ...models.base import CratePreTrainedModel, eval_mode
from ...models.layers import EncoderLayer
from ...operators import DictionarySparsifier, OvercompleteDictionary
from .tracing import ForwardTrace, TextBatch, TextPass, UnavailableError, encoder_layers, layer_indices, text_passes

_LAST = 2**32 - 1  # the largest position of a token in the stream


@dataclass(frozen=True)
class Units:
    """Statistics of the U units of some layers over a stream of texts, with the m strongest activations of each."""

    layers: tuple[int, ...]  # indices of the layers, from 0; the first axis of all tensors below
    before: int  # number of tokens of a window before the activating token
    tokens: int  # number of tokens that were read, without padding
    fired: Tensor  # number of tokens on which each unit is not zero, (layers, U)
    total: Tensor  # Σ |a| over tokens, (layers, U)
    squares: Tensor  # Σ a² over tokens, (layers, U)
    places: Tensor  # positions in the stream of the strongest activations, (layers, U, m); −1 for none
    window_ids: Tensor  # ids around each of these positions, (layers, U, m, before + 1 + after); −1 outside the text
    window_activations: Tensor  # activation of the unit on each token of its windows, of the same shape

    @property
    def share(self) -> Tensor:
        """Share of tokens on which each unit is active, (layers, U)."""
        return self.fired.double() / self.tokens

    @property
    def mean(self) -> Tensor:
        """Mean |a| over the tokens on which a unit is active, (layers, U); 0 if it never is."""
        return self.total / self.fired.clamp(min=1)

    @property
    def selectivity(self) -> Tensor:
        """S = 1 − (mean |a|)² / mean a² over all tokens, (layers, U); 0 if the unit is never active.

        It is 0 for a unit that is equally active everywhere, and close to 1 for one that is strongly active on few
        tokens and zero elsewhere. It does not depend on the scale of the activation.
        """
        squares = self.squares.clamp(min=torch.finfo(torch.float64).tiny)
        return torch.where(self.fired > 0, 1 - self.total.square() / (squares * self.tokens), 0.0)


@torch.no_grad()
def codes(passed: ForwardTrace, layer: int, tokens: slice = slice(None)) -> Tensor:
    """Return the sparse code of one layer, (batch, n, U), of all tokens or some.

    The code of ISTA is Z^{ℓ+1} itself, so U = d and a unit is one of its coordinates (paper 2.4). The overcomplete
    dictionary of CRATE-alpha computes its code A₂ within the layer, with U = m·d.
    """
    module = cast(EncoderLayer, passed.layers[layer])  # text models have no decoder layers
    half = passed.compressed[layer][:, tokens]
    x = module.sparsifier_norm(half) if module.norm_first else half
    sparsifier: Any = module.sparsifier
    return cast(Tensor, sparsifier.codes(x) if isinstance(sparsifier, OvercompleteDictionary) else sparsifier(x))


def units(
    model: CratePreTrainedModel,
    batches: Iterable[TextBatch],
    layers: Collection[int] | None = None,
    *,
    top: int = 5,
    before: int = 32,
    after: int = 12,
) -> Units:
    """Collect statistics of every unit of the layers (all by default) over a stream of texts.

    A unit is active where its activation a is not zero. Its `top` strongest activations |a| are kept with the tokens
    around them; they are compared in single precision, and the earlier token wins a tie. Padding is ignored. Memory:
    12 · top · (before + 1 + after) bytes for each unit of each layer, independent of the length of the stream, plus
    the trace of one batch and 8 bytes for each of its tokens and units of one layer.
    """
    sparsifier = encoder_layers(model)[0].sparsifier
    if not isinstance(sparsifier, (DictionarySparsifier, OvercompleteDictionary)):
        raise UnavailableError(f"sparsifier {model.config.sparsifier!r} makes no sparse code, so there are no units")
    if top < 1 or before < 0 or after < 0:
        raise CrateError(f"top is {top}, before {before}, after {after}; top must be at least 1, the others 0")
    chosen = sorted(layer_indices(layers, model.config.num_hidden_layers))
    if not chosen:
        raise CrateError("there are no layers to measure; give at least one, or None for all")
    collectors = [_Collector(sparsifier.dictionary.shape[1], top, before, after) for _ in chosen]
    count = 0
    with eval_mode(model):
        for batch in text_passes(model, batches, chosen):
            for layer, collector in zip(chosen, collectors, strict=True):
                collector.add(codes(batch.trace, layer), batch, count)
            count += int(batch.real.sum())
    if count == 0:
        raise CrateError("all tokens of the batches are padding; attention_mask must be 1 for real tokens")
    fired, total, squares, keys, ids, activations = (
        torch.stack([getattr(collector, name) for collector in collectors])
        for name in ("fired", "total", "squares", "keys", "ids", "activations")
    )
    places = torch.where(keys >= 0, _LAST - (keys & _LAST), -1).mT
    windows = ids.transpose(1, 2), activations.transpose(1, 2)
    return Units(tuple(chosen), before, count, fired, total, squares, places, *windows)


class _Collector:
    """Running statistics of the `width` units of one layer."""

    def __init__(self, width: int, top: int, before: int, after: int) -> None:
        self.around = (before, after)
        shape = (top, width, before + 1 + after)
        self.fired = torch.zeros(width, dtype=torch.int64)
        self.total = self.squares = torch.zeros(width, dtype=torch.float64)
        self.keys = torch.full(shape[:2], -1)
        self.ids = torch.full(shape, -1)
        self.activations = torch.zeros(shape)

    def add(self, code: Tensor, batch: TextPass, start: int) -> None:
        """Add the code (batch, n, U) of a batch whose first real token has the position `start` in the stream."""
        code, real = code.cpu(), batch.real.cpu()
        top, width, window = self.ids.shape
        rows = code[real]  # (R, U)
        if not bool(rows.isfinite().all()):
            raise CrateError("the sparse code of a layer holds NaN or infinity; the model has diverged")
        size = rows.abs()
        self.fired = self.fired + (rows != 0).sum(0)
        self.total = self.total + size.sum(0, dtype=torch.float64)
        self.squares = self.squares + size.double().square().sum(0)
        # The bits of non-negative floats are ordered as the floats are: one integer holds |a| and, below it, the place.
        places = _LAST - (start + torch.arange(len(rows)))
        keys = (size.float().view(torch.int32).long() << 32) | places[:, None]
        best = keys.masked_fill_(rows == 0, -1).topk(min(top, len(rows)), dim=0)
        sequence, time = (axis[best.indices] for axis in real.nonzero().unbind(-1))  # of the best tokens, (top, U)
        ids = pad(batch.ids.cpu().masked_fill(~real, -1), self.around, value=-1).unfold(1, window, 1)[sequence, time]
        padded = pad(code.masked_fill(~real[..., None], 0), (0, 0, *self.around)).unfold(1, window, 1)
        activations = padded[sequence, time, torch.arange(width)]  # (top, U, window)
        order = torch.cat([self.keys, best.values]).topk(top, dim=0)
        self.keys, index = order.values, order.indices[..., None].expand(-1, -1, window)
        self.ids = torch.cat([self.ids, ids.masked_fill(best.values[..., None] < 0, -1)]).gather(0, index)
        self.activations = torch.cat([self.activations, activations]).gather(0, index)


def selective_units(stats: Units, per_layer: int = 2, minimum: float = 0.01) -> list[tuple[int, int]]:
    """Return the units with the largest selectivity S of each layer, as (index into `stats.layers`, unit).

    A unit must be active on at least a share `minimum` of the tokens, and on as many tokens as it has windows. The
    lower number wins a tie.
    """
    enough = stats.fired >= max(stats.places.shape[-1], minimum * stats.tokens)
    order = stats.selectivity.masked_fill(~enough, -1).sort(dim=-1, descending=True, stable=True)
    layers, ranks = (order.values[:, :per_layer] >= 0).nonzero(as_tuple=True)
    return list(zip(layers.tolist(), order.indices[layers, ranks].tolist(), strict=True))


def unit_table(stats: Units) -> pd.DataFrame:
    """Return a row per layer and unit: how often it is active, how strongly, and how selective it is."""
    layers, width = stats.fired.shape
    columns = {
        "layer": torch.tensor(stats.layers).add(1).repeat_interleave(width),
        "unit": torch.arange(width).repeat(layers),
        "share": stats.share,
        "mean": stats.mean,
        "largest": stats.window_activations[..., 0, stats.before],
        "selectivity": stats.selectivity,
    }
    return pd.DataFrame({name: values.flatten().numpy() for name, values in columns.items()})
