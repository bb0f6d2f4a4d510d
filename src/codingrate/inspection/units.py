"""Single units of the sparse code: how often each is on, how strongly, and the texts that excite it most."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ..errors import CrateError
from ..models import eval_mode
from ..models.base import CratePreTrainedModel
from ..models.layers import EncoderLayer
from ..operators import DictionarySparsifier, OvercompleteDictionary
from .text_passes import TextBatch, TextPass, text_passes
from .trace import ForwardTrace, layer_index

if TYPE_CHECKING:
    import pandas as pd

_LAST = 2**32 - 1  # of the places of tokens in a stream


@dataclass(frozen=True)
class Units:
    """What was seen of the U units of some layers over a stream of texts; the windows are the m most exciting."""

    layers: tuple[int, ...]
    """Which layers, counted from 0; the first axis of everything below."""
    before: int
    """Tokens of a window that come before the exciting one."""
    tokens: int
    """Tokens seen, padding not counted."""
    fired: Tensor
    """Tokens on which each unit is not zero, (layers, U)."""
    total: Tensor
    """Σ |a| over tokens, (layers, U)."""
    squares: Tensor
    """Σ a² over tokens, (layers, U)."""
    places: Tensor
    """Where in the stream, counted in real tokens, each unit is most excited, (layers, U, m); −1 where nowhere."""
    window_ids: Tensor
    """The ids around each of them, (layers, U, m, before + 1 + after); −1 outside the text."""
    window_activations: Tensor
    """The unit's own activation on each token of its windows, of the same shape."""

    @property
    def share(self) -> Tensor:
        """The share of tokens on which each unit is on, (layers, U)."""
        return self.fired.double() / self.tokens

    @property
    def mean(self) -> Tensor:
        """Mean |a| over the tokens on which it is on, (layers, U); 0 where it never is."""
        return self.total / self.fired.clamp(min=1)

    @property
    def selectivity(self) -> Tensor:
        """S = 1 − (mean |a|)² / mean a² over all tokens, (layers, U); 0 where the unit is never on.

        0 for a unit that is equally on everywhere, near 1 for one that is strongly on at few tokens and zero elsewhere;
        the scale of the activation does not matter.
        """
        squares = self.squares.clamp(min=torch.finfo(torch.float64).tiny)
        return torch.where(self.fired > 0, 1 - self.total.square() / (squares * self.tokens), 0.0)


def no_units(model: CratePreTrainedModel) -> str | None:
    """Why a model has no units to look at; None if it has."""
    sparsifier = model.config.sparsifier
    layer = next(module for module in model.modules() if isinstance(module, EncoderLayer))
    if isinstance(layer.sparsifier, (DictionarySparsifier, OvercompleteDictionary)):
        return None
    return f"sparsifier {sparsifier!r} makes no sparse code, so the model has no units that are on or off"


@torch.no_grad()
def codes(passed: ForwardTrace, layer: int) -> Tensor:
    """The sparse code of one layer, (batch, n, U).

    That of ISTA is Z^{ℓ+1} itself, so that U = d and a unit is one of its coordinates (paper 2.4). The overcomplete
    dictionary of CRATE-alpha has its code A₂ inside the layer, U = m·d.
    """
    module = cast(EncoderLayer, passed.layers[layer])  # a text model has no others
    half = passed.compressed[layer]
    x = module.sparsifier_norm(half) if module.norm_first else half
    if isinstance(module.sparsifier, OvercompleteDictionary):
        return module.sparsifier.codes(x)
    code: Tensor = module.sparsifier(x)
    return code


def units(
    model: CratePreTrainedModel,
    batches: Iterable[TextBatch],
    layers: Collection[int] | None = None,
    *,
    top: int = 5,
    before: int = 32,
    after: int = 12,
) -> Units:
    """Every unit of the layers (all, or those named, from 0 or from the end) over a stream of texts.

    A unit is on where its activation a is not zero; it is excited most where |a| is greatest, compared in single
    precision, the earlier token first among equals. Of these places the `top` are kept with the tokens around them.
    Padding does not count. Memory: 12 · top · (before + 1 + after) bytes for each unit of each layer, whatever the
    length of the stream, and while a batch is read its trace and 8 bytes for each of its tokens and units of one layer.
    """
    reason = no_units(model)
    if reason is not None:
        raise CrateError(reason)
    if top < 1 or before < 0 or after < 0:
        raise CrateError(f"top is {top}, before {before}, after {after}: top must be at least 1, the others 0")
    depth = model.config.num_hidden_layers
    chosen = sorted({layer_index(layer, depth) for layer in (range(depth) if layers is None else layers)})
    if not chosen:
        raise CrateError("no layers to look at; name at least one, or leave layers out for all")
    kept = [_Kept(top, before, after) for _ in chosen]
    count = 0
    with eval_mode(model):
        for found in text_passes(model, batches, chosen):
            for layer, keeper in zip(chosen, kept, strict=True):
                keeper.add(codes(found.passed, layer), found, count)
            count += int(found.real.sum())
    if count == 0:
        raise CrateError("all tokens of the batches are padding; attention_mask is 1 where a token is real")
    keys = torch.stack([keeper.keys for keeper in kept]).mT
    return Units(
        layers=tuple(chosen),
        before=before,
        tokens=count,
        fired=torch.stack([keeper.fired for keeper in kept]),
        total=torch.stack([keeper.total for keeper in kept]),
        squares=torch.stack([keeper.squares for keeper in kept]),
        places=torch.where(keys >= 0, _LAST - (keys & _LAST), -1),
        window_ids=torch.stack([keeper.ids for keeper in kept]).transpose(1, 2),
        window_activations=torch.stack([keeper.activations for keeper in kept]).transpose(1, 2),
    )


class _Kept:
    """What is kept of the units of one layer while texts stream by."""

    def __init__(self, top: int, before: int, after: int) -> None:
        self.top = top
        self.offsets = torch.arange(-before, after + 1)
        self.fired = self.total = self.squares = torch.zeros(())
        self.keys = self.ids = self.activations = torch.zeros(0)

    def add(self, code: Tensor, found: TextPass, start: int) -> None:
        """Take in the code (batch, n, U) of a batch whose first real token is the stream's token number `start`."""
        code, real = code.cpu(), found.real.cpu()
        width = code.shape[-1]
        if self.keys.ndim == 1:
            shape = (self.top, width, len(self.offsets))
            self.fired = torch.zeros(width, dtype=torch.int64)
            self.total = self.squares = torch.zeros(width, dtype=torch.float64)
            self.keys = torch.full(shape[:2], -1)
            self.ids = torch.full(shape, -1)
            self.activations = torch.zeros(shape)
        rows = code[real]  # (R, U)
        size = rows.abs()
        self.fired = self.fired + (rows != 0).sum(0)
        self.total = self.total + size.sum(0, dtype=torch.float64)
        self.squares = self.squares + size.double().square().sum(0)
        # Bits of a non-negative float order as the float does: one integer holds |a| and, below it, the place.
        places = _LAST - (start + torch.arange(len(rows)))
        keys = (size.float().view(torch.int32).long() << 32) | places[:, None]
        best = keys.masked_fill_(rows == 0, -1).topk(min(self.top, len(rows)), dim=0)
        ids, activations = self.windows(code, found.ids.cpu(), real, best.indices)
        order = torch.cat([self.keys, best.values]).topk(self.top, dim=0)
        self.keys, index = order.values, order.indices[..., None].expand(-1, -1, len(self.offsets))
        self.ids = torch.cat([self.ids, ids.masked_fill(best.values[..., None] < 0, -1)]).gather(0, index)
        self.activations = torch.cat([self.activations, activations]).gather(0, index)

    def windows(self, code: Tensor, ids: Tensor, real: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and activations around the real tokens `rows` (top, U) of each unit, (top, U, window)."""
        sequence, time = real.nonzero().unbind(-1)
        times = time[rows][..., None] + self.offsets
        inside = (times >= 0) & (times < real.shape[1])
        times = times.clamp(0, real.shape[1] - 1)
        sequences = sequence[rows][..., None].expand_as(times)
        inside &= real[sequences, times]
        unit = torch.arange(code.shape[-1])[:, None]
        return ids[sequences, times].masked_fill(~inside, -1), code[sequences, times, unit].masked_fill(~inside, 0)


def selective_units(found: Units, per_layer: int = 2, minimum: float = 0.01) -> list[tuple[int, int]]:
    """The units of each layer worth a look, as (index into `found.layers`, unit): those of greatest selectivity S.

    Only units count that are on at a share `minimum` of the tokens or more, and at as many as there are windows. Of
    equals the lower number comes first.
    """
    enough = found.fired >= max(found.places.shape[-1], minimum * found.tokens)
    order = found.selectivity.masked_fill(~enough, -1).sort(dim=-1, descending=True, stable=True)
    return [
        (layer, unit)
        for layer in range(len(found.layers))
        for value, unit in zip(
            order.values[layer, :per_layer].tolist(), order.indices[layer, :per_layer].tolist(), strict=True
        )
        if value >= 0
    ]


def unit_table(found: Units) -> pd.DataFrame:
    """A row per layer and unit: how often it is on, how strongly, and how selective it is."""
    import pandas as pd

    layers, width = found.fired.shape
    peak = found.window_activations[..., 0, found.before]
    return pd.DataFrame(
        {
            "layer": torch.tensor(found.layers).add(1).repeat_interleave(width).numpy(),
            "unit": torch.arange(width).repeat(layers).numpy(),
            "share": found.share.flatten().numpy(),
            "mean": found.mean.flatten().numpy(),
            "largest": peak.flatten().numpy(),
            "selectivity": found.selectivity.flatten().numpy(),
        }
    )
