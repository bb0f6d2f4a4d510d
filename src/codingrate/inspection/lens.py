"""The logit lens: what each layer of a language model would already say, read through the model's own head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import CrateError
from ..models import CrateForCausalLM, CrateForMaskedLM, eval_mode
from .text_passes import TextBatch, TextPass, text_passes

if TYPE_CHECKING:
    import pandas as pd

LanguageModel = CrateForCausalLM | CrateForMaskedLM

_ROWS = 1024  # tokens whose logits are held at a time
_MEASURES = ("cross_entropy", "probability", "top1", "rank", "entropy")


def head_logits(model: LanguageModel, z: Tensor) -> Tensor:
    """W^head LN(z) of tokens (..., d) of any layer, (..., vocabulary): what the model does to those of its last one."""
    z = model.crate.norm(z)
    if isinstance(model, CrateForMaskedLM):
        z = model.transform(z)
    logits: Tensor = model.head(z)
    return logits if logits.dtype == torch.float64 else logits.float()


def lens(model: LanguageModel, batches: Iterable[TextBatch]) -> pd.DataFrame:
    """How well each layer's tokens Z^{ℓ+1} predict under the model's own head: a row per layer, means over tokens.

    `cross_entropy` is −log p of the true token in nats and `probability` is p; `rank` is its place among all words, 1
    being the likeliest (of equals the lower id comes first), `top1` how often that place is 1; `entropy` is that of the
    whole distribution, in nats. The true token of a causal model is the one that follows, of a masked model the one
    that was hidden, given in `labels` with −100 elsewhere. Padding neither predicts nor is predicted. Logits are held
    for 1024 tokens at a time.
    """
    import pandas as pd

    sums: list[Tensor] = []
    count = 0
    with eval_mode(model):
        for found in text_passes(model, batches):
            truth = _truth(model, found)
            where = truth >= 0
            count += int(where.sum())
            values = [_judged(model, z[where], truth[where]) for z in found.passed.tokens[1:]]
            sums = [a + b for a, b in zip(sums, values, strict=True)] if sums else values
    if count == 0:
        raise CrateError("no token of the text is to be predicted; give longer texts, or labels to a masked model")
    rows = [(layer, *(total / count).tolist(), count) for layer, total in enumerate(sums, 1)]
    return pd.DataFrame(rows, columns=["layer", *_MEASURES, "tokens"])


def _truth(model: LanguageModel, found: TextPass) -> Tensor:
    """The id each token has to predict, (batch, n); negative where there is none."""
    if not model.config.causal:
        if found.labels is None:
            raise CrateError("batches of a masked model need labels, the hidden ids; see data.mask_own_tokens")
        return found.labels.masked_fill(~found.real, -100)
    ids = found.ids if found.labels is None else found.labels
    following = torch.full_like(ids, -100)
    following[:, :-1] = ids[:, 1:].masked_fill(~(found.real[:, 1:] & found.real[:, :-1]), -100)
    return following


@torch.no_grad()
def _judged(model: LanguageModel, z: Tensor, truth: Tensor) -> Tensor:
    """Sums of the measures over tokens (R, d) with their true ids (R,), in their order."""
    total = torch.zeros(len(_MEASURES), dtype=torch.float64)
    for rows, true in zip(z.split(_ROWS), truth.split(_ROWS), strict=True):
        logs = head_logits(model, rows).log_softmax(-1)
        own = logs.gather(-1, true[:, None])
        rank = _rank(logs, true)
        measures = (-own[:, 0], own[:, 0].exp(), rank == 1, rank, _entropy(logs))
        total += torch.stack([measure.double().sum() for measure in measures]).cpu()
    return total


def _rank(logs: Tensor, ids: Tensor) -> Tensor:
    """The place of an id among all words (..., V), 1 being the likeliest; of equals the lower id comes first."""
    own = logs.gather(-1, ids[..., None])
    before = torch.arange(logs.shape[-1], device=logs.device) < ids[..., None]
    return 1 + ((logs > own) | ((logs == own) & before)).sum(-1)


def _entropy(logs: Tensor) -> Tensor:
    """−Σ p log p of log-probabilities (..., V)."""
    return -(logs.exp() * logs.clamp(min=torch.finfo(logs.dtype).min)).sum(-1)  # p log p → 0 as p → 0


@dataclass(frozen=True)
class Candidates:
    """What each of L layers would say at P positions of one text."""

    positions: tuple[int, ...]
    """Where, P of them, counted from 0."""
    read: tuple[int, ...]
    """The id that stands at each position."""
    truth: tuple[int | None, ...]
    """The id to be predicted there; None where nobody knows."""
    ids: Tensor
    """The likeliest ids, (L, P, top), likeliest first."""
    probabilities: Tensor
    """Their probabilities, (L, P, top)."""
    entropy: Tensor
    """Entropy of the whole distribution in nats, (L, P)."""
    truth_probability: Tensor
    """Probability of the true id, (L, P); not a number where it is not known."""
    truth_rank: Tensor
    """Its place among all words, 1 being the likeliest, (L, P); 0 where it is not known."""


@torch.no_grad()
def candidates(
    model: LanguageModel, ids: Tensor, positions: Sequence[int], top: int = 5, mask_id: int | None = None
) -> Candidates:
    """The likeliest tokens at some positions of one text (n,), after every layer.

    A causal model is asked what follows a position. A masked one is asked what stands there: each position in turn is
    hidden by `mask_id` in a copy of its own, so that P copies of the text are read; where the text has the mask already
    the truth is not known. Negative positions count from the end.
    """
    n = len(ids)
    for position in positions:
        if not -n <= position < n:
            raise CrateError(f"position {position} is out of range; the text has {n} tokens")
    if not positions or top < 1:
        raise CrateError(f"{len(positions)} positions and top={top}: both must be at least 1")
    where = torch.tensor([position % n for position in positions])
    rows = torch.zeros_like(where)
    if model.config.causal:
        inputs, truth = ids[None], [int(ids[t + 1]) if t + 1 < n else None for t in where.tolist()]
    else:
        if mask_id is None:
            raise CrateError("a masked model is asked for hidden tokens; give mask_id, the tokenizer's mask_token_id")
        rows = torch.arange(len(where))
        inputs = ids.repeat(len(where), 1)
        inputs[rows, where] = mask_id
        truth = [None if int(ids[t]) == mask_id else int(ids[t]) for t in where.tolist()]
    with eval_mode(model):
        (found,) = text_passes(model, [{"input_ids": inputs}])
    z = torch.stack([tokens[rows, where] for tokens in found.passed.tokens[1:]])  # (L, P, d)
    logs = head_logits(model, z).log_softmax(-1).cpu()
    best = logs.topk(min(top, logs.shape[-1]))
    true = torch.tensor([0 if number is None else number for number in truth]).expand(len(logs), -1)
    unknown = torch.tensor([number is None for number in truth])
    return Candidates(
        positions=tuple(where.tolist()),
        read=tuple(ids[where.to(ids.device)].tolist()),
        truth=tuple(truth),
        ids=best.indices,
        probabilities=best.values.exp(),
        entropy=_entropy(logs),
        truth_probability=logs.gather(-1, true[..., None])[..., 0].exp().masked_fill(unknown, torch.nan),
        truth_rank=_rank(logs, true).masked_fill(unknown, 0),
    )
